"""A pool of the request-level engine as a station: run its lanes and gather what they give."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import jax
import numpy as np

from evaluator.cost.request_times import PhaseTimes, TabulatedTimes, request_times, tabulate
from evaluator.plan import Configuration, ReplicaBuild, RequestGroup, StationPlan, request_sizes
from evaluator.replica.batched_costs import costs_of
from evaluator.simulation.lane_jobs import LaneJobs, slots
from evaluator.simulation.lanes import lanes_per_call, results_of
from evaluator.simulation.use import PoolTotals, check_served, use_of
from evaluator.stations import request_level
from evaluator.stations.contract import ChunkJobs, RequestTimes, Use
from evaluator.stations.request_level import RequestLane, RequestLevelStructure, ServedRequests
from evaluator.traffic.roles import Role


def serve_requests(
    configurations: Sequence[Configuration], seeds: Sequence[int], station: int, group: RequestGroup, jobs: ChunkJobs
) -> tuple[RequestTimes, Use]:
    """Serve the jobs of a chunk at the pool number ``station`` of its members, over all seeds and replicas.

    A lane has one replica, or all where they share a queue. Busy times, iterations, KV in use and the gaps between
    tokens are not known.
    """
    departures = RequestTimes.empty(jobs)
    pools = [configuration.stations[station] for configuration in configurations]
    lanes = slots(configurations, jobs, seeds, station)
    for slot, found in zip(lanes, _run(group, pools, lanes, seeds), strict=True):
        at, served, count = slot.at, slot.served, slot.count
        departures.ready_s[at][served] = slot.jobs.ready_s[served]
        departures.scheduled_s[at][served] = found.scheduled_s[:count]
        departures.first_token_s[at][served] = found.first_token_s[:count]
        departures.last_token_s[at][served] = found.last_token_s[:count]
        departures.replica[at][served] = found.instance[:count] if slot.replica < 0 else slot.replica
    check_served(configurations, departures)
    return departures, use_of(pools, jobs, PoolTotals.unknown(len(configurations), len(seeds)), None)


def _run(
    group: RequestGroup, pools: Sequence[StationPlan], lanes: list[LaneJobs], seeds: Sequence[int]
) -> Iterator[request_level.Departures]:
    """The results of all lanes in NumPy."""
    vectorise, program = jax.default_backend() != "cpu", _program(pools[0].role)

    def run(lanes: RequestLane, requests: ServedRequests) -> request_level.Departures:
        return program(lanes, requests, RequestLevelStructure(*group.sizes), vectorise)

    def given(at: slice) -> tuple[RequestLane, ServedRequests]:
        return _lanes(group, pools, lanes[at]), _requests(group, pools, lanes[at], seeds)

    return results_of(run, given, len(lanes), lanes_per_call(group.lane_requests))


def _program(role: Role) -> Callable[..., request_level.Departures]:
    if role.prompt_resident:
        return request_level.run_decode
    return request_level.run_prefill if role.first_token_only else request_level.run_collocated


def _lanes(group: RequestGroup, pools: Sequence[StationPlan], lanes: list[LaneJobs]) -> RequestLane:
    serving = [pools[slot.position] for slot in lanes]
    instances, prompts, boxes = np.array([request_sizes(pool) for pool in serving], dtype=np.int32).T
    budgets = [pool.max_num_batched_tokens for pool in serving]
    return RequestLane(
        cost=_costs(group, serving),
        instances=instances,
        max_prompts=prompts,
        max_prompt_tokens=np.array(budgets, dtype=float),
        max_decodes=boxes,
        tau=np.array([pool.deployment.batching.tau for pool in serving], dtype=float),
        requests=np.array([slot.count for slot in lanes], dtype=np.int32),
    )


def _costs(group: RequestGroup, serving: list[StationPlan]) -> PhaseTimes:
    """The times of every pool, with a leading lane axis."""
    if group.tabulated:
        most = max(group.sizes.prompts, group.sizes.boxes)
        tables = [_table(pool.design, *_lengths(pool), most) for pool in serving]
        return TabulatedTimes(*map(np.stack, zip(*tables, strict=True)))
    replicas = {id(pool.design): pool.design.ready for pool in serving}
    places = dict(zip(replicas, range(len(replicas)), strict=True))
    rows = [places[id(pool.design)] for pool in serving]
    found, *_ = costs_of(list(replicas.values()), group.rows)
    return request_times(jax.tree.map(lambda values: np.moveaxis(values, -1, 0)[rows], found))


@lru_cache(maxsize=4096)
def _table(design: ReplicaBuild, prompt: int, output: int, most: int) -> TabulatedTimes:
    return TabulatedTimes(*map(np.asarray, tabulate(request_times(design.ready.cost), prompt, output, most)))


def _lengths(pool: StationPlan) -> tuple[int, int]:
    """Prompt and output tokens of requests that are all alike."""
    output = pool.extremes.output
    return pool.extremes.sequence - output, output + _first_tokens(pool)


def _first_tokens(pool: StationPlan) -> int:
    """The algorithms count the first token among a request's, also where it comes with one to a decode side."""
    return int(pool.role.prompt_resident)


def _requests(
    group: RequestGroup, pools: Sequence[StationPlan], lanes: list[LaneJobs], seeds: Sequence[int]
) -> ServedRequests:
    shape = len(lanes), group.lane_requests
    arrival, output = np.full(shape, np.inf), np.ones(shape)
    prompt, prefill_draw, decode_draw = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    for lane, slot in enumerate(lanes):
        demand, count = slot.jobs.demand, slot.count
        arrival[lane, :count] = slot.jobs.ready_s[slot.served]
        prompt[lane, :count] = demand.prompt_tokens[slot.served]
        output[lane, :count] = demand.output_tokens[slot.served] + _first_tokens(pools[slot.position])
        if slot.replica < 0:
            prefill_draw[lane, :count], decode_draw[lane, :count] = draws(seeds[slot.seed], count, slot.station)
    return ServedRequests(arrival, prompt, output, prefill_draw, decode_draw)


def draws(seed: int, count: int, station: int) -> np.ndarray:
    """Which of the instances with room takes a request, by its place in the order of arrival, (2, job) in [0, 1)."""
    stream = np.random.default_rng(np.random.SeedSequence([seed, 0x64726177, station]))  # "draw"
    return stream.random((2, count))
