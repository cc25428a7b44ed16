"""The API servers in front of the engines of a pool, request by request: how long tokens wait there for one another.

``reference.api_servers`` takes every token. What the vectorised engine tells of a request is when it had its first and
its last token, so that here the tokens between them flow, as a *fluid queue*: the first token of a request brings its
work at once, the others bring theirs bit by bit, as fast as the iterations of their rank follow one another, and a
server works off a second of it per second. How many iterations there were between two events, first or last tokens of
any request, follows from the tokens of all who were there (``_tokens_between``). So the backlog at every event is a
matter of sums in the order of time.

An iteration gives its tokens at one moment, which a fluid does not know. So a token waits for the backlog before its
iteration, and for those of its iteration that its server takes first. Data-parallel ranks that do not go in lockstep
meet in the middle of one another's iterations, and find half of the other's tokens left, as often as there are any.

Equal to the reference but for rounding where requests have one token each, and where a server is done with the tokens
of an iteration before the next one ends, on one rank or on several in lockstep. Else mean waits are off by a few per
cent (docs/engines.md), and among ranks that do not go in lockstep by less than an iteration; where many requests are
preempted, whose tokens pause, by up to a factor of two. Gaps between tokens are stretched by one factor for a run, so
that their mean is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from evaluator.metrics.outcomes import RequestTimes
from evaluator.metrics.use import WeightedGaps
from evaluator.plan import StationPlan
from evaluator.policies import policy
from evaluator.stations.contract import ChunkJobs, by_run

TURNS, EXACT = 64, 1e-20


def behind_api_servers(
    pools: Sequence[StationPlan], jobs: ChunkJobs, times: RequestTimes, itl: Sequence[Sequence[WeightedGaps]]
) -> tuple[RequestTimes, list[list[WeightedGaps]]]:
    """The times of a chunk with what tokens wait at API servers, and the gaps between tokens as clients see them.

    The pools are those of the configurations; of one whose API servers take no time nothing waits.
    """
    waits = replace(times, first_wait_s=np.zeros(times.arrival_s.shape), last_wait_s=np.zeros(times.arrival_s.shape))
    gaps = [list(of_seeds) for of_seeds in itl]
    for run, run_jobs in by_run(jobs):
        pool = pools[run[0]]
        if pool.api_server_times is None or pool.design.replica is None:
            continue
        ids, tokens = run_jobs.id, run_jobs.demand.output_tokens
        if times.unanswered is not None:
            answered = ~times.unanswered[run][ids]
            ids, tokens = ids[answered], tokens[answered]
        arrival_s, first_s, last_s, rank = (
            getattr(times, name)[run][ids] for name in ("arrival_s", "first_token_s", "last_token_s", "replica")
        )
        first_wait_s, last_wait_s = waits_of(pool, arrival_s, first_s, last_s, tokens, rank)
        waits.put(run, ids, first_wait_s=first_wait_s, last_wait_s=last_wait_s)
        spans_s = (last_s - first_s).sum()
        longer_s = (last_wait_s - first_wait_s).sum()
        values, weights = gaps[run[0]][run[1]]
        gaps[run[0]][run[1]] = values * (1.0 + longer_s / spans_s if spans_s > 0.0 else 1.0), weights
    return waits, gaps


def waits_of(
    pool: StationPlan, arrival_s: np.ndarray, first_s: np.ndarray, last_s: np.ndarray, tokens: np.ndarray,
    rank: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """How long the first and the last token of each request of a run wait, (request,); ``rank``: which served it."""
    ranks, servers = pool.deployment.data_parallel, pool.api_servers
    order = np.lexsort((arrival_s, rank))  # rank by rank in the order of arrival; ties by their place
    begins = np.searchsorted(rank[order], np.arange(rank.max(initial=-1) + 1))
    number = np.empty(len(rank), dtype=np.int64)  # of a request among those of its rank
    number[order] = np.arange(len(rank)) - begins[rank[order]]
    server = (number + rank % ranks) % servers
    replica = rank[order] // ranks
    waits_s = np.zeros((2, len(rank)))
    for members in np.split(order, np.flatnonzero(np.diff(replica)) + 1) if len(order) else ():
        columns = (column[members] for column in (first_s, last_s, tokens, rank, server))
        waits_s[:, members] = _of_replica(pool, *columns)
    return waits_s[0], np.where(tokens > 1, waits_s[1], waits_s[0])


def _of_replica(
    pool: StationPlan, first_s: np.ndarray, last_s: np.ndarray, tokens: np.ndarray, rank: np.ndarray, server: np.ndarray
) -> np.ndarray:
    """The waits of first and last tokens, (2, request); requests stand rank by rank in the order of arrival."""
    times, count, ranks = pool.api_server_times, len(first_s), np.unique(rank)
    assert times is not None
    apart = 1 if pool.lockstep > 1 else len(ranks)  # ranks whose iterations end at different times
    # Events are first and last tokens. Of one moment those of a rank before it come first, and of a rank its decodes
    # before the first tokens of its prompts, as ``reference.api_servers`` takes them.
    at_s = np.concatenate([first_s, last_s])
    order = np.lexsort((np.repeat([True, False], count), np.concatenate([rank, rank]), at_s))
    place = np.empty(2 * count, dtype=np.int64)
    place[order] = np.arange(2 * count)
    begin, end, elapsed_s = place[:count], place[count:], np.diff(at_s[order])
    given = [_tokens_between(begin[rank == one], end[rank == one], tokens[rank == one], elapsed_s) for one in ranks]
    waits_s = np.zeros((2, count))
    for one in np.unique(server):
        mine = server == one
        works_s = np.zeros(2 * count)
        works_s[begin[mine]] = times.per_token_s + times.per_request_s
        flow_s, decoding = np.zeros(2 * count - 1), np.zeros(2 * count - 1)
        for of_rank, tokens_each in zip(ranks, given, strict=True):
            some = mine & (rank == of_rank)
            sequences = _between(begin[some], end[some], np.ones(some.sum()), 2 * count - 1)
            flow_s += times.per_token_s * sequences * tokens_each
            decoding += sequences
        # Work that came before each event, at once and flowing, less the time that the server had for it. Where this
        # falls below all its values before, the server was idle: the backlog is what it is above the least of them.
        net_s = np.concatenate([[0.0], np.cumsum(flow_s - elapsed_s)]) + np.cumsum(works_s) - works_s
        backlog_s = net_s - np.minimum.accumulate(np.minimum(net_s, 0.0))
        if apart > 1:
            # An event falls into the middle of an iteration of another rank: on average half of its tokens are still
            # to be served, in the share of the time in which the server is busy with them.
            busy = np.divide(flow_s, elapsed_s, out=np.zeros_like(flow_s), where=elapsed_s > 0)
            left_s = 0.5 * (apart - 1) / apart**2 * busy * decoding * times.per_token_s
            backlog_s[1:] += left_s
        # Of a pipeline, whose ranks have a batch each under way, a batch has its share of the decodes.
        ahead = _ahead(first_s[mine], last_s[mine], rank[mine], apart) / pool.deployment.pipeline_parallel
        if policy(pool.deployment.batching.policy).prefill_alone:
            ahead[0] = 0.0  # an iteration that completes prompts has no decodes
        waits_s[:, mine] = backlog_s[[begin[mine], end[mine]]] + times.per_token_s * ahead
    return waits_s


def _between(begin: np.ndarray, end: np.ndarray, values: np.ndarray, intervals: int) -> np.ndarray:
    """The sum of the values of those that are there in each interval between events, from one event to another."""
    steps = np.bincount(begin, values, intervals + 1) - np.bincount(end, values, intervals + 1)
    return np.cumsum(steps)[:-1]


def _tokens_between(begin: np.ndarray, end: np.ndarray, tokens: np.ndarray, elapsed_s: np.ndarray) -> np.ndarray:
    """Iterations of a rank between successive events, (interval,), each of which gives every sequence there a token.

    Of all that add up to the tokens of every request those whose lengths differ least from their mean (weighted least
    squares): that some were short is seen from requests that had more tokens meanwhile. The equations, one for each
    request, are solved by conjugate gradients (Hestenes and Stiefel, 1952), of which TURNS leave a hundredth.
    """
    begin, end, later = begin[tokens > 1], end[tokens > 1], tokens[tokens > 1] - 1.0
    intervals = len(elapsed_s)
    there = _between(begin, end, np.ones(len(begin)), intervals) > 0.5
    alike = np.where(there, elapsed_s, 0.0)
    if not alike.any():
        return alike

    def had(given: np.ndarray) -> np.ndarray:
        """Tokens of each request."""
        so_far = np.concatenate([[0.0], np.cumsum(given)])
        return so_far[end] - so_far[begin]

    alike *= later.sum() / had(alike).sum()
    weights = np.zeros(len(later))
    missing = later - had(alike)
    direction, square = missing, missing @ missing
    for _ in range(TURNS):
        if square <= EXACT * (later @ later):
            break
        image = had(alike * _between(begin, end, direction, intervals))
        step = square / (direction @ image)
        weights, missing = weights + step * direction, missing - step * image
        before, square = square, missing @ missing
        direction = missing + square / before * direction
    # Least squares may give an interval fewer than no iterations: a few a little, and many where requests are
    # preempted, which get no token while others do. They are set to none, and all scaled so that tokens add up.
    given = np.maximum(alike * (1.0 + _between(begin, end, weights, intervals)), 0.0)
    return given * (later.sum() / had(given).sum())


def _ahead(first_s: np.ndarray, last_s: np.ndarray, rank: np.ndarray, apart: int) -> np.ndarray:
    """How many tokens of its iteration the server takes before each first and last token, (2, request).

    They are of sequences that had their first token before, and have their last one then or later: before a first token
    all decodes of its rank, before a last one those of requests that came before. In lockstep those of the ranks before
    it are among them, of ranks that are not those of its own rank alone.
    """
    at_s = np.concatenate([first_s, last_s])
    key = np.concatenate([np.searchsorted(rank, rank, side="right"), np.arange(len(rank))])
    # Requests whose last token is not before the event, less those whose first token is not: these are decoding.
    ahead = _before(key, last_s, at_s) - _before(key, first_s, at_s)
    if apart > 1:
        begins = np.searchsorted(rank, rank)  # of each rank its first request
        key = np.concatenate([begins, begins])
        ahead -= _before(key, last_s, at_s) - _before(key, first_s, at_s)
    return np.maximum(ahead, 0).reshape(2, -1)


def _before(key: np.ndarray, values: np.ndarray, least: np.ndarray) -> np.ndarray:
    """For each query how many of the first ``key`` values are at least ``least``."""
    # Values sorted in blocks of each power of two: the first ``key`` are one block for each bit of that number.
    found = np.zeros(len(key), dtype=np.int64)
    width, count = 1, len(values)
    ranked = np.unique(np.concatenate([values, least]), return_inverse=True)[1]
    numbers, bounds = ranked[:count], ranked[count:]
    span = int(ranked.max(initial=0)) + 1
    while width <= count:
        asks = (key & width) > 0
        block = (key & ~(2 * width - 1)) // width  # where the block of this bit begins
        tagged = np.sort(np.arange(count) // width * span + numbers)
        end = (block + 1) * width
        found[asks] += end[asks] - np.searchsorted(tagged, block[asks] * span + bounds[asks])
        width *= 2
    return found
