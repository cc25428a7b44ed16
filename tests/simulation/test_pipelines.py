"""Pipelines: the chain against the event loop of the reference, and what is conserved from stage to stage."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from evaluator.device import configure
from evaluator.errors import InputError
from evaluator.metrics import OK
from evaluator.plan import Plan, plan
from evaluator.reference.serve.network import run_network
from evaluator.run import simulate, sweep
from evaluator.scenario import load_scenario
from evaluator.simulation import simulate_configurations, stations_of
from evaluator.simulation.chain import ChainResult, chain_result_of, run_chain
from evaluator.stages import (
    KINDS,
    Batched,
    Delay,
    Pass,
    Served,
    Shipped,
    StageKind,
    StageRequests,
    Work,
    choice,
    count,
    key,
    quantity,
    register,
)
from tests.simulation.engines import column_of
from tests.thorough import THOROUGH, tried

TIMES = ("arrival_s", "scheduled_s", "first_token_s", "last_token_s")
WHAT = ("replica", "prompt_tokens", "output_tokens", "cached_tokens")


@dataclass(frozen=True)
class Bag:
    """Steps of all kinds, with times by request."""

    step: str = key(choice("delay", "served", "queues", "batched", "patient", "shipped", "alone", "pass", "two"))
    seconds: float = key(quantity("s", least=0), 0.1)
    servers: int = key(count(), 1)
    adds: int = key(count(least=0), 0)
    cached: int = key(count(least=0), 0)


def bag_work(bag: Bag, visit: StageRequests) -> Work:
    drawn = visit.rng().random(len(visit))
    seconds = bag.seconds * drawn
    queue = (drawn * 3).astype(np.int64)
    sent = 1e9 * seconds
    steps: dict[str, tuple[Any, ...]] = {
        "delay": (Delay(seconds),),
        "served": (Served(seconds, bag.servers),),
        "queues": (Served(seconds, bag.servers, queue),),
        "batched": (Batched(bag.seconds * np.arange(2.0, 6.0) / 4.0, bag.servers),),
        "patient": (Batched(np.full(3, bag.seconds), bag.servers, max_wait_s=0.1),),
        "shipped": (Shipped(sent, 1e9, 0.01, queue=queue),),
        "alone": (Shipped(sent, 1e9, 0.02, shared=False),),
        "pass": (Pass("qwen3-0.6b", visit.prompt_tokens // 2 + 1, sequences=3),),
        "two": (Served(seconds, name="wait"), Pass("qwen3-0.6b", visit.prompt_tokens, name="read")),
    }
    cached = np.minimum(visit.cached_tokens + bag.cached, visit.prompt_tokens - 1) if bag.cached else None
    return Work(steps[bag.step], adds_tokens=bag.adds * (drawn > 0.5), cached_tokens=cached)


BAG = StageKind("bag", Bag, bag_work)


@pytest.fixture(autouse=True)
def _bag():
    register(BAG)
    yield
    del KINDS["bag"]


def random_scenario(number: int, in_between: bool = True) -> dict[str, Any]:
    """A pipeline of up to five stages around one pool, or around a prefill and a decode side.

    ``in_between``: up to two stages more between these.
    """
    rng = np.random.default_rng(number)
    pools: dict[str, Any] = {}
    if rng.random() < 0.4:
        roles = {"p": "prefill", "d": "decode"}
        pools = {name: {"role": role, "replicas": int(rng.integers(1, 3))} for name, role in roles.items()}

    def stage(place: int) -> dict[str, Any]:
        step = str(rng.choice(["delay", "served", "queues", "batched", "patient", "shipped", "alone", "pass", "two"]))
        found: dict[str, Any] = {"stage": "bag", "step": step, "seconds": float(rng.uniform(0, 0.3))}
        found |= {"servers": int(rng.integers(1, 4)), "adds": int(rng.integers(0, 50)), "cached": int(rng.integers(20))}
        if step in ("pass", "two") or rng.random() < 0.2:
            pools[f"s{place}"] = {"role": "stage", "hardware": "l4", "replicas": int(rng.integers(1, 3))}
            found["pool"] = f"s{place}"
        if rng.random() < 0.3:
            found["only"] = [str(rng.choice(["a", "b"]))]
        return found

    before, behind = int(rng.integers(0, 4)), int(rng.integers(0, 3))
    stages = [stage(place) for place in range(before + max(behind, before == 0))]
    # By draws of their own, so that the other stages of a number are what they were without them.
    apart, drawn, rng = in_between and "p" in pools, rng, np.random.default_rng([number, 1])
    between = [stage(9 + place) | {"adds": 0, "cached": 0} for place in range(int(rng.integers(0, 3)) if apart else 0)]
    rng = drawn
    source = {"source": "uniform", "prompt_min": 1, "prompt_max": 300, "output_min": 1, "output_max": 12}
    process = [{"process": "poisson", "rate_rps": float(rng.uniform(1, 20))}, {"process": "all_at_once"}]
    return {
        "workload": {
            "arrivals": process[int(rng.random() < 0.15)],
            "lengths": source,
            "requests": 40,
            "pipelines": {"a": 0.5, "b": {"share": 0.5, "lengths": {**source, "prompt_max": 50}}},
            "seeds": [number, number + 1],
        },
        "deployment": {
            "model": "llama-3.1-8b",
            "hardware": "h100-sxm",
            "replicas": int(rng.integers(1, 3)),
            "batching": {"policy": str(rng.choice(["chunked", "continuous"])), "max_num_seqs": int(rng.integers(2, 9))},
            **({"pools": pools} if pools else {}),
        },
        "pipeline": [*stages[:before], "prefill", *between, "decode", *stages[before:]],
    }


def both_ways(whole: Plan) -> list[tuple[ChainResult, ChainResult]]:
    """What the chain makes of the configurations of a plan, and what the event loop does."""
    found = []
    for group in whole.groups:
        assert all(configuration.status == OK for configuration in group.configurations), [
            configuration.status for configuration in group.configurations
        ]
        jobs = [whole.jobs(configuration) for configuration in group.configurations]
        chain = run_chain(stations_of(whole, group.configurations), jobs)
        found.append((chain, chain_result_of(run_network(whole, group.configurations, jobs))))
    return found


def assert_same(chain: ChainResult, network: ChainResult) -> None:
    for name in TIMES:
        np.testing.assert_allclose(
            getattr(chain.times, name), getattr(network.times, name), rtol=1e-9, atol=1e-9, err_msg=name
        )
    for name in WHAT:
        np.testing.assert_array_equal(column_of(chain, name), column_of(network, name), err_msg=name)
    assert [stage.name for stage in chain.stages] == [stage.name for stage in network.stages]
    for one, other in zip(chain.stages, network.stages, strict=True):
        for name in ("wait_s", "service_s", "utilisation"):
            told = f"{name} of {one.name}"
            np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-9, atol=1e-9, err_msg=told)
    for use, same in zip(chain.uses, network.uses, strict=True):
        for name in ("devices", "busy_s", "iterations", "flops", "bytes", "replicas", "usd_per_hour"):
            told = f"{name} of {use.name}"
            np.testing.assert_allclose(use.figure(name), same.figure(name), rtol=1e-9, err_msg=told)


@pytest.mark.parametrize("number", range(24))
def test_random_pipelines(number):
    """The stations of the chain, one after the other, against all of them on one clock."""
    for chain, network in both_ways(plan(load_scenario(random_scenario(number)), simulator="token")):
        assert_same(chain, network)


COUPLED: dict[str, dict[str, Any]] = {
    "looks": {
        "pools": {"a": {"role": "mixed", "replicas": 2}, "b": {"role": "mixed", "hardware": "l40s"}},
        "router": "least_work",
    },
    "dealt out to a side that looks, under back-pressure": {
        "pools": {
            "p": {"role": "prefill", "replicas": 2},
            "q": {"role": "prefill", "hardware": "l40s"},
            "d": {"role": "decode"},
            "e": {"role": "decode", "hardware": "l40s"},
        },
        "router": {"prefill": "random", "decode": "least_kv"},
        "transfer": {"backpressure": True, "granularity": "layer", "link": "ethernet-25g"},
    },
}
if THOROUGH:  # programs of their own, whose parts the others have
    COUPLED["back-pressure"] = {
        "pools": {"p": {"role": "prefill"}, "d": {"role": "decode", "replicas": 2}},
        "transfer": {"backpressure": True, "granularity": "layer", "link": "ethernet-25g"},
    }
    COUPLED["dealt out to a side that looks"] = {
        **COUPLED["dealt out to a side that looks, under back-pressure"],
        "transfer": {"link": "pcie-gen5-x16"},
    }


@pytest.mark.parametrize("number", range(tried(4, 0.5)))
@pytest.mark.parametrize("coupled", COUPLED)
def test_random_stages_around_pools_in_one_loop(coupled, number):
    """Stages one after the other with the engine's loop over all pools between them, against one clock for all."""
    configure()
    raw, more = random_scenario(number, in_between=False), COUPLED[coupled]
    stage_pools = {name: pool for name, pool in raw["deployment"].get("pools", {}).items() if pool["role"] == "stage"}
    served = {name: value for name, value in raw["deployment"].items() if name != "replicas"}
    raw["deployment"] = {**served, **more, "pools": {**more["pools"], **stage_pools}}
    whole = plan(load_scenario(raw), simulator="iteration")
    for configuration in whole.configurations:
        assert (configuration.simulator, configuration.lacking, configuration.joint_pools) == ("iteration", (), True)
    for chain, network in both_ways(whole):
        assert_same(chain, network)


GUARDED: dict[str, Any] = {
    "workload": {
        "arrivals": {"process": "poisson", "rate_rps": 6},
        "lengths": {"source": "uniform", "prompt_min": 1, "prompt_max": 300, "output_min": 1, "output_max": 12},
        "requests": 120,
        "pipelines": {"a": 0.5, "b": 0.5},
        "seeds": [0, 1],
    },
    "deployment": {
        "model": "llama-3.1-8b",
        "hardware": "h100-sxm",
        "pools": {"small": {"role": "stage", "hardware": "l4", "replicas": 2}},
    },
    "pipeline": [
        {"stage": "tool", "seconds": 0.1, "servers": 1, "tokens": 200, "only": "a"},
        "prefill",
        "decode",
        {"stage": "postprocess", "kind": "guard", "model": "qwen3-0.6b", "pool": "small", "only": ["a"]},
        {"stage": "postprocess", "seconds_per_token": 1e-4},
    ],
}


def scenario(**changes: Any) -> dict[str, Any]:
    return {**GUARDED, **changes}


def test_the_vectorised_engine_runs_pools_of_stages():
    """All configurations of a sweep in one chunk, with the passes of a guard by the compiled engine."""
    axes = {"workload.arrivals.rate_rps": [2, 6, 9], "pipeline.tool.seconds": [0, 0.2]}
    axes["deployment.pools.small.replicas"] = [1, 2]
    found = both_ways(plan(load_scenario(scenario(sweep=axes))))
    assert len(found) == 1 and len(found[0][0].times.arrival_s) == 12
    assert_same(*found[0])


# --- stages between prefill and decode

APART: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "hardware": "h100-sxm",
    "pools": {"p": {"role": "prefill"}, "d": {"role": "decode"}},
    "transfer": {"link": "ethernet-25g"},
}


def between(*stages: Any, **changes: Any) -> dict[str, Any]:
    """Prefill and decode apart, with stages between them."""
    deployment = APART | changes.pop("deployment", {})
    return scenario(deployment=deployment, pipeline=["prefill", *stages, "decode"], **changes)


@pytest.mark.parametrize("backpressure", [False, True])
def test_a_stage_of_no_time_between_prefill_and_decode_is_none(backpressure):
    transfer = {"deployment": {"transfer": {"link": "ethernet-25g", "backpressure": backpressure}}}
    nothing = {"stage": "bag", "step": "delay", "seconds": 0}
    for with_it, without in zip(journeys(between(nothing, **transfer)), journeys(between(**transfer)), strict=True):
        for name in TIMES:
            np.testing.assert_array_equal(getattr(with_it.times, name), getattr(without.times, name))


def test_requests_of_one_token_pass_no_link_whatever_other_seeds_do():
    """Of one seed all requests go on to the decode side, of the other all but the last."""
    workload = {"arrivals": {"process": "poisson", "rate_rps": 2}, "requests": 4, "warmup_requests": 0}
    workload["lengths"] = {"source": "uniform", "prompt_min": 100, "prompt_max": 300, "output_min": 1, "output_max": 3}
    raw = {
        "workload": workload | {"seeds": [5, 2]},
        "deployment": APART,
        "pipeline": [{"stage": "preprocess", "seconds": 0.1}, "prefill", "decode"],
    }
    whole = plan(load_scenario(raw), simulator="token")
    outcomes = simulate_configurations(whole, whole.configurations)
    once = np.array([[False, False, False, True], [False] * 4])
    np.testing.assert_array_equal(outcomes.tokens.output_tokens[0] == 1, once)
    for stage in outcomes.stages:
        if stage.name in ("transfer", "decode"):
            np.testing.assert_array_equal(np.isnan(stage.service_s[0]), once)


@pytest.mark.parametrize("backpressure", [False, True])
def test_a_stage_between_holds_the_first_token_and_the_transfer(backpressure):
    """At a trickle nobody waits: an answer is later by the stage's time, and gaps between tokens are as before."""
    trickle = {"workload": {**GUARDED["workload"], "arrivals": {"process": "poisson", "rate_rps": 0.001}}}
    transfer = {"deployment": {"transfer": {"link": "ethernet-25g", "backpressure": backpressure}}}
    held = {"stage": "tool", "seconds": 0.25, "servers": 9, "only": "a"}
    later, plain = journeys(between(held, **trickle, **transfer))[0], journeys(between(**trickle, **transfer))[0]
    visited = ~np.isnan(next(stage for stage in later.stages if stage.name == "tool").wait_s)
    assert 0.3 < visited.mean() < 0.7
    for name in ("first_token_s", "last_token_s"):
        at_s = getattr(plain.times, name) + np.where(visited, 0.25, 0.0)
        np.testing.assert_allclose(getattr(later.times, name), at_s, rtol=1e-9)
    assert [stage.name for stage in later.stages] == ["prefill", "tool", "transfer", "decode"]
    for one, other in zip(later.itl[0], plain.itl[0], strict=True):
        assert one[1].sum() == other[1].sum()
        np.testing.assert_allclose(np.dot(*one), np.dot(*other), rtol=1e-6)


def test_the_prefill_side_keeps_its_kv_while_a_stage_answers_only_under_back_pressure():
    held = {"stage": "tool", "seconds": 1, "servers": 50}
    areas = []
    for backpressure in (False, True):
        raw = between(held, deployment={"transfer": {"link": "nvlink", "backpressure": backpressure}})
        whole = plan(load_scenario(raw), simulator="token")
        outcomes = simulate_configurations(whole, whole.configurations)
        areas.append(next(use for use in outcomes.stations if use.name == "p").figure("kv_unit_s").mean())
    assert areas[1] > 5 * areas[0]


def test_a_guard_between_reads_the_prompt_and_the_first_token():
    pools = {**APART["pools"], "small": {"role": "stage", "hardware": "l4"}}
    guard = {"stage": "postprocess", "kind": "guard", "model": "qwen3-0.6b", "pool": "small"}
    whole = plan(load_scenario(between(guard, deployment={"pools": pools})), simulator="token")
    (routes, _) = whole.routes(whole.configurations[0])
    np.testing.assert_array_equal(routes.visits[1].work.steps[0].tokens, routes.tokens.prompt_tokens + 1)


def test_agents_and_closed_loops_pass_stages_between():
    """Each answer passes the stage once, and the last token of a call is before the next prefill."""
    held = {"stage": "tool", "seconds": 0.2, "servers": 2}
    back = {"stage": "tool", "seconds": 0.1, "servers": 9, "back_to": "prefill", "times": 2}
    workload = {**GUARDED["workload"], "arrivals": {"process": "closed_loop", "users": 4}, "requests": 30}
    raw = between(held, workload=workload)
    raw["pipeline"] = [*raw["pipeline"], back]
    (found,) = journeys(raw)
    stages = {stage.name: stage for stage in found.stages}
    np.testing.assert_allclose(stages["tool"].service_s, 3 * 0.2, rtol=1e-9)
    np.testing.assert_allclose(stages["tool_2"].service_s, 2 * 0.1, rtol=1e-9)
    steps = [stage for stage in found.stages if "." not in stage.name]
    total = sum(np.nan_to_num(stage.wait_s) + np.nan_to_num(stage.service_s) for stage in steps)
    np.testing.assert_allclose(total, found.times.last_token_s - found.times.arrival_s, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("stage", "deployment", "message"),
    [
        ({"stage": "tool", "seconds": 1}, {"pools": None}, "stands between prefill and decode, which a mixed replica"),
        (
            {"stage": "tool", "seconds": 1},
            {"pools": {**APART["pools"], "w": {"role": "mixed"}}},
            "stands between prefill and decode, which a mixed replica",
        ),
        ({"stage": "tool", "seconds": 1}, {"transfer": {"granularity": "layer"}}, "use granularity cache"),
        ({"stage": "tool", "seconds": 1, "tokens": 9}, {}, "it adds to the prompt"),
    ],
)
def test_what_cannot_stand_between(stage, deployment, message):
    (configuration,) = plan(load_scenario(between(stage, deployment=deployment))).configurations
    assert configuration.status.startswith("infeasible: pipeline.tool: ") and message in configuration.status


# --- what is conserved


def journeys(raw: dict[str, Any]) -> list[ChainResult]:
    """Of the network and, where it can run them, of the chain."""
    whole = plan(load_scenario(raw), simulator="token")
    group = whole.groups[0]
    jobs = [whole.jobs(configuration) for configuration in group.configurations]
    found = [chain_result_of(run_network(whole, group.configurations, jobs))]
    if not group.configurations[0].joint_pools:
        found.append(run_chain(stations_of(whole, group.configurations), jobs))
    return found


@pytest.mark.parametrize("number", [3, 5, 8, 13])
def test_times_of_the_stages_add_up_to_the_passage(number):
    """Nobody is lost between stages: a request is at one stage after the other, from its arrival to its end."""
    for chain_result in journeys(random_scenario(number)):
        steps = [stage for stage in chain_result.stages if "." not in stage.name]
        total = sum(np.nan_to_num(stage.wait_s) + np.nan_to_num(stage.service_s) for stage in steps)
        np.testing.assert_allclose(
            total, chain_result.times.last_token_s - chain_result.times.arrival_s, rtol=1e-9, atol=1e-9
        )


def test_requests_and_tokens_from_stage_to_stage():
    (whole,) = [plan(load_scenario(GUARDED), simulator="token")]
    routes = whole.routes(whole.configurations[0])[0]
    here = routes.visits[0].comers
    assert 40 < here.sum() < 80  # half of them take pipeline a
    asked, came = routes.visits[0].tokens, routes.tokens
    np.testing.assert_array_equal(came.prompt_tokens, asked.prompt_tokens + 200 * here)
    guard = next(visit for visit in routes.visits if visit.stage == 1)
    read = routes.asked(guard, 0)
    np.testing.assert_array_equal(read.compute_tokens, (came.prompt_tokens + came.output_tokens)[here])
    for chain_result in journeys(GUARDED):
        for stage in chain_result.stages:
            passed = ~np.isnan(stage.wait_s[0, 0])
            np.testing.assert_array_equal(passed, here if stage.name in ("tool", "postprocess") else True)


# --- agents, and stages that share a pool

AGENT = [
    {"stage": "prefill"},
    {"stage": "decode", "tokens": 5},
    {"stage": "tool", "seconds": 0.1, "tokens": 30, "back_to": "prefill", "times": 2},
]


def test_an_agent_comes_back_with_all_that_was_said():
    raw = scenario(pipeline=AGENT, deployment={"model": "llama-3.1-8b", "hardware": "h100-sxm"})
    whole = plan(load_scenario(raw), simulator="token")
    (configuration,) = whole.configurations
    assert configuration.in_loop and not configuration.lacking
    routes = whole.routes(configuration)[0]
    first, second, third = (visit.tokens for visit in routes.llm)
    np.testing.assert_array_equal(second.prompt_tokens, first.prompt_tokens + 5 + 30)
    np.testing.assert_array_equal(third.prompt_tokens, second.prompt_tokens + 5 + 30)
    assert [visit.stage for visit in routes.visits] == [None, 0, None, 0, None]
    outcomes = simulate_configurations(whole, [configuration])
    np.testing.assert_array_equal(outcomes.tokens.prompt_tokens[0, 0], third.prompt_tokens)
    assert (outcomes.tokens.output_tokens == 5).all()
    tool = next(stage for stage in outcomes.stages if stage.name == "tool")
    np.testing.assert_allclose(tool.service_s, 0.2)
    steps = sum(stage.wait_s + stage.service_s for stage in outcomes.stages)
    delays = outcomes.times.last_token_s - outcomes.times.arrival_s - steps  # of the frontend, once
    assert (delays >= 0).all() and delays.max() < 0.05


def test_a_kept_context_is_not_computed_again():
    kept = {"model": "llama-3.1-8b", "hardware": "h100-sxm", "kv": {"prefix_caching": True}}
    deployment = {**kept, "kv": {"prefix_caching": False}}
    found = []
    for one in (kept, deployment):
        whole = plan(load_scenario(scenario(pipeline=AGENT, deployment=one)), simulator="token")
        found.append(whole.routes(whole.configurations[0])[0].llm[1].tokens.cached_tokens)
    first = whole.routes(whole.configurations[0])[0].llm[0].tokens
    np.testing.assert_array_equal(found[0], first.prompt_tokens + 5 - 1)
    assert not found[1].any()


@pytest.mark.parametrize(("requests", "share"), [(1, 0.01), (20, 0.5)])
def test_a_tool_that_only_some_come_back_from(requests, share):
    """The first pipeline of two passes it by, as does the only request of a run."""
    raw = scenario(pipeline=[*AGENT[:2], AGENT[2] | {"only": "b"}])
    raw["workload"] = {**raw["workload"], "pipelines": {"a": 1 - share, "b": share}, "requests": requests, "seeds": [0]}
    raw["deployment"] = {"model": "llama-3.1-8b", "hardware": "h100-sxm"}
    whole = plan(load_scenario(raw), simulator="token")
    assert whole.labels.stage_names == ("prefill", "decode", "tool")
    outcomes = simulate_configurations(whole, whole.configurations)
    called = whole.routes(whole.configurations[0])[0].tokens.pipeline == 1
    (tool,) = [stage for stage in outcomes.stages if stage.name == "tool"]
    np.testing.assert_allclose(np.nan_to_num(tool.service_s[0, 0]), 0.2 * called)
    assert called.any() == (requests > 1)


def test_rounds_are_geometric():
    loop = {**AGENT[2], "times": {"mean": 3, "max": 100}}
    raw = scenario(pipeline=[*AGENT[:2], loop], deployment={"model": "llama-3.1-8b", "hardware": "h100-sxm"})
    raw["workload"] = {**raw["workload"], "requests": 4000}
    whole = plan(load_scenario(raw), simulator="token")
    visits = whole.routes(whole.configurations[0])[0].visits
    rounds = sum(visit.comers.astype(int) for visit in visits if visit.stage == 0)
    assert rounds.min() == 1 and abs(rounds.mean() - 3) < 4 * np.sqrt(6 / 4000)


def test_stages_of_one_pool_wait_in_one_queue():
    """Two tools on a pool of one replica: requests that call both at a time wait for one another."""
    tools = {"stage": "tool", "seconds": 0.5, "pool": "small"}
    raw = scenario(pipeline=[tools, tools, "prefill", "decode"])
    raw["workload"] = {
        "arrivals": {"process": "all_at_once"},
        "lengths": {"source": "fixed", "prompt_tokens": 10, "output_tokens": 1},
        "requests": 2,
        "warmup_requests": 0,
    }
    raw["deployment"] = {**raw["deployment"], "pools": {"small": {"role": "stage", "hardware": "l4"}}}
    whole = plan(load_scenario(raw), simulator="token")
    (configuration,) = whole.configurations
    assert configuration.in_loop and not configuration.lacking
    outcomes = simulate_configurations(whole, [configuration])
    waits = {stage.name: stage.wait_s[0, 0].tolist() for stage in outcomes.stages}
    assert waits["tool"] == [0.0, 0.5]  # 0 calls at 0, 1 at 0.5, 0 again at 1.0, 1 again at 1.5
    assert waits["tool_2"] == [0.5, 0.5]
    (small,) = [use for use in outcomes.stations if use.name == "tool"]
    assert small.devices[0] == 1 and small.totals.busy_s[0, 0] == pytest.approx(2.0)
    assert configuration.devices == 2


@pytest.mark.parametrize("users", [1, 5])
def test_users_of_a_closed_loop_wait_for_the_last_stage(users):
    raw = scenario()
    raw["workload"] = {**raw["workload"], "arrivals": {"process": "closed_loop", "users": users}}
    whole = plan(load_scenario(raw))
    (configuration,) = whole.configurations
    assert configuration.lacking == ("closed loop over a pipeline with a stage that computes a model",)
    outcomes = simulate_configurations(whole, [configuration])
    for arrival_s, last_token_s in zip(outcomes.times.arrival_s[0], outcomes.times.last_token_s[0], strict=True):
        answered = np.sort(last_token_s)
        np.testing.assert_allclose(arrival_s[users:], answered[: len(arrival_s) - users], rtol=1e-12)


@pytest.mark.parametrize("number", range(30, 36))
def test_as_many_users_as_requests_all_send_at_once(number):
    """A closed loop, in the event loop of the reference, against the chain of the same requests."""
    raw = random_scenario(number)
    pools = raw["deployment"].get("pools", {})
    raw["deployment"]["pools"] = {name: pool for name, pool in pools.items() if pool["role"] == "stage"}
    raw["deployment"]["pools"]["one"] = {"role": "mixed"}
    users, once = (
        plan(load_scenario({**raw, "workload": {**raw["workload"], "arrivals": arrivals}}), simulator="token")
        for arrivals in ({"process": "closed_loop", "users": 40}, {"process": "all_at_once"})
    )
    assert users.configurations[0].joint_pools and not once.configurations[0].joint_pools
    one, other = (simulate_configurations(whole, list(whole.groups[0].configurations)) for whole in (users, once))
    for name in TIMES:
        np.testing.assert_allclose(
            getattr(one.times, name), getattr(other.times, name), rtol=1e-9, atol=1e-9, err_msg=name
        )


def test_a_trace_says_which_pipeline_its_requests_take(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens,pipeline\n0,10,2,b\n1,20,2,a\n2,30,2,b\n", encoding="utf-8")
    raw = scenario(workload={"arrivals": {"process": "trace", "file": str(path)}, "warmup_requests": 0})
    whole = plan(load_scenario(raw), simulator="token")
    routes = whole.routes(whole.configurations[0])[0]
    np.testing.assert_array_equal(routes.visits[0].comers, [False, True, False])
    np.testing.assert_array_equal(routes.tokens.prompt_tokens, [10, 220, 30])
    both = {**raw["workload"], "pipelines": {"a": 1}}
    with pytest.raises(InputError, match=r"workload\.pipelines: .*t\.csv has a column pipeline, which says it already"):
        load_scenario({**raw, "workload": both})


# --- what comes out of a sweep


def test_rows_without_a_stage_and_rows_that_cannot_run_stand_beside_the_others():
    """A sweep takes a stage away, and gives it a model that does not fit: NaN where there is nothing to tell."""
    guards = [{"model": "qwen3-0.6b"}, {"model": "llama-3.1-70b"}]
    tools = [None, {"servers": 2}]
    raw = scenario(sweep={"pipeline.tool": tools, "pipeline.postprocess": guards})
    raw["workload"] = {**raw["workload"], "seeds": [0]}
    found = sweep(raw, simulator="token")
    assert found["stage"].values.tolist() == ["prefill", "decode", "postprocess", "postprocess_2", "tool"]
    ok = (found["status"] == "ok").values
    np.testing.assert_array_equal(ok, [True, False, True, False])
    there = ~np.isnan(found["stage_service_s_mean"].values)
    np.testing.assert_array_equal(there[0], [True, True, True, True, False])
    np.testing.assert_array_equal(there[2], [True] * 5)
    assert not there[~ok].any()
    share = found["stage_share"].values
    np.testing.assert_array_equal(share[0, [0, 1, 3]], 1.0)
    assert 0.4 < share[0, 2] < 0.8 and np.isnan(share[0, 4])  # of those alone who ask for the guard
    assert 0.0 < found["stage_share"].sel(stage="tool").values[2] <= 1.0
    delay = found["stage_utilisation"].sel(stage="postprocess_2")
    assert np.isnan(delay).all()  # a delay has no number of servers


def test_devices_and_prices_of_stage_pools_count_once():
    """One pool under two stages: its devices are paid for, and only once."""
    guard = {"stage": "postprocess", "kind": "guard", "model": "qwen3-0.6b", "pool": "small"}
    reader = {"stage": "preprocess", "model": "qwen3-0.6b", "pool": "small"}
    whole = plan(load_scenario(scenario(pipeline=[reader, "prefill", "decode", guard])))
    (configuration,) = whole.configurations
    outcomes = simulate_configurations(whole, [configuration])
    assert outcomes.summed("devices")[0] == configuration.devices == 3
    simulator, small = configuration.answering[0], configuration.pipeline.priced
    assert small == [(2, configuration.stations[1].usd_per_device_hour)]
    assert configuration.usd_per_hour == pytest.approx(simulator.usd_per_device_hour + 2 * small[0][1])
    used = {use.name: use for use in outcomes.stations}
    assert set(used) == {"preprocess", "engine"} and used["preprocess"].replicas[0] == 2


def test_a_guard_holds_the_answer_and_detokenising_passes_it_on():
    """Behind a guard TTFT is the end of its pass; behind a delay every token is later by it."""
    delayed = {"stage": "postprocess", "seconds": 0.25}
    (guard,) = [one for one in GUARDED["pipeline"] if isinstance(one, dict) and one.get("kind") == "guard"]
    guarded = journeys(scenario(pipeline=["prefill", "decode", {**guard, "only": ["a", "b"]}]))[0]
    alone = {"model": "llama-3.1-8b", "hardware": "h100-sxm"}
    later = journeys(scenario(pipeline=["prefill", "decode", delayed], deployment=alone))[0]
    np.testing.assert_array_equal(guarded.times.first_token_s, guarded.times.last_token_s)
    given_first, given_last = later.given_s
    np.testing.assert_allclose(later.times.first_token_s, given_first + 0.25)
    np.testing.assert_allclose(later.times.last_token_s, given_last + 0.25)
    assert (given_last > given_first).any()


def test_a_trace_shows_the_stages(tmp_path):
    raw = scenario(pipeline=[*GUARDED["pipeline"][:3], GUARDED["pipeline"][3]])
    simulate(raw, trace=tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {"requests", "engine replica 0", "postprocess replica 0", "postprocess replica 1"}
    slices = {event["name"] for event in events if event["ph"] == "b"}
    assert slices >= {"request", "tool", "waiting tool", "prefill", "decode", "postprocess"}


def test_requests_tell_of_every_stage():
    table = simulate(GUARDED, simulator="token").requests
    tools = table["tool_service_s"]
    assert 0 < tools.isna().sum() < len(table) and tools.dropna().between(0.0999, 0.1001).all()
    assert {"postprocess_wait_s", "postprocess_2_service_s", "prefill_wait_s", "decode_service_s"} <= set(table)


def test_agents_find_nothing_by_content():
    """What is in the blocks of a prompt that comes back with what a tool found is not known."""
    tool = {"stage": "tool", "seconds": 1, "back_to": "prefill", "times": 1}
    sessions = {"turns": {"mean": 3}, "think_from": "arrival"}
    workload = {
        "arrivals": {"process": "poisson", "rate_rps": 4},
        "lengths": {"source": "fixed", "prompt_tokens": 100, "output_tokens": 10},
        "requests": 20,
        "sessions": sessions,
    }
    served = {"model": "llama-3.1-8b", "hardware": "h100-sxm", "kv": {"prefix_caching": True}}
    (configuration,) = plan(
        load_scenario(
            {
                "workload": workload,
                "deployment": served,
                "pipeline": [{"stage": "prefill"}, {"stage": "decode"}, tool],
            }
        )
    ).configurations
    assert configuration.status == (
        "unsupported: kv.prefix_caching by content with pipeline that comes to the LLM more than once; leave it out"
    )
