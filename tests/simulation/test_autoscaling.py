"""``deployment.autoscaling`` in scenarios: keys, what it costs, and results over time."""

from __future__ import annotations

import numpy as np
import pytest

import evaluator
from evaluator.catalog import load_link
from evaluator.errors import InputError
from evaluator.plan import plan
from evaluator.reference.serve.pool import scaling_of
from evaluator.scenario import load_scenario
from evaluator.simulation import simulate_configurations
from tests.simulation.build import on_s
from tests.thorough import THOROUGH

# Short runs go to the reference; the program is held to it where that is what is tested.
pytestmark = pytest.mark.usefixtures("as_users_run")

WAVES = {"process": "varying", "rate_rps": 15, "period_s": "2min", "profile": [["0s", 1], ["1min", 9]]}
POLICY = {"target": 5, "every_s": "5s", "window_s": "10s", "cooldown_s": "20s", "start_up_s": "10s"}


def scenario(autoscaling=POLICY, **deployment):
    return {
        "workload": {
            "arrivals": WAVES,
            "lengths": {"source": "fixed", "prompt_tokens": 1000, "output_tokens": 100},
            "requests": 1500,
            "seeds": [0, 1],
            "find_warmup": False,
        },
        "deployment": {
            "model": "llama-3.1-8b",
            "hardware": "h100-sxm",
            "replicas": 6,
            "router": "least_outstanding",
            "usd_per_device_hour": 2.0,
            **({"autoscaling": autoscaling} if autoscaling else {}),
            **deployment,
        },
        "slo": {"ttft": {"p95": "1s"}},
    }


@pytest.fixture(scope="module")
def run():
    return evaluator.simulate(scenario(), simulator="token")


def test_what_is_paid_for_is_what_is_there(run):
    ds = run.summary.isel(config=0)
    spans = run.alive
    hours = np.mean([(span[:, 1] - span[:, 0]).sum() for span in spans]) / 3600
    assert ds.engine == "token" and ds.devices == 6 and len(spans) == 2
    assert ds.device_hours.item() == pytest.approx(hours)
    took = run.requests.groupby("seed").agg({"arrival_s": "min", "last_token_s": "max"})
    makespan = (took["last_token_s"] - took["arrival_s"]).to_numpy()
    # Frontends answer later than engines, which are gone by then.
    assert ds.replicas_mean.item() == pytest.approx(3600 * hours / makespan.mean(), rel=0.01)
    assert 1 < ds.replicas_mean < 5
    paid = ds.replicas_mean.item() * 2.0 / 3600 * 1e6 / ds.output_tok_per_s.item()
    assert ds.usd_per_mtok.item() == pytest.approx(paid)
    assert ds.tok_per_s_per_gpu.item() == pytest.approx(ds.output_tok_per_s.item() / ds.replicas_mean.item(), rel=0.01)


def test_replicas_over_time_follow_the_load(run):
    ds = run.over_time("10s")
    assert ds.replicas.min() >= 0 and ds.replicas.max() <= 6
    whole = sum((span[:, 1] - span[:, 0]).sum() for span in run.alive) / len(run.alive)
    weights_s = on_s(np.append(ds["time"], np.inf), run.alive)
    assert (ds.replicas * weights_s).sum().item() == pytest.approx(whole)
    busy = ds.arrivals_rps > ds.arrivals_rps.mean()
    assert ds.replicas[busy].mean() > 1.3 * ds.replicas[~busy][:8].mean()


def test_policies_are_swept_and_compared_with_a_static_pool():
    axes = {"sweep": {"deployment.autoscaling.target": [3, 12], "deployment.autoscaling.min_replicas": [1, 6]}}
    ds = evaluator.sweep(scenario() | axes).evaluator.unstack()
    static = evaluator.sweep(scenario(None))
    hours = ds.device_hours
    assert (hours.sel(target=12, min_replicas=1) < hours.sel(target=3, min_replicas=1)).item()
    assert (ds.ttft_s_mean.sel(target=12, min_replicas=1) > ds.ttft_s_mean.sel(target=3, min_replicas=1)).item()
    # As few as there may be at the most is the static pool.
    for name in (
        "ttft_s_mean",
        "e2e_s",
        "device_hours",
        "usd_per_mtok",
        "utilisation",
        "replicas_mean",
        "tok_per_s_per_gpu",
    ):
        found = ds[name].sel(target=12, min_replicas=6).values
        np.testing.assert_allclose(found, static[name].values[0], rtol=1e-9)


def test_the_start_up_is_the_weights_over_a_link_and_what_is_said():
    policy = {"target": 5, "start_up_s": "30s", "weights_over": "ethernet-25g"}
    (configuration,) = plan(load_scenario(scenario(policy, tensor_parallel=2))).configurations
    (pool,) = configuration.stations
    link = load_link("ethernet-25g")
    loads_s = link.latency_s + 2 * pool.design.ready.weight_bytes / link.bandwidth
    assert scaling_of(pool).start_up_s == pytest.approx(30 + loads_s) and loads_s > 4
    assert scaling_of(pool).most == 6


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, r"autoscaling\.target: is required"),
        (
            {"target": 24, "metric": "kv"},
            r"autoscaling\.target: is a share of the KV cache with metric kv, and 24 is more",
        ),
        ({"target": 0}, r"autoscaling\.target: must be greater than 0"),
        ({"target": 1, "metric": "cpu"}, r"autoscaling\.metric: 'cpu' is not one of outstanding, waiting, kv"),
        ({"target": 1, "max_replicas": 3}, r"autoscaling\.max_replicas: unknown key"),
        ({"target": 1, "within_s": 1}, r"autoscaling\.within_s: is in the place of target; leave one of them out"),
        (
            {"target": 1, "lower": 2},
            r"autoscaling\.lower: is a threshold below target, and 2 stands beside a target of 1",
        ),
        ({"within_s": 1, "lower": 2}, r"autoscaling\.lower: is a threshold below target, and 2 stands beside within_s"),
        ({"target": 1, "metric": "tpot", "predictor": "trend"}, r"autoscaling\.predictor: trend is of loads"),
        (
            {"target": 1, "predictor": "trend", "window_s": 9},
            r"autoscaling\.predictor: trend needs two looks.*raise window_s",
        ),
        ({"target": 1, "every_s": 0}, r"autoscaling\.every_s: must be greater than 0"),
        ({"target": 1, "weights_over": "string"}, r"autoscaling\.weights_over: "),
        (
            {"target": 1, "min_replicas": 9},
            r"autoscaling\.min_replicas 9 exceeds replicas 6, the most that there may be",
        ),
    ],
)
def test_what_is_refused(keys, message):
    with pytest.raises(InputError, match=message):
        evaluator.simulate(scenario() | {"deployment": scenario()["deployment"] | {"autoscaling": keys}})


@pytest.mark.parametrize(
    ("deployment", "message"),
    [
        (
            {
                "pools": {"a": {"role": "prefill"}, "b": {"role": "decode"}},
                "autoscaling": {"metric": "ttft", "target": 1},
            },
            "metric ttft of a decode pool; use outstanding, output_rate, kv or tpot",
        ),
        ({"autoscaling": {"metric": "prompt_rate", "within_s": 1}}, "within_s of a mixed pool.*; use target"),
        ({"data_parallel": 2}, "data_parallel; use replicas"),
        ({"pools": {"a": {"role": "mixed"}, "b": {"role": "mixed"}}}, "several pools or stages; use one pool"),
    ],
)
def test_what_it_does_not_go_with(deployment, message):
    with pytest.raises(InputError, match=f"unsupported: (pool [ab]: )?autoscaling with {message}.*, or leave it out"):
        evaluator.simulate(scenario(**deployment))


def test_searches_price_what_is_there_and_size_a_fleet_by_one_replica():
    design = scenario(POLICY | {"min_replicas": 2}, replicas=3)
    found = evaluator.optimize(design, rate_rps=5, simulator="token")
    (row,) = np.flatnonzero(found.status.values == "ok")[:1]
    most, there = found.devices.values[row], found.replicas_mean.values[row]
    assert 2 <= there <= most and found.usd_per_hour.values[row] == pytest.approx(2.0 * there)


FLEETS = [
    # target, metric, router, min_replicas, cooldown_s, start_up_s, kv tokens, max_queued_requests, lower, predictor
    (3, "outstanding", "least_outstanding", 1, "20s", "10s", 400_000, 3, None, "mean"),
    (0.1, "kv", "least_kv", 1, 0, 0, 40_000, 100, None, "trend"),
    (0.1, "kv", "least_outstanding", 1, "15s", "25s", 16_384, 2, 0.02, "mean"),
    # KV runs short: by priority the last of a class gives way
    (1, "waiting", "round_robin", 1, 0, "25s", 5_000, 3, None, "mean"),
    (5, "outstanding", "round_robin", 2, 0, "7s", 400_000, 1000, None, "trend"),
    (0.04, "ttft", "least_outstanding", 1, 0, "12s", 400_000, 4, None, "mean"),
    (1500, "prompt_tokens", "least_outstanding", 1, 0, "6s", 400_000, 1000, 300, "mean"),
    (4000, "prompt_rate", "round_robin", 1, "10s", "9s", 400_000, 1000, None, "trend"),
    (0.0075, "tpot", "least_outstanding", 1, 0, "5s", 400_000, 1000, None, "mean"),
    (250, "output_rate", "least_outstanding", 1, 0, "5s", 400_000, 1000, None, "mean"),
]


def on_both_engines(design, names, rows):
    """Designs on the reference and on one program, which agree: (outcomes, when replicas were there) of the former."""
    rows = [{f"deployment.{name}": value for name, value in zip(names, row, strict=True)} for row in rows]
    found = {}
    for simulator in ("token", "iteration"):
        whole = plan(load_scenario(design | {"sweep": {"fleet": {"zip": rows}}}), simulator=simulator)
        assert [each.simulator for each in whole.configurations] == [simulator] * len(rows)
        (group,) = whole.groups
        found[simulator] = simulate_configurations(whole, group.configurations)
    exact, fast = found["token"], found["iteration"]
    for name in ("scheduled_s", "first_token_s", "last_token_s"):
        np.testing.assert_allclose(getattr(fast.times, name), getattr(exact.times, name), rtol=1e-9)
    for name in ("replica", "refused"):
        np.testing.assert_array_equal(getattr(fast.times, name), getattr(exact.times, name))
    np.testing.assert_array_equal(fast.tokens.cached_tokens, exact.tokens.cached_tokens)
    (fast_use,), (exact_use,) = fast.stations, exact.stations
    for name in ("busy_s", "iterations", "kv_unit_s", "kv_units_max", "preemptions"):
        np.testing.assert_allclose(getattr(fast_use.totals, name), getattr(exact_use.totals, name), rtol=1e-9)
    for (spans,), (known,) in zip(fast_use.alive, exact_use.alive, strict=True):
        np.testing.assert_allclose(spans, known, rtol=1e-9)
    return exact, [known for (known,) in exact_use.alive]


def test_the_program_starts_and_stops_replicas_as_the_reference_does():
    names = (
        "autoscaling.target", "autoscaling.metric", "router", "autoscaling.min_replicas", "autoscaling.cooldown_s",
        "autoscaling.start_up_s", "kv.capacity_tokens", "batching.max_queued_requests", "autoscaling.lower",
        "autoscaling.predictor",
    )  # fmt: skip
    design = scenario(batching={"max_num_seqs": 8, "packing": "priority", "max_queued_requests": 1000})
    lengths = {"prompt_mean": 800, "prompt_cv": 1, "prompt_max": 4000, "output_mean": 60, "output_cv": 1}
    design["workload"] |= {
        "lengths": {"source": "lognormal", "output_max": 250, **lengths},
        "classes": {"a": {"share": 2}, "b": {"share": 1, "priority": 3}},
        "requests": 500,
        "seeds": [0],
    }
    exact, alive = on_both_engines(design, names, FLEETS)
    # Otherwise little would be compared: all of it happens.
    assert [len(spans) > 1 for spans in alive].count(True) >= 9
    preempted = exact.stations[0].totals.preemptions
    assert exact.times.refused.any() and np.flatnonzero(preempted).tolist() == [3]
    # Each request that comes alone starts four replicas, more in all than the table of the same program has rows.
    alone = {"workload": design["workload"] | {"arrivals": {"process": "poisson", "rate_rps": 0.1}}}
    often = (*names, "autoscaling.every_s", "autoscaling.window_s")
    row = (0.2, "outstanding", "least_outstanding", 1, "4s", 0, 400_000, 1000, None, "mean", "1s", 0)
    _, (spans,) = on_both_engines(design | alone, often, [row])
    assert len(spans) > 600


@pytest.mark.skipif(not THOROUGH, reason="a program of its own, which takes long to compile")
def test_a_replica_of_a_program_that_starts_again_has_an_empty_prefix_cache():
    names = (
        "autoscaling.target", "autoscaling.metric", "router", "autoscaling.cooldown_s", "autoscaling.start_up_s",
        "kv.capacity_tokens",
    )  # fmt: skip
    rows = [
        (2, "outstanding", "least_outstanding", 0, "5s", 400_000),
        (0.05, "kv", "least_kv", 0, 0, 40_000),
        (1, "waiting", "round_robin", "10s", "5s", 16_384),
    ]
    design = scenario(kv={"prefix_caching": True}, batching={"max_num_seqs": 8})
    lengths = {"prompt_mean": 800, "prompt_cv": 1, "prompt_max": 4000, "output_mean": 60, "output_cv": 1}
    design["workload"] |= {
        "arrivals": {"process": "varying", "rate_rps": 9, "period_s": "50s", "profile": [["0s", 1], ["25s", 9]]},
        "lengths": {"source": "lognormal", "output_max": 250, **lengths},
        "sessions": {"turns": 3, "think_s": 4},
        "requests": 900,
        "seeds": [0],
    }
    exact, alive = on_both_engines(design, names, rows)
    assert min(map(len, alive)) > 6 and exact.tokens.cached_tokens.any()  # more than the slots there are


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"router": "random", "kv": {"prefix_caching": False}}, "deployment.autoscaling with router random"),
        (
            {"kv": {"prefix_caching": False}, "autoscaling": POLICY | {"metric": "ttft"}},
            "deployment.autoscaling.metric ttft with users who wait for answers",
        ),
    ],
)
def test_which_fleets_the_reference_keeps(keys, reason):
    design = scenario(**keys)
    design["workload"] |= {"requests": 20, "sessions": {"turns": 2, "think_s": 1}}
    if keys.get("autoscaling"):
        design["workload"]["sessions"]["think_from"] = "answer"
    (configuration,) = plan(load_scenario(design), simulator="iteration").configurations
    assert configuration.simulator == "token" and configuration.lacking == (reason,)
