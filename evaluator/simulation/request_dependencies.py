"""What requests of lanes have to do with one another -> the engine's arrays: shared content, and who follows whom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from evaluator.plan import StationGroup, StationPlan
from evaluator.routing import Choice, PrefixApproximate, PrefixAware, PrefixRule, router_of
from evaluator.routing.scores import PrefixScores
from evaluator.stations.engine.preemptive import (
    AgentCalls,
    BlockContent,
    ByPrefix,
    CacheShape,
    Late,
    Remembered,
    ScoreWeights,
    SessionTurns,
)
from evaluator.stations.lane_jobs import follows_of
from evaluator.traffic.block_names import BlockNames, block_names
from evaluator.traffic.jobs import Jobs

SMALLEST = 256
MOST_BLOCKS = 1 << 30
"""Beyond what any router remembers of a replica."""


class PoolJobs(NamedTuple):
    """Jobs of a lane, which has them from a slot on, at one of the pools that may serve them."""

    pool: StationPlan
    jobs: Jobs
    served: np.ndarray | slice = slice(None)
    first: int = 0

    @property
    def block_tokens(self) -> int:
        return self.pool.design.ready.kv.block_tokens

    @property
    def names(self) -> BlockNames:
        """Of all jobs, also of those that are not served here."""
        return block_names(self.jobs, self.block_tokens)

    @property
    def blocks(self) -> int:
        """That its cache may hold."""
        # It never holds more than its requests ask for in all, which bounds the arrays of short runs.
        asked = int(self.pool.held_units(self.jobs.demand)[self.served].sum())
        return min(asked, self.pool.design.ready.kv.capacity_units)


def cache_shape(lanes: Sequence[PoolJobs], replicas: int, guesses: bool) -> CacheShape:
    """Sizes that hold every one of the lanes, of ``replicas`` at the most; powers of two, so that few programs are
    compiled. ``guesses`` as of ``CompileKey``."""
    most_due = max(lane.block_tokens for lane in lanes) + any(lane.pool.drafts for lane in lanes)
    names = [lane.names for lane in lanes]
    texts, contents = (_rounded(max(getattr(of_lane, size) for of_lane in names)) for size in ("text_count", "count"))
    blocks = _rounded(max(lane.blocks for lane in lanes))
    apart = not any(lane.pool.drafts for lane in lanes) and all(of_lane.answers_apart for of_lane in names)
    due, most = 1 << (most_due - 1).bit_length(), 1 << (replicas - 1).bit_length()
    return CacheShape(texts, blocks, due, most, contents if guesses else 0, answers_apart=apart)


def events_of(lanes: Sequence[PoolJobs]) -> int:
    """Events of caches that there is room for where a router is to hear of them: about all of a lane's run."""
    # Prompts come and go in a few runs, a decode fills its blocks one by one.
    filled = max(int((lane.jobs.demand.output_tokens[lane.served] // lane.block_tokens + 8).sum()) for lane in lanes)
    return _rounded(filled)


def contents_of(
    lanes: Sequence[Sequence[PoolJobs]], width: int, several: bool = False, agents: bool = False
) -> BlockContent:
    """What is in the blocks of the requests of lanes of ``width`` slots, at the pool of each or at ``several``.

    ``agents``: sources may be of unequal lengths.
    """
    names = [[jobs.names for jobs in pools] for pools in lanes]
    most = _rounded(max(sum(len(of_pool.sources) for of_pool in of_lane) for of_lane in names))
    sources, ends, texts = np.zeros((3, len(lanes), most), dtype=np.int32)
    columns = np.zeros((4, len(lanes), len(lanes[0]), width), dtype=np.int32)
    for number, (pools, of_lane) in enumerate(zip(lanes, names, strict=True)):
        begin = 0
        for place, (jobs, of_pool) in enumerate(zip(pools, of_lane, strict=True)):
            served = of_pool[jobs.served]
            slots = slice(jobs.first, jobs.first + len(served.own_from))
            # The sources of a pool lie behind those of the pools before it.
            of_requests = (begin + served.sources_from, served.sourced, served.own_from, served.own_text)
            for row, values in enumerate(of_requests):
                columns[row, number, place, slots] = values
            behind = begin + len(of_pool.sources)
            for table, of_source in ((sources, of_pool.sources), (ends, of_pool.ends), (texts, of_pool.texts)):
                table[number, begin:behind] = of_source
            begin = behind
    per_source = np.array([[of_pool.per_source for of_pool in of_lane] for of_lane in names], dtype=np.int32)
    caches = np.array([[jobs.pool.deployment.kv.prefix_caching for jobs in pools] for pools in lanes])
    begins, sourced, own_from, own_text = columns.reshape(4, len(lanes), -1)
    until = ends if agents else None
    if several:
        return BlockContent(sources, begins, sourced, per_source, own_from, texts, own_text, until, caches)
    return BlockContent(sources, begins, sourced, per_source[:, 0], own_from, texts, own_text, until)


def session_turns_of(
    requests: Sequence[tuple[Jobs, np.ndarray | slice]], users: Sequence[int], width: int, agents: bool
) -> SessionTurns:
    """Who follows whom in lanes of ``width`` slots each: of each its jobs, those that it serves in order, its users.

    ``agents``: several may follow one answer, or wait for several.
    """
    orders = [follows_of(jobs, served) for jobs, served in requests]
    # Of drawn agents each answer is waited for by the call after it or is one that a call reads, so that twice the
    # requests suffice; a power of two more in traces where they do not, so that calls of one program have one shape.
    most = max((len(order.answer) for order in orders if order is not None), default=0)
    entries = 1 << (max(2 * width, most) - 1).bit_length() if agents else width
    following, pause_s = np.full((len(requests), entries), -1, np.int32), np.zeros((len(requests), entries))
    opening, waits = np.zeros((2, len(requests), width), np.int32)
    first_entry = np.zeros((len(requests), width), np.int32)
    openings, sessions = np.zeros((2, len(requests)), np.int32)
    for number, order in enumerate(orders):
        assert order is not None
        # Openings of sessions have nobody before them; those behind the first of each user wait for one.
        first = order.opening
        opening[number, : len(first)], sessions[number] = first, len(first)
        openings[number] = min(len(first), users[number])
        following[number, : len(order.following)] = order.following
        pause_s[number, : len(order.pause_s)] = order.pause_s
        waits[number, : len(order.waits)] = order.waits
        first_entry[number] = np.searchsorted(order.answer, np.arange(width))
    calls = AgentCalls(first_entry, waits) if agents else None
    return SessionTurns(opening, openings, sessions, following, pause_s, calls)


def by_prefix(group: StationGroup, routers: Sequence[Choice]) -> ByPrefix | None:
    """The keys of the routers that go by prefixes; None where no lane of the group has any."""
    key = group.key
    return rules_of(routers, key.guesses, key.late) if key.cached and key.kv_seen else None


def rules_of(routers: Sequence[Choice], guesses: bool, late: bool) -> ByPrefix:
    """The keys of routers, (router,), of which some go by prefixes; ``guesses`` and ``late`` as of ``CompileKey``."""
    rules = [_rule(choice) for choice in routers]
    keys = [rule or PrefixAware() for rule in rules]
    figures = np.array([(rule.threshold, rule.imbalance, rule.imbalance_ratio) for rule in keys]).T
    chosen = np.array([rule is not None for rule in rules])
    by = ByPrefix(chosen, *figures)
    if not guesses:
        return by
    return by._replace(scores=_weights(keys), remembered=_remembered(keys), late=_late(keys) if late else None)


def _rule(choice: Choice) -> PrefixRule | None:
    if not router_of(choice).by_prefix:
        return None
    rule = PrefixAware() if isinstance(choice, str) else choice
    assert isinstance(rule, PrefixRule)
    return rule


def _weights(rules: Sequence[PrefixRule]) -> ScoreWeights:
    scores = [rule.scores or PrefixScores() for rule in rules]
    weights = np.array([(score.prefix, score.queue, score.kv) for score in scores]).T
    return ScoreWeights(np.array([rule.scores is not None for rule in rules]), *weights)


def _remembered(rules: Sequence[PrefixRule]) -> Remembered:
    blocks, ttl_s = np.full(len(rules), MOST_BLOCKS, np.int32), np.full(len(rules), np.inf)
    for row, rule in enumerate(rules):
        if isinstance(rule, PrefixApproximate):
            # A memory that is larger than any cache forgets nothing either.
            blocks[row] = -1 if rule.memory_blocks is None else min(rule.memory_blocks, MOST_BLOCKS)
        kept_s = rule.ttl_s if isinstance(rule, PrefixApproximate) else getattr(rule, "predicted_ttl_s", None)
        ttl_s[row] = np.inf if kept_s is None else kept_s
    return Remembered(np.array([isinstance(rule, PrefixApproximate) for rule in rules]), blocks, ttl_s)


def _late(rules: Sequence[PrefixRule]) -> Late:
    late = [rule if isinstance(rule, PrefixAware) and not rule.exact else None for rule in rules]
    delay_s = [0.0 if rule is None else rule.events_delay_s for rule in late]
    predicts = [rule is not None and rule.predicted_ttl_s is not None for rule in late]
    return Late(np.array([rule is not None for rule in late]), np.array(delay_s), np.array(predicts))


def _rounded(size: int) -> int:
    return 1 << (max(size, SMALLEST) - 1).bit_length()
