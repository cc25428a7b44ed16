"""A pool of the vectorised engine as a station: run its lanes and gather what they give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from evaluator.cost.frontend import Frontend, delay_s
from evaluator.metrics.use import PoolTotals
from evaluator.plan import Configuration, StationGroup
from evaluator.simulation.lanes import run_lanes
from evaluator.stations.contract import ChunkJobs, RequestTimes, Use, table_shape
from evaluator.stations.engine import LaneResult
from evaluator.stations.engine.common import histogram
from evaluator.stations.lane_jobs import LaneJobs, follows_of, lanes_of
from evaluator.stations.use import add_kept, check_served, use_of


def serve_iterations(
    configurations: Sequence[Configuration], seeds: Sequence[int], station: int, group: StationGroup, jobs: ChunkJobs
) -> tuple[RequestTimes, Use]:
    """Serve the jobs of a chunk at the pool number ``station`` of its configurations, over all seeds and replicas."""
    times, totals = RequestTimes.empty(table_shape(jobs)), PoolTotals.empty(len(configurations), len(seeds))
    if group.key.cached:
        times = replace(times, hit_tokens=np.zeros(times.replica.shape, dtype=np.int64))
    bins = np.zeros((len(configurations), len(seeds), histogram.BINS))
    lanes = lanes_of(configurations, jobs, seeds, station)
    pools = [configuration.stations[station] for configuration in configurations]
    # Results come lane after lane, so that the tables of one call at a time are in memory.
    for lane, result in zip(lanes, run_lanes(group, pools, lanes), strict=True):
        _add(times, totals, lane, pools[lane.position].frontend, result)
        bins[lane.run] += result.itl_histogram
    check_served(configurations, times)
    add_kept(pools, jobs, times, totals)
    itl = [[histogram.weighted(histogram_of_seed) for histogram_of_seed in of_seeds] for of_seeds in bins]
    return times, use_of(pools, jobs, totals, itl, times.hit_tokens)


def _add(
    times: RequestTimes,
    totals: PoolTotals,
    lane: LaneJobs,
    frontend: Frontend,
    result: LaneResult,
) -> None:
    count = lane.count
    times.put(
        lane.run,
        lane.rows,
        arrival_s=_release_times(lane, frontend, result),
        scheduled_s=result.scheduled_s[:count],
        first_token_s=result.first_token_s[:count],
        last_token_s=result.last_token_s[:count],
        replica=lane.replica if result.replica is None else result.replica[:count],
    )
    if times.hit_tokens is not None and result.hit_tokens is not None:
        times.put(lane.run, lane.rows, hit_tokens=result.hit_tokens[:count])
    totals.add(lane.run, result.totals)


def _release_times(lane: LaneJobs, frontend: Frontend, result: LaneResult) -> np.ndarray:
    """When each request is sent: at its timestamp, or when a user has got an answer, and thought about it."""
    follows = follows_of(lane.jobs, lane.served)
    # Everybody sends once, at the beginning: nobody waits for an answer.
    if lane.users >= lane.count and follows is None:
        return lane.jobs.ready_s[lane.served]
    last_s, output = result.last_token_s[: lane.count], lane.jobs.demand.output_tokens[lane.served]
    answered_s = last_s + delay_s(frontend, result.first_token_s[: lane.count], last_s, output)
    if follows is not None:
        return follows.sent_s(lane.jobs.ready_s[lane.served], answered_s, lane.users)
    # A closed loop: whoever has an answer sends the next request, so the n-th that is sent after the first of each
    # user goes when the n-th answer is there. Who of them it is makes no difference, for users are alike.
    answered_s = np.sort(answered_s)
    return np.concatenate([np.zeros(lane.users), answered_s[: lane.count - lane.users]])
