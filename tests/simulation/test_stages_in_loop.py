"""Stages on one clock with the pools: the engine against the reference, request by request, on random systems."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from evaluator.device import configure
from evaluator.metrics import OK
from evaluator.plan import plan
from evaluator.scenario import load_scenario
from evaluator.simulation import simulate_configurations
from tests.random_systems.compare import planned
from tests.simulation.engines import column_of, with_few_programs
from tests.simulation.test_pipelines import _bag as _bag
from tests.systems import Draw
from tests.thorough import THOROUGH, tried

TIMES = ("arrival_s", "scheduled_s", "first_token_s", "last_token_s")
FIGURES = ("devices", "busy_s", "iterations", "flops", "bytes", "replicas", "usd_per_hour", "kv_unit_s", "kv_units_max")
ROUTERS = ("round_robin", "random", "least_outstanding", "least_work")
STEPS = ("delay", "served", "queues", "shipped", "alone")
SYSTEMS = tried(24, 0.5)
PARTS: dict[str, dict[str, Any]] = {
    "planned ahead": {"batching": {"planning": "asynchronous"}},
    "drafts": {"speculative": {"method": "ngram", "tokens": 2, "acceptance": 0.6}},
    "pipeline ranks": {},
    "caches": {"kv": {"prefix_caching": True}},
}
"""Of the pool of a kind: what a program of its own has."""

# What decides about the program: pools, and who waits for whom.
KINDS = [("one", ("closed", "open")), ("back-pressure", ("thinking", "turns"))]
if THOROUGH:
    KINDS += [(pools, (client,)) for pools in ("mixed", "apart") for client in ("closed", "turns")]
    KINDS += [(pools, ("thinking", "turns")) for pools in ("planned ahead", "drafts", "pipeline ranks", "caches")]


def stage(draw: Draw, place: str, pools: dict[str, Any], only: bool) -> dict[str, Any]:
    """Any that serves each request by itself, some on a pool that they share."""
    step = draw.one(*STEPS)
    drawn: dict[str, Any] = {"stage": "bag", "step": step, "seconds": float(draw.rng.uniform(0, 0.3))}
    drawn |= {"servers": draw.one(1, 2, 3), "adds": draw.one(0, 20)}
    if only and draw.one(True, False, False):
        drawn["only"] = [draw.one("a", "b")]
    if step in ("served", "queues") and draw.one(True, False):
        drawn["pool"] = "s"
        pools["s"] = {"role": "stage", "hardware": "l4", "replicas": draw.one(1, 2)}
    return {f"{place}_{step}": drawn}


def system(kind: str, clients: tuple[str, ...], number: int) -> dict[str, Any]:
    """Stages before and behind the LLM, tools that come back to it, and users, turns or times of their own."""
    draw = Draw(number)
    client, rate = draw.one(*clients), {"process": "poisson", "rate_rps": draw.one(2.0, 10.0)}
    users = {"process": "closed_loop", "users": draw.one(1, 3, 10)}
    pools: dict[str, Any] = {
        "mixed": {name: draw.pool("mixed") for name in "ab"},
        "one": {"m": draw.pool("mixed")},
    }.get(kind) or {"p": draw.pool("prefill"), "d": draw.pool("decode")}
    if kind in PARTS:
        pools = {"m": draw.pool("mixed", policies=("chunked",)) | {"replicas": 2}}
        pools["m"] |= {section: {**pools["m"].get(section, {}), **keys} for section, keys in PARTS[kind].items()}
    if kind == "pipeline ranks":
        pools["m"] |= {"pipeline_parallel": 2, "tensor_parallel": 1}
    router: Any = draw.one(*ROUTERS)
    if "p" in pools:
        router = {"prefill": router, "decode": draw.one(*ROUTERS)}
    if client != "open" and draw.one(True, False):  # answers come later than the engine has them
        next(iter(pools.values())).update(hardware="h100-sxm", calibration="h100-sxm-vllm.serving")
    stages, parts = dict[str, Any](), client != "turns"
    for place in range(draw.one(1, 2)):
        stages |= stage(draw, f"before{place}", pools, parts)
    stages |= {"prefill": {"stage": "prefill"}, "decode": {"stage": "decode"}}
    if client == "open" or (kind != "caches" and draw.one(True, False)):
        (name, tool), *_ = stage(draw, "tool", pools, False).items()
        stages[name] = tool | {"back_to": "prefill", "times": draw.one(1, 2, {"mean": 2.0})}
    for place in range(draw.one(0, 1, 2)):
        stages |= stage(draw, f"behind{place}", pools, parts)
    if kind == "caches":
        stages = {name: each | {"adds": 0} if "adds" in each else each for name, each in stages.items()}
    kept = {"system_prompts": 2, "system_tokens": 70} if kind == "one" and draw.one(True, False, False) else {}
    if kept:  # every replica has it from the start, and adds to it what was said before a tool was called
        pools["m"]["kv"]["prefix_caching"] = True
        stages = {name: each | {"adds": 0} if "adds" in each else each for name, each in stages.items()}
    sessions = {
        "closed": kept,
        "open": kept,
        "thinking": {"turns": 1, "think_s": draw.one(0.05, {"mean": 0.3})},
        "turns": {"turns": {"mean": 2.5}, "think_s": {"mean": 0.3}},
    }
    lengths = {"source": "uniform", "prompt_min": 1, "prompt_max": 300, "output_min": 1, "output_max": 12}
    return {
        "workload": {
            "arrivals": {"open": rate, "turns": draw.one(users, rate)}.get(client, users),
            "lengths": lengths,
            "requests": 40,
            "seeds": [number, number + 1],
            **({"pipelines": {"a": 0.5, "b": 0.5}} if parts else {}),
            **({"sessions": sessions[client]} if sessions[client] else {}),
        },
        "deployment": {
            "model": "llama-3.1-8b",
            "hardware": "h100-sxm",
            "pools": pools,
            "router": router,
            **({"transfer": draw.transfer(backpressure=kind == "back-pressure")} if "p" in pools else {}),
        },
        "pipeline": stages,
    }


@pytest.mark.parametrize(("kind", "clients"), KINDS)
def test_the_engine_equals_the_reference(kind, clients):
    configure()
    whole, places, refused = planned([system(kind, clients, number) for number in range(SYSTEMS)])
    assert whole is not None and not refused
    assert {(one.status, one.simulator, one.lacking, one.in_loop) for one in whole.configurations} == {
        (OK, "iteration", (), True)
    }
    token = replace(whole, simulator="token").of(np.arange(len(whole.configurations)))
    groups = with_few_programs(whole.groups)
    whole = replace(whole, groups=groups)
    for group in groups:
        found = simulate_configurations(whole, group.configurations)
        for place, configuration in enumerate(group.configurations):
            exact = simulate_configurations(token, [token.configurations[configuration.config]])
            assert_same(found, place, exact, f"system {places[configuration.config]}")


def assert_same(found: Any, place: int, exact: Any, told: str) -> None:
    def close(fast: Any, known: Any, name: str) -> None:
        np.testing.assert_allclose(fast, known, rtol=1e-9, atol=1e-9, err_msg=f"{told}: {name}")

    for name in TIMES:
        close(getattr(found.times, name)[place], getattr(exact.times, name)[0], name)
    np.testing.assert_array_equal(found.times.replica[place], exact.times.replica[0], err_msg=told)
    for fast_stage, stage_known in zip(found.stages, exact.stages, strict=True):
        assert fast_stage.name == stage_known.name
        for name in ("wait_s", "service_s", "utilisation"):
            close(getattr(fast_stage, name)[place], getattr(stage_known, name)[0], f"{name} of {fast_stage.name}")
    for use, known in zip(found.stations, exact.stations, strict=True):
        for name in FIGURES:
            close(use.figure(name)[place], known.figure(name)[0], f"{name} of {use.name}")


def closed(stages: dict[str, Any], simulator: str = "iteration", **pools: Any) -> Any:
    """The plan of a closed loop over these stages, and its only configuration."""
    raw = {
        "workload": {
            "arrivals": {"process": "closed_loop", "users": 3},
            "lengths": {"source": "fixed", "prompt_tokens": 100, "output_tokens": 5},
            "requests": 30,
            "warmup_requests": 0,
        },
        "deployment": {"model": "llama-3.1-8b", "hardware": "h100-sxm", "pools": {"m": {"role": "mixed"}, **pools}},
        "pipeline": {**stages, "prefill": {"stage": "prefill"}, "decode": {"stage": "decode"}},
    }
    whole = plan(load_scenario(raw), simulator=simulator)
    return whole, *whole.configurations


def test_users_share_one_server_in_turn():
    """The slowest station of a closed network is always busy: who is third waits for two services."""
    whole, configuration = closed({"tool": {"stage": "tool", "seconds": 10, "servers": 1}}, simulator="token")
    outcomes = simulate_configurations(whole, [configuration])
    left_s = np.sort(outcomes.times.last_token_s[0, 0])
    took_s = left_s[0] - 10.0
    np.testing.assert_allclose(left_s, 10.0 * np.arange(1, 31) + took_s, rtol=1e-12)
    (tool,) = [one for one in outcomes.stages if one.name == "tool"]
    np.testing.assert_allclose(tool.wait_s[0, 0, :3], [0.0, 10.0, 20.0])
    np.testing.assert_allclose(tool.wait_s[0, 0, 3:], 20.0 - took_s, rtol=1e-12)


ROUNDS = [{"mean": 1.0}, {"mean": 2.0}, {"mean": 3.0}]
APART: dict[str, Any] = {"pools": {"p": {"role": "prefill"}, "d": {"role": "decode"}}, "transfer": {"link": "nvlink"}}


def returning(times: dict[str, float], seeds: list[int], apart: bool) -> dict[str, Any]:
    """A tool goes back to the LLM ``times`` times, and behind it a stage to a guard."""
    held = {"held": {"stage": "tool", "seconds": 0.5, "only": "a"}} if apart else {}
    return {
        "workload": {
            "arrivals": {"process": "closed_loop", "users": 3},
            "lengths": {"source": "uniform", "prompt_min": 100, "prompt_max": 300, "output_min": 1, "output_max": 12},
            "pipelines": {"a": 0.5, "b": 0.5},
            "requests": 12,
            "warmup_requests": 0,
            "seeds": seeds,
        },
        "deployment": {"model": "llama-3.1-8b", "hardware": "h100-sxm", **(APART if apart else {})},
        "pipeline": {
            "reads": {"stage": "preprocess", "seconds": 0.2, "servers": 1},
            "prefill": {"stage": "prefill"},
            **held,
            "decode": {"stage": "decode"},
            "looks": {"stage": "tool", "seconds": 1, "tokens": 30, "back_to": "prefill", "times": times},
            "guards": {"stage": "postprocess", "seconds": 5, "servers": 2},
            "mends": {"stage": "postprocess", "seconds": 2, "back_to": "guards", "times": {"mean": 1.5}, "only": "b"},
            "writes": {"stage": "postprocess", "seconds": 7, "only": "a"},
        },
    }


@pytest.mark.parametrize(("simulator", "apart"), [("iteration", False), ("token", False), ("token", True)])
def test_runs_that_go_back_another_number_of_times_are_as_each_alone(simulator, apart):
    seeds = [0, 1, 2]
    raw = returning(ROUNDS[0], seeds, apart) | {"sweep": {"pipeline.looks.times": ROUNDS}}
    whole = plan(load_scenario(raw), simulator=simulator)
    (group,) = whole.groups
    answers = {len(routes.llm) for configuration in group.configurations for routes in whole.routes(configuration)}
    assert len(answers) > 2
    found = simulate_configurations(whole, group.configurations)
    for place, times in enumerate(ROUNDS):
        for position, seed in enumerate(seeds):
            alone = plan(load_scenario(returning(times, [seed], apart)), simulator="token")
            exact, told = simulate_configurations(alone, alone.configurations), f"{times} times, seed {seed}"
            for name in (*TIMES, "prompt_tokens", "output_tokens", "cached_tokens"):
                fast, known = column_of(found, name)[place, position], column_of(exact, name)[0, 0]
                np.testing.assert_allclose(fast, known, rtol=1e-9, err_msg=f"{told}: {name}")
            for fast_stage, stage_known in zip(found.stages, exact.stages, strict=True):
                assert fast_stage.name == stage_known.name
                for name in ("wait_s", "service_s", "utilisation"):
                    fast, known = getattr(fast_stage, name)[place, position], getattr(stage_known, name)[0, 0]
                    what = f"{told}: {name} of {fast_stage.name}"
                    np.testing.assert_allclose(fast, known, rtol=1e-9, atol=1e-9, err_msg=what)
            for use, used in zip(found.stations, exact.stations, strict=True):
                fast, known = use.totals.busy_s[place, position], used.totals.busy_s[0, 0]
                np.testing.assert_allclose(fast, known, rtol=1e-9, err_msg=f"{told}: {use.name}")


def test_a_stage_between_holds_no_token_of_those_who_do_not_come_back():
    """Others go back once more and pass it again: who has all tokens keeps the time of the first."""
    raw = returning({"mean": 2.0}, [0], apart=True)
    raw["workload"] |= {"arrivals": {"process": "closed_loop", "users": 1}, "pipelines": {"a": 1.0}}
    raw["workload"]["lengths"] = {"source": "fixed", "prompt_tokens": 100, "output_tokens": 5}
    raw["pipeline"] = {name: raw["pipeline"][name] for name in ("prefill", "held", "decode", "looks")}
    whole = plan(load_scenario(raw), simulator="token")
    outcomes = simulate_configurations(whole, whole.configurations)
    (looks,) = [one for one in outcomes.stages if one.name == "looks"]
    assert len(np.unique(looks.service_s[0, 0].round(6))) > 1
    decode_s = outcomes.times.last_token_s[0, 0] - outcomes.times.first_token_s[0, 0]
    np.testing.assert_allclose(decode_s, decode_s[np.argmax(looks.service_s[0, 0])], rtol=0.05)


SMALL = {"small": {"role": "stage", "hardware": "l4"}}


@pytest.mark.parametrize(
    ("stages", "what"),
    [
        (
            {"reads": {"stage": "preprocess", "model": "qwen3-0.6b", "pool": "small"}},
            "a stage that computes a model",
        ),
        (
            {"batches": {"stage": "bag", "step": "batched", "pool": "small"}},
            "a stage that serves in batches",
        ),
    ],
)
def test_what_the_loop_lacks(stages, what):
    _, configuration = closed(stages, **SMALL)
    assert configuration.lacking == (f"closed loop over a pipeline with {what}",)
    assert configuration.simulator == "token"
