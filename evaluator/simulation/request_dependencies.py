"""What requests of lanes have to do with one another -> the engine's arrays: shared content, and who follows whom."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evaluator.plan import StationPlan
from evaluator.plan.simulators import routed_by
from evaluator.routing import PrefixAware, router_of
from evaluator.scenario import Deployment
from evaluator.stations.engine.preemptive import BlockContent, ByPrefix, CacheShape, SessionTurns
from evaluator.stations.lane_jobs import LaneJobs, follows_of
from evaluator.traffic.block_names import block_names
from evaluator.traffic.jobs import Jobs

SMALLEST = 256


def cache_shape(pools: Sequence[StationPlan], lanes: Sequence[LaneJobs]) -> CacheShape:
    """Sizes that hold every one of the lanes, rounded up to powers of two so that few programs are compiled."""
    kvs = [pools[lane.position].design.ready.kv for lane in lanes]
    held = [int(_units(lane, pools[lane.position]).sum()) for lane in lanes]
    # A cache never holds more blocks than its requests ask for in all, which bounds the arrays of short runs.
    used = [min(all_of_them, kv.capacity_units) for all_of_them, kv in zip(held, kvs, strict=True)]
    names = (block_names(lane.jobs, kv.block_tokens).count for lane, kv in zip(lanes, kvs, strict=True))
    most_due = max(kv.block_tokens for kv in kvs) + any(pools[lane.position].drafts for lane in lanes)
    return CacheShape(_rounded(max(names)), _rounded(max(used)), 1 << (most_due - 1).bit_length())


def contents_of(pools: Sequence[StationPlan], lanes: Sequence[LaneJobs], width: int) -> BlockContent:
    """What is in the blocks of the requests of lanes, each of ``width`` slots; ``pools`` are those of the lanes."""
    by_lane = [
        block_names(lane.jobs, pool.design.ready.kv.block_tokens) for lane, pool in zip(lanes, pools, strict=True)
    ]
    sources = np.zeros((len(lanes), _rounded(max(len(names.sources) for names in by_lane))), dtype=np.int32)
    columns = np.zeros((3, len(lanes), width), dtype=np.int32)
    for number, (lane, names) in enumerate(zip(lanes, by_lane, strict=True)):
        of_lane = names[lane.served]
        sources[number, : len(names.sources)] = names.sources
        for row, values in enumerate((of_lane.sources_from, of_lane.sourced, of_lane.own_from)):
            columns[row, number, : lane.count] = values
    per_source = np.array([names.per_source for names in by_lane], dtype=np.int32)
    return BlockContent(sources, columns[0], columns[1], per_source, columns[2])


def session_turns_of(
    requests: Sequence[tuple[Jobs, np.ndarray | slice]], users: Sequence[int], width: int
) -> SessionTurns:
    """Who follows whom in lanes of ``width`` slots each: of each its jobs, those that it serves in order, its users."""
    shape = (len(requests), width)
    opening, following, pause_s = np.zeros(shape, np.int32), np.full(shape, -1, np.int32), np.zeros(shape)
    openings, sessions = np.zeros((2, len(requests)), np.int32)
    for number, (jobs, served) in enumerate(requests):
        follows = follows_of(jobs, served)
        assert follows is not None
        # Openings of sessions have nobody before them; those behind the first of each user wait for one.
        first = follows.opening
        opening[number, : len(first)], sessions[number] = first, len(first)
        openings[number] = min(len(first), users[number])
        following[number, : len(follows.following)] = follows.following
        pause_s[number, : len(follows.pause_s)] = follows.pause_s
    return SessionTurns(opening, openings, sessions, following, pause_s)


def by_prefix(deployments: Sequence[Deployment]) -> ByPrefix:
    """The keys of the router that goes by what is in the caches, of each deployment that has it."""
    figures = np.zeros((4, len(deployments)))
    for number, choice in enumerate(map(routed_by, deployments)):
        if router_of(choice).by_prefix:
            keys = PrefixAware() if isinstance(choice, str) else choice
            assert isinstance(keys, PrefixAware)
            figures[:, number] = 1.0, keys.threshold, keys.imbalance, keys.imbalance_ratio
    return ByPrefix(figures[0] > 0.0, *figures[1:])


def _units(lane: LaneJobs, pool: StationPlan) -> np.ndarray:
    return pool.held_units(lane.jobs.demand)[lane.served]


def _rounded(size: int) -> int:
    return 1 << (max(size, SMALLEST) - 1).bit_length()
