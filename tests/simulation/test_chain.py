"""Stations in tandem: against a plain loop over events, against theory, and a prefill side before a decode side."""

from __future__ import annotations

import heapq
from dataclasses import replace

import numpy as np
import pytest

from evaluator.device import configure
from evaluator.metrics import OK, summarise
from evaluator.plan import plan
from evaluator.simulation import simulate_configurations, stations_of
from evaluator.simulation.chain import run_chain
from evaluator.simulation.outcomes import outcomes_of
from evaluator.stations.delay import delay
from evaluator.stations.queue import queue
from evaluator.traffic.roles import ROLES
from tests.scenario.build import scenario
from tests.simulation.build import jobs, plan_of_pools, poisson, shuffled
from tests.simulation.engines import column_of

LEVELS = np.array([0.5, 0.9, 0.99])
TIMES = ("arrival_s", "scheduled_s", "first_token_s", "last_token_s")


def event_loop(ready_s, delays, services, servers):
    """Departures of a delay and a FIFO queue behind it, event by event: (start, departure) by id."""
    events = [(ready, 0, number) for number, ready in enumerate(ready_s)]
    heapq.heapify(events)
    waiting, free = [], servers
    start, left = np.zeros(len(ready_s)), np.zeros(len(ready_s))
    while events:
        now, kind, number = heapq.heappop(events)
        if kind == 0:
            heapq.heappush(events, (now + delays[number], 1, number))
        elif kind == 1:
            waiting.append(number)
        else:
            free += 1
        while free and waiting and (not events or events[0][:2] > (now, 1)):
            first, free = waiting.pop(0), free - 1
            start[first], left[first] = now, now + services[first]
            heapq.heappush(events, (left[first], 2, first))
    return start, left


# --- delays and queues


@pytest.mark.parametrize("servers", [1, 2, 5])
def test_a_delay_and_a_queue_are_those_of_a_loop_over_events(servers):
    rng = np.random.default_rng(servers)
    count = 400
    delays, services = rng.exponential(3.0, count), rng.exponential(0.9 * servers, count)
    chunk = [[jobs(np.cumsum(rng.exponential(1.0, count))) for _ in range(2)] for _ in range(3)]
    stations = [
        delay("hop", lambda config, one: delays[one.id]),
        queue("desk", lambda config, one: services[one.id], lambda config: servers),
    ]
    found = run_chain(stations, chunk)
    for config, seeds in enumerate(chunk):
        for seed, one in enumerate(seeds):
            start, left = event_loop(one.ready_s, delays, services, servers)
            np.testing.assert_allclose(found.times.last_token_s[config, seed], left, rtol=1e-12)
            np.testing.assert_allclose(found.times.scheduled_s[config, seed], start, rtol=1e-12)
            np.testing.assert_array_equal(found.times.arrival_s[config, seed], one.ready_s)
    use = found.uses[1]
    np.testing.assert_allclose(use.totals.busy_s, services.sum())
    assert (use.replicas == servers).all() and not use.devices.any()


def test_the_order_in_which_jobs_lie_does_not_matter():
    rng = np.random.default_rng(3)
    services = rng.exponential(0.8, 100)
    straight = [[jobs(np.round(np.cumsum(rng.exponential(1.0, 100)))) for _ in range(2)]]  # many at one time
    mixed = [[shuffled(one, seed) for seed, one in enumerate(seeds)] for seeds in straight]
    for servers in (1, 3):
        desk = queue("desk", lambda config, one: services[one.id], lambda config, servers=servers: servers)
        one, other = run_chain([desk, desk], straight), run_chain([desk, desk], mixed)
        for name in (*TIMES, "replica", "prompt_tokens", "output_tokens"):
            np.testing.assert_array_equal(column_of(one, name), column_of(other, name))


def test_configurations_may_have_different_servers():
    chunk = [[jobs([0.0, 0.0, 0.0])], [jobs([0.0, 0.0, 0.0])]]
    found = run_chain([queue("desk", lambda config, one: 1.0, lambda config: config + 1)], chunk)
    np.testing.assert_array_equal(found.times.last_token_s[:, 0], [[1.0, 2.0, 3.0], [1.0, 1.0, 2.0]])
    np.testing.assert_array_equal(found.times.replica[:, 0], [[0, 0, 0], [0, 1, 0]])


def test_two_queues_in_tandem_are_two_queues_of_their_own():
    """Burke (1956): the departures of M/M/1 are Poisson, and the stays at both are independent: 1 / (mu - lambda)."""
    seeds, count, rate, speeds = 20, 20_000, 0.7, (1.0, 1.25)
    rng = np.random.default_rng(11)
    services = [rng.exponential(1 / speed, (seeds, count)) for speed in speeds]
    chunk = poisson(rate, count, seeds)
    places = {id(one): seed for seed, one in enumerate(chunk[0])}
    first = run_chain([queue("one", lambda config, one: services[0][places[id(one)]][one.id])], chunk)
    middle = [[one.at(first.times.last_token_s[0, seed]) for seed, one in enumerate(chunk[0])]]
    places |= {id(one): seed for seed, one in enumerate(middle[0])}
    second = run_chain([queue("two", lambda config, one: services[1][places[id(one)]][one.id])], middle)
    stays = [(run.times.last_token_s - run.times.arrival_s)[0, :, count // 10 :] for run in (first, second)]
    for stay, speed in zip(stays, speeds, strict=True):
        means = stay.mean(axis=-1)
        error = means.std(ddof=1) / np.sqrt(seeds)
        assert error < 0.05 and abs(means.mean() - 1 / (speed - rate)) < 3 * error
    together = [np.corrcoef(one, two)[0, 1] for one, two in zip(*stays, strict=True)]
    assert abs(np.mean(together)) < 3 * np.std(together, ddof=1) / np.sqrt(seeds)


# --- with an engine


@pytest.mark.parametrize("streams", [True, False])
def test_what_stands_behind_an_engine(streams):
    """A delay is a later frontend: both tokens are later. A queue holds the answer until it is whole."""
    whole = plan(scenario("deployment.calibration=datasheet"), simulator="token")
    (configuration,) = whole.configurations
    chunk = [[whole.sampler.jobs(configuration.workload, seed, configuration.stations[0].role) for seed in whole.seeds]]
    later = delay("hop", lambda config, one: 0.25)
    last = later if streams else queue("guard", lambda config, one: 0.25, lambda config: 10_000)
    found = outcomes_of([configuration], run_chain([*stations_of(whole, [configuration]), last], chunk))
    (station,) = configuration.stations
    slow = replace(station.design.calibration, frontend_s=station.design.calibration.frontend_s + 0.25)
    slower = configuration.with_stations((replace(station, design=replace(station.design, calibration=slow)),))
    known = simulate_configurations(whole, [slower])
    for name in (*TIMES[:2], "last_token_s"):
        np.testing.assert_allclose(getattr(found.times, name), getattr(known.times, name), rtol=1e-12)
    gaps, usual = found.itl[0][0], known.itl[0][0]
    assert gaps[1].sum() == usual[1].sum()
    if streams:
        np.testing.assert_allclose(found.times.first_token_s, known.times.first_token_s, rtol=1e-12)
        np.testing.assert_array_equal(gaps[0], usual[0])
    else:
        np.testing.assert_allclose(found.times.first_token_s, found.times.last_token_s, rtol=1e-12)
        assert not gaps[0].any()


def test_what_stands_before_an_engine_is_part_of_the_wait():
    whole = plan(scenario(), simulator="token")
    (configuration,) = whole.configurations
    chunk = [[whole.sampler.jobs(configuration.workload, 0, configuration.stations[0].role)]]
    rng = np.random.default_rng(0)
    hop = rng.exponential(0.5, len(chunk[0][0]))  # they pass each other
    found = run_chain([delay("hop", lambda config, one: hop[one.id]), *stations_of(whole, [configuration])], chunk)
    moved = [[chunk[0][0].at(chunk[0][0].ready_s + hop)]]
    known = run_chain(stations_of(whole, [configuration]), moved)
    np.testing.assert_array_equal(found.times.arrival_s[0, 0], chunk[0][0].ready_s)
    for name in TIMES[1:]:
        np.testing.assert_array_equal(getattr(found.times, name), getattr(known.times, name))


SPREAD = "workload.lengths={source: uniform, prompt_min: 50, prompt_max: 900, output_min: 1, output_max: 6}"
HOP_S = 0.125


def tandem(simulator, *overrides):
    """The member and the journey of a prefill side, a hop and a decode side."""
    whole = plan_of_pools(SPREAD, *overrides, simulator=simulator)
    (configuration,) = whole.configurations
    assert configuration.status == OK and not configuration.joint
    prefill, decode = stations_of(whole, [configuration])
    chunk = [[whole.sampler.jobs(configuration.workload, seed, configuration.stations[0].role) for seed in whole.seeds]]
    return configuration, run_chain([prefill, delay("copy", lambda config, one: HOP_S), decode], chunk)


@pytest.mark.parametrize("simulator", ["token", "iteration"])
def test_a_prefill_side_before_a_decode_side(simulator):
    configure()
    configuration, found = tandem(simulator, "workload.seeds=[0, 1]", "workload.warmup_requests=0")
    wanted = [
        plan(scenario(SPREAD)).sampler.jobs(configuration.workload, seed, ROLES["mixed"]).demand for seed in (0, 1)
    ]
    for seed in (0, 1):
        output = wanted[seed].output_tokens
        np.testing.assert_array_equal(found.tokens.output_tokens[0, seed], output)
        np.testing.assert_array_equal(found.tokens.prompt_tokens[0, seed], wanted[seed].prompt_tokens)
        single = output == 1
        assert 0 < single.sum() < len(output)
        first, last = found.times.first_token_s[0, seed], found.times.last_token_s[0, seed]
        np.testing.assert_array_equal(first[single], last[single])  # done with the prefill side
        assert (last - first)[~single].min() > HOP_S
        gaps, weights = found.itl[0][seed]
        assert weights.sum() == (output - 1).sum()  # every token but the first comes after another
        assert weights[gaps > HOP_S].sum() >= (~single).sum()  # one of them over the hop
        assert (gaps * weights).sum() == pytest.approx((last - first).sum(), rel=0.01)
    decode = found.uses[2]
    assert found.uses[0].flops.min() > decode.flops.max() and decode.name == "decode"


def test_both_engines_agree_on_a_tandem():
    configure()
    (_, fast), (_, exact) = (
        tandem(simulator, "deployment.replicas=2", "deployment.router=random") for simulator in ("iteration", "token")
    )
    for name in TIMES:
        np.testing.assert_allclose(getattr(fast.times, name), getattr(exact.times, name), rtol=1e-9, err_msg=name)
    np.testing.assert_array_equal(fast.times.replica, exact.times.replica)
    for one, other in zip(fast.uses, exact.uses, strict=True):
        for name in ("busy_s", "iterations", "flops", "bytes", "kv_unit_s"):
            np.testing.assert_allclose(one.figure(name), other.figure(name), rtol=1e-9, err_msg=name)
    assert fast.itl[0][0][1].sum() == exact.itl[0][0][1].sum()


def test_who_skipped_the_decode_side_comes_back_behind_it():
    whole = plan_of_pools(SPREAD, simulator="token")
    (configuration,) = whole.configurations
    chunk = [[whole.sampler.jobs(configuration.workload, 0, configuration.stations[0].role)]]
    pools = stations_of(whole, [configuration])
    plain = run_chain(pools, chunk)
    found = run_chain([*pools, delay("hop", lambda config, one: 0.5)], chunk)
    np.testing.assert_array_equal(found.times.last_token_s, plain.times.last_token_s + 0.5)
    np.testing.assert_allclose(found.times.first_token_s, plain.times.first_token_s + 0.5, rtol=1e-12)


def test_statistics_of_a_tandem_are_of_all_its_devices():
    whole = plan_of_pools(simulator="token")
    outcomes = simulate_configurations(whole, whole.configurations)
    values = summarise(outcomes, LEVELS)
    assert values["devices"].item() == 2 and values["status"].item() == OK
    prefill, decode = outcomes.stations
    span = outcomes.makespan_s
    assert values["utilisation"].item() == pytest.approx(
        ((prefill.totals.busy_s + decode.totals.busy_s) / (2 * span)).item()
    )
    assert values["iterations"].item() == (prefill.totals.iterations + decode.totals.iterations).item()
    assert 0 < values["kv_used_mean"].item() <= values["kv_used_max"].item() < 1
    both = values["mfu"].item() * (prefill.totals.busy_s + decode.totals.busy_s).item() * prefill.peak_flops.item()
    assert both == pytest.approx((prefill.flops + decode.flops).item())
