"""What requests of lanes have to do with one another -> the engine's arrays: shared content, and who follows whom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from evaluator.plan import StationGroup, StationPlan
from evaluator.routing import Choice, PrefixAware, router_of
from evaluator.stations.engine.preemptive import AgentCalls, BlockContent, ByPrefix, CacheShape, SessionTurns
from evaluator.stations.lane_jobs import follows_of
from evaluator.traffic.block_names import BlockNames, block_names
from evaluator.traffic.jobs import Jobs

SMALLEST = 256


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


def cache_shape(lanes: Sequence[PoolJobs]) -> CacheShape:
    """Sizes that hold every one of the lanes, rounded up to powers of two so that few programs are compiled."""
    most_due = max(lane.block_tokens for lane in lanes) + any(lane.pool.drafts for lane in lanes)
    names, blocks = (
        _rounded(max(sizes)) for sizes in zip(*((lane.names.count, lane.blocks) for lane in lanes), strict=True)
    )
    return CacheShape(names, blocks, 1 << (most_due - 1).bit_length())


def contents_of(
    lanes: Sequence[Sequence[PoolJobs]], width: int, several: bool = False, agents: bool = False
) -> BlockContent:
    """What is in the blocks of the requests of lanes of ``width`` slots, at the pool of each or at ``several``.

    ``agents``: sources may be of unequal lengths.
    """
    names = [[at.names for at in pools] for pools in lanes]
    most = _rounded(max(sum(len(of_pool.sources) for of_pool in of_lane) for of_lane in names))
    sources, ends = np.zeros((2, len(lanes), most), dtype=np.int32)
    columns = np.zeros((3, len(lanes), len(lanes[0]), width), dtype=np.int32)
    for number, (pools, of_lane) in enumerate(zip(lanes, names, strict=True)):
        begin = 0
        for place, (at, of_pool) in enumerate(zip(pools, of_lane, strict=True)):
            served = of_pool[at.served]
            slots = slice(at.first, at.first + len(served.own_from))
            # The sources of a pool lie behind those of the pools before it.
            for row, values in enumerate((begin + served.sources_from, served.sourced, served.own_from)):
                columns[row, number, place, slots] = values
            behind = begin + len(of_pool.sources)
            sources[number, begin:behind], ends[number, begin:behind] = of_pool.sources, of_pool.ends
            begin = behind
    per_source = np.array([[of_pool.per_source for of_pool in of_lane] for of_lane in names], dtype=np.int32)
    caches = np.array([[at.pool.deployment.kv.prefix_caching for at in pools] for pools in lanes])
    begins, sourced, own = columns.reshape(3, len(lanes), -1)
    until = ends if agents else None
    if several:
        return BlockContent(sources, begins, sourced, per_source, own, until, caches)
    return BlockContent(sources, begins, sourced, per_source[:, 0], own, until)


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
    """The keys of the routers that go by what is in the caches; None where no lane of the group has any."""
    if not (group.key.cached and group.key.kv_seen):
        return None
    figures = np.zeros((4, len(routers)))
    for number, choice in enumerate(routers):
        if router_of(choice).by_prefix:
            keys = PrefixAware() if isinstance(choice, str) else choice
            assert isinstance(keys, PrefixAware)
            figures[:, number] = 1.0, keys.threshold, keys.imbalance, keys.imbalance_ratio
    return ByPrefix(figures[0] > 0.0, *figures[1:])


def _rounded(size: int) -> int:
    return 1 << (max(size, SMALLEST) - 1).bit_length()
