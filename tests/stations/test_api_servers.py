"""API servers as a fluid queue, against theory and against a queue that takes every token."""

from types import SimpleNamespace

import numpy as np
import pytest

from evaluator.catalog.api_servers import ApiServerTimes
from evaluator.reference import Iteration, Request
from evaluator.reference.api_servers import ApiServers
from evaluator.stations.api_servers import _before, waits_of

STEP_S = 0.02


def pool(servers=1, ranks=1, lockstep=1, per_token_s=1e-4, per_request_s=0.0):
    """What is asked of a pool."""
    return SimpleNamespace(
        deployment=SimpleNamespace(
            data_parallel=ranks, pipeline_parallel=1, batching=SimpleNamespace(policy="chunked")
        ),
        api_servers=servers,
        api_server_times=ApiServerTimes(per_token_s, per_request_s),
        lockstep=lockstep,
    )


def served(rng, count, rate_rps, ranks=1, offset_s=None, step_s=None):
    """Requests on engines whose iterations take ``step_s``, a function of how many decode: the times of all tokens.

    Each request joins with the end of the first iteration that begins when it is there. Ranks begin theirs at one time,
    or by ``offset_s`` each later than the one before.
    """
    arrival_s = np.cumsum(rng.exponential(1 / rate_rps, count))
    tokens = rng.integers(1, 60, count)
    rank = np.arange(count) % ranks
    events = []
    first_s, last_s = np.zeros(count), np.zeros(count)
    for one in range(ranks):
        waiting, running, now = list(np.flatnonzero(rank == one)), {}, one * (offset_s or 0.0)
        step = 0  # in lockstep ranks without requests take part
        while waiting or running:
            step += 1
            if offset_s is None and step_s is None:
                now = step * STEP_S
            elif not running and waiting:
                now = max(now, arrival_s[waiting[0]])
            joins = [each for each in waiting if arrival_s[each] <= now]
            waiting = [each for each in waiting if arrival_s[each] > now]
            start_s, now = now, (step + 1) * STEP_S if offset_s is None else now + STEP_S
            now = now if step_s is None else start_s + step_s(len(running))
            events.append((now, one, tuple(sorted(running)), tuple(joins), start_s))
            for each in list(running):
                running[each] -= 1
                if not running[each]:
                    last_s[each] = now
                    del running[each]
            for each in joins:
                first_s[each] = last_s[each] = now
                if tokens[each] > 1:
                    running[each] = int(tokens[each]) - 1
    return arrival_s, first_s, last_s, tokens, rank, events


def exactly(of, arrival_s, first_s, last_s, tokens, rank, events):
    """The waits of a queue that takes every token."""
    requests = [Request(index, 0.0, 1, 1, 1, 1) for index in range(len(rank))]
    for one in range(rank.max() + 1):
        for order, index in enumerate(np.flatnonzero(rank == one)):
            requests[index].order = order
    times = of.api_server_times
    queue = ApiServers(of.api_servers, of.deployment.data_parallel, times.per_token_s, times.per_request_s)
    for end_s, one, decodes, completed, start_s in events:
        queue.give(Iteration(one, start_s, end_s, 1, decodes, (), (), 0, 0, completed), one, requests)
    queue.settle()
    return np.array([queue.waits[request] for request in requests]).T


def both(of, *told):
    return waits_of(of, *told[:-1]), exactly(of, *told)


def test_counting_of_earlier_values():
    rng = np.random.default_rng(0)
    for count in (1, 2, 3, 17, 200):
        values, key = rng.integers(0, 30, count).astype(float), rng.integers(0, count + 1, 3 * count)
        least = rng.integers(0, 30, 3 * count).astype(float)
        expected = [np.count_nonzero(values[:first] >= bound) for first, bound in zip(key, least, strict=True)]
        np.testing.assert_array_equal(_before(key, values, least), expected)


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_single_tokens_are_an_md1_queue(load):
    waits = []
    for seed in range(4):
        at_s = np.cumsum(np.random.default_rng(seed).exponential(1 / load, 20_000))
        ones, none = np.ones(len(at_s), int), np.zeros(len(at_s), int)
        first_s, last_s = waits_of(pool(per_token_s=1.0), at_s, at_s, at_s, ones, none)
        np.testing.assert_array_equal(first_s, last_s)
        waits.append(first_s[2_000:].mean())
    assert np.mean(waits) == pytest.approx(load / (2 * (1 - load)), rel=0.1)


def test_n_servers_with_n_of_each_request_are_as_one_server():
    told = served(np.random.default_rng(1), 200, 40)[:-1]
    alone = waits_of(pool(per_token_s=4e-4), *told)
    thrice = waits_of(pool(servers=3, per_token_s=4e-4), *(np.repeat(column, 3) for column in told))
    for one, of_three in zip(alone, thrice, strict=True):
        np.testing.assert_allclose(of_three, np.repeat(one, 3), atol=1e-9)


@pytest.mark.parametrize("ranks", [1, 4])
def test_equal_to_every_token_where_iterations_wait_for_no_server(ranks):
    """On one rank, and on several that go in lockstep."""
    of = pool(servers=2, ranks=ranks, lockstep=ranks, per_token_s=5e-5, per_request_s=1e-4)
    found, expected = both(of, *served(np.random.default_rng(2), 600, 40 * ranks, ranks))
    assert expected.max() > 1e-3 * (ranks > 1)
    np.testing.assert_allclose(found, expected, atol=1e-9)


@pytest.mark.parametrize(("per_token_s", "within"), [(3e-4, 0.05), (4e-4, 0.05), (8e-4, 0.02)])
def test_close_to_every_token_where_they_do(per_token_s, within):
    """Iterations take the longer, the more decode: 20 to 60 ms, of which servers with a load of 0.6 to 2 are told by
    the first and last tokens alone."""
    told = served(np.random.default_rng(3), 1_500, 60, step_s=lambda decodes: 0.01 + 2e-4 * decodes)
    found, expected = both(pool(per_token_s=per_token_s), *told)
    assert np.mean(found, axis=1) == pytest.approx(np.mean(expected, axis=1), rel=within, abs=1e-4)


@pytest.mark.parametrize("servers", [1, 4])
def test_ranks_that_go_each_by_itself(servers):
    of = pool(servers=servers, ranks=4, per_token_s=1e-4)
    found, expected = both(of, *served(np.random.default_rng(4), 2_000, 160, 4, offset_s=0.0031))
    assert np.abs(np.mean(found, axis=1) - np.mean(expected, axis=1)).max() < 0.1 * STEP_S


def test_more_servers_and_faster_ones_let_nothing_wait_longer():
    told = served(np.random.default_rng(5), 500, 60)[:-1]
    waits = [np.mean(waits_of(pool(servers=servers, per_token_s=8e-4), *told)) for servers in (1, 2, 4, 8)]
    assert waits == sorted(waits, reverse=True) and waits[-1] < 0.2 * waits[0]
    waits = [np.mean(waits_of(pool(per_token_s=time_s), *told)) for time_s in (0.0, 1e-5, 1e-4, 1e-3)]
    assert waits == sorted(waits) and waits[0] == 0.0


def test_no_request_at_all():
    nothing = np.zeros(0)
    assert [len(each) for each in waits_of(pool(), nothing, nothing, nothing, *np.zeros((2, 0), int))] == [0, 0]
