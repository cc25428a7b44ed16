"""vLLM's balance of data-parallel ranks (``reference.data_parallel``)."""

from __future__ import annotations

from collections import Counter

import pytest

from evaluator.reference import Limits, Request, simulate
from evaluator.reference.data_parallel import RankBalance, RankBalancer
from evaluator.reference.replica import Replica
from tests.reference.build import linear_cost

COST = linear_cost(iteration_s=1.0, token_s=0.0)


def served(requests: list[Request], ranks: int, stats_ms: int = 100, blocks: int = 1000) -> list[int]:
    """The rank of each request."""
    limits = Limits(4, 64, blocks, admission="on_demand", block_tokens=4)
    found = simulate(
        COST, "chunked", limits, requests, replicas=ranks, router=RankBalance(stats_ms), tokens=True
    )  # fmt: skip
    assert all(request.finished for request in found.requests)
    return [request.replica for request in found.requests]


def request(index: int, arrival_s: float, prompt: int = 4, output: int = 4) -> Request:
    return Request(index, arrival_s, prompt, prompt, output, -(-(prompt + output - 1) // 4))


def test_a_burst_goes_round():
    assert Counter(served([request(at, 0.5 + at / 1024) for at in range(12)], 3)) == {0: 4, 1: 4, 2: 4}


def test_idle_ranks_take_turns():
    assert served([request(at, 100.3 * at, output=1) for at in range(6)], 3) == [0, 1, 2, 0, 1, 2]


def test_whoever_finished_counts_until_the_coordinator_has_told_it():
    # Rank 0 has had two requests that are done by 3 s, rank 1 has one for long. A coordinator that speaks every 9 s has
    # not told anything by then, so that the frontend counts what it has sent.
    def last(stats_ms: int) -> int:
        asked = [request(0, 0.5, output=1), request(1, 0.6, output=40), request(2, 0.7, output=1)]
        return served([*asked, request(3, 4.5, output=1)], 2, stats_ms)[-1]

    assert (last(100), last(9000)) == (0, 1)


def test_those_that_wait_weigh_more_where_the_kv_is_short():
    limits = Limits(4, 64, 100, admission="on_demand", block_tokens=4)

    def chosen(usage: float) -> int:
        balancer = RankBalancer(RankBalance(), [Replica(rank, [COST], "chunked", limits) for rank in range(2)])
        balancer.known = [[1, 1, usage], [0, 3, 0.2]]
        return balancer(request(0, 0.0), 0.0).index

    # One runs on rank 0 and one waits, which weighs up to four times: together 2 as far as 0.5, and 5 at 1.0.
    assert [chosen(usage) for usage in (0.0, 0.5, 0.6, 0.7, 1.0)] == [0, 0, 0, 1, 1]


@pytest.mark.parametrize("more", [{}, {"leap": False, "lockstep": 2}], ids=["leaps", "lockstep"])
def test_ranks_that_do_not_report_every_iteration_are_refused(more):
    limits = Limits(4, 64, 100, admission="on_demand", block_tokens=4)
    with pytest.raises(ValueError, match="say leap False"):
        simulate(COST, "chunked", limits, [request(0, 0.0)], replicas=2, router=RankBalance(), **more)
