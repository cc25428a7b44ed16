import base64
import gzip
import json
import re

import numpy as np
import pytest
import xarray as xr

from evaluator.errors import InputError
from evaluator.report.page import write_page
from evaluator.report.page.rows import ranked
from evaluator.report.page.words import own_words, with_error
from evaluator.report.picture.style import COLOURS
from tests.report.test_search import dataset
from tests.results.build import HARDWARE, PARALLEL, RATE, Objective, measured, sweep, with_objectives

pytest.importorskip("plotly")

HOSTILE = "</script><img src=x onerror=\"document.title='broken'\">"


@pytest.fixture
def page(tmp_path):
    def write(ds, most=10_000):
        return write_page(ds, tmp_path / "page.html", most).read_text(encoding="utf-8")

    return write


def data_of(html):
    packed = re.search(r'id="data">([\w+/=]*)<', html)[1]
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def text_of(html):
    """What a reader sees without scripts."""
    body = re.sub(r"<(script|style)\b.*?</\1>", "", html, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]*>", " ", body).split())


def test_the_objectives_are_told_where_no_design_ran(page):
    text = text_of(page(sweep(HARDWARE, room=False)))
    assert "objectives TTFT p90 ≤ 1.5 s, TPOT p90 ≤ 70 ms" in text and "None of the 3 designs can run" in text


def test_question_answer_and_counts_are_text(page):
    ds = sweep(HARDWARE, PARALLEL, RATE)
    html = page(ds)
    text = text_of(html)
    assert "swept: hardware h100-sxm, l40s, mi300x" in text and "objectives TTFT p90 ≤ 1.5 s, TPOT p90 ≤ 70 ms" in text
    assert f"{int(ds['slo_met'].sum())} meet the objectives" in text and "8 cannot run" in text
    best = data_of(html)["axes"]
    assert f"{best[0]['levels'][best[0]['at'][0]]}, tensor parallel" in text
    assert "weights of 70.0 GB per device do not fit in 43.2 GB; use more tensor_parallel" in text
    assert "saturated: the queue grows without bound" in text and "misses objectives: TPOT p90 above 70 ms" in text


def test_the_answer_says_how_sure_it_is_and_what_changes_places(page):
    plain = sweep(HARDWARE, RATE)
    ds = with_objectives(plain)
    html = page(ds)
    text, data = text_of(html), data_of(html)
    best = ranked(ds)[0]
    chance = float(ds["slo_chance"].values[best[0]])
    assert 0.5 < chance < 0.95
    assert f"It meets all objectives with a chance of {100 * chance:.0f} %, given the expected errors" in text
    unsure = text_of(page(with_objectives(plain, error=0.3)))
    assert (
        "Within the errors #1 changes places with #" in unsure and "It does not cover errors of the model" not in text
    )
    assert "Chances that objectives hold tell of the model" in text
    by_key = {measure["key"]: measure for measure in data["measures"]}
    assert by_key["slo_chance"]["unit"] == by_key["ahead_of_first"]["unit"] == "%"
    assert by_key["slo_chance"]["parts"][0]["values"][0] == pytest.approx(100 * chance, rel=1e-3)
    assert [part["name"] for part in by_key["objective_headroom"]["parts"]] == ["ttft p90", "tpot p90"]
    assert "objective_confidence" not in by_key and "objective_mean_error" not in by_key
    unknown = text_of(page(with_objectives(plain, error=np.nan)))
    assert "With what chance it meets its objectives is not known" in unknown
    assert "chance of" not in text_of(page(plain))  # of a version before


def test_a_confidence_is_told_with_what_misses_it_alone(page):
    ds = with_objectives(sweep(HARDWARE, RATE), confidence=0.9)
    met = int(ds["slo_met"].sum())
    text = text_of(page(ds))
    assert f"{met} of 24 designs meet the objectives with a chance of 0.9" in text
    assert "objectives TTFT p90 ≤ 1.5 s, TPOT p90 ≤ 70 ms with a chance of 0.9" in text
    assert 0 < met < int(sweep(HARDWARE, RATE)["slo_met"].sum())
    assert "misses objectives: within the bounds, less surely than is asked for" in text


def test_every_design_is_there_in_the_order_of_the_ranking(page):
    data = data_of(page(sweep(HARDWARE, PARALLEL, RATE)))
    assert data["ranks"] == list(range(72)) and data["total"] == 72
    assert data["states"]["levels"][data["states"]["at"][0]] == "meets objectives"


def test_of_many_designs_a_part_is_held_and_the_page_says_so(page):
    html = page(sweep(HARDWARE, PARALLEL, RATE), most=30)
    data = data_of(html)
    assert len(data["ranks"]) == 30 and data["ranks"][-1] > 30 and data["total"] == 72
    assert "This page holds 30 of 72 designs" in text_of(html) and "8 cannot run" in text_of(html)


def test_nothing_is_loaded_from_elsewhere(page):
    html = page(sweep(HARDWARE, RATE))
    own = re.sub(r'(id="(?:data|plotly)">)[\w+/=]*', r"\1", html)
    assert "default-src 'none'" in own and not re.search(r"https?://", own)


def test_texts_of_the_user_are_not_markup(page):
    ds = sweep(HARDWARE, RATE)
    ds.attrs |= {"title": HOSTILE, "scenario": f"# {HOSTILE}\nname: '{HOSTILE}'\n", "calibration": HOSTILE}
    ds["status"] = ds["status"].astype(object)
    ds["status"][8:16] = f"infeasible: {HOSTILE}"
    ds["hardware"] = (
        "config",
        np.where(ds["hardware"] == "l40s", HOSTILE, ds["hardware"]).astype(str),
        ds["hardware"].attrs,
    )
    html = page(ds.assign_coords(hardware=ds["hardware"]))
    assert "<img" not in html and "onerror=&quot;" in html
    assert HOSTILE in data_of(html)["axes"][0]["levels"]


def test_colours_are_those_of_the_pictures(page):
    assert data_of(page(sweep(HARDWARE)))["palette"]["light"] == list(COLOURS)


def test_nothing_can_run(page):
    text = text_of(page(sweep(HARDWARE, room=False)))
    assert "None of the 3 designs can run." in text and "do not fit in 43.2 GB" in text


def test_one_design(page):
    html = page(sweep())
    assert "the one design of the scenario" in text_of(html) and data_of(html)["axes"] == []


@pytest.mark.parametrize("ds, verdict, said", [
    (sweep(HARDWARE, RATE), "12 of 24 designs meet the objectives", "The best is mi300x"),
    (sweep(HARDWARE, RATE, objectives=(Objective("tpot", "p90", 1e-3),)), "No design meets the objectives",
     "The nearest is"),
    (sweep(HARDWARE, RATE, objectives=()), "14 of 24 designs keep up with the load", "The best is"),
    (sweep(HARDWARE, room=False), "No design can run", "None of the 3 designs can run."),
    (sweep(), "The design meets the objectives", "The best is the one design of the scenario"),
    (dataset(), "3 of 5 designs meet the objectives at some rate", "The best is b200-sxm"),
    (dataset(goodput_rps=np.zeros(5)), "No design meets the objectives at any rate", "The nearest is"),
    (dataset(rate_rps=6.0), "3 of 5 designs serve 6 requests/s", "The best is l40s"),
])  # fmt: skip
def test_the_headline_is_the_verdict(page, ds, verdict, said):
    none = verdict == "No design meets the objectives"
    if none:
        ds["slo_met"][:] = False
    html = page(ds)
    assert f"<h2>{verdict}</h2>" in html and said in text_of(html)
    assert ("(objective: 1 ms, missed)" in text_of(html)) == none


def test_the_answer_says_what_to_launch_and_how_far_it_may_be_off(page):
    ds = measured((HARDWARE,))
    ds.attrs["scenario"] = SCENARIO
    text = text_of(page(ds))
    answer = text[text.index("to launch") :][:400]
    assert answer.startswith(
        "to launch vLLM; 2 replicas of llama-3.1-8b on 4 mi300x each, tensor parallel 4, mixed batching, at most 64 "
        "sequences and 2,048 tokens an iteration, prefix caching expected error, 68 % of measured means within TTFT ± "
    )


SCENARIO = """
name: small
workload:
  arrivals: {process: poisson, rate_rps: 2}
  lengths: {source: fixed, prompt_tokens: 1024, output_tokens: 128}
  requests: 60
deployment:
  model: llama-3.1-8b
  hardware: h100-sxm
  calibration: datasheet
  replicas: 2
  tensor_parallel: 4
  batching: {policy: mixed, max_num_seqs: 64, max_num_batched_tokens: 2048}
  kv: {prefix_caching: true}
"""


def test_no_objectives_and_no_price(page):
    text = text_of(page(sweep(HARDWARE, RATE, objectives=(), price=False)))
    assert "objectives none" in text and "tokens/s of output per GPU" in text


def test_an_answer_that_chance_may_decide_or_that_ends_the_sweep_says_so(page):
    ds = sweep(HARDWARE, RATE)
    ds["ttft_s_stderr"][:] = 1.0
    text = text_of(page(ds))
    assert "TTFT p90 is within two standard errors of its objective" in text
    ds = sweep(HARDWARE, RATE)
    ds["saturated"][:], ds["slo_met"][:] = False, True
    ds["usd_per_mtok"] = 100.0 - ds["rate_rps"].astype(float)
    assert "arrival rate 8 requests/s is the highest value that was swept" in text_of(page(ds))


def test_a_run_that_is_too_short_says_so(page):
    ds = sweep(HARDWARE, RATE)
    ds["steady"] = ("config", ds["saturated"].values | (np.arange(24) % 2 == 0) & (ds["status"].values != "ok"))
    html = page(ds)
    assert "Its run is too short for its statistics (not steady): use workload.requests: auto" in text_of(html)
    calm = (ds["status"].values == "ok") & ~ds["saturated"].values
    assert f"{int(calm.sum())} {100 * calm.mean():.1f} % not steady: the run is too short" in text_of(html)
    assert "no" in data_of(html)["steady"]["levels"]


@pytest.mark.parametrize("value, error, text", [
    (0.3714, 0.0341, "0.371 ± 0.034"), (973.2, None, "973"), (48.4, 1.62, "48.4 ± 1.6"),
    (12345.6, 210.0, "12,346 ± 210"),
    (1.5, np.nan, "1.50"), (0.0, 0.0, "0 ± 0"), (np.nan, None, "unknown"),
])  # fmt: skip
def test_numbers_have_the_digits_that_their_errors_leave(value, error, text):
    assert with_error(value, error) == text


def test_the_question_is_the_first_paragraph_of_the_scenarios_comment():
    text = "# yaml-language-server: $schema=x\n# Which one,\n# and why?\n#\n#     evaluator sweep x\nname: x\n"
    assert own_words(text) == "Which one, and why?" and own_words("name: x\n# late\n") == ""


def test_wrong_suffix(tmp_path):
    with pytest.raises(InputError, match=r"page\.pdf: a page is written as \.html or \.htm, not \.pdf"):
        write_page(sweep(), tmp_path / "page.pdf")


def test_a_dataset_that_is_no_result(tmp_path):
    with pytest.raises(
        InputError, match="the dataset: not a result of evaluator sweep or optimize: there is no status in"
    ):
        write_page(xr.Dataset({"x": ("config", [1.0])}), tmp_path / "page.html")
    with pytest.raises(InputError, match="it has no designs"):
        write_page(sweep(HARDWARE).isel(config=slice(0, 0)), tmp_path / "page.html")


def test_without_plotly_the_message_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr("evaluator.report.page.page.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"a page needs plotly; install it with: pip install 'evaluator\[report\]'"):
        write_page(sweep(), tmp_path / "page.html")


def test_a_failed_write_leaves_the_old_page(tmp_path, monkeypatch):
    path = write_page(sweep(), tmp_path / "page.html")
    before = path.read_bytes()
    monkeypatch.setattr(
        "pathlib.Path.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(InputError, match=r"cannot write .*page\.html: No space left on device"):
        write_page(sweep(HARDWARE), path)
    assert path.read_bytes() == before
