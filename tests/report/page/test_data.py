import json

import numpy as np
import pytest

from evaluator.report.axes import axes_shown
from evaluator.report.page.columns import measures_of, numbers, part_of
from evaluator.report.page.data import CANNOT_RUN, MEETS, MISSES, RUNS, SATURATED, page_json, states
from evaluator.report.page.rows import ranked
from tests.results.build import HARDWARE, PARALLEL, RATE, sweep


@pytest.fixture(scope="module")
def page():
    """A dataset, its rows best first, their measures, and what the scripts get."""
    ds = sweep(HARDWARE, PARALLEL, RATE)
    rows, _ = ranked(ds)
    measures = measures_of(ds, rows)
    return ds, rows, measures, json.loads(page_json(ds, rows, np.arange(rows.size), measures, axes_shown(ds)))


def test_latencies_per_token_are_in_ms_and_shares_in_percent(page):
    ds, rows, measures, _ = page
    units = {measure.key: measure.unit for measure in measures}
    assert units["ttft_s"] == "s" and units["tpot_s"] == "ms" and units["slo_attainment"] == "%"
    part = part_of(measures, "tpot_s", "p90")
    np.testing.assert_allclose(part.values, 1e3 * ds["tpot_s"].values[rows, 1])
    np.testing.assert_allclose(part.stderr, 1e3 * ds["tpot_s_stderr"].values[rows, 1])


def test_every_statistic_of_a_latency_is_a_part_and_errors_are_no_measures(page):
    _, _, measures, _ = page
    names = {measure.key: [part.name for part in measure.parts] for measure in measures}
    assert names["ttft_s"] == ["p50", "p90", "p95", "p99", "mean"] and names["output_tok_per_s"] == [""]
    assert not [key for key in names if key.endswith(("_stderr", "_mean"))]


def test_the_nearest_percentile_stands_in_for_one_that_was_not_kept(page):
    _, _, measures, _ = page
    assert part_of(measures, "ttft_s", "p91").name == "p90"
    assert part_of(measures, "ttft_s", "mean").name == "mean" and part_of(measures, "none", "p90") is None


def test_what_is_not_known_is_null_and_what_nobody_knows_is_left_out():
    ds = sweep(HARDWARE, RATE, price=False, objectives=())
    rows, _ = ranked(ds)
    assert not {"usd_per_mtok", "slo_attainment"} & {measure.key for measure in measures_of(ds, rows)}
    assert json.loads(numbers(np.array([1.23456789, np.nan, np.inf]))) == [1.2346, None, None]


def test_axes_are_in_the_order_of_the_sweep_and_know_their_keys(page):
    ds, rows, _, data = page
    hardware, parallel, rate = data["axes"]
    assert hardware["levels"] == ["h100-sxm", "l40s", "mi300x"] and hardware["sets"][0] == [
        "deployment.hardware=h100-sxm"
    ]
    assert parallel["levels"] == [2, 4, 8] and parallel["numeric"]
    assert (rate["label"], rate["unit"], rate["title"]) == ("arrival rate", "requests/s", "arrival rate (requests/s)")
    found = [hardware["levels"][at] for at in hardware["at"]]
    assert found == ds["hardware"].values[rows].tolist()


def test_objectives_are_in_the_units_of_the_page(page):
    *_, data = page
    assert data["objectives"] == [
        {"key": "ttft_s", "part": "p90", "bound": 1.5},
        {"key": "tpot_s", "part": "p90", "bound": 70.0},
    ]


def test_states_of_designs():
    ds = sweep(HARDWARE, PARALLEL, RATE)
    found = states(ds)
    assert set(found) == {MEETS, MISSES, SATURATED, CANNOT_RUN}
    assert ((found == MEETS) == ds["slo_met"].values).all()
    assert (ds["status"].values[found == CANNOT_RUN] != "ok").all()
    assert set(states(sweep(HARDWARE, PARALLEL, RATE, objectives=()))) == {RUNS, SATURATED, CANNOT_RUN}


def test_elasticities_of_the_best_rows(page):
    ds, rows, measures, data = page
    assert data["elasticities"] is None
    shape = (ds.sizes["config"], 2)
    with_inputs = ds.assign_coords(input=("input", ["flops", "memory_bandwidth"], {"description": "what they are"}))
    for name in ("ttft_s", "tpot_s"):
        for suffix, value in (("", -0.5), ("_stderr", 0.03), ("_step_error", 0.04)):
            wide = np.full((*shape, ds.sizes["quantile"]), value)
            with_inputs[f"{name}_elasticity{suffix}"] = (("config", "input", "quantile"), wide)
    for name in ("slo_attainment", "usd_per_mtok", "output_tok_per_s"):
        for suffix in ("", "_stderr", "_step_error"):
            with_inputs[f"{name}_elasticity{suffix}"] = (("config", "input"), np.full(shape, np.nan))
    found = json.loads(page_json(with_inputs, rows, np.arange(rows.size), measures, axes_shown(with_inputs)))[
        "elasticities"
    ]
    assert found["inputs"] == ["flops", "memory_bandwidth"] and found["rows"][0] == 0
    ttft = found["measures"][0]
    assert ttft["slopes"][0] == [-0.5, -0.5] and ttft["errors"][0] == [0.05, 0.05]
    assert found["measures"][2]["slopes"][0] == [None, None]
