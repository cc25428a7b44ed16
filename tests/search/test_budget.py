"""Budgets, replicas that fill them, and the fewest replicas for a rate."""

from __future__ import annotations

import json

import numpy as np
import pytest

import evaluator
from evaluator.errors import InputError
from evaluator.plan import plan
from evaluator.search.designs import designs_of
from evaluator.search.start import Starts
from tests.search.build import axes, scenario

BRACKET = 0.1


def test_designs_over_the_budget_never_run(monkeypatch):
    sweep = axes(deployment__tensor_parallel=[1, 2, 4], deployment__replicas=[1, 2])
    ran = []
    from evaluator.search import trials

    statistics_of = trials.statistics_of
    monkeypatch.setattr(
        trials,
        "statistics_of",
        lambda whole, configurations, levels: (
            ran.extend(configurations) or statistics_of(whole, configurations, levels)
        ),
    )
    ds = evaluator.optimize(scenario(sweep=sweep, budget={"devices": 2}), bracket=BRACKET)
    devices = ds["devices"].values
    assert {configuration.devices for configuration in ran} == {1, 2}
    over = np.char.startswith(ds["status"].values.astype(str), "over budget")
    np.testing.assert_array_equal(over, devices > 2)
    assert str(ds["status"].values[devices == 8][0]) == "over budget: 8 devices, and the budget is 2"
    assert np.isnan(ds["goodput_rps"].values[over]).all() and np.isnan(ds["ttft_s"].values[over]).all()


RETRIEVE = {
    "stage": "retrieve", "pool": "cpu",
    "index": {"centroids": 100, "probes": 2, "points_per_probe": 10, "dimensions": 8},
    "documents": 1, "tokens_per_document": 10,
}  # fmt: skip


def test_the_cpus_of_a_stage_are_paid_for_and_are_no_devices_of_the_budget():
    pools = {"cpu": {"role": "stage", "hardware": "cpu-grace", "usd_per_device_hour": 1.5}}
    beside = [
        "pipeline=" + json.dumps([RETRIEVE, "prefill", "decode"]), "deployment.pools=" + json.dumps(pools),
        "deployment.replicas=2", "deployment.usd_per_device_hour=2",
    ]  # fmt: skip
    ds = evaluator.optimize(scenario(*beside, budget={"devices": 2}), bracket=BRACKET)
    assert ds["status"].item() == "ok" and ds["usd_per_hour"].item() == 5.5
    assert ds["goodput_rps_per_gpu"].item() == ds["goodput_rps"].item() / 2
    with pytest.raises(InputError, match="over budget: 2 devices, and the budget is 1"):
        evaluator.optimize(scenario(*beside, budget={"devices": 1}))


def test_a_stage_without_a_price_names_the_key_of_its_own_pool():
    """The price beside the pools holds for those that answer."""
    pools = {"cpu": {"role": "stage", "hardware": "cpu-grace"}}
    sets = ["pipeline=" + json.dumps([RETRIEVE, "prefill", "decode"]), "deployment.pools=" + json.dumps(pools)]
    key = r"deployment\.pools\.cpu\.usd_per_device_hour"
    with pytest.raises(InputError, match=f"the price of cpu-grace is not known; set {key}"):
        evaluator.optimize(scenario(*sets, "deployment.usd_per_device_hour=2", budget={"usd_per_hour": 40}))


def test_a_search_begins_where_both_sides_of_a_split_can_follow():
    """The decode side has all tokens but the first to give; the closed form must not take it for idle."""
    pools = {"p": {"role": "prefill", "replicas": 4}, "d": {"role": "decode"}}
    lengths = {"workload.lengths": {"source": "fixed", "prompt_tokens": 100, "output_tokens": 1000}}
    sets = [f"{key}={json.dumps(value)}" for key, value in {**lengths, "deployment.pools": pools}.items()]
    whole = plan(scenario(*sets))
    (alone,) = plan(scenario(*sets, "deployment.pools=null", "deployment.replicas=1")).configurations
    (split,) = whole.configurations
    mixed = Starts(plan(scenario(*sets, "deployment.pools=null"))).rate(alone)
    assert Starts(whole).rate(split) == pytest.approx(mixed, rel=0.1)


def test_a_budget_of_dollars():
    sweep = axes(deployment__tensor_parallel=[1, 2])
    ds = evaluator.optimize(scenario(sweep=sweep, budget={"usd_per_hour": "4USD/h"}), bracket=BRACKET)
    assert ds["status"].values.tolist() == ["ok", "over budget: 6.70 USD/h, and the budget is 4.00 USD/h"]
    own = evaluator.optimize(scenario("deployment.usd_per_device_hour=2", sweep=sweep, budget={"usd_per_hour": 4}))
    assert own["usd_per_hour"].values.tolist() == [2.0, 4.0] and (own["status"] == "ok").all()
    with pytest.raises(InputError, match=r"over budget: the price of mi300x is not known; set deployment\.usd_per_dev"):
        evaluator.optimize(scenario("deployment.hardware=mi300x", budget={"usd_per_hour": 40}))


def test_a_budget_that_nothing_fits():
    with pytest.raises(InputError, match="no design can run: the first of 2 designs is over budget: 4 devices"):
        sweep = axes(deployment__tensor_parallel=[4, 8])
        evaluator.optimize(scenario(sweep=sweep, budget={"devices": 2}))


def test_replicas_fill_the_budget():
    sweep = axes(deployment__tensor_parallel=[1, 2, 4])
    filled = evaluator.optimize(scenario(sweep=sweep, budget={"devices": 6, "fill": True}), bracket=BRACKET)
    assert filled["replicas"].values.tolist() == [6, 3, 1] and filled["devices"].values.tolist() == [6, 6, 4]
    assert filled["pool_layout"].values.tolist() == ["6 x tp1", "3 x tp2", "1 x tp4"]
    said = evaluator.optimize(scenario("deployment.replicas=3", "deployment.tensor_parallel=2"), bracket=BRACKET)
    assert filled["goodput_rps"].values[1] == said["goodput_rps"].values[0]


def test_filling_contradicts_replicas_that_are_said():
    sweep = axes(deployment__replicas=[1, 2])
    with pytest.raises(
        InputError, match=r"budget\.fill: the replicas are already said .*sweep\.deployment\.replicas=null"
    ):
        evaluator.optimize(scenario(sweep=sweep, budget={"devices": 8, "fill": True}))
    with pytest.raises(InputError, match=r"budget\.fill: needs something to fill: add devices or usd_per_hour"):
        scenario(budget={"fill": True})


def test_the_fewest_replicas_for_a_rate():
    """Against every number of replicas."""
    sweep = axes(deployment__tensor_parallel=[1, 2])
    ds = evaluator.optimize(scenario("workload.requests=1000", sweep=sweep), rate_rps=20.0)
    assert (ds["search_status"] == "met").all() and (ds["slo_met"]).all()
    every = scenario(
        "workload.requests=1000",
        "workload.arrivals.rate_rps=20",
        sweep={**sweep, **axes(deployment__replicas=list(range(1, 9)))},
    )
    swept = evaluator.sweep(every)
    serves = (swept["slo_met"].values & ~swept["saturated"].values).reshape(2, 8)
    assert ds["replicas"].values.tolist() == [int(row.argmax()) + 1 for row in serves]
    assert (ds["replicas"].values > 1).all()
    place = np.array([0, 8]) + ds["replicas"].values - 1
    np.testing.assert_array_equal(ds["ttft_s"].values, swept["ttft_s"].values[place])


def test_short_runs_for_a_rate_are_made_longer(monkeypatch):
    monkeypatch.setattr("evaluator.scenario.workload.DEFAULT_REQUESTS", 100)
    sweep = axes(deployment__tensor_parallel=[1, 2])
    ds = evaluator.optimize(scenario("workload.requests={auto: {most: 1600}}", sweep=sweep), rate_rps=20.0)
    assert (ds["search_status"] == "met").all() and ds["steady"].all()
    for row, count in enumerate(ds["requests_run"].values.tolist()):
        assert count > 100
        parallel = f"deployment.tensor_parallel={int(ds['tensor_parallel'].values[row])}"
        same = evaluator.optimize(scenario(parallel, f"workload.requests={count}"), rate_rps=20.0)
        assert same["replicas"].values[0] == ds["replicas"].values[row]
        np.testing.assert_array_equal(same["ttft_s"].values[0], ds["ttft_s"].values[row])


def test_a_rate_that_the_budget_does_not_serve():
    ds = evaluator.optimize(scenario(budget={"devices": 2}, demand={"rate_rps": 100}))
    assert ds["replicas"].values == 2
    assert str(ds["search_status"].values[0]).startswith("missed with 2 replicas: ttft p90 is")


def test_replicas_that_are_said_are_kept():
    sweep = axes(deployment__replicas=[1, 4])
    ds = evaluator.optimize(scenario(sweep=sweep), rate_rps=16.0)
    assert ds["replicas"].values.tolist() == [1, 4]
    assert [text.partition(" ")[0] for text in ds["search_status"].values.tolist()] == ["missed", "met"]


def test_a_budget_is_split_over_pools_in_every_way_that_fills_it():
    """Splits with room for one replica more, of either pool, are pruned: they serve no more."""
    pools = {"p": {"role": "prefill"}, "d": {"role": "decode"}}
    tp = "deployment.pools.d.tensor_parallel"
    free = scenario(
        "deployment.pools=" + json.dumps(pools), f"sweep={{{tp}: [1, 2]}}", budget={"devices": 5, "fill": True}
    )
    ladders = designs_of(free, "iteration").ladders
    assert all(len(ladder) == 1 and ladder[0].status == "ok" for ladder in ladders)
    splits = [tuple(s.deployment.replicas for s in ladder[0].stations) for ladder in ladders]
    wide = [ladder[0].stations[1].deployment.tensor_parallel for ladder in ladders]
    assert list(zip(wide, splits, strict=True)) == [
        (1, (1, 4)), (1, (2, 3)), (1, (3, 2)), (1, (4, 1)),
        (2, (1, 2)), (2, (3, 1)),
    ]  # fmt: skip
    pools["p"]["replicas"] = 2
    said = scenario("deployment.pools=" + json.dumps(pools), budget={"devices": 5, "fill": True})
    assert [ladder[0].stations[1].deployment.replicas for ladder in designs_of(said, "iteration").ladders] == [3]


def test_pools_that_no_split_fits_are_told_once():
    pools = {"p": {"role": "prefill", "tensor_parallel": 4}, "d": {"role": "decode", "tensor_parallel": 4}}
    tight = scenario("deployment.pools=" + json.dumps(pools), budget={"devices": 4, "fill": True})
    with pytest.raises(InputError, match="no design can run: over budget: 8 devices, and the budget is 4"):
        evaluator.optimize(tight)
