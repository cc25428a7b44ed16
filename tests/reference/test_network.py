"""Stations in tandem: what each does alone, and what the event loop must keep between them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from evaluator.reference import Limits, Request, simulate
from evaluator.reference.network import VisitTimes, run
from evaluator.reference.replica import Replica
from evaluator.reference.routing import chooser
from evaluator.reference.stations.delay import DelayStation
from evaluator.reference.stations.fifo import Fifo
from evaluator.reference.stations.pool import PoolStation
from tests.reference.build import SECOND, Scenario, random_cost, random_scenario
from tests.thorough import tried

TIMES = ("scheduled_s", "first_token_s", "last_token_s")
LIMITS = Limits(8, 64, 1 << 20)


def sent_at(arrival_s) -> list[Request]:
    """Small requests at these times."""
    return [Request(index, float(at), 4, 4, 3, 2) for index, at in enumerate(arrival_s)]


def pool_of(scenario: Scenario) -> PoolStation:
    """The station that ``simulate`` makes of a scenario."""
    options = dict(scenario.options)
    count, router = options.pop("replicas"), options.pop("router")
    options.pop("users")
    replicas = [Replica(index, scenario.cost, scenario.policy, scenario.limits, **options) for index in range(count)]
    return PoolStation(replicas, chooser(router, replicas))


def small_pool(policy: str = "chunked", replicas: int = 2) -> PoolStation:
    cost = random_cost(np.random.default_rng(1), experts=True, windowed=False)
    several = [Replica(index, [cost], policy, LIMITS) for index in range(replicas)]
    return PoolStation(several, chooser("least_work", several))


def column(station, name: str) -> np.ndarray:
    """One time of each visit, by request."""
    return np.array([getattr(station.visits[index], name) for index in range(len(station.visits))])


def lindley(arrival_s, service_s) -> np.ndarray:
    """Waits at one server: W(n + 1) = max(W(n) + S(n) - (A(n + 1) - A(n)), 0) (Lindley 1952)."""
    waits = np.zeros(len(arrival_s))
    for n in range(len(waits) - 1):
        waits[n + 1] = max(waits[n] + service_s[n] - (arrival_s[n + 1] - arrival_s[n]), 0.0)
    return waits


class TestFifo:
    def test_by_hand(self):
        station = Fifo(2, [3.0, 1.0, 4.0, 1.0])
        run([station], sent_at([0, 0, 0.5, 2]))
        assert station.visits == {
            0: VisitTimes(0, 0, 3),
            1: VisitTimes(0, 0, 1),
            2: VisitTimes(0.5, 1, 5),
            3: VisitTimes(2, 3, 4),
        }

    def test_a_tandem_of_single_servers_follows_lindley(self):
        rng = np.random.default_rng(0)
        arrival_s, *services = rng.exponential(1.0, 500).cumsum(), *rng.exponential(0.8, (3, 500))
        stations = [Fifo(1, service_s.tolist()) for service_s in services]
        run(stations, sent_at(arrival_s))
        for station, service_s in zip(stations, services, strict=True):
            waits = lindley(arrival_s, service_s)
            np.testing.assert_allclose(column(station, "arrived_s"), arrival_s, rtol=1e-12)
            np.testing.assert_allclose(column(station, "started_s"), arrival_s + waits, rtol=1e-12)
            arrival_s = arrival_s + waits + service_s

    def test_mm1_in_tandem_is_as_if_each_were_alone(self):
        """Burke 1956: the departures of M/M/c are Poisson; so each wait is that of Erlang's C formula."""
        requests, warmup, load = 10_000, 1_000, 0.6
        servers = (1, 2, 1)
        waits = []
        for seed in range(4):
            rng = np.random.default_rng(seed)
            stations = [Fifo(count, rng.exponential(count * load, requests).tolist()) for count in servers]
            run(stations, sent_at(rng.exponential(1.0, requests).cumsum()))
            found = [column(station, "started_s") - column(station, "arrived_s") for station in stations]
            waits.append([each[warmup:].mean() for each in found])
        error = np.std(waits, axis=0, ddof=1) / 2
        one, two = load**2 / (1 - load), 2 * load**3 / (1 - load**2)  # mean wait of M/M/1 and M/M/2, arrivals at 1/s
        assert (abs(np.mean(waits, axis=0) - [one, two, one]) < 5 * error).all()
        assert np.mean(waits, axis=0) == pytest.approx([one, two, one], rel=0.1)

    def test_no_server_is_refused(self):
        with pytest.raises(ValueError, match="servers must be at least 1, got 0"):
            Fifo(0, [])


def test_a_delay_lets_requests_overtake():
    station = DelayStation([5.0, 1.0, 0.0])
    following = Fifo(1, [1.0, 1.0, 1.0])
    run([station, following], sent_at([0, 1, 2]))
    assert station.visits == {0: VisitTimes(0, 0, 5), 1: VisitTimes(1, 1, 2), 2: VisitTimes(2, 2, 2)}
    assert [following.visits[index].started_s for index in range(3)] == [5, 2, 3]


@pytest.mark.parametrize("seed", range(tried(12)))
def test_a_pool_behind_a_delay_is_the_pool_with_later_arrivals(seed):
    """Any policy, router and limits; the delay keeps the order, so that requests of one time do, too."""
    scenario = random_scenario(2000 + seed)
    delay_s, behind = 0.37, scenario.requests()
    run([DelayStation([delay_s] * len(behind)), pool_of(scenario)], behind)
    later = scenario.requests()
    for request in later:
        request.arrival_s += delay_s
    run([pool_of(scenario)], later)
    assert [request.arrival_s for request in behind] == [column[0] for column in scenario.columns]
    for name in ("replica", *TIMES):
        assert [getattr(request, name) for request in behind] == [getattr(request, name) for request in later]


@pytest.mark.parametrize("seed", range(tried(12)))
def test_stations_that_take_no_time_change_nothing(seed):
    """Not even at one point in time: what passes them is there before the next batch. Open and closed loops."""
    scenario = random_scenario(3000 + seed)
    none = [0.0] * len(scenario.columns)
    users = scenario.options["users"] if seed % 3 else 5
    through, alone = scenario.requests(), scenario.requests()
    run([DelayStation(none), Fifo(1, none), pool_of(scenario), Fifo(2, none)], through, users)
    run([pool_of(scenario)], alone, users)
    for name in ("arrival_s", "replica", *TIMES):
        assert [getattr(request, name) for request in through] == [getattr(request, name) for request in alone]


def test_a_request_comes_before_the_batch_of_that_time():
    """At 1 s an iteration ends and a request comes out of a station in front: it is in the next one."""
    requests = sent_at([0.0, 0.5])
    replicas = [Replica(0, [SECOND], "chunked", LIMITS)]
    run([DelayStation([0.0, 0.5]), PoolStation(replicas, chooser("round_robin", replicas))], requests)
    assert [request.scheduled_s for request in requests] == [0.0, 1.0]


@pytest.mark.parametrize("users", [None, 7])
@pytest.mark.parametrize("policy", ["chunked", "continuous", "static"])
def test_every_request_passes_every_station_once(policy, users):
    rng = np.random.default_rng(5)
    count = 200
    draw = [rng.exponential(0.05, count).tolist() for _ in range(3)]
    stations = [DelayStation(draw[0]), Fifo(3, draw[1]), small_pool(policy), Fifo(1, draw[2])]
    requests = sent_at(rng.exponential(0.06, count).cumsum())
    run(stations, requests, users)
    delay, first, pool, second = stations
    assert [request.finished for request in requests] == [True] * count
    assert all(len(station.visits) == count for station in (delay, first, second))
    way = [
        [request.arrival_s for request in requests], column(delay, "arrived_s"), column(delay, "left_s"),
        column(first, "arrived_s"), column(first, "started_s"), column(first, "left_s"),
        [request.scheduled_s for request in requests], [request.first_token_s for request in requests],
        [request.last_token_s for request in requests],
        column(second, "arrived_s"), column(second, "started_s"), column(second, "left_s"),
    ]  # fmt: skip
    assert (np.diff(way, axis=0) >= 0).all()
    for out, into in ((0, 1), (2, 3), (8, 9)):  # nothing happens between two stations
        np.testing.assert_array_equal(way[out], way[into])
    assert all(station.next_s == math.inf for station in stations)
    assert all(replica.outstanding == 0 and not replica.queues.running for replica in pool.replicas)


@pytest.mark.parametrize("pool_is_last", [True, False])
def test_a_closed_loop_is_released_by_the_last_station(pool_is_last):
    rng = np.random.default_rng(6)
    count, users = 100, 6
    queue, pool = Fifo(2, rng.exponential(0.01, count).tolist()), small_pool(replicas=1)
    requests = sent_at(np.zeros(count))
    run([queue, pool] if pool_is_last else [pool, queue], requests, users)
    left_s = [request.last_token_s for request in requests] if pool_is_last else column(queue, "left_s")
    sent_s = [request.arrival_s for request in requests]
    assert sent_s[:users] == [0.0] * users
    np.testing.assert_array_equal(sent_s[users:], np.sort(left_s)[: count - users])


def test_a_single_pool_is_what_simulate_runs():
    scenario = random_scenario(11)
    alone, requests = scenario.run(seed=0), scenario.requests()
    pool = pool_of(scenario)
    run([pool], requests, scenario.options["users"])
    assert [request.last_token_s for request in requests] == [request.last_token_s for request in alone.requests]
    assert [replica.busy_s for replica in pool.replicas] == [replica.busy_s for replica in alone.replicas]
    assert simulate(SECOND, "chunked", LIMITS, []).iterations == 0
