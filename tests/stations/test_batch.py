"""The batch server against the reference's, and against the embedded chain of bulk service."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
from scipy.stats import poisson as poisson_law

from evaluator.reference import Request
from evaluator.reference.network import run
from evaluator.reference.stations.batch import BulkServers
from evaluator.reference.stations.fifo import Fifo
from evaluator.stations.batch import BatchServers, batch
from tests.simulation.build import jobs, poisson, shuffled


def random_servers(rng) -> BatchServers:
    most = int(rng.integers(1, 10))
    service_s = np.cumsum(rng.uniform(0.05, 0.5, most)) if rng.random() < 0.8 else np.full(most, 0.5)
    wait_s = 0.0 if rng.random() < 0.5 else float(np.round(rng.uniform(0.0, 2.0), 1))
    return BatchServers(np.round(service_s, 1) + 0.1, int(rng.integers(1, 5)), wait_s)


def random_times(rng) -> np.ndarray:
    """Times of arrival, many of them together and some of them when a batch ends."""
    return np.round(np.cumsum(rng.exponential(rng.uniform(0.02, 0.5), int(rng.integers(0, 80)))), 1)


def reference(servers: BatchServers, ready_s):
    station = BulkServers(servers.servers, list(servers.service_s), servers.max_wait_s)
    run([station], [Request(index, float(at), 4, 4, 3, 2) for index, at in enumerate(ready_s)])
    return station


def test_equals_the_reference_in_one_chunk_of_many_configurations():
    """240 random stations of different sizes, jobs in no order; to the last bit."""
    rng = np.random.default_rng(5)
    servers = [random_servers(rng) for _ in range(120)]
    times = [[random_times(rng) for _ in range(2)] for _ in servers]
    chunk = [[shuffled(jobs(ready_s), seed) for seed, ready_s in enumerate(seeds)] for seeds in times]
    found, use = batch("batch", lambda config: servers[config]).serve(chunk)
    for config, seeds in enumerate(times):
        for seed, ready_s in enumerate(seeds):
            wanted, identity = reference(servers[config], ready_s), chunk[config][seed].id
            assert sorted(wanted.visits) == list(range(len(ready_s)))
            visits = np.array([wanted.visits[at] for at in identity]).reshape(-1, 3)
            here = config, seed, identity
            np.testing.assert_array_equal(found.arrival_s[here], visits[:, 0])
            np.testing.assert_array_equal(found.scheduled_s[here], visits[:, 1])
            np.testing.assert_array_equal(found.last_token_s[here], visits[:, 2])
            np.testing.assert_array_equal(found.replica[here], [wanted.server[at] for at in identity])
            assert use.totals.busy_s[config, seed] == pytest.approx(wanted.busy_s, rel=1e-12)
            assert not found.last_token_s[config, seed, len(ready_s) :].any()


def test_a_batch_of_one_is_a_first_come_first_served_queue():
    rng = np.random.default_rng(2)
    ready_s = random_times(rng)
    station = Fifo(3, [0.7] * len(ready_s))
    run([station], [Request(index, float(at), 4, 4, 3, 2) for index, at in enumerate(ready_s)])
    found, _ = batch("batch", lambda config: BatchServers(np.array([0.7]), 3)).serve([[jobs(ready_s)]])
    np.testing.assert_array_equal(found.last_token_s[0, 0], [station.visits[at].left_s for at in range(len(ready_s))])


def test_waits_for_a_full_batch_but_not_for_ever():
    """Two come together and wait for a third; the last two wait in vain."""
    servers = BatchServers(np.array([1.0, 1.0, 1.0]), max_wait_s=2.0)
    found, _ = batch("batch", lambda config: servers).serve([[jobs([0.0, 0.0, 1.5, 4.0, 4.5])]])
    np.testing.assert_array_equal(found.scheduled_s[0, 0], [1.5, 1.5, 1.5, 6.0, 6.0])


def test_a_chunk_without_jobs():
    found, use = batch("batch", lambda config: BatchServers(np.array([1.0]))).serve([[jobs([]), jobs([])]])
    assert found.last_token_s.shape == (1, 2, 0) and not use.totals.busy_s.any()


# --- theory


def bulk_wait(rate: float, service_s: np.ndarray) -> float:
    """Mean wait in M/D^[1,b]/1 whose service time depends on the size of the batch.

    Bailey (J. Roy. Stat. Soc. B 16, 1954) as changed by Neuts (1967) for a server that starts with one: the jobs left
    behind at departures are a Markov chain, k -> max(k - b, 0) + Poisson arrivals in the service of min(k, b); from 0
    as from 1, after an idle time. By renewal reward the mean queue is its integral from departure to departure, jobs
    left waiting for all of the service and new ones for half of it, over the mean time between; Little's law.
    """
    most, states = len(service_s), 400
    count = np.arange(states)
    size = np.clip(count, 1, most)
    took_s, left = service_s[size - 1], np.maximum(count - most, 0)
    chain = np.array([poisson_law.pmf(count - stay, rate * took) for stay, took in zip(left, took_s, strict=True)])
    chain[:, -1] += 1 - chain.sum(axis=1)
    balance = np.vstack([chain.T - np.eye(states), np.ones(states)])
    share = scipy.linalg.lstsq(balance, np.r_[np.zeros(states), 1.0])[0]
    cycle_s = share @ took_s + share[0] / rate
    queue = share @ (left * took_s + rate * took_s**2 / 2) / cycle_s
    return queue / rate


def mean_wait(rate: float, service_s: np.ndarray) -> tuple[float, float]:
    """Mean over seeds without the warm-up, and its standard error."""
    chunk = poisson(rate, 20_000, 10)
    found, _ = batch("batch", lambda config: BatchServers(service_s)).serve(chunk)
    waits = (found.scheduled_s - found.arrival_s)[0, :, 2_000:].mean(axis=1)
    return waits.mean(), waits.std(ddof=1) / np.sqrt(len(waits))


@pytest.mark.parametrize("most", [2, 4, 16])
@pytest.mark.parametrize("load", [0.3, 0.7, 0.9])
def test_waits_are_those_of_the_embedded_chain(most, load):
    wanted = bulk_wait(load * most, np.ones(most))
    wait, error = mean_wait(load * most, np.ones(most))
    assert wait == pytest.approx(wanted, rel=0.04)
    assert abs(wait - wanted) < 5 * error


@pytest.mark.parametrize("load", [0.3, 0.8])
def test_waits_with_services_that_grow_with_the_batch(load):
    service_s = 0.4 + 0.15 * np.arange(1, 9)
    rate = load * 8 / service_s[-1]
    wait, error = mean_wait(rate, service_s)
    assert abs(wait - bulk_wait(rate, service_s)) < 5 * error


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_a_batch_of_one_is_md1(load):
    wanted = load / (2 * (1 - load))
    assert bulk_wait(load, np.ones(1)) == pytest.approx(wanted, rel=1e-6)
    wait, error = mean_wait(load, np.ones(1))
    assert abs(wait - wanted) < 5 * error
