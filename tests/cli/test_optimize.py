"""``evaluator optimize``: table, files, options, and one readable message for what is wrong."""

from __future__ import annotations

import json

import pytest

from evaluator import results
from evaluator.cli import optimize as command
from evaluator.report import search_table
from evaluator.report.search import RANKS, ranking

FILE = """
name: s
workload:
  arrivals: {process: poisson, rate_rps: 4}
  lengths: {source: azure-conv-2023}
  requests: 200
deployment: {model: llama-3.1-8b, hardware: h100-sxm, batching: {max_num_seqs: 16}}
slo: {ttft: {p90: 1s}, tpot: {p90: 50ms}}
sweep:
  deployment.hardware: [h100-sxm, l40s]
  deployment.tensor_parallel: [1, 2]
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(FILE)
    return path


def test_a_search_is_a_table_a_dataset_and_a_picture(evaluator, file, tmp_path):
    out, picture = tmp_path / "s.nc", tmp_path / "s.png"
    code, text, notes = evaluator("optimize", file, "--out", out, "--plot", picture, "--bracket", 0.1)
    assert code == 0 and "trials" in notes and f"wrote {out} and {picture}" in notes
    head, *lines = text.splitlines()
    assert head == "Best 4 of 4 designs that meet the objectives at some rate, by goodput"
    assert any(line.split()[:3] == ["#", "hardware", "layout"] for line in lines)
    assert "4 designs: 4 have a goodput, 0 do not meet the objectives, 0 over budget, 0 infeasible." in lines
    ds = results.read(out)
    assert ds.sizes["config"] == 4 and json.loads(ds.attrs["search"])["bracket"] == 0.1
    assert picture.stat().st_size > 10_000


def test_how_many_replicas_for_a_rate(evaluator, file):
    code, text, _ = evaluator("optimize", file, "--rate", 20, "-q")
    assert code == 0 and text.startswith("Best 4 of 4 designs that serve 20 requests/s, by lowest price per hour")
    code, text, _ = evaluator("optimize", file, "-q", "--set", "demand.rate_rps=20", "--set", "budget.devices=1")
    assert code == 0 and "0 serve 20 requests/s" in text and "missed with 1 replica: ttft p90 is" in text


@pytest.mark.parametrize("by", RANKS)
def test_rules_of_ranking(evaluator, file, by):
    code, text, _ = evaluator("optimize", file, "--rank-by", by, "-q", "--bracket", 0.1)
    assert code == 0 and text.splitlines()[0].endswith(f"by {RANKS[by][1]}")


def test_a_result_keeps_what_it_was_ranked_by(evaluator, file, tmp_path):
    _, text, _ = evaluator("optimize", file, "--rank-by", "joule", "-q", "--bracket", 0.1, "--out", tmp_path / "s.nc")
    ds = results.read(tmp_path / "s.nc")
    assert ds.attrs["ranked_by"] == "joule" and ranking(ds)[1] == RANKS["joule"][1]
    assert search_table(ds, 10, width=100).splitlines()[0] == text.splitlines()[0]


def test_the_rules_of_the_help_are_those_of_the_report():
    assert tuple(RANKS) == command.RANKS


def test_a_rate_that_is_swept_is_left_out_with_a_say(evaluator, file):
    axis = "sweep={workload.arrivals.rate_rps: [1, 2, 3]}"
    code, text, notes = evaluator("optimize", file, "--set", axis, "--bracket", 0.1)
    assert code == 0 and "4 designs:" in text
    assert "the axis workload.arrivals.rate_rps is left out: the rate is searched." in notes


def test_an_interrupted_search_keeps_nothing(evaluator, file, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("evaluator.search.trials.statistics_of", interrupted)
    code, _, notes = evaluator("optimize", file, "--out", tmp_path / "s.nc")
    assert code == 130 and notes.rstrip().endswith("interrupted; nothing is kept of a search that is not over")
    assert [path.name for path in tmp_path.iterdir()] == ["s.yaml"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--rank-by", "luck"), "error: --rank-by luck: is no rule; allowed: goodput, gpu, usd, joule"),
        (("--bracket", 0), "error: bracket: must be from 0.0001 to 1, not 0"),
        (("--rate", -3), "error: rate: must be a positive number of requests per second, not -3"),
        (("--set", "slo=null"), "slo: a search needs objectives that designs have to meet; add some such as"),
        (("--set", "budget.devices=0"), "budget.devices: must be an integer from 1"),
        (("--set", "budget.gpus=8"), "budget.gpus: unknown key"),
        (("--set", "slo.relax=-1"), "slo.relax: must be at least 0"),
        (("--set", "sweep=null", "--set", "deployment.tensor_parallel=4", "--set", "budget.devices=2"),
         "no design can run: over budget: 4 devices, and the budget is 2"),
        (("--out", "s.txt"), "s.txt"),
        (("--plot", "s.txt"), "--plot s.txt: the name must end in .png"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line(evaluator, file, arguments, message):
    code, text, notes = evaluator("optimize", file, "-q", *arguments)
    assert code == 2 and text == "" and message in notes and len(notes.splitlines()) == 1


def test_hardware_without_a_price_is_not_ranked_by_it(evaluator, file):
    code, _, notes = evaluator(
        "optimize", file, "-q", "--rank-by", "usd", "--set", "sweep.deployment.hardware=[mi300x, mi325x]"
    )
    assert code == 2 and "designs cannot be ranked by usd: no price (deployment.usd_per_device_hour; of a" in notes
    assert "stage's pool deployment.pools.NAME.usd_per_device_hour) of their hardware is known" in notes
