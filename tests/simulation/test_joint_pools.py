"""Pools in one loop of the vectorised engine: equal to the reference, request by request, on random systems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.cost.lanes import RowCounts
from evaluator.device import configure
from evaluator.metrics import OK
from evaluator.plan import Configuration, Group, Plan, plan
from evaluator.reference.serve.network import run_network
from evaluator.simulation import simulate_configurations
from evaluator.simulation.chain import chain_result_of
from evaluator.simulation.joint_pools import visits_in_one_loop
from evaluator.traffic.jobs import Demand, Jobs
from evaluator.traffic.requests import Tokens
from evaluator.traffic.roles import ROLES
from tests.properties.engine.test_preemptive import QUICK
from tests.reference.serve.test_network import PAIR, tightened
from tests.simulation.test_phases import BOTH, SPREAD, assert_same, of_pools
from tests.systems import Draw
from tests.thorough import THOROUGH, tried

LOOKING = ("least_outstanding", "least_work", "least_kv", "least_tokens", "least_context")
SHARING = ("round_robin", "random")
SYSTEMS = tried(16, 0.5)
EXPERTS = "qwen3-30b-a3b"


def mixed(draw: Draw) -> dict[str, Any]:
    """Two pools side by side, under a router that looks at both."""
    return {
        "deployment.pools": {name: draw.pool("mixed") for name in "ab"},
        "deployment.router": draw.one(*LOOKING),
        "workload.arrivals": draw.arrivals(),
    }


def tandem(draw: Draw) -> dict[str, Any]:
    """A closed loop over a prefill and a decode pool, with any router of its own on each side.

    Users wait for the frontend of the pool to which they went first.
    """
    routers = (*SHARING, *LOOKING, {"heavy_light": {"prompt_tokens": 1000, "heavy_replicas": 1}})
    pools = {name: draw.pool(pool["role"]) for name, pool in PAIR.items()}
    pools["p"] |= {"hardware": "h100-sxm", "calibration": "h100-sxm-vllm.serving"}
    pools["d"]["replicas"] = 2
    prefill = draw.one(*(routers[:-1] if pools["p"]["replicas"] == 1 else routers))
    return {
        "deployment.pools": pools,
        "deployment.router": {"prefill": prefill, "decode": draw.one(*routers)},
        "deployment.transfer": draw.transfer(),
        "workload.arrivals": {"process": "closed_loop", "users": draw.one(1, 3, 20)},
    }


def talking(draw: Draw) -> dict[str, Any]:
    """The same where users hold conversations, or think between requests, and where sessions begin by themselves."""
    sessions = {"turns": draw.one(1, 3, {"mean": 2.5}), "think_s": draw.one(0.05, {"mean": 0.3})}
    asked = tandem(draw) | {"workload.sessions": sessions}
    if sessions["turns"] != 1:
        asked["workload.arrivals"] = draw.one(asked["workload.arrivals"], {"process": "poisson", "rate_rps": 40.0})
    return asked


def remembering(draw: Draw) -> dict[str, Any]:
    """The same under back-pressure, where most pools keep what they had: a side finds the turn before, or its answer.

    Where nobody looks at KV within a leap the program is smaller by a fifth: of the others are the thorough cases.
    """
    asked = talking(draw)
    pools, routers = asked["deployment.pools"], asked["deployment.router"]
    for side, pool in zip(routers, pools.values(), strict=True):
        pool["kv"]["prefix_caching"] = draw.one(True, True, True, False)
        if THOROUGH and pool["kv"]["prefix_caching"] and pool["replicas"] > 1:
            routers[side] = draw.one(routers[side], {"prefix_aware": {"imbalance": 3}}, "session")
        elif not THOROUGH:
            pool["kv"]["admission"] = "on_demand"
            pool["batching"]["policy"] = draw.one("chunked", "continuous", "mixed")
            routers[side] = draw.one("session", routers[side]) if routers[side] != "least_kv" else "session"
    if not THOROUGH and not any(pool["kv"]["prefix_caching"] for pool in pools.values()):
        pools["p"]["kv"]["prefix_caching"] = True  # a program of its own else, for one system
    shared = {"turns": {"mean": 3}, "system_prompts": 2, "system_tokens": draw.one(0, 40, 300)}
    return asked | {
        "workload.sessions": asked["workload.sessions"] | shared,
        "deployment.transfer": draw.transfer(backpressure=True),
    }


def side(draw: Draw) -> dict[str, Any]:
    """What ``mixed``, ``eager`` and ``beside`` have: two models, one of experts and one on costs of two forms."""
    pools = {name: draw.pool("mixed", tensor_parallel=2, model=EXPERTS) for name in "ac"}
    pools["c"] |= {"tensor_parallel": 1, "data_parallel": 2, "expert_parallel": 2, "replicas": 1}
    pools |= {name: draw.pool("mixed", model="llama-3.1-8b") for name in "bd"}
    pools["b"] |= {"hardware": "ascend-910b3", "calibration": "ascend-910b3-bestserve"}
    return {
        "deployment.pools": pools,
        "deployment.router": draw.one(*LOOKING),
        "workload.arrivals": draw.arrivals(),
        "workload.models": {EXPERTS: 0.5, "llama-3.1-8b": 0.5},
    }


def models(draw: Draw) -> dict[str, Any]:
    """What ``several`` and ``unlike`` have: pipelines and drafts in the decode pools of two models in two groups."""
    asked = several(draw)
    for name in (name for name in asked["deployment.pools"] if name.startswith("d")):
        drafts = draw.drafts()
        asked["deployment.pools"][name] |= {"pipeline_parallel": 2, "tensor_parallel": 1, "speculative": drafts}
    return asked


def several(draw: Draw) -> dict[str, Any]:
    """Back-pressure between two groups of two prefill and two decode pools, each side of two models."""
    phases = (("prefill", "p"), ("decode", "d"))
    pools = {f"{name}{model[0]}": draw.pool(role, 2, model=model) for role, name in phases for model in BOTH}
    next(iter(pools.values()))["replicas"] = 4  # more than eight in all, so that all systems share a program
    return {
        "deployment.pools": pools,
        "deployment.router": {"prefill": draw.one(*SHARING, *LOOKING), "decode": draw.one(*SHARING, *LOOKING)},
        "deployment.transfer": draw.transfer(backpressure=True, groups=2),
        "workload.arrivals": draw.arrivals(),
        "workload.models": BOTH,
    }


def unlike(draw: Draw) -> dict[str, Any]:
    """Back-pressure from a decode pool with a pipeline and drafts, which its prefill pool has not."""
    pools = {name: draw.pool(pool["role"]) for name, pool in PAIR.items()}
    pools["d"] |= {"pipeline_parallel": 2, "tensor_parallel": 1, "speculative": draw.drafts()}
    return {
        "deployment.pools": pools,
        "deployment.router": {"prefill": draw.one(*SHARING, *LOOKING), "decode": draw.one(*SHARING, *LOOKING)},
        "deployment.transfer": draw.transfer(backpressure=True),
        "workload.arrivals": draw.arrivals(),
    }


def eager(draw: Draw) -> dict[str, Any]:
    """Two pools side by side whose costs have different forms: a roofline, and operators launched one by one."""
    pools = {name: draw.pool("mixed") for name in "ab"}
    pools["b"] |= {"hardware": "ascend-910b3", "calibration": "ascend-910b3-bestserve"}
    return {
        "deployment.pools": pools,
        "deployment.router": draw.one(*LOOKING),
        "workload.arrivals": draw.arrivals(),
    }


def ranks(draw: Draw) -> dict[str, Any]:
    """Back-pressure between a prefill and a decode pool of data-parallel ranks in lockstep."""
    pools = {name: draw.pool(pool["role"], tensor_parallel=1) for name, pool in PAIR.items()}
    for pool in pools.values():
        pool |= {"replicas": 1, "expert_parallel": draw.one(2, 4)}
        pool["data_parallel"] = pool["expert_parallel"]
    if THOROUGH:  # the program takes three times as long to compile with drafts, which other ranks and pools have
        pools["d"]["speculative"] = {"method": "ngram", "tokens": 3, "acceptance": [0.9, 0.6, 0.4]}
    return {
        "deployment.model": EXPERTS,
        "deployment.pools": pools,
        "deployment.router": {"prefill": draw.one(*SHARING, *LOOKING), "decode": draw.one(*SHARING, *LOOKING)},
        "deployment.transfer": draw.transfer(backpressure=True),
        "workload.arrivals": draw.arrivals(),
    }


def beside(draw: Draw) -> dict[str, Any]:
    """Ranks in lockstep beside replicas that go by themselves, under a router that looks at all of them."""
    pools = {name: draw.pool("mixed", tensor_parallel=2) for name in "ab"}
    pools["b"] |= {"tensor_parallel": 1, "data_parallel": 2, "expert_parallel": 2}
    return {
        "deployment.model": EXPERTS,
        "deployment.pools": pools,
        "deployment.router": draw.one(*LOOKING),
        "workload.arrivals": draw.arrivals(),
    }


def systems(kind: Any, count: int, first: int = 0) -> Plan:
    """Random systems of a kind."""
    designs = [kind(Draw(seed)) for seed in range(first, first + count)]
    # A step takes the longer the larger the caches are, which hold a block for each token of some pools' conversations.
    lengths = {**SPREAD, "prompt_max": 600} if kind is remembering and not THOROUGH else SPREAD
    return plan(of_pools(sweep={"design": {"zip": designs}}, requests=40, lengths=lengths))


def tight(configurations: Sequence[Configuration]) -> list[Configuration]:
    """With KV for a few of the largest requests."""
    found = []
    for configuration in configurations:
        times = float(np.random.default_rng(configuration.config).choice([1.02, 1.5, 3.0, 8.0]))
        found.append(
            configuration.with_stations(tuple(tightened(station, times) for station in configuration.stations))
        )
    return found


KINDS = [side, remembering, models, ranks]
"""Few, each with much in it: to compile one takes longer than to run its systems."""
if THOROUGH:  # programs of their own, whose parts the others have
    KINDS += [tandem, talking, mixed, eager, beside, several, unlike]


def in_one_program(*plans: Plan) -> list[Plan]:
    """Plans of one group each, in a program that has room for all of them and ranks in lockstep, windows and experts if
    any has: as a sweep over such designs has."""
    stations = [station for whole in plans for group in whole.groups for station in group.stations]
    assert len(stations) == len(plans)
    names = ("lockstep", "windowed", "experts", "kv_seen", "admits_first", "preempts", "by_work", "admits_decodes")
    parts = {part: any(getattr(one.key, part) for one in stations) for part in names}
    sizes = {size: max(getattr(one, size) for one in stations) for size in ("ring", "lane_requests")}
    replicas = max(one.key.replicas for one in stations)
    rows = RowCounts(*map(max, zip(*(one.rows for one in stations), strict=True)))
    found = []
    for whole, own in zip(plans, stations, strict=True):
        shared = replace(own, key=replace(own.key, replicas=replicas, **parts), rows=rows, **sizes)
        found.append(replace(whole, groups=[replace(whole.groups[0], stations=(shared,))]))
    alike = {replace(one.groups[0].stations[0].key, requests=0) for one in found}
    assert len(alike) == 1, alike
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_the_engine_equals_the_reference(kind, hundreds):
    configure()
    whole = systems(kind, SYSTEMS)
    if kind is ranks:
        whole, _ = in_one_program(whole, hundreds)
    token = plan(whole.scenario, simulator="token")
    assert {(one.status, one.simulator, one.lacking, one.joint_pools) for one in whole.configurations} == {
        (OK, "iteration", (), True)
    }
    for group in whole.groups:
        configurations = tight(group.configurations)
        found = simulate_configurations(whole, configurations)
        for place, configuration in enumerate(configurations):
            exact = simulate_configurations(token, [replace(configuration, simulator="token")])
            assert_same(found, place, exact, 0, f"system {configuration.config}")
            for name in ("cached_tokens", "decode_hit_tokens") if kind is remembering else ():
                of_engine, known = getattr(found.tokens, name), getattr(exact.tokens, name)
                if known is not None:  # else no pool of that side has a cache
                    np.testing.assert_array_equal(of_engine[place], known[0], err_msg=name)
            if (users := configuration.workload.arrivals.users) is not None and kind is tandem:
                later = np.sort(found.times.arrival_s[place, 0])[users:]  # those who have the last token send again
                answered_s = np.sort(found.times.last_token_s[place, 0])[: len(later)]
                np.testing.assert_allclose(later, answered_s, rtol=1e-9)


@pytest.mark.skipif(not THOROUGH, reason="a program of its own, whose parts those of random systems have")
def test_batches_in_a_pipeline_of_both_sides():
    configure()
    pools = {name: {**pool, "pipeline_parallel": 2, "replicas": 2} for name, pool in PAIR.items()}
    layer = {"backpressure": True, "granularity": "layer"}
    asked = of_pools(pools, arrivals={"process": "closed_loop", "users": 20}, requests=60, transfer=layer)
    whole, token = plan(asked), plan(asked, simulator="token")
    found, exact = (simulate_configurations(one, tight(one.configurations)) for one in (whole, token))
    assert_same(found, 0, exact, 0, "pipelines")


@pytest.fixture(scope="module")
def hundreds() -> Plan:
    """More than the 256 replicas whose grants of one time once had an order."""
    pools = {"p": {**PAIR["p"], "replicas": 20}, "d": {**PAIR["d"], "replicas": 280}}
    routers = {"prefill": "round_robin", "decode": "least_work"}
    layer = {"backpressure": True, "granularity": "layer"}
    asked = of_pools(pools, arrivals={"process": "all_at_once"}, requests=600, transfer=layer, router=routers)
    return in_one_program(plan(asked), systems(ranks, SYSTEMS))[0]


def test_hundreds_of_replicas_ask_for_room_on_one_clock(hundreds):
    configure()
    token = plan(hundreds.scenario, simulator="token")
    assert [configuration.lacking for configuration in hundreds.configurations] == [()]
    found, exact = (simulate_configurations(one, tight(one.configurations)) for one in (hundreds, token))
    assert_same(found, 0, exact, 0, "hundreds")
    assert len(np.unique(exact.times.replica[0, 0])) == 20


def test_designs_of_alike_pools_share_a_program():
    """Policies, routers, links, replicas and users are numbers of one compiled program."""
    whole = systems(tandem, 24)
    assert len(whole.groups) == 1
    (station,) = whole.groups[0].stations
    assert (station.key.pools, station.key.phases, station.key.replicas) == (2, 2, 8)
    assert station.key.frontend


# --- any requests, with what hypothesis finds


@st.composite
def crowds(draw: st.DrawFn) -> tuple[Jobs, int | None, int]:
    """Up to eight requests at few times, users of a closed loop or none, and a seed for the system."""
    count = draw(st.integers(1, 8))
    numbers = [draw(st.lists(st.integers(low, high), min_size=count, max_size=count)) for low, high in
               ((0, 3), (1, 300), (1, 12))]  # fmt: skip
    arrival, prompt, output = map(np.array, numbers)
    none = np.zeros(count, dtype=np.int64)
    demand = Demand.of(Tokens(prompt, output, none, none, none), ROLES["prefill"])
    users = draw(st.none() | st.integers(1, count))
    ready_s = np.sort(arrival) * 0.01 if users is None else np.zeros(count)
    return Jobs(np.arange(count), ready_s, demand, np.ones(count, dtype=bool)), users, draw(st.integers(0, 7))


def alone(draw: Draw) -> dict[str, Any]:
    """Back-pressure between a prefill and a decode pool."""
    return {
        "deployment.pools": {name: draw.pool(pool["role"]) for name, pool in PAIR.items()},
        "deployment.transfer": draw.transfer(backpressure=True),
        "workload.arrivals": draw.arrivals(),
    }


def sitting() -> dict[str, Any]:
    """Sessions that keep to a prefill replica, beside a decode side that looks; alike in all that is compiled."""
    sessions = {"turns": {"mean": 3}, "think_s": 0.1, "think_from": "arrival"}
    return {
        "deployment.pools": {name: {**pool, "replicas": 2} for name, pool in PAIR.items()},
        "deployment.router": {"prefill": "session", "decode": "least_work"},
        "deployment.transfer": {"backpressure": True},
        "workload.arrivals": {"process": "poisson", "rate_rps": 60.0},
        "workload.sessions": sessions,
    }


def sending() -> dict[str, Any]:
    """Prompts that keep their KV over a slow link, while nobody runs beside them and a watermark is set."""
    kv = {"admission": "on_demand", "capacity_tokens": 6000, "watermark": 0.3}
    return {
        "deployment.pools": {name: {**pool, "kv": kv} for name, pool in PAIR.items()},
        "deployment.transfer": {"backpressure": True, "link": "ethernet-25g"},
        "workload.arrivals": {"process": "poisson", "rate_rps": 10.0},
    }


@pytest.fixture(scope="module")
def designs(hundreds) -> tuple[Plan, Group, list[Configuration]]:
    """Random ones, ``sending`` and ``sitting``, in the program of ``hundreds``: alike but for the sizes of arrays."""
    configure()
    nothing = {"deployment.router": "round_robin", "workload.sessions": None}
    random = [nothing | alone(Draw(seed)) for seed in range(8)]
    zipped = [*random, nothing | sending(), sitting()]
    whole = plan(of_pools(sweep={"design": {"zip": zipped}}, requests=40, lengths=SPREAD))
    whole, _ = in_one_program(whole, hundreds)
    (group,) = whole.groups
    *some, before_last, last = group.configurations
    return whole, group, [*tight(some), before_last, last]


def test_no_watermark_counts_where_nobody_runs(designs):
    """vLLM ``allocate_slots``; a prompt that waits to be sent has KV and runs no more, so that another one may come."""
    whole, _, (*_, configuration, _) = designs
    found = simulate_configurations(whole, [configuration])
    exact = simulate_configurations(
        plan(whole.scenario, simulator="token"), [replace(configuration, simulator="token")]
    )
    assert_same(found, 0, exact, 0, "watermark")
    # Somebody came beside prompts that left less than the watermark.
    assert exact.stations[0].totals.kv_units_max[0, 0] > 0.7 * exact.stations[0].kv_capacity_units[0]


def test_a_session_keeps_to_a_prefill_replica(designs):
    """To the reference, too, a request says which session it is of."""
    whole, _, (*_, configuration) = designs
    found = simulate_configurations(whole, [configuration])
    exact = simulate_configurations(
        plan(whole.scenario, simulator="token"), [replace(configuration, simulator="token")]
    )
    assert_same(found, 0, exact, 0, "sessions")
    (jobs,) = whole.jobs(configuration)
    np.testing.assert_array_equal(exact.times.replica[0, 0], jobs.session % 2)


@QUICK
@given(crowds())
def test_any_requests_under_back_pressure(designs, crowd):
    (whole, group, configurations), (jobs, users, number) = designs, crowd
    configuration = configurations[number]
    arrivals = replace(
        configuration.workload.arrivals,
        process="poisson" if users is None else "closed_loop",
        users=users,
        rate_rps=1.0,
    )
    configuration = replace(configuration, workload=replace(configuration.workload, arrivals=arrivals))
    found = chain_result_of(visits_in_one_loop(whole, group.stations[0], [configuration], [[jobs]]))
    exact = chain_result_of(run_network(whole, [configuration], [[jobs]]))
    for name in ("arrival_s", "scheduled_s", "first_token_s", "last_token_s"):
        np.testing.assert_allclose(getattr(found.times, name), getattr(exact.times, name), rtol=1e-9, err_msg=name)
    np.testing.assert_array_equal(found.times.replica, exact.times.replica)
