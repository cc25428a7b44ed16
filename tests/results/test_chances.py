"""Chances of a result: by the rates that were swept, with a confidence, by class, and put together from shards."""

from dataclasses import replace

import numpy as np
import pytest
import xarray as xr

import evaluator
from evaluator.metrics import quantile_levels, summarise
from evaluator.metrics.variables import INPUTS
from evaluator.results.chances import with_chances
from evaluator.results.dataset import to_dataset
from evaluator.results.gather import gather
from evaluator.results.schema import attributes
from evaluator.results.shards import Shard
from evaluator.run import sweep_shard
from tests.metrics.build import outcomes
from tests.metrics.test_summarise import bound
from tests.results.build import axis
from tests.search.build import axes, scenario

SLO = {"ttft": {"p90": 0.2}, "tpot": {"p90": 0.02}}
RATES = [2.0, 4.0, 5.4, 6.0, 7.0, 9.0]


def swept(**slo):
    sweep = axes(deployment__batching__policy=["chunked", "continuous"], workload__arrivals__rate_rps=RATES)
    return evaluator.sweep(scenario("workload.requests=300", slo={**SLO, **slo}, sweep=sweep))


@pytest.fixture(scope="module")
def plain():
    return swept()


@pytest.fixture(scope="module")
def sure():
    return swept(confidence=0.9)


def test_what_is_met_has_a_chance_of_more_than_a_half(plain):
    met, chance = plain["slo_met"].values, plain["slo_chance"].values
    assert 0 < met.sum() < met.size
    calm = ~plain["saturated"].values
    np.testing.assert_array_equal(met[calm], chance[calm] >= 0.5)
    assert (chance[~calm] <= 0.5).all()
    np.testing.assert_array_equal(chance, plain["objective_chance"].min("objective"))
    assert plain["objective"].values.tolist() == ["ttft p90", "tpot p90"]
    # The more load the less headroom, along the rates of each design.
    headroom = plain["objective_headroom"].values.reshape(2, len(RATES), 2)
    assert (np.diff(headroom, axis=1) < 0.0).all()


def test_without_a_confidence_nothing_else_changes_and_with_one_fewer_designs_are_met(plain, sure):
    same = [name for name in plain.data_vars if name not in ("slo_met", "objective_confidence")]
    xr.testing.assert_equal(plain[same], sure[same])
    met = sure["slo_met"].values
    np.testing.assert_array_equal(met, sure["slo_chance"].values >= 0.9)
    assert met.sum() < plain["slo_met"].values.sum() and not (met & ~plain["slo_met"].values).any()
    assert np.isnan(plain["objective_confidence"]).all() and (sure["objective_confidence"] == 0.9).all()
    xr.testing.assert_equal(with_chances(sure), sure)  # made of what is there, once or twice


def test_a_row_alone_knows_no_other_rate(plain):
    """Its latency is then taken to be longer by as much as its service, which is less than a queue makes of it."""
    one = evaluator.sweep(scenario("workload.requests=300", "workload.arrivals.rate_rps=6", slo=SLO))
    assert (one["objective_growth"] == 1.0).all()
    np.testing.assert_allclose(one["objective_headroom"], 1.0 / one["objective_ratio"])
    beside = plain.isel(config=RATES.index(6.0))
    np.testing.assert_array_equal(one["objective_ratio"].values[0], beside["objective_ratio"])
    assert abs(one["slo_chance"].item() - 0.5) > abs(beside["slo_chance"].item() - 0.5)


def test_shards_that_part_the_rates_of_a_design_come_to_the_same(sure, tmp_path):
    asked = scenario(
        "workload.requests=300",
        slo={**SLO, "confidence": 0.9},
        sweep=axes(workload__arrivals__rate_rps=RATES, deployment__batching__policy=["chunked", "continuous"]),
    )
    whole, out = evaluator.sweep(asked), tmp_path / "x.zarr"
    for number in (1, 2, 3):
        sweep_shard(asked, Shard(number, 3), out, progress=False)
    gather(out)
    xr.testing.assert_equal(evaluator.read(out), whole)
    order = np.arange(12).reshape(2, 6).T.ravel()
    np.testing.assert_array_equal(whole["slo_chance"], sure["slo_chance"].values[order])


def test_elasticities_tell_how_a_latency_grows_where_no_other_rate_does():
    """All times 1 % longer and all rates 1 % lower make the latency 3 % longer: it has a third of the headroom."""
    base = outcomes(configs=2, requests=2000, warmup=200, load=0.6, objectives=(bound("ttft", "p90", 6.0, 2),))
    alone = labelled(base)
    slopes = np.array([[-1.0, 0.0, -1.0, 0.0, 0.5, 0.5], [np.nan] * 6])
    ds = alone.assign(ttft_s_mean_elasticity=(("config", "input"), slopes)).assign_coords(input=list(INPUTS))
    found = with_chances(ds)
    assert found["objective_growth"].values.tolist() == [[3.0], [1.0]]
    log_headroom = np.log(found["objective_headroom"].values)
    np.testing.assert_allclose(log_headroom[:, 0] / np.log(alone["objective_headroom"].values[:, 0]), [1 / 3, 1.0])


def labelled(base, **coordinates):
    """The rows of some outcomes with their chances, along an axis that is no rate."""
    names = tuple(one.name for one in base.objectives)
    levels, attrs = quantile_levels(base.objectives), attributes("x", "name: x\n", (0, 1), "datasheet")
    grid = (axis("deployment.replicas", *range(1, 1 + base.status.size)),)
    return with_chances(to_dataset(summarise(base, levels), levels, grid, attrs, objectives=names, **coordinates))


def test_a_confidence_of_a_class_is_its_own():
    base = outcomes(configs=2, requests=2000, warmup=200, load=0.6)
    classes = np.zeros(base.times.arrival_s.shape, dtype=np.int64)
    classes[..., ::2] = 1
    of_all, of_class = bound("ttft", "p90", 6.0, 2), replace(bound("e2e", "mean", 3.0, 2), request_class="batch")
    base = replace(base, objectives=(of_all, of_class), request_class=classes, class_names=("chat", "batch"))
    plain = labelled(base, classes=base.class_names)
    assert plain["objective"].values.tolist() == ["ttft p90", "e2e mean of batch"]
    assert plain["slo_met"].all() and (plain["objective_chance"] > 0.9).all()
    assert plain["class_slo_met"].values.tolist() == [[False, True], [False, True]]  # chat has no objective
    # Of the first row a little too much is asked, of the second nothing.
    level = np.array([plain["objective_chance"].values[0, 1] + 1e-9, np.nan])
    sure = labelled(replace(base, objectives=(of_all, replace(of_class, confidence=level))), classes=base.class_names)
    assert sure["slo_met"].values.tolist() == [False, True]
    assert sure["class_slo_met"].values.tolist() == [[False, False], [False, True]]


def test_a_saturated_design_has_to_be_faster_to_keep_up():
    """Arrivals at 1.3 times what is served: it keeps up if its service takes 1 / 1.3, whatever its TPOT is."""
    base = outcomes(configs=1, requests=4000, warmup=400, load=1.3)
    objectives = (bound("tpot", "mean", 10.0, 1), bound("ttft", "mean", 10.0, 1))
    values = summarise(replace(base, objectives=objectives), quantile_levels(objectives))
    assert values["saturated"].all() and values["objective_ratio"][0, 0] < 0.02
    np.testing.assert_allclose(values["objective_headroom"][0, 0], 1 / 1.3, rtol=0.02)
    assert values["objective_headroom"][0, 1] < 1.0 and values["objective_growth"][0, 1] > 3.0


def test_what_cannot_run_or_whose_error_is_not_known_has_no_chance():
    base = outcomes(configs=3, objectives=(bound("ttft", "p90", 6.0, 3),))
    errors = base.model_error.copy()
    errors[1] = np.nan
    status = np.array(["ok", "ok", "infeasible: no"])
    ds = labelled(replace(base, model_error=errors, status=status))
    assert np.isnan(ds["slo_chance"].values).tolist() == [False, True, True]
    assert ds["slo_met"].values.tolist() == [True, True, False]  # by the prediction, without a confidence
    sure = with_chances(ds.assign(objective_confidence=ds["objective_ratio"] * 0.0 + 0.6))
    assert sure["slo_met"].values.tolist() == [True, False, False]


def test_the_model_error_of_a_tail_is_that_of_its_statistic():
    base = outcomes(configs=1)
    errors = np.array([[[0.05, 0.03, 0.04], [0.04, np.nan, 0.06], [0.5, np.nan, 0.08]]])
    objectives = tuple(
        bound(metric, statistic, 1.0, 1)
        for metric, statistic in (
            ("ttft", "mean"), ("ttft", "p50"), ("ttft", "p75"), ("ttft", "p99"), ("tpot", "p99"), ("e2e", "p90"),
            ("queue_wait", "p95"),
        )
    )  # fmt: skip
    values = summarise(replace(base, model_error=errors, objectives=objectives), quantile_levels(objectives))
    np.testing.assert_allclose(values["objective_mean_error"][0, [0, 1, 2, 3, 4, 6]], [0.05] * 4 + [0.03, 0.04])
    np.testing.assert_allclose(values["objective_model_error"][0], [0.05, 0.05, 0.05, 0.5, 0.03, 0.06, 0.08])
