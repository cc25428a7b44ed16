"""Prefix caches by content of pools that stand side by side or behind one another, each with its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from evaluator.metrics import OK, Outcomes
from evaluator.plan import Configuration, Plan, plan
from evaluator.reference.replica import Replica
from evaluator.reference.serve import network, phases
from evaluator.reference.serve.network import NetworkRun, run_network
from evaluator.run import simulate
from evaluator.scenario import Scenario, load_scenario
from evaluator.simulation import chain_result, simulate_configurations
from evaluator.simulation.chain import chain_result_of
from tests.reference.serve.test_network import PAIR, tightened
from tests.simulation.test_phases import TIMES, assert_same
from tests.systems import Draw
from tests.thorough import tried

ANSWERED = {"turns": {"mean": 4}, "think_s": {"mean": "1s"}, "system_prompts": 2, "system_tokens": 500}
FROM_ARRIVAL = {**ANSWERED, "think_from": "arrival"}
LENGTHS = {"source": "uniform", "prompt_min": 20, "prompt_max": 300, "output_min": 2, "output_max": 120}
PULLED = {"backpressure": True, "link": "ethernet-25g"}
SIDE_BY_SIDE = {"a": {"role": "mixed"}, "b": {"role": "mixed", "hardware": "l40s", "replicas": 2}}
CACHES, NO_CACHES = {"prefix_caching": True}, {"prefix_caching": False}


def conversations(pools: Any, kv: Any, sessions: Any = ANSWERED, workload: Any = (), **deployment: Any) -> Scenario:
    """150 turns on Llama-3.1-8B, of H100 where a pool says nothing else."""
    asked = {
        "arrivals": {"process": "poisson", "rate_rps": 10.0},
        "lengths": LENGTHS,
        "requests": 150,
        "warmup_requests": 0,
        "sessions": sessions,
        **dict(workload),
    }
    served = {"model": "llama-3.1-8b", "hardware": "h100-sxm", "pools": pools, "kv": kv, **deployment}
    return load_scenario({"workload": asked, "deployment": served})


def planned(scenario: Scenario, times: float | None = None) -> tuple[Plan, Configuration]:
    """Its only configuration; ``times``: every replica has KV for so many times the largest request."""
    whole = plan(scenario, simulator="token")
    (configuration,) = whole.configurations
    assert configuration.status == OK, configuration.status
    if times is not None:
        stations = tuple(tightened(station, times) for station in configuration.stations)
        configuration = configuration.with_stations(stations)
    return whole, configuration


def ran(scenario: Scenario, times: float | None = None) -> Outcomes:
    whole, configuration = planned(scenario, times)
    return simulate_configurations(whole, [configuration])


@pytest.fixture
def runs(monkeypatch) -> list[NetworkRun]:
    """Every configuration that is run in one loop, with its replicas."""
    found: list[NetworkRun] = []
    run = network._run

    def kept(*args: Any) -> NetworkRun:
        found.append(run(*args))
        return found[-1]

    monkeypatch.setattr(network, "_run", kept)
    return found


def hits_of(run: NetworkRun, side: int) -> dict[int, int]:
    """By request, the tokens of its prompt that a side found in its cache."""
    return {index: part.hit_tokens for index, part in run.phases[side].phase.parts.items()}


# --- prefill and decode apart


@pytest.mark.parametrize("admission", ["reserve", "on_demand"])
def test_each_side_finds_what_it_computed_or_was_sent(runs, admission):
    """With room for all a prefill side knows the prompt of the turn before, a decode side its answer, too."""
    whole, configuration = planned(conversations(PAIR, {**CACHES, "admission": admission}, transfer=PULLED))
    simulate_configurations(whole, [configuration])
    (jobs,) = whole.jobs(configuration)
    (run,) = runs
    turns, prompt = jobs.sharing.turns, jobs.demand.prompt_tokens
    later = np.flatnonzero(turns.previous >= 0)
    before, most = turns.previous[later], prompt[later] - 1
    # The last token of an answer is sampled and never computed.
    known = prompt[before], prompt[before] + jobs.demand.later_tokens[before]
    for side, tokens in enumerate(known):
        hits = hits_of(run, side)
        found = np.array([hits[index] for index in later.tolist()])
        shared = 496 * (tokens // 16 * 16 < 496)  # of a prompt so short the system prompt is found all the same
        np.testing.assert_array_equal(found, np.maximum(np.minimum(tokens, most) // 16 * 16, shared))


def test_only_what_is_missing_is_sent(runs):
    """The link is busy for the tokens that the decode side has not; without back-pressure for whole prompts."""
    for transfer in (PULLED, {**PULLED, "backpressure": False}):
        scenario = conversations(PAIR, CACHES, FROM_ARRIVAL, transfer=transfer)
        whole, configuration = planned(scenario)
        if not configuration.joint_pools:
            configuration = replace(configuration, joint_pools=True)
        found = simulate_configurations(whole, [configuration])
        run = runs.pop()
        hits, (jobs,), link = hits_of(run, 1), whole.jobs(configuration), configuration.link
        missing = jobs.demand.prompt_tokens - transfer["backpressure"] * np.array([hits[i] for i in range(len(jobs))])
        assert sum(hits.values()) > 0.5 * jobs.demand.prompt_tokens.sum()
        sent = next(use for use in found.stations if use.name == link.name)
        np.testing.assert_allclose(sent.totals.busy_s[0, 0], link.service_s(missing).sum(), rtol=1e-9)
        tokens = found.tokens.decode_hit_tokens[0, 0]
        np.testing.assert_array_equal(tokens, [hits[index] for index in range(len(jobs))])


def test_the_chain_and_the_loop_find_the_same():
    """Without back-pressure or users who wait for answers nothing depends on what comes later."""
    pools = {"p": {**PAIR["p"], "replicas": 2}, "d": PAIR["d"]}
    for some, router in ((pools, {"prefill": "session", "decode": "session"}), (SIDE_BY_SIDE, "random")):
        whole, configuration = planned(conversations(some, CACHES, FROM_ARRIVAL, router=router), 4.0)
        assert not configuration.joint_pools
        chain = chain_result(whole, [configuration])
        jobs = [whole.jobs(configuration)]
        loop = chain_result_of(run_network(whole, [configuration], jobs))
        for name in TIMES:
            np.testing.assert_allclose(getattr(loop.times, name), getattr(chain.times, name), rtol=1e-9, err_msg=name)
        np.testing.assert_array_equal(loop.tokens.cached_tokens, chain.tokens.cached_tokens)
        assert chain.tokens.cached_tokens.any()
        for use, other in zip(loop.uses, chain.uses, strict=True):
            for name in ("busy_s", "kv_unit_s", "kv_units_max", "flops", "bytes"):
                np.testing.assert_allclose(use.figure(name), other.figure(name), rtol=1e-9, err_msg=name)
        if some is pools:
            np.testing.assert_array_equal(loop.tokens.decode_hit_tokens, chain.tokens.decode_hit_tokens)
            assert chain.tokens.decode_hit_tokens.any()


def test_prompts_are_computed_or_found_and_all_kv_comes_back(runs):
    """Conservation on both sides: what the prefill side computes and finds are the prompts, and nobody keeps a block.

    A block has as many users as requests hold it, and none of a side that is done is anybody's."""
    computed = np.zeros(150, dtype=int)

    def observe(lane, iteration):
        for request, tokens in iteration.chunks if lane.station == 0 else ():
            computed[request] += tokens

    whole, configuration = planned(conversations(PAIR, CACHES, transfer=PULLED), 3.0)
    found = simulate_configurations(whole, [configuration], observe)
    assert not found.stations[0].totals.preemptions.any()
    tokens = found.tokens
    np.testing.assert_array_equal(computed + tokens.cached_tokens[0, 0], tokens.prompt_tokens[0, 0])
    for side in runs[0].phases:
        for replica in side.phase.pool.replicas:
            kv = replica.queues.kv
            assert kv.free == kv.capacity and not any(kv.users(block) for block in range(kv.capacity))
            assert 0 < kv.known <= kv.capacity


def test_a_smaller_cache_finds_less():
    """Up to the room of a few requests, where each replaces what the one before left."""
    rates = []
    for times in (1.1, 4.0, 40.0, None):
        found = ran(conversations(PAIR, CACHES, transfer=PULLED), times)
        tokens = found.tokens
        rates.append([tokens.cached_tokens.sum(), tokens.decode_hit_tokens.sum()])
    assert (np.diff(rates, axis=0) >= 0).all() and (np.diff(rates[:3], axis=0) > 0).all(), rates


def alone(draw: Draw, tmp_path: Any, kv: Any) -> Scenario:
    """A random system whose requests share nothing: a session of a trace has one request each."""
    trace = tmp_path / "alone.csv"
    rows = [(draw.one(20, 300, 900), draw.one(1, 5, 60), number) for number in range(60)]
    trace.write_text("prompt_tokens,output_tokens,session\n" + "".join(f"{p},{o},{s}\n" for p, o, s in rows))
    pools = {"p": draw.pool("prefill"), "d": draw.pool("decode")}
    for pool in pools.values():
        pool["kv"] = {**pool["kv"], "admission": "reserve", **kv}
    workload = {"lengths": {"trace": str(trace)}, "requests": 60, "arrivals": draw.arrivals()}
    return conversations(pools, {}, None, workload, transfer=draw.transfer(backpressure=draw.one(True, False)))


@pytest.mark.parametrize("seed", range(tried(12, 0.5)))
def test_a_cache_that_finds_nothing_changes_nothing(seed, tmp_path):
    times = Draw(seed).one(1.1, 2.0, None)
    without, cached = (ran(alone(Draw(seed), tmp_path, kv), times) for kv in (NO_CACHES, CACHES))
    assert not (cached.tokens.cached_tokens.any() or cached.tokens.decode_hit_tokens.any())
    assert_same(cached, 0, without, 0, "a cache")


@pytest.mark.parametrize("seed", range(tried(16, 0.5)))
def test_nothing_waits_for_ever_and_leaps_change_nothing(seed, monkeypatch):
    """Any policies, routers and links, with KV for little more than the largest request."""
    draw = Draw(seed)
    apart = draw.one(True, True, False)
    roles = (("p", "prefill"), ("d", "decode")) if apart else (("a", "mixed"), ("b", "mixed"))
    pools = {name: draw.pool(role) for name, role in roles}
    for pool in pools.values():
        pool["kv"] = {**pool["kv"], "block_tokens": 16, "prefix_caching": draw.one(True, True, False)}
        pool["replicas"] = draw.one(1, 3)
        if pool["batching"]["policy"] == "chunked":
            pool["batching"]["planning"] = draw.one("at_once", "asynchronous")
        if pool["role"] != "prefill" and pool["batching"].get("planning", "at_once") == "at_once":
            pool["speculative"] = draw.one(None, draw.drafts())
    cached = all(pool["kv"]["prefix_caching"] for pool in pools.values())
    routers = ["round_robin", "least_outstanding", "least_kv"]
    if cached:
        late = {"prefix_aware": {"imbalance": 3, "events_delay_s": 0.2, "predicted_ttl_s": draw.one(None, 0.1)}}
        routers += [{"prefix_aware": {"imbalance": 3}}, late, {"prefix_approximate": {"imbalance": 3}}]
    if apart:
        routers.append("session")
    sessions = draw.one(ANSWERED, FROM_ARRIVAL, {**ANSWERED, "agents": {"fan_out": 2}})
    users, rate = {"process": "closed_loop", "users": 20}, {"process": "poisson", "rate_rps": 40.0}
    arrivals = rate if sessions is FROM_ARRIVAL else draw.one(users, rate)
    sides = {"prefill": draw.one(*routers), "decode": draw.one(*routers)}
    scenario = conversations(
        pools,
        {},
        sessions,
        {"arrivals": arrivals, "requests": 80},
        router=sides if apart else draw.one(*routers),
        transfer=draw.transfer(backpressure=draw.one(True, True, False)),
    )
    times = draw.one(1.1, 2.0, 6.0)
    found = ran(scenario, times)
    for name in TIMES:
        assert np.isfinite(getattr(found.times, name)).all()
    for use in found.stations:
        assert (use.kv_capacity_units == 0) or use.totals.kv_units_max <= use.kv_capacity_units
    monkeypatch.setattr(phases, "Replica", partial(Replica, leap=False))
    slow = ran(scenario, times)
    assert_same(found, 0, slow, 0, "leaps")
    for name in ("cached_tokens", "decode_hit_tokens"):
        pair = [getattr(each.tokens, name) for each in (found, slow)]
        assert (pair[0] is None) == (pair[1] is None)
        if pair[0] is not None:
            np.testing.assert_array_equal(*pair, err_msg=name)


# --- routers that know the caches


def _replicas(run: NetworkRun, side: int) -> list[int]:
    return [part.replica for _, part in sorted(run.phases[side].phase.parts.items())]


@pytest.mark.parametrize("side", [0, 1], ids=["prefill", "decode"])
def test_a_router_that_knows_the_caches_of_a_side_comes_back_to_them(runs, side):
    pools = {name: {**pool, "replicas": 3} for name, pool in PAIR.items()}
    rates: dict[str, float] = {}
    for router in ("round_robin", "prefix_aware", "session"):
        routers = {"prefill": "round_robin", "decode": "round_robin", ("prefill", "decode")[side]: router}
        found = ran(conversations(pools, CACHES, router=routers, transfer=PULLED))
        tokens = (found.tokens.cached_tokens, found.tokens.decode_hit_tokens)[side]
        rates[router] = tokens.sum() / found.tokens.prompt_tokens.sum()
    assert min(rates["prefix_aware"], rates["session"]) > rates["round_robin"] + 0.05, rates
    assert rates["prefix_aware"] == pytest.approx(rates["session"], abs=0.05)


NEVER = {"prefix_aware": {"events_delay_s": "1000000s"}}


def test_a_router_that_knows_the_caches_of_all_pools():
    """Or what it has sent to them; one that never hears of them finds no more than one that deals in turn."""
    rates = {
        str(router): ran(conversations(SIDE_BY_SIDE, CACHES, router=router)).tokens.cached_tokens.mean()
        for router in ("round_robin", NEVER, "prefix_aware", "prefix_approximate", "session")
    }
    blind, never, *knowing = rates.values()
    assert min(knowing) > max(blind, never) + 50, rates


def test_a_fleet_that_grows_is_remembered():
    """A router that knows what it sent, over replicas that come and go, finds about as much as one that knows all."""
    scaling = {"target": 2, "every_s": "1s", "cooldown_s": 0, "min_replicas": 1}
    burst = {"arrivals": {"process": "poisson", "rate_rps": 60.0}}
    found: dict[str, float] = {}
    for router in (
        "least_outstanding",
        "prefix_aware",
        "prefix_approximate",
        {"prefix_aware": {"events_delay_s": 0.1}},
    ):
        served = ran(conversations(None, CACHES, workload=burst, router=router, replicas=4, autoscaling=scaling))
        assert len(served.stations[0].alive[0][0]) > 1
        found[str(router)] = served.tokens.cached_tokens.mean()
    blind, *knowing = found.values()
    assert min(knowing) > blind + 50 and max(knowing) < 1.1 * min(knowing), found


@pytest.mark.parametrize("sessions", [ANSWERED, FROM_ARRIVAL], ids=["in one loop", "one after the other"])
def test_a_session_keeps_to_a_replica_of_all_pools(runs, sessions):
    pools = {f"{name}{number}": {**PAIR[name], "replicas": number} for name in PAIR for number in (1, 2)}
    scenario = conversations(pools, CACHES, sessions, router="session")
    whole, configuration = planned(scenario)
    assert configuration.joint_pools == (sessions is ANSWERED)
    found = chain_result(whole, [configuration])
    (jobs,) = whole.jobs(configuration)
    np.testing.assert_array_equal(found.times.replica[0, 0], jobs.session % 3)
    for run in runs:
        np.testing.assert_array_equal(_replicas(run, 1), jobs.session % 3)
    # So a decode replica finds in its cache what is known of the conversation.
    later = np.flatnonzero(jobs.sharing.turns.previous >= 0)
    assert (found.tokens.decode_hit_tokens[0, 0, later] >= 496).mean() > 0.95


# --- what is told


def test_a_table_tells_what_both_sides_found():
    users = {"arrivals": {"process": "closed_loop", "users": 12}}
    found = [
        simulate(conversations(PAIR, kv, workload=users, transfer=PULLED), simulator="token")
        for kv in (NO_CACHES, CACHES)
    ]
    without, cached = (each.summary for each in found)
    table = found[1].requests
    asked = table["prompt_tokens"][table["measured"]].sum()
    for name, column in (("prefix_hit_rate", "cached_tokens"), ("decode_hit_rate", "decode_cached_tokens")):
        assert cached[name].item() == pytest.approx(table[column][table["measured"]].sum() / asked) != 0
        assert without[name].item() == 0
    assert "decode_cached_tokens" not in found[0].requests
    assert cached["ttft_s_mean"].item() < without["ttft_s_mean"].item()
    assert cached["session_s_mean"].item() < without["session_s_mean"].item()
    # What the decode side had it did not compute before, so that it did no less work.
    assert cached["mfu"].item() < without["mfu"].item()


def test_stages_around_a_closed_loop_change_nothing_of_the_caches():
    """All stations run in one loop there; a stage that takes no time is none."""
    users = {"arrivals": {"process": "closed_loop", "users": 12}}
    stages: Sequence[dict[str, Any]] = [{"stage": "tool", "seconds": 0}, {"stage": "prefill"}, {"stage": "decode"}]
    found = []
    for pipeline in (None, stages):
        served = {"model": "llama-3.1-8b", "hardware": "h100-sxm", "kv": CACHES}
        asked = {"lengths": LENGTHS, "requests": 150, "warmup_requests": 0, "sessions": ANSWERED, **users}
        found.append(ran(load_scenario({"workload": asked, "deployment": served, "pipeline": pipeline})))
    for name in TIMES:
        np.testing.assert_allclose(getattr(found[1].times, name), getattr(found[0].times, name), rtol=1e-9)
    np.testing.assert_array_equal(found[1].tokens.cached_tokens, found[0].tokens.cached_tokens)
    assert found[0].tokens.cached_tokens.any()
