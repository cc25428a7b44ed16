"""The page of a search for goodput, or for the fewest replicas."""

import base64
import gzip
import json
import re

import numpy as np
import pytest

from evaluator.report.axes import axes_shown
from evaluator.report.page import write_page
from evaluator.report.page.columns import measures_of
from evaluator.report.page.data import CANNOT_RUN, MEETS, MISSES, states
from evaluator.report.page.rows import ranked
from tests.report.test_search import dataset

pytest.importorskip("plotly")


@pytest.fixture
def text(tmp_path):
    """What a reader of the page sees without scripts, and the data that the scripts read."""

    def of(ds):
        html = write_page(ds, tmp_path / "page.html").read_text(encoding="utf-8")
        body = re.sub(r"<(script|style)\b.*?</\1>", "", html, flags=re.DOTALL)
        packed = re.search(r'id="data">([\w+/=]*)<', html)[1]
        data = json.loads(gzip.decompress(base64.b64decode(packed)))
        return " ".join(re.sub(r"<[^>]*>", " ", body).split()), data

    return of


def test_designs_are_ranked_by_goodput_then_by_how_near_they_come():
    order, rule = ranked(dataset())
    assert order.tolist() == [2, 0, 1, 3, 4]
    assert rule == "goodput; those that do not meet the objectives last, by SLO attainment"
    assert states(dataset()).tolist() == [MEETS, MEETS, MEETS, MISSES, CANNOT_RUN]


def test_the_layout_of_pools_is_an_axis():
    hardware, layout = axes_shown(ds := dataset())
    assert (hardware.key, layout.key, layout.label) == ("hardware", "pool_layout", "layout")
    assert [layout.words(ds, row) for row in range(2)] == ["8 x tp1", "4 x tp2"]


def test_the_upper_end_of_the_bracket_stands_with_the_goodput():
    ds = dataset()
    measures = {measure.key: measure for measure in measures_of(ds, np.arange(5))}
    goodput = measures["goodput_rps"]
    assert goodput.better == "high" and goodput.unit == "requests/s" and "goodput_high_rps" not in measures
    np.testing.assert_array_equal(goodput.parts[0].high, ds["goodput_high_rps"].values)
    np.testing.assert_array_equal(goodput.parts[0].stderr, ds["goodput_rps_stderr"].values)


def test_the_answer_is_the_goodput_with_its_error_and_bracket(text):
    words, data = text(dataset())
    assert "b200-sxm, 8 x tp1. It gives 20.00 ± 0.20 requests/s (at 20.4 an objective is missed) of goodput" in words
    assert "2.50 requests/s of goodput per GPU" in words
    assert "searched the highest arrival rate at which all objectives hold, to 2 %" in words
    assert (
        data["search"]["rate_rps"] is None
        and data["goodput_limit"]["levels"][data["goodput_limit"]["at"][0]] == "saturation"
    )


def test_why_there_is_no_rate_is_told_with_what_helps(text):
    words, _ = text(dataset())
    assert "no rate meets the objectives: at 0.1 requests/s ttft p90 is 2 s less waiting and a faster prefill" in words
    assert "over budget: 16 devices, and the budget is 8" in words


def test_a_search_with_a_flaw_says_so(text):
    found = np.array(["bracketed", "bracketed", "bracketed in a short run: use more requests", "", ""])
    words, _ = text(dataset(search_status=found))
    assert "The search came to: bracketed in a short run: use more requests." in words


def test_the_fewest_replicas_for_a_rate(text):
    words, data = text(dataset(rate_rps=6.0))
    assert "searched the fewest replicas that serve 6 requests/s" in words
    assert "It serves 6 requests/s with 8 devices, 10.7 USD/h" in words and data["search"]["rate_rps"] == 6.0
