"""API servers that take every token: a FIFO queue each, and what theory says of it."""

import numpy as np
import pytest

from evaluator.reference import Iteration, Request
from evaluator.reference.api_servers import ApiServers

REQUESTS, WARMUP, SEEDS = 6_000, 1_000, 4


def request(index, order=None):
    made = Request(index, 0.0, 1, 1, 1, 1)
    made.replica, made.order = 0, index if order is None else order
    return made


def iteration(start_s, end_s, decodes=(), completed=(), iterations=1, first_s=0.0, slope_s=0.0):
    chunks, preempted = (), ()
    return Iteration(
        0, start_s, end_s, iterations, decodes, chunks, preempted, 0, 0, completed, first_s=first_s, slope_s=slope_s
    )


def mean_wait(load, servers=1):
    """Of single tokens at Poisson times, each of which takes a second; over the seeds."""
    waits = []
    for seed in range(SEEDS):
        at_s = np.cumsum(np.random.default_rng(seed).exponential(1 / load, REQUESTS)).tolist()
        requests = [request(index) for index in range(REQUESTS)]
        queue = ApiServers(servers, 1, 1.0, 0.0)
        for index, end_s in enumerate(at_s):
            queue.give(iteration(0.0, end_s, completed=(index,)), 0, requests)
        queue.settle()
        waits.append(np.mean([queue.waits[one][0] for one in requests[WARMUP:]]))
    return np.mean(waits)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_single_tokens_are_an_md1_queue(load):
    assert mean_wait(load) == pytest.approx(load / (2 * (1 - load)), rel=0.1)


def test_more_servers_never_let_a_token_wait_longer():
    waits = [mean_wait(0.9, servers) for servers in (1, 2, 3, 8)]
    assert waits == sorted(waits, reverse=True)
    assert waits[-1] < 0.01 * waits[0]


def test_ranks_share_the_servers_in_turn():
    """The n-th requests of as many ranks as there are servers are on one each, whatever n."""
    for servers, waits in ((4, [0.0, 0.0, 0.0, 0.0]), (2, [0.0, 0.0, 1.0, 1.0]), (1, [0.0, 1.0, 2.0, 3.0])):
        requests = [request(index, index // 4) for index in range(8)]
        queue = ApiServers(servers, 4, 1.0, 0.0)
        for index in range(8):
            queue.give(iteration(0.0, 100.0 * (index // 4), completed=(index,)), index % 4, requests)
        queue.settle()
        assert [queue.waits[one][0] for one in requests] == [*waits, *waits]


def test_the_tokens_of_an_iteration_are_taken_one_after_the_other():
    requests = [request(index) for index in range(3)]
    queue = ApiServers(1, 1, 2.0, 5.0)
    queue.give(iteration(0.0, 1.0, completed=(0, 1)), 0, requests)  # 7 s for each: until 8 and 15
    queue.give(iteration(1.0, 20.0, decodes=(0, 1), completed=(2,)), 0, requests)
    queue.settle()
    assert [queue.waits[one] for one in requests] == [(0.0, 0.0), (7.0, 2.0), (4.0, 4.0)]
    # The engine has 19 s between two tokens, of which the client of the second request sees fewer.
    assert [(one.index, gap_s) for _, one, gap_s in queue.gaps] == [(0, 19.0), (1, 14.0)]


def test_a_leap_gives_what_its_iterations_give():
    requests, alike = [request(0), request(1)], ApiServers(1, 1, 0.4, 0.0)
    alike.give(iteration(0.0, 6.0, decodes=(0, 1), iterations=3, first_s=1.0, slope_s=1.0), 0, requests)
    alike.settle()
    others, single = [request(0), request(1)], ApiServers(1, 1, 0.4, 0.0)
    for start_s, end_s in ((0.0, 1.0), (1.0, 3.0), (3.0, 6.0)):
        single.give(iteration(start_s, end_s, decodes=(0, 1)), 0, others)
    single.settle()
    assert list(alike.waits.values()) == list(single.waits.values())
    assert [gap_s for *_, gap_s in alike.gaps] == [gap_s for *_, gap_s in single.gaps]
    assert [gap_s for *_, gap_s in single.gaps] == pytest.approx([2.0, 2.0, 3.0, 3.0])


def test_all_work_is_done_and_nothing_twice():
    """A server that is never idle ends when it has done all of its work; with several, each does its own."""
    rng = np.random.default_rng(0)
    requests = [request(index) for index in range(40)]
    for servers in (1, 3):
        queue = ApiServers(servers, 1, 0.5, 2.0)
        for step in range(60):
            members = tuple(sorted(rng.choice(40, 20, replace=False).tolist()))
            queue.give(iteration(0.0, 1e-3 * step, decodes=members), 0, requests)
        work_s = [0.0] * servers
        for _, _, members in queue._given:
            for one in members:
                work_s[one.order % servers] += 0.5
        seen = {one for _, _, members in queue._given for one in members}
        for one in seen:
            work_s[one.order % servers] += 2.0
        queue.settle()
        ends_s = sorted(queue._free_s.values())
        assert ends_s == pytest.approx(sorted(work_s), abs=0.06)  # up to when its first token comes
