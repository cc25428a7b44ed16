"""A pool of the request-level engine as a station: configuration after configuration, in plain Python."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from evaluator.cost.request_times import PhaseTimes, TabulatedTimes, request_times, tabulate
from evaluator.metrics.use import PoolTotals
from evaluator.plan import Configuration, ReplicaBuild, StationPlan, request_sizes
from evaluator.reference.request_level import Instances, WholeRequest, collocated, decode, prefill
from evaluator.stations.contract import ChunkJobs, RequestTimes, Use, table_shape
from evaluator.stations.lane_jobs import LaneJobs, lanes_of
from evaluator.stations.use import check_served, use_of
from evaluator.traffic.roles import Role


def serve_requests(
    configurations: Sequence[Configuration], seeds: Sequence[int], station: int, jobs: ChunkJobs
) -> tuple[RequestTimes, Use]:
    """Serve the jobs of a chunk at the pool number ``station`` of its configurations, over all seeds and replicas.

    A lane has one replica, or all where they share a queue. Busy times, iterations, KV in use and the gaps between
    tokens are not known.
    """
    times = RequestTimes.empty(table_shape(jobs))
    pools = [configuration.stations[station] for configuration in configurations]
    for lane in lanes_of(configurations, jobs, seeds, station):
        requests = _served(lane, pools[lane.position], seeds[lane.seed])
        _add(times, lane, pools[lane.position].role, requests)
    check_served(configurations, times)
    return times, use_of(pools, jobs, PoolTotals.unknown(len(configurations), len(seeds)), None)


def _served(lane: LaneJobs, pool: StationPlan, seed: int) -> list[WholeRequest]:
    """The requests of a lane in order of arrival, with their times."""
    demand, arrival_s = lane.jobs.demand, lane.jobs.ready_s[lane.served]
    prompt, output = demand.prompt_tokens[lane.served], demand.output_tokens[lane.served] + _first_tokens(pool)
    # Replicas that have requests of their own have nothing to choose.
    chance = draws(seed, lane.count, lane.station) if lane.replica < 0 else np.zeros((2, lane.count))
    columns = (arrival_s, prompt, output, *chance)
    requests = [WholeRequest(*row) for row in zip(*(column.astype(float).tolist() for column in columns), strict=True)]
    if pool.role.prompt_resident:
        for request in requests:
            request.first_token_s = request.arrival_s  # they come with it, in the order in which they got it
        decode(_instances(pool), requests)
    elif pool.role.first_token_only:
        prefill(_instances(pool), requests)
    else:
        collocated(_instances(pool), requests)
    return requests


def _add(times: RequestTimes, lane: LaneJobs, role: Role, requests: Sequence[WholeRequest]) -> None:
    if role.prompt_resident:
        # What a decode pool calls its first token is the second of the request: the first came with it.
        names = ("decode_scheduled_s", "second_token_s", "last_token_s", "decode_instance")
    elif role.first_token_only:
        names = ("scheduled_s", "first_token_s", "first_token_s", "instance")
    else:
        names = ("scheduled_s", "first_token_s", "last_token_s", "instance")
    scheduled_s, first_s, last_s, instance = ([getattr(request, name) for request in requests] for name in names)
    times.put(
        lane.run,
        lane.rows,
        arrival_s=lane.jobs.ready_s[lane.served],
        scheduled_s=scheduled_s,
        first_token_s=first_s,
        last_token_s=last_s,
        replica=instance if lane.replica < 0 else lane.replica,
    )


def _instances(pool: StationPlan) -> Instances:
    sizes = request_sizes(pool)
    return Instances(
        cost=_times(pool, max(sizes.prompts, sizes.boxes)),
        count=sizes.instances,
        max_prompts=sizes.prompts,
        max_decodes=sizes.boxes,
        tau=float(pool.deployment.batching.tau),
        max_prompt_tokens=float(pool.max_num_batched_tokens),
    )


def _times(pool: StationPlan, most: int) -> PhaseTimes:
    """What requests cost; of requests that are all alike a table by the size of a batch, which says all of it."""
    if pool.extremes.alike:
        return _table(pool.design, *_lengths(pool), most)
    return request_times(pool.design.ready.cost)


@lru_cache(maxsize=256)
def _table(design: ReplicaBuild, prompt: int, output: int, most: int) -> TabulatedTimes:
    """Once for the rates and seeds of a configuration, which follow one another."""
    return TabulatedTimes(*map(np.asarray, tabulate(request_times(design.ready.cost), prompt, output, most)))


def _lengths(pool: StationPlan) -> tuple[int, int]:
    """Prompt and output tokens of requests that are all alike."""
    output = pool.extremes.output
    return pool.extremes.sequence - output, output + _first_tokens(pool)


def _first_tokens(pool: StationPlan) -> int:
    """The algorithms count the first token among a request's, also where it comes with one to a decode side."""
    return int(pool.role.prompt_resident)


def draws(seed: int, count: int, station: int) -> np.ndarray:
    """Which of the instances with room takes a request, by its place in the order of arrival, (2, job) in [0, 1)."""
    stream = np.random.default_rng(np.random.SeedSequence([seed, 0x64726177, station]))  # "draw"
    return stream.random((2, count))
