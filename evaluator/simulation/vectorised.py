"""A pool of the vectorised engine as a station: run its lanes and gather what they give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from evaluator.cost.frontend import delay_s
from evaluator.metrics.use import PoolTotals
from evaluator.plan import Configuration, StationGroup, StationPlan
from evaluator.reference.serve.pool import enter_outcome, serve_lane
from evaluator.scenario.deployment import BY_PRIORITY
from evaluator.simulation.lanes import LanesOfCall, run_calls
from evaluator.stations.api_servers import behind_api_servers
from evaluator.stations.contract import (
    ChunkJobs,
    RequestTimes,
    RunKey,
    Use,
    WeightedGaps,
    pooled,
    table_shape,
    whole_table,
)
from evaluator.stations.engine import LaneResult
from evaluator.stations.engine.common import histogram
from evaluator.stations.engine.common.lane import refused_at
from evaluator.stations.engine.common.rings import NONE
from evaluator.stations.lane_jobs import LaneJobs, follows_of, lanes_of
from evaluator.stations.use import accepted, add_kept, check_served, use_of


def serve_iterations(
    configurations: Sequence[Configuration], seeds: Sequence[int], station: int, group: StationGroup, jobs: ChunkJobs
) -> tuple[RequestTimes, Use]:
    """Serve the jobs of a chunk at the pool number ``station`` of its configurations, over all seeds and replicas."""
    times, totals = RequestTimes.empty(table_shape(jobs)), PoolTotals.empty(len(configurations), len(seeds))
    if group.key.cached:
        times = replace(times, hit_tokens=np.zeros(times.replica.shape, dtype=np.int64))
    if group.key.sheds:
        times = replace(times, refused=np.zeros(times.replica.shape, dtype=bool))
    alive: list[list[np.ndarray | None]] = [[None for _ in seeds] for _ in configurations]
    bins = np.zeros((len(configurations), len(seeds), histogram.BINS))
    lanes = lanes_of(configurations, jobs, seeds, station)
    pools = [configuration.stations[station] for configuration in configurations]
    exact_gaps: dict[RunKey, list[WeightedGaps]] = {}
    for call in run_calls(group, pools, lanes):
        void = _void(call, [pools[lanes[number].position] for number in call.numbers])
        for lane in (lanes[number] for number in call.numbers[void]):
            # All of such a lane anew, token by token: what its program has of it is not what the scheduler does.
            served = serve_lane(configurations[lane.position], pools[lane.position], lane, seeds[lane.seed])
            enter_outcome(times, totals, lane, served.outcome)
            exact_gaps.setdefault(lane.run, []).append(served.gaps)
            if served.outcome.fleet is not None:
                alive[lane.position][lane.seed] = np.array(served.outcome.fleet.alive)
        call = call.some(~void)
        lanes_of_call = [lanes[number] for number in call.numbers]
        config, seed = np.array([lane.run for lane in lanes_of_call], dtype=np.int64).reshape(-1, 2).T
        runs = config, seed
        totals.add(runs, call.result.totals)
        for lane, gaps in zip(lanes_of_call, call.result.itl_histogram, strict=True):
            bins[lane.run] += gaps  # a tenth of the time of ``np.add.at``, which takes whole rows one by one
        if lanes_of_call:
            _put(times, lanes_of_call, runs, pools, call.result)
        for number, lane in enumerate(lanes_of_call if call.result.fleet is not None else ()):
            alive[lane.position][lane.seed] = _spans(call.result, number)
    check_served(configurations, times)
    add_kept(pools, jobs, times, totals)
    gaps_of_runs = iter(histogram.weighted_runs(bins.reshape(-1, histogram.BINS)))
    itl = [[next(gaps_of_runs) for _ in seeds] for _ in configurations]
    for (position, number), parts in exact_gaps.items():
        itl[position][number] = pooled([itl[position][number], *parts])
    if any(pool.api_server_times is not None for pool in pools):
        times, itl = behind_api_servers(pools, jobs, times, itl)
    use = use_of(pools, accepted(jobs, times), totals, itl, times.hit_tokens)
    return times, replace(use, alive=alive) if group.key.scales else use


def _void(call: LanesOfCall, serving: Sequence[StationPlan]) -> np.ndarray:
    """Lanes of a call that met what their program does not do, (lane,): the reference computes them.

    By priority who gives way where KV runs short is the last of its class, whoever was admitted last (vLLM
    ``Scheduler.schedule``, ``SchedulingPolicy.PRIORITY``), and those behind it wait an iteration; until then nothing
    differs. A fleet may start more replicas than its table has rows.
    """
    short = np.asarray(call.result.totals.preemptions) > 0
    void = short & np.array([pool.deployment.batching.packing in BY_PRIORITY for pool in serving], dtype=bool)
    if call.result.fleet is not None:
        void |= call.result.fleet.count >= call.result.fleet.began_s.shape[-1]
    return void


def _spans(result: LaneResult, number: int) -> np.ndarray:
    """From when until when each replica of a fleet was there, (replica, 2); infinite until the end of the run."""
    assert result.fleet is not None
    spans = np.stack([result.fleet.began_s[number], result.fleet.gone_s[number]], axis=-1)
    return spans[: int(result.fleet.count[number])]


def _put(
    times: RequestTimes,
    lanes: Sequence[LaneJobs],
    runs: tuple[np.ndarray, np.ndarray],
    pools: Sequence[StationPlan],
    result: LaneResult,
) -> None:
    """Write when the requests of the lanes of a call were served; ``runs`` are their places in (config, seed)."""
    columns = {name: getattr(result, name) for name in ("scheduled_s", "first_token_s", "last_token_s")}
    if times.hit_tokens is not None and result.hit_tokens is not None:
        columns["hit_tokens"] = result.hit_tokens
    replicas = np.array([[lane.replica] for lane in lanes]) if result.replica is None else result.replica
    if times.refused is not None and result.replica is not None:
        refused = replicas < NONE
        replicas = np.where(refused, refused_at(replicas), replicas)
        for number, lane in enumerate(lanes):
            times.put(lane.run, lane.rows, refused=refused[number, : lane.count])
    columns["replica"] = replicas
    sent_s = [_release_times(lane, pools[lane.position], result, number) for number, lane in enumerate(lanes)]
    if _whole_tables(lanes):
        columns["arrival_s"] = np.stack(sent_s)
        for name, values in columns.items():
            getattr(times, name)[*runs, : lanes[0].count] = values[:, : lanes[0].count]
        return
    for number, lane in enumerate(lanes):
        served = {name: values[number, : lane.count] for name, values in columns.items()}
        times.put(lane.run, lane.rows, arrival_s=sent_s[number], **served)


def _whole_tables(lanes: Sequence[LaneJobs]) -> bool:
    """Whether each lane of a call has all requests of a table, in the order of their ids, as most often: then they are
    written together."""
    if len({lane.count for lane in lanes}) > 1 or not all(isinstance(lane.served, slice) for lane in lanes):
        return False
    # By identity: configurations share the array of ids of a seed.
    return all(map(whole_table, {id(lane.jobs.id): lane.jobs for lane in lanes}.values()))


def _release_times(lane: LaneJobs, pool: StationPlan, result: LaneResult, number: int) -> np.ndarray:
    """When each request of a lane, the one of that ``number``, is sent: at its timestamp, or when a user has got an
    answer, and thought about it."""
    follows = follows_of(lane.jobs, lane.served)
    # Everybody sends once, at the beginning: nobody waits for an answer.
    if lane.users >= lane.count and follows is None:
        return lane.jobs.ready_s[lane.served]
    first_s, last_s = (values[number, : lane.count] for values in (result.first_token_s, result.last_token_s))
    answered_s = last_s + delay_s(pool.frontend, first_s, last_s, lane.jobs.demand.output_tokens[lane.served])
    if follows is not None:
        return follows.sent_s(lane.jobs.ready_s[lane.served], answered_s, lane.users)
    # A closed loop: whoever has an answer sends the next request, so the n-th that is sent after the first of each
    # user goes when the n-th answer is there. Who of them it is makes no difference, for users are alike.
    answered_s = np.sort(answered_s)
    return np.concatenate([np.zeros(lane.users), answered_s[: lane.count - lane.users]])
