"""A prefill and a decode pool from the scenario to its results: both engines agree, and nothing is lost between."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from evaluator.device import configure
from evaluator.metrics import OK
from evaluator.plan import Plan, plan
from evaluator.replica import Change
from evaluator.run import simulate, sweep
from evaluator.scenario import Scenario, load_scenario
from evaluator.simulation import simulate_configurations
from evaluator.stations.engine.fcfs_reserved import run_lanes
from tests.systems import Draw

TIMES = ("arrival_s", "scheduled_s", "first_token_s", "last_token_s")
POOLS = {"p": {"role": "prefill"}, "d": {"role": "decode"}}
SPREAD = {"source": "uniform", "prompt_min": 20, "prompt_max": 2500, "output_min": 1, "output_max": 40}


def disaggregated(
    sweep: Any = None, lengths: Any = SPREAD, rate_rps: float = 8.0, pipeline: Any = None, **deployment: Any
) -> Scenario:
    """Llama-3.1-8B on an H100 on either side."""
    arrivals = {"process": "poisson", "rate_rps": rate_rps}
    workload = {"arrivals": arrivals, "lengths": lengths, "requests": 40, "warmup_requests": 0}
    served = {"model": "llama-3.1-8b", "hardware": "h100-sxm", "pools": POOLS, **deployment}
    stages = {} if pipeline is None else {"pipeline": pipeline}
    return load_scenario({"workload": workload, "deployment": served, "sweep": sweep, **stages})


def random_designs(count: int) -> list[dict[str, Any]]:
    """Any policies that reserve KV, hardware, replicas, routers, parallelism and links."""
    draw = Draw(0)
    return [
        {
            "deployment.pools": {name: draw.pool_in_order() for name in ("p", "d")},
            "deployment.transfer": draw.transfer(dtype=draw.one("auto", "fp8")),
            "deployment.router": draw.one("round_robin", "random"),
            "workload.arrivals.rate_rps": draw.one(2, 20, 200) + number / 1000,
        }
        for number in range(count)
    ]


def simulated(whole: Plan) -> dict[int, tuple[Any, int]]:
    """Outcomes and the position in them, by configuration."""
    found = {}
    for group in whole.groups:
        outcomes = simulate_configurations(whole, group.configurations)
        found |= {configuration.config: (outcomes, place) for place, configuration in enumerate(group.configurations)}
    return found


@pytest.fixture(scope="module")
def systems():
    """120 random systems: their plan, and both engines' outcomes."""
    configure()
    asked = disaggregated({"design": {"zip": random_designs(120)}})
    whole = plan(asked)
    return whole, simulated(whole), simulated(plan(asked, simulator="token"))


def test_both_engines_agree_on_random_systems(systems):
    whole, fast, exact = systems
    assert sum(configuration.status == OK for configuration in whole.configurations) >= 100
    assert {configuration.simulator for configuration in whole.configurations} == {"iteration"}
    for configuration in whole.configurations:
        if configuration.status != OK:
            continue
        (mine, at), (known, there) = fast[configuration.config], exact[configuration.config]
        for name in TIMES:
            np.testing.assert_allclose(
                getattr(mine.times, name)[at],
                getattr(known.times, name)[there],
                rtol=1e-9,
                err_msg=f"{name} of {configuration.config}",
            )
        waits = (one.later_wait_s[place] for one, place in ((mine, at), (known, there)))
        np.testing.assert_allclose(*waits, rtol=1e-9, atol=1e-9)
        np.testing.assert_array_equal(mine.times.replica[at], known.times.replica[there])
        for one, other in zip(mine.stations, known.stations, strict=True):
            for name in ("busy_s", "iterations", "flops", "bytes", "kv_unit_s", "preemptions"):
                np.testing.assert_allclose(one.figure(name)[at], other.figure(name)[there], rtol=1e-9)


def test_nothing_is_lost_between_the_pools(systems):
    whole, fast, _ = systems
    for configuration in whole.configurations:
        if configuration.status != OK:
            continue
        outcomes, at = fast[configuration.config]
        jobs = whole.sampler.jobs(configuration.workload, 0, configuration.stations[0].role)
        output = 1 + jobs.demand.later_tokens
        np.testing.assert_array_equal(outcomes.tokens.of_config(at).output_tokens[0], output)
        measured = output[jobs.measured]
        assert outcomes.itl[at][0][1].sum() == (measured - 1).sum()  # every token but the first follows another
        times = np.array([getattr(outcomes.times, name)[at, 0] for name in TIMES])
        assert np.isfinite(times).all() and (np.diff(times, axis=0) >= 0).all()
        plan_ = configuration.link
        over_s = plan_.service_s(jobs.demand.prompt_tokens) / plan_.size.layers + plan_.latency_s
        several = output > 1
        assert (np.diff(times[2:], axis=0)[0] >= over_s * (1 - 1e-9))[several].all()  # at least a layer after it
        np.testing.assert_array_equal(times[2][~several], times[3][~several])


def test_the_first_token_comes_from_the_prefill_side_and_the_gap_counts_after_it():
    near, far = (
        simulate(disaggregated(transfer={"link": link}, calibration="datasheet"), simulator="token")
        for link in ("nvlink", "inter-rack")
    )
    np.testing.assert_array_equal(near.requests["first_token_s"], far.requests["first_token_s"])
    several = near.requests["output_tokens"] > 1
    later_s = (far.requests["last_token_s"] - near.requests["last_token_s"])[several]
    assert later_s.min() > 0 and later_s.mean() == pytest.approx(0.02, rel=0.1)  # to the next iteration, more or less
    assert far.summary["tpot_s_mean"].item() > near.summary["tpot_s_mean"].item()
    assert far.summary["itl_s"].sel(quantile=0.99).item() > 0.02


def test_the_first_token_does_not_wait_for_what_the_decode_side_has_planned():
    """Engines plan iterations ahead; those of a slower decode side hold up the second token, not the first."""
    served = {"d": {"role": "decode"}, "p": {"role": "prefill"}}
    sweep_over = {"deployment.pools.d.hardware": ["h100-sxm", "l40s"]}
    lengths = {"source": "fixed", "prompt_tokens": 100, "output_tokens": 20}
    found = sweep(disaggregated(sweep_over, lengths, rate_rps=0.01, pools=served, calibration="auto"))
    first_s, pace_s = found["ttft_s_mean"].values, found["tpot_s_mean"].values
    assert first_s[0] == pytest.approx(first_s[1], rel=1e-9) and pace_s[1] > 2 * pace_s[0]


SERVING = "h100-sxm-vllm.serving"
"""A calibration set with ``lookahead_steps``."""


def seen(asked: Scenario) -> Any:
    """What clients see of one system, by the reference: its gaps between tokens are exact, and not in bins."""
    whole = plan(asked, simulator="token")
    return simulate_configurations(whole, whole.configurations)


def test_the_gaps_between_tokens_make_up_the_time_from_the_first_to_the_last():
    """Also where what the decode side has planned makes the gap before the second token longer."""
    found = seen(disaggregated(calibration=SERVING))
    values, weights = found.itl[0][0]
    given = found.times.last_token_s - found.times.first_token_s
    assert weights.min() > 0 and weights.sum() == (found.tokens.output_tokens - 1).sum()
    assert values @ weights == pytest.approx(given.sum(), rel=1e-9)


def test_users_of_a_closed_loop_send_again_when_they_have_the_last_token():
    """On the vectorised engine, too: the random systems in tandem of test_joint_pools.py."""
    asked = disaggregated(calibration=SERVING)
    arrivals = {"process": "closed_loop", "users": 3, "rate_rps": None}
    asked = replace(asked, workload=replace(asked.workload, arrivals=replace(asked.workload.arrivals, **arrivals)))
    found = seen(asked)
    assert found.engine.tolist() == ["token"]
    later = np.sort(found.times.arrival_s[0, 0])[3:]
    np.testing.assert_allclose(later, np.sort(found.times.last_token_s[0, 0])[: len(later)], rtol=1e-9)


@pytest.mark.parametrize("backpressure", [False, True])
def test_a_guard_holds_the_first_token_too_for_what_the_decode_side_has_planned(backpressure):
    """Its clients have all tokens at once, so that there are no gaps between them; as where one loop runs all."""
    pools = {**POOLS, "small": {"role": "stage", "hardware": "h100-sxm"}}
    guard = {"stage": "postprocess", "kind": "guard", "model": "qwen3-0.6b", "pool": "small"}
    stages = ["prefill", "decode", guard]
    transfer = {"backpressure": backpressure}
    found = seen(disaggregated(calibration=SERVING, pools=pools, pipeline=stages, transfer=transfer))
    np.testing.assert_array_equal(found.times.first_token_s, found.times.last_token_s)
    assert not found.itl[0][0][0].any()


def test_devices_and_cost_are_of_both_pools():
    pools = {"p": {"role": "prefill", "replicas": 2}, "d": {"role": "decode", "tensor_parallel": 4}}
    priced = {
        name: {**pool, "usd_per_device_hour": price} for (name, pool), price in zip(pools.items(), (1, 3), strict=True)
    }
    found = simulate(disaggregated(pools=priced), simulator="token").summary
    assert found["devices"].item() == 6
    tokens_per_hour = found["output_tok_per_s"].item() * 3600
    assert found["usd_per_mtok"].item() == pytest.approx(1e6 * (2 * 1 + 4 * 3) / tokens_per_hour)


def test_a_sweep_over_both_pools_takes_one_program():
    configure()
    axes = {"deployment.pools.d.replicas": [1, 2, 3], "deployment.pools.p.tensor_parallel": [1, 2, 4]}
    before = run_lanes._cache_size()
    found = sweep(disaggregated(axes, kv={"admission": "reserve"}))
    assert (found["status"] == OK).all() and found.sizes["config"] == 9
    assert found["devices"].values.tolist() == [2, 3, 5, 3, 4, 6, 4, 5, 7]
    assert run_lanes._cache_size() - before <= 1


def test_a_trace_tells_the_pools_apart(tmp_path):
    pools = {"p": {"role": "prefill", "replicas": 2}, "d": {"role": "decode"}}
    simulate(disaggregated(pools=pools), trace=tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert set(names.values()) == {"requests", "p replica 0", "p replica 1", "d replica 0"}
    did = {(names[event["pid"]], event["name"]) for event in events if event["ph"] == "X"}
    assert did == {("p replica 0", "prefill"), ("p replica 1", "prefill"), ("d replica 0", "decode")}


def test_a_router_that_looks_at_the_state_chooses_among_the_replicas_of_its_pool():
    """Over pools in tandem, too, its pool runs after those before it."""
    pools = {"p": {"role": "prefill", "replicas": 2}, "d": {"role": "decode", "replicas": 3}}
    routers = {"prefill": "least_work", "decode": "least_outstanding"}
    (configuration,) = plan(disaggregated(pools=pools, router=routers)).configurations
    assert (configuration.status, configuration.simulator, configuration.joint) == (OK, "iteration", True)
    busy = {"pools": pools, "rate_rps": 60.0, "calibration": "datasheet"}
    run, turns = (simulate(disaggregated(router=one, **busy)) for one in (routers, "round_robin"))
    assert run.summary["engine"].item() == "iteration" and set(run.requests["replica"]) == {0, 1}
    assert run.summary["ttft_s_mean"].item() < turns.summary["ttft_s_mean"].item()  # long prompts block nobody
    assert (run.requests["output_tokens"] == turns.requests["output_tokens"]).all()


LACKING = {
    "models": (
        {"pools": {**POOLS, "d": {"role": "decode", "model": "qwen3-8b"}}},
        "infeasible: pool p has llama-3.1-8b and pool d qwen3-8b, and the KV of one model means nothing to another",
    ),
    "dtype": (
        {"precision": {"kv": "fp8"}, "transfer": {"dtype": "bf16"}},
        "infeasible: transfer.dtype bf16 is wider than the KV cache of fp8, which has nothing more to send; use auto",
    ),
    "versions of a model": (
        {"pools": {"a": {"role": "mixed"}, "b": {"role": "mixed", "model": {"like": "llama-3.1-8b", "layers": 40}}}},
        "infeasible: pool a has llama-3.1-8b and pool b like llama-3.1-8b, layers 40, and requests do not say which "
        "they ask for; give both the same model",
    ),
    "too large": ({"model": "llama-3.1-70b"}, "infeasible: pool p: does not fit: 141.1 GB of weights"),
}


@pytest.mark.parametrize("case", LACKING)
def test_what_cannot_run_is_a_row_with_its_reason(case):
    deployment, reason = LACKING[case]
    (configuration,) = plan(disaggregated(**deployment)).configurations
    assert configuration.status.startswith(reason)


def test_inputs_of_the_links_are_those_of_the_link_between_the_pools_too():
    whole = plan(disaggregated(transfer={"link": "inter-rack"}))
    (configuration,) = whole.configurations
    assert whole.changed(configuration, Change("link_bandwidth", 2.0)).link.bandwidth == 2 * 128e9
    assert whole.changed(configuration, Change("link_latency", 2.0)).link.latency_s == 2 * 0.02
    assert whole.changed(configuration, Change("flops", 2.0)).link is configuration.link


@pytest.mark.parametrize(("dtypes", "bytes_"), [(("bf16", "bf16"), 2), (("fp8", "bf16"), 1), (("bf16", "fp8"), 1)])
def test_auto_sends_as_the_narrower_cache(dtypes, bytes_):
    pools = {name: {**pool, "precision": {"kv": kv}} for (name, pool), kv in zip(POOLS.items(), dtypes, strict=True)}
    (configuration,) = plan(disaggregated(pools=pools)).configurations
    assert configuration.link.size.of(1) == 32 * 2 * 8 * 128 * bytes_
