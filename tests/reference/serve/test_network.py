"""Pools that depend on one another: closed loops over all of them, routers over several pools, back-pressure."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from evaluator.cost.memory import kv_units
from evaluator.metrics import OK
from evaluator.plan import Configuration, Plan, StationPlan, plan
from evaluator.reference.replica import Replica
from evaluator.reference.serve import network, phases
from evaluator.reference.stations.transfers import Transfers
from evaluator.run import simulate
from evaluator.simulation import simulate_configurations, stations_of
from evaluator.simulation.chain import run_chain
from evaluator.traffic.jobs import held_units
from tests.simulation.test_phases import BOTH, SPREAD, TIMES, assert_same, of_pools
from tests.thorough import tried

PAIR = {"p": {"role": "prefill"}, "d": {"role": "decode"}}
UNLIKE = {
    "a": {"role": "prefill", "hardware": "a100-sxm", "replicas": 2},
    "h": {"role": "prefill"},
    "l": {"role": "decode", "hardware": "l40s", "replicas": 2},
    "m": {"role": "decode", "hardware": "h200-sxm"},
}
EVEN = {name: {**pool, "replicas": 2} for name, pool in UNLIKE.items()}
LONG_ANSWERS = {"source": "uniform", "prompt_min": 5, "prompt_max": 200, "output_min": 1, "output_max": 400}
BESIDE = {"p": {"role": "prefill"}, "w": {"role": "mixed", "hardware": "l40s", "replicas": 2}, "d": {"role": "decode"}}
MIXED = {"h": {"role": "mixed"}, "l": {"role": "mixed", "hardware": "l40s", "replicas": 2}}


def ran(scenario: Any, times: float | None = None, **changes: Any) -> tuple[Plan, Configuration, Any]:
    """The only member of a scenario, changed, and what the reference makes of it.

    ``times``: every replica has KV for so many times the largest request.
    """
    whole = plan(scenario, simulator="token")
    configuration = replace(whole.configurations[0], **changes)
    assert configuration.status == OK, configuration.status
    if times is not None:
        stations = tuple(tightened(station, times) for station in configuration.stations)
        configuration = configuration.with_stations(stations)
    return whole, configuration, simulate_configurations(whole, [configuration])


def tightened(station: StationPlan, times: float) -> StationPlan:
    """With KV for so many times the largest request."""
    replica = station.design.ready
    largest = int(kv_units(replica.kv, station.extremes.kv_tokens))
    kv = replace(replica.kv, capacity_units=int(largest * times))
    return replace(station, design=replace(station.design, replica=replace(replica, kv=kv)))


# --- closed loops


@pytest.mark.parametrize("users", [1, 7])
@pytest.mark.parametrize(
    ("pools", "more"),
    [
        (PAIR, {"transfer": {"link": "ethernet-25g"}}),
        (UNLIKE, {"router": "random", "transfer": {"link": "pcie-gen5-x16"}}),
        (EVEN, {"transfer": {"groups": 2}}),
        (MIXED, {}),
        (BESIDE, {"transfer": {"link": "ethernet-25g"}}),
        (BESIDE, {"split": {"prompt_tokens_above": 1000}}),
    ],
)  # fmt: skip
def test_a_closed_loop_is_the_open_loop_of_the_times_at_which_its_users_send(pools, more, users):
    """Every user sends when an answer is whole; given these times, the chain computes the same departures."""
    closed = {"process": "closed_loop", "users": users}
    _, configuration, found = ran(of_pools(pools, arrivals=closed, **more))
    assert configuration.joint_pools and configuration.simulator == "token"
    arrival_s, last_s = found.times.arrival_s[0, 0], found.times.last_token_s[0, 0]
    np.testing.assert_array_equal(arrival_s[:users], 0.0)
    np.testing.assert_array_equal(arrival_s[users:], np.sort(last_s)[: len(arrival_s) - users])
    whole = plan(of_pools(pools, **more), simulator="token")
    (open_,) = whole.configurations
    assert not open_.joint_pools
    jobs = [[one.at(arrival_s) for one in whole.jobs(open_)]]
    known = run_chain(stations_of(whole, [open_]), jobs)
    for name in TIMES:
        np.testing.assert_allclose(getattr(found.times, name), getattr(known.times, name), rtol=1e-9, err_msg=name)
    np.testing.assert_array_equal(found.times.replica, known.times.replica)


def test_one_user_over_all_pools_never_waits():
    _, _, found = ran(of_pools(UNLIKE, arrivals={"process": "closed_loop", "users": 1}))
    np.testing.assert_allclose(found.times.scheduled_s, found.times.arrival_s, rtol=1e-12)


# --- routers that look at the state, over unlike replicas


def test_a_router_looks_at_the_replicas_of_all_pools_of_its_side():
    """Under load the slow devices get fewer requests than in turn, and the slowest request waits less."""
    looks = {"prefill": "least_work", "decode": "least_outstanding"}
    rate = {"process": "poisson", "rate_rps": 80.0}
    runs = (of_pools(UNLIKE, arrivals=rate, requests=200, router=router) for router in ("round_robin", looks))
    found = dict(zip(("round_robin", "looks"), map(ran, runs), strict=True))
    assert found["looks"][1].joint_pools
    ttft = {
        name: np.quantile((one.times.first_token_s - one.times.arrival_s)[0, 0], 0.9)
        for name, (_, _, one) in found.items()
    }
    assert ttft["looks"] < ttft["round_robin"]
    shares = {name: np.bincount(one.times.replica[0, 0], minlength=3) / 200 for name, (_, _, one) in found.items()}
    assert shares["looks"][2] > shares["round_robin"][2] + 0.05  # the H100 beside two A100


def test_several_models_under_a_router_that_looks():
    pools = {
        **{name: {**pool, "model": model} for model in BOTH for name, pool in
           {f"p{model[0]}": PAIR["p"] | {"replicas": 2}, f"d{model[0]}": PAIR["d"] | {"replicas": 2}}.items()},
    }  # fmt: skip
    _, configuration, found = ran(of_pools(pools, models=BOTH, router="least_outstanding", requests=100))
    np.testing.assert_array_equal(
        np.asarray(configuration.phases[0].replicas.model)[found.times.replica[0, 0]], found.model[0, 0]
    )


# --- mixed pools beside prefill and decode pools


@pytest.mark.parametrize("backpressure", [False, True])
def test_a_router_counts_the_requests_of_prefill_and_of_mixed_replicas(backpressure):
    """A prefill replica is done with a request at its first token, a mixed one at its last; the fewest get the next."""
    transfer = {"link": "ethernet-25g", "backpressure": backpressure}
    scenario = of_pools(BESIDE, router="least_outstanding", transfer=transfer, requests=100)
    _, configuration, found = ran(scenario)
    assert configuration.joint_pools and configuration.simulator == "token"
    times, replica = found.times, found.times.replica[0, 0]
    left_s = np.where(replica < 1, times.first_token_s[0, 0], times.last_token_s[0, 0])
    arrival_s = times.arrival_s[0, 0]
    for number in range(100):
        there = [((replica[:number] == one) & (left_s[:number] > arrival_s[number])).sum() for one in range(3)]
        assert replica[number] == int(np.argmin(there)), number
    assert 0.2 < (replica == 0).mean() < 0.95


def test_what_is_served_whole_sends_nothing_and_never_comes_to_the_decode_side(transfers):
    _, configuration, found = ran(of_pools(BESIDE, router="least_outstanding", transfer={"backpressure": True}))
    apart = found.times.replica[0, 0] < configuration.phases[0].mixed_from
    several = found.tokens.output_tokens[0, 0] > 1
    assert set(transfers[0].done) == set(np.flatnonzero(apart & several).tolist()) and 0 < apart.sum() < len(apart)
    uses = {use.name: use for use in found.stations}
    assert [uses[name].devices[0] for name in ("p", "w", "d")] == [1, 2, 1]
    output = found.tokens.output_tokens[0, 0]
    assert found.itl[0][0][1].sum() == (output - 1).sum()


# --- back-pressure


@pytest.mark.parametrize(("pools", "granularity"), [(PAIR, "cache"), (PAIR, "layer"), (UNLIKE, "cache")])
def test_with_room_enough_nothing_waits(pools, granularity):
    transfer = {"link": "pcie-gen5-x16", "granularity": granularity}
    # Reserved KV: on demand a decode replica says between two iterations alone that it has room, which waits.
    design = {"batching": {"policy": "continuous"}, "kv": {"admission": "reserve"}}
    _, _, free = ran(of_pools(pools, transfer=transfer, **design))
    _, configuration, held = ran(of_pools(pools, transfer={**transfer, "backpressure": True}, **design))
    assert configuration.joint_pools
    for name in TIMES:
        np.testing.assert_allclose(getattr(held.times, name), getattr(free.times, name), rtol=1e-9, err_msg=name)
    assert held.stations[0].totals.kv_unit_s > free.stations[0].totals.kv_unit_s  # kept until it is sent


@pytest.fixture
def transfers(monkeypatch):
    """Every network of transfers that is run."""
    found: list[Transfers] = []

    class Kept(Transfers):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            found.append(self)

    monkeypatch.setattr(network, "Transfers", Kept)
    return found


@pytest.mark.parametrize("planning", ["at_once", "asynchronous", "queued"])
def test_an_idle_decode_side_gives_room_at_once(transfers, planning):
    """Also where its engine core plans batches ahead, and has none to plan while nobody has come."""
    batching = {"policy": "chunked", "planning": planning}
    pools = {name: {**pool, "pipeline_parallel": 1 + (planning == "queued")} for name, pool in PAIR.items()}
    alone = {"process": "closed_loop", "users": 1}
    design = {"batching": batching, "kv": {"admission": "on_demand"}, "transfer": {"backpressure": True}}
    ran(of_pools(pools, arrivals=alone, requests=10, **design))
    (done,) = transfers
    assert len(done.done) > 5 and all(one.started_s == one.ready_s for one in done.done.values())


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("shared", ["per_replica", "none"])
def test_rooms_are_never_more_than_there_is_and_the_first_gets_the_first(transfers, seed, shared):
    rng = np.random.default_rng(seed)
    pools = {name: {**pool, "replicas": int(rng.integers(1, 4))} for name, pool in PAIR.items()}
    link = {"bandwidth": float(rng.choice([1e9, 2e10])), "latency": 1e-3}
    transfer = {"link": link, "backpressure": True, "shared": shared}
    arrivals = {"process": "poisson", "rate_rps": float(rng.choice([40.0, 200.0]))}
    scenario = of_pools(pools, arrivals=arrivals, transfer=transfer, requests=80, kv={"admission": "reserve"})
    whole, configuration, _ = ran(scenario, float(rng.choice([1.1, 2.0])))
    (done,) = transfers
    prompt = whole.jobs(configuration)[0].demand
    on, later = prompt.after_prefill
    prefill, decode = (station.design.ready.kv for station in configuration.stations)
    parts, came = done._prefill.parts, done._decode.parts
    waited = 0
    for replica in range(pools["p"]["replicas"]):  # KV from the schedule to the end of the transfer
        mine = [part for part in parts.values() if part.replica == replica]
        spans = [
            (part.scheduled_s, done.done[part.index].left_s if part.index in came else part.last_token_s)
            for part in mine
        ]
        assert _most(spans, held_units(prompt, prefill)[[part.index for part in mine]]) <= prefill.capacity_units
    units = dict(zip(on.tolist(), held_units(later, decode).tolist(), strict=True))
    for replica in range(pools["d"]["replicas"]):  # KV from the start of the transfer, at the latest, to the last token
        mine = sorted((part for part in came.values() if part.replica == replica), key=lambda part: part.index)
        spans = [(done.done[part.index].started_s, part.last_token_s) for part in mine]
        assert _most(spans, np.array([units[part.index] for part in mine])) <= decode.capacity_units
        # Nobody waits for nothing: it begins with the first token, when a request leaves, or when a link comes free
        leaves = {round(part.last_token_s, 9) for part in mine}
        for part in mine:
            sent = done.done[part.index]
            sender = parts[part.index].replica
            frees = {round(one.left_s - 1e-3, 9) for index, one in done.done.items() if parts[index].replica == sender}
            assert sent.started_s == sent.ready_s or round(sent.started_s, 9) in leaves | frees
            waited += sent.started_s > sent.ready_s
    assert waited > 0


def _most(spans: list[tuple[float, float]], amounts: np.ndarray) -> float:
    """Most of the amounts that are held at once; what ends at a time is gone at that time."""
    times = np.array(spans).T
    events = np.lexsort((np.repeat([1, 0], len(amounts)), np.round(times.reshape(-1), 12)))
    return np.cumsum(np.concatenate([amounts, -amounts])[events]).max(initial=0)


@pytest.mark.parametrize("seed", range(tried(24)))
def test_nothing_waits_for_ever(seed, monkeypatch):
    """Any policies, with KV for little more than the largest request; and leaps over iterations change nothing."""
    rng = np.random.default_rng(seed)

    def one(*values: Any) -> Any:
        return values[rng.integers(len(values))]

    def pool(role: str) -> dict[str, Any]:
        return {
            "role": role,
            "hardware": one("h100-sxm", "l40s"),
            "replicas": 2 * one(1, 2),
            "batching": {"policy": one("chunked", "continuous", "mixed", "static"), "max_num_seqs": one(2, 256),
                         "packing": one("fcfs", "least_work_left")},
            "kv": {"admission": one("reserve", "on_demand", "on_demand"), "block_tokens": one(1, 16)},
        }  # fmt: skip

    pools = {"p": pool("prefill"), "q": pool("prefill"), "d": pool("decode"), "e": pool("decode")}
    for each in pools.values():
        if each["batching"]["policy"] == "static":
            each["kv"]["admission"] = "reserve"
    transfer = {
        "backpressure": True,
        "granularity": one("cache", "layer"),
        "groups": one(1, 2),
        "link": {"bandwidth": one(1e9, 1e11)},
        "shared": one("per_replica", "none"),
    }
    users = {"process": "closed_loop", "users": 30}
    scenario = of_pools(
        pools,
        arrivals=one(users, {"process": "poisson", "rate_rps": 60.0}, {"process": "all_at_once"}),
        transfer=transfer,
        router=one("round_robin", "random", "least_outstanding", "least_kv"),
        lengths=one(SPREAD, LONG_ANSWERS),
        requests=60,
    )
    times = one(1.02, 1.5, 3.0)
    _, _, found = ran(scenario, times)
    for name in TIMES:
        assert np.isfinite(getattr(found.times, name)).all()
    for use in found.stations:
        assert (use.kv_capacity_units == 0) or use.totals.kv_units_max <= use.kv_capacity_units
    monkeypatch.setattr(phases, "Replica", partial(Replica, leap=False))
    _, _, slow = ran(scenario, times)
    assert_same(found, 0, slow, 0, "leaps")


def test_back_pressure_makes_the_first_tokens_of_others_later():
    """Without it the prefill side forgets what it cannot send, and a slow decode side is not felt there."""
    pools = {"p": PAIR["p"], "d": {**PAIR["d"], "hardware": "l40s"}}
    base = {"arrivals": {"process": "poisson", "rate_rps": 12.0}, "requests": 150}
    (_, _, free), (_, _, held) = (
        ran(of_pools(pools, transfer={"backpressure": back}, **base), 3.0) for back in (False, True)
    )
    wait = [np.mean(one.times.first_token_s - one.times.arrival_s) for one in (free, held)]
    assert wait[1] > 1.5 * wait[0]
    assert held.stations[0].totals.kv_unit_s > 2 * free.stations[0].totals.kv_unit_s


def test_a_request_larger_than_the_decode_side_is_no_design():
    pools = {"p": PAIR["p"], "d": {"role": "decode", "hardware": {"like": "h100-sxm", "memory_bytes": "20.3GB"}}}
    scenario = of_pools(pools, transfer={"backpressure": True}, kv={"memory_fraction": 0.9})
    (configuration,) = plan(scenario).configurations
    assert (
        configuration.status.startswith("infeasible: pool d: a request of 2,4")
        and "exceeds the KV cache" in configuration.status
    )


def test_a_policy_that_reserves_nothing_is_refused():
    lightllm = {"batching": {"policy": "lightllm"}, "kv": {"block_tokens": 1}}
    pools = {"p": PAIR["p"], "d": {**PAIR["d"], **lightllm}}
    (configuration,) = plan(of_pools(pools, transfer={"backpressure": True})).configurations
    assert configuration.status.startswith(
        "unsupported: pool d: policy lightllm with transfer.backpressure: it admits by"
    )


def test_requests_tell_their_model():
    pools = {name: {"role": "mixed", "model": model} for name, model in zip("ab", BOTH, strict=True)}
    table = simulate(of_pools(pools, models=BOTH, requests=200), simulator="token").requests
    assert set(table["model"]) == set(BOTH)
    assert table.groupby("model")["prompt_tokens"].max()["qwen3-8b"] <= 300
    assert (table["model"] == "llama-3.1-8b").mean() == pytest.approx(0.6, abs=0.1)
    assert "model" not in simulate(of_pools(MIXED), simulator="token").requests
