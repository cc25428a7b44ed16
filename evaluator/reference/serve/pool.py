"""A pool of the reference as a station: configuration after configuration, in plain Python."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from evaluator.cost.frontend import delay_s
from evaluator.cost.memory import KvLayout, kv_units, prefix_units, suffix_units
from evaluator.cost.weights import resident_bytes
from evaluator.kv_managers import manager as kv_manager
from evaluator.metrics.use import PoolTotals, pooled
from evaluator.plan import Configuration, StationPlan
from evaluator.plan.scaling import scaling_target, start_up_s
from evaluator.plan.simulators import by_reports, routed_by, waits_for_adapters, waits_for_answers
from evaluator.plan.station import host_space, swap_space, tier_spaces, watermark_units
from evaluator.reference import HostLimits, Iteration, Limits, PoolOutcome, Request, simulate
from evaluator.reference.api_servers import ApiServers
from evaluator.reference.failures import FailurePolicy
from evaluator.reference.network import Follows
from evaluator.reference.offload_stores import StoreLimits
from evaluator.reference.stations.fleet import ScalingPolicy
from evaluator.scenario import Workload
from evaluator.scenario.deployment import ASYNCHRONOUS, AT_ONCE, BY_PRIORITY, PRIORITY, SHORTEST_FIRST
from evaluator.scenario.failures import RESENT
from evaluator.speculation import keys, tokens_given
from evaluator.stations.contract import ChunkJobs, RequestTimes, RunKey, Use, WeightedGaps, table_shape
from evaluator.stations.lane_jobs import LaneJobs, lanes_of
from evaluator.stations.use import accepted, add_kept, check_served, use_of
from evaluator.traffic.arrivals import stream
from evaluator.traffic.jobs import Demand, Jobs, branch_units, shared_units
from evaluator.traffic.requests import adapter_numbers, cached_by_content
from evaluator.traffic.waiting_order import priorities

Observe = Callable[[LaneJobs, Iteration], None]

_FAILURES = 13  # the random stream of when replicas fail and are repaired


def serve_tokens(
    configurations: Sequence[Configuration],
    seeds: Sequence[int],
    station: int,
    jobs: ChunkJobs,
    observe: Observe | None = None,
) -> tuple[RequestTimes, Use]:
    """Serve the jobs of a chunk at the pool number ``station`` of its configurations, over all seeds.

    Runs of alike iterations are leapt over: times, gaps between tokens and totals are the same as token by token.
    ``observe`` is called after every iteration, or leap; request numbers are those within the lane.
    """
    pools = [configuration.stations[station] for configuration in configurations]
    times, totals = _empty_times(jobs, configurations, station), PoolTotals.empty(len(configurations), len(seeds))
    gaps: list[list[list[WeightedGaps]]] = [[[] for _ in seeds] for _ in configurations]
    alive: list[list[np.ndarray | None]] = [[None for _ in seeds] for _ in configurations]
    up: list[list[np.ndarray | None]] = [[None for _ in seeds] for _ in configurations]
    fronts: dict[RunKey, ApiServers | None] = {}
    behind: dict[RunKey, list[tuple[LaneJobs, ServedLane]]] = {}
    for lane in lanes_of(configurations, jobs, seeds, station):
        # One for all lanes of a run: the API servers of a replica are those of all its data-parallel ranks, each of
        # which may be a lane of its own.
        if lane.run not in fronts:
            fronts[lane.run] = api_servers_of(pools[lane.position])
        front = fronts[lane.run]
        served = serve_lane(configurations[lane.position], pools[lane.position], lane, seeds[lane.seed], observe, front)
        enter_outcome(times, totals, lane, served.outcome)
        if front is None:
            gaps[lane.position][lane.seed].append(served.gaps)
        else:
            behind.setdefault(lane.run, []).append((lane, served))
        if pools[lane.position].deployment.autoscaling is not None:
            assert served.outcome.fleet is not None
            # As the fleet has them: who is there when this side is done stays until the other one is (``Use.until``).
            alive[lane.position][lane.seed] = np.array(served.outcome.fleet.alive)
        if pools[lane.position].deployment.failures is not None:
            up[lane.position][lane.seed] = np.array(served.outcome.up)
    for run, lanes in behind.items():
        gaps[run[0]][run[1]].append(_enter_waits(times, fronts[run], lanes))
    check_served(configurations, times)
    # What is still infinite is of a run that got stuck, of whose row the status alone is told. NaN, because NumPy
    # warns of differences of infinities, of which later statistics have many.
    for column in (times.scheduled_s, times.first_token_s, times.last_token_s):
        column[np.isinf(column)] = np.nan
    add_kept(pools, jobs, times, totals)
    itl = [[pooled(parts) for parts in row] for row in gaps]
    use = use_of(pools, accepted(jobs, times), totals, itl, times.hit_tokens)
    scale = any(pool.deployment.autoscaling for pool in pools)
    fail = any(pool.deployment.failures is not None for pool in pools)
    return times, replace(use, alive=alive if scale else None, up=up if fail else None)


def _empty_times(jobs: ChunkJobs, configurations: Sequence[Configuration], station: int) -> RequestTimes:
    """A table for the jobs. It has a column only where some pool fills it: later statistics ask whether it is there."""
    times = RequestTimes.empty(table_shape(jobs))
    zeros = np.zeros(times.replica.shape, dtype=np.int64)
    deployments = [configuration.stations[station].deployment for configuration in configurations]
    workloads = [configuration.workload for configuration in configurations]
    columns: dict[str, np.ndarray] = {}
    if any(map(cached_by_content, workloads, deployments)):
        columns["hit_tokens"] = zeros.copy()
    if any(deployment.kv.offload_bytes is not None for deployment in deployments):
        columns["host_tokens"] = zeros.copy()
    if any(deployment.kv.offload_tiers for deployment in deployments):
        columns["storage_tokens"], columns["shared_tokens"] = zeros.copy(), zeros.copy()
    if any(deployment.batching.max_queued_requests for deployment in deployments):
        columns["refused"] = zeros.astype(bool)
    if any(deployment.failures is not None for deployment in deployments):
        columns["lost"], columns["tries"] = zeros.astype(bool), zeros.copy()
    if any(configuration.stations[station].api_server_times is not None for configuration in configurations):
        columns["first_wait_s"], columns["last_wait_s"] = zeros.astype(float), zeros.astype(float)
    return replace(times, **columns)


def api_servers_of(pool: StationPlan) -> ApiServers | None:
    """The API servers of all replicas of a pool; None where nothing waits there."""
    times = pool.api_server_times
    if times is None:
        return None
    return ApiServers(pool.api_servers, pool.deployment.data_parallel, times.per_token_s, times.per_request_s)


def _enter_waits(
    times: RequestTimes, servers: ApiServers | None, lanes: Sequence[tuple[LaneJobs, ServedLane]]
) -> WeightedGaps:
    """Write what the tokens of the lanes of a run wait at its API servers; gaps between them as clients see them."""
    assert servers is not None
    servers.settle()
    since_s: dict[Request, float] = {}
    for lane, served in lanes:
        requests = served.outcome.requests
        since_s |= dict.fromkeys(requests, served.since_s)
        # Those that were refused, or that a stuck engine never served, have no token that could wait.
        waits = [servers.waits.get(request, (0.0, 0.0)) for request in requests]
        times.put(
            lane.run, lane.rows, first_wait_s=[first for first, _ in waits], last_wait_s=[last for _, last in waits]
        )
    gaps_s = np.array([gap_s for given_s, request, gap_s in servers.gaps if given_s > since_s[request]])
    return pooled([(gaps_s, np.ones(len(gaps_s)))])


class ServedLane(NamedTuple):
    """What became of a lane, and the gaps between its tokens behind the warm-up, which ends at ``since_s``."""

    outcome: PoolOutcome
    gaps: WeightedGaps
    since_s: float


def serve_lane(
    configuration: Configuration,
    pool: StationPlan,
    lane: LaneJobs,
    seed: int,
    observe: Observe | None = None,
    servers: ApiServers | None = None,
) -> ServedLane:
    """Serve the jobs of one lane at its pool. ``servers``: get its tokens on their way to the clients."""
    deployment, replica, frontend = pool.deployment, pool.design.ready, pool.frontend
    by_content = cached_by_content(configuration.workload, deployment)
    requests = _requests(lane, pool)
    if by_content:
        _say_content(requests, lane, replica.kv)
    if waits_for_adapters(configuration.workload, deployment):
        _say_adapters(requests, configuration.workload, lane, seed)
    gaps = TokenGaps(len(requests))
    # A leap (several iterations in one step) tells of its tokens at its end. An answer of another rank may end before
    # that, but behind some of these tokens at their API server: its user would then have it too early.
    apart = deployment.data_parallel > 1 and pool.lockstep == 1
    late_tokens = servers is not None and apart and waits_for_answers(configuration.workload)

    def late_s(request: Request) -> float:
        later_s = float(delay_s(frontend, request.first_token_s, request.last_token_s, request.output_tokens))
        return later_s if servers is None else later_s + servers.last_wait_s(request)

    def watch(iteration: Iteration) -> None:
        gaps.add(iteration)
        if servers is not None:
            servers.give(iteration, iteration.replica if lane.replica < 0 else lane.replica, requests)
        if observe is not None:
            observe(lane, iteration)

    outcome = simulate(
        replica.pipeline_ranks,
        deployment.batching.policy,
        replace(
            limits_of(pool, lane.jobs.demand),
            prefix_caching=by_content,
            host=_host_of(pool),
            **_adapter_limits(configuration.workload, pool),
        ),
        requests,
        replicas=deployment.ranks if lane.replica < 0 else 1,
        lockstep=pool.lockstep,
        # A lane of one replica has its requests assigned already.
        router=routed_by(deployment) if lane.replica < 0 else "round_robin",
        seed=seed,
        # A rank reports between its iterations, of which a leap has none.
        leap=not (by_reports(deployment) or late_tokens),
        # As many users as requests wait for no answer: an open loop, whose arrivals are all there at the start.
        users=lane.users if lane.users < lane.count else None,
        delay_s=late_s,
        follows=followers(lane.jobs, lane.served),
        window=replica.kv.window,
        observe=watch,
        scaling=scaling_of(pool),
        begin_s=lane.jobs.begin_s,
        failures=failures_of(pool, seed),
        forget=lambda request: gaps.forget(request.index),
    )
    # Gaps count from the first token of the first request that is measured: those of the warm-up are left out by
    # time, since a leap's gaps are of all its members.
    first = lane.measured_from
    since = requests[first].first_token_s if first < len(requests) else math.inf
    return ServedLane(outcome, gaps.after(since), since)


def scaling_of(pool: StationPlan) -> ScalingPolicy | None:
    """When the replicas of a pool come and go; None where all of them are there all the time."""
    scaling = pool.deployment.autoscaling
    if scaling is None:
        return None
    return ScalingPolicy(
        scaling.metric, scaling_target(pool), scaling.min_replicas, pool.deployment.replicas, scaling.every_s,
        scaling.window_s, scaling.cooldown_s, scaling.tolerance, start_up_s(pool), scaling.lower, scaling.predictor,
    )  # fmt: skip


def failures_of(pool: StationPlan, seed: int) -> FailurePolicy | None:
    """When the replicas of a pool are down under a seed, and what is done about it; None where none fails."""
    failures = pool.deployment.failures
    if failures is None:
        return None
    known: list[list[tuple[float, float]]] = [[] for _ in range(pool.deployment.replicas)]
    for outage in failures.outages:
        known[outage.replica].append((outage.at_s, outage.at_s + outage.for_s))
    resent = failures.requests == RESENT
    return FailurePolicy(
        failures.max_tries if resent else 1,
        resent,
        failures.noticed_after_s,
        failures.start_up_s,
        math.inf if failures.mtbf_s is None else failures.mtbf_s,
        failures.mttr_s or 0.0,
        known,
        # A stream for each slot: how often one fails makes no difference to the others.
        lambda slot: stream(seed, _FAILURES, slot),
    )


def limits_of(pool: StationPlan, demand: Demand) -> Limits:
    """The limits of one replica as the reference takes them."""
    deployment, layout = pool.deployment, pool.design.ready.kv
    batching, kv = deployment.batching, deployment.kv
    # Without swapping nothing bounds what is copied, and nothing is.
    swap_units, swap_unit_s = swap_space(pool) if kv.preemption == "swap" else (math.inf, 0.0)
    blocks_alone, manager = _of_blocks(layout), kv_manager(kv.manager)
    return Limits(
        max_num_seqs=batching.max_num_seqs,
        max_num_batched_tokens=pool.max_num_batched_tokens,
        kv_units=layout.capacity_units - pool.kept_units,
        admission=kv.admission,
        block_tokens=layout.block_tokens,
        units_of_blocks=_units_of_blocks(layout, demand),
        units_of_branch=None
        if blocks_alone
        else lru_cache(lambda prompt, tokens: int(suffix_units(layout, prompt, tokens))),
        units_of_prefix=None if blocks_alone else lru_cache(lambda prompt: int(prefix_units(layout, prompt))),
        watermark_units=watermark_units(deployment, layout),
        preemption=kv.preemption,
        swap_units=swap_units,
        swap_unit_s=swap_unit_s,
        long_prefill_token_threshold=batching.long_prefill_token_threshold,
        packing=PRIORITY if batching.packing in BY_PRIORITY else batching.packing,
        aging=batching.aging_tokens_per_s if batching.packing == SHORTEST_FIRST else 0.0,
        max_queued=batching.max_queued_requests,
        full_prompt=kv.full_prompt,
        mixed_chunk=batching.enable_mixed_chunk,
        max_prefill_tokens=batching.max_prefill_tokens,
        conservativeness=batching.schedule_conservativeness,
        batch_queue=batching.planning != AT_ONCE,
        asynchronous=batching.planning == ASYNCHRONOUS,
        drafts=pool.drafts,
        kv_groups=layout.groups,
        manager=None if manager is None else manager.reference,
    )


def _adapter_limits(workload: Workload, pool: StationPlan) -> dict[str, Any]:
    """What bounds the adapters of a batch, where requests name more of them than a device has places for."""
    lora, design = pool.deployment.lora, pool.design
    if lora is None or not waits_for_adapters(workload, pool.deployment):
        return {}
    whole = resident_bytes(design.model, design.spec.precision, design.spec.parallel) / lora.max_loras
    load_s = 0.0 if lora.load_bandwidth is None else whole / lora.load_bandwidth
    return {"max_adapters": lora.max_loras, "adapter_load_s": load_s}


def _say_adapters(requests: Sequence[Request], workload: Workload, lane: LaneJobs, seed: int) -> None:
    """Tell each request which adapter it names; those of a session name the same."""
    jobs, senders = lane.jobs, lane.jobs.id[lane.served]
    if jobs.session is not None:
        senders = jobs.session[lane.served]
    for request, adapter in zip(requests, adapter_numbers(workload, seed, senders).tolist(), strict=True):
        request.adapter = adapter


def _host_of(pool: StationPlan) -> HostLimits | None:
    """Host memory under the prefix cache, where there is some."""
    kv = pool.deployment.kv
    if kv.offload_bytes is None:
        return None
    blocks, block_s = host_space(pool)
    stores = tuple(StoreLimits(*space) for space in tier_spaces(pool))
    return HostLimits(blocks, not kv.offload_answers, block_s, block_s, kv.offload_write, stores)


def _of_blocks(kv: KvLayout) -> bool:
    """Whether a unit is a block."""
    return bool(kv.groups) or (kv.window is None and kv.bytes_per_sequence == 0)


def _units_of_blocks(kv: KvLayout, demand: Demand) -> Callable[[int], int] | None:
    """Units of a sequence of so many blocks; None where a unit is a block."""
    if _of_blocks(kv):
        return None
    # As a table: the layout's formula is of arrays, and the scheduler asks for one sequence at a time, again and
    # again. Three more blocks than the longest sequence fills, for its next token, its drafts and a block that is not
    # full.
    most = demand.extremes.sequence // kv.block_tokens + 3
    return kv_units(kv, np.arange(most) * kv.block_tokens).tolist().__getitem__


def _requests(lane: LaneJobs, pool: StationPlan) -> list[Request]:
    demand, kv = lane.jobs.demand, pool.design.ready.kv
    lengths = demand.prompt_tokens, demand.output_tokens
    columns = (lane.jobs.ready_s, demand.compute_tokens, *lengths, pool.held_units(demand))
    rows = zip(*(column[lane.served].tolist() for column in columns), strict=True)
    requests = [Request(index, *row) for index, row in enumerate(rows)]
    for request, units in zip(requests, shared_units(demand, kv)[lane.served].tolist(), strict=True):
        request.shared_units = units
    if demand.branch_tokens is not None:
        branches = branches_of(demand.branch_tokens[lane.served], branch_units(demand, kv)[lane.served])
        for request, of_request in zip(requests, branches, strict=True):
            request.branches, request.branch_units = of_request
    for request, key in zip(requests, keys(lane.draws, lane.jobs.id[lane.served]), strict=True) if pool.drafts else ():
        request.curve = curve_of(pool, key, request.output_tokens)
    say_priorities(requests, priorities(lane.jobs, lane.served, pool.deployment.batching, lane.draws))
    if lane.jobs.session is not None:
        for request, session in zip(requests, lane.jobs.session[lane.served].tolist(), strict=True):
            request.session = session
    return requests


def say_priorities(requests: Iterable[Request], priority: np.ndarray | None) -> None:
    """Gives requests the priorities of ``traffic.waiting_order``, where they have any."""
    if priority is not None:
        for request, number in zip(requests, priority.tolist(), strict=True):
            request.priority = number


def branches_of(tokens: np.ndarray, units: np.ndarray) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """For each job the lengths of its branches and their KV units, from arrays (job, branch) with empty cells."""
    return [
        # Rows are right-aligned: a request with fewer branches has its empty cells in front.
        (tuple(lengths[-count:]), tuple(held[-count:]))
        for lengths, held, count in zip(tokens.tolist(), units.tolist(), (tokens > 0).sum(axis=1).tolist(), strict=True)
    ]


def _say_content(requests: Sequence[Request], lane: LaneJobs, kv: KvLayout) -> None:
    """Tell each request what is in its blocks, as far as it is known."""
    jobs, served = lane.jobs, lane.served
    assert jobs.sharing is not None
    ids, prompt, tokens = jobs.id[served], jobs.demand.prompt_tokens[served], jobs.demand.kv_tokens[served]
    for request, content in zip(requests, jobs.sharing.contents(ids, prompt, tokens, kv.block_tokens), strict=True):
        request.content = content


def followers(jobs: Jobs, served: np.ndarray | slice) -> Follows | None:
    """Which requests their users send after the answers to which; None where none waits for an answer."""
    sharing = jobs.sharing
    if sharing is None or sharing.turns is None or not sharing.feedback:
        return None
    turns, ids = sharing.turns, jobs.id[served]
    # The inverse of `ids`, which are a permutation.
    place = np.empty(len(ids), dtype=np.int64)
    place[ids] = np.arange(len(ids))
    before = [[] if previous < 0 else [int(place[previous])] for previous in turns.previous[ids].tolist()]
    if turns.graph is not None:
        for waits, row in zip(before, ids.tolist(), strict=True):
            waits += place[turns.graph.joins[row]].tolist()
    rest_s = np.zeros(len(ids)) if turns.rest_s is None else turns.rest_s[ids]
    return Follows(before, turns.think_s[ids].tolist(), rest_s.tolist())


def enter_outcome(times: RequestTimes, totals: PoolTotals, lane: LaneJobs, outcome: PoolOutcome) -> None:
    """Write what became of a lane into the tables of its chunk."""
    requests, replica = outcome.requests, lane.replica
    names = ["arrival_s", "scheduled_s", "first_token_s", "last_token_s"]
    asked = ("hit_tokens", "storage_tokens", "shared_tokens", "refused", "lost", "tries")
    names += [name for name in asked if getattr(times, name) is not None]
    columns = {name: [getattr(request, name) for request in requests] for name in names}
    if times.host_tokens is not None:
        # Nobody computed what was loaded, as what was found on the device.
        columns["host_tokens"] = [
            request.host_tokens - request.storage_tokens - request.shared_tokens for request in requests
        ]
        columns["hit_tokens"] = [request.hit_tokens + request.host_tokens for request in requests]
    times.put(
        lane.run, lane.rows, replica=[request.replica for request in requests] if replica < 0 else replica, **columns
    )
    totals.add(lane.run, PoolTotals.of(outcome))


def curve_of(pool: StationPlan, key: np.unsignedinteger, output: int) -> tuple[int, ...]:
    """Tokens that the first 0, 1, 2, .. decode iterations of a job give (``reference.Request.curve``)."""
    if pool.speculative is None:
        return ()
    given = tokens_given(pool.speculative.chances, key, output)
    # A running sum from 0, so that the scheduler finds what k iterations give in one look.
    return tuple(np.append(0, np.cumsum(given)).tolist())


class TokenGaps:
    """Collects the gaps between successive tokens of every request, also those inside a leap.

    All branches of a request have their last tokens at the same time, so that one number says when; each has its gaps.

    In a leap all members get a token with every iteration, so its later iterations are one gap each for all of them;
    before the first they may have waited for different times.
    """

    def __init__(self, requests: int) -> None:
        self._last = np.full(requests, np.nan)  # when each request got its last token
        self._first: list[tuple[float, np.ndarray]] = []  # time, gaps of the members
        self._leaps: list[tuple[float, float, float, int, int]] = []  # start, first_s, slope_s, iterations, members

    def add(self, iteration: Iteration) -> None:
        """After an iteration, or a leap."""
        if iteration.decodes:
            members = np.array(iteration.decodes)
            now = iteration.end_s
            if iteration.iterations > 1:
                # Kept as a formula and not as gaps: a leap of 1,000 iterations of 256 sequences would be 256,000 of
                # them.
                curve = iteration.start_s, iteration.first_s, iteration.slope_s
                self._leaps.append((*curve, iteration.iterations, len(members)))
                now = iteration.start_s + iteration.first_s
            self._first.append((now, now - self._last[members]))
            self._last[members] = iteration.end_s
        if iteration.completed:
            members = np.array(iteration.completed)
            # NaN for a first token, which has no gap; after a preemption a chunk gives a later one
            self._first.append((iteration.end_s, iteration.end_s - self._last[members]))
            self._last[members] = iteration.end_s

    def forget(self, request: int) -> None:
        """A request begins anew: its next token is a first one, with no gap before it."""
        self._last[request] = np.nan

    def after(self, since_s: float) -> WeightedGaps:
        """The gaps before tokens that came after a time."""
        # A gap counts where the token behind it came after `since_s`: of the first gap its beginning may lie before.
        first_s = np.concatenate([np.empty(0), *(gaps for now, gaps in self._first if now > since_s)])
        first_s = first_s[~np.isnan(first_s)]
        start, first, slope, iterations, members = np.array(self._leaps).reshape(-1, 5).T
        # All iterations but the first of all leaps, one leap after the other.
        later = iterations.astype(np.int64) - 1
        start, first, slope, members = (np.repeat(column, later) for column in (start, first, slope, members))
        step = np.arange(1.0, 1.0 + len(start)) - np.repeat(later.cumsum() - later, later)
        # The end of iteration ``step`` of a leap, whose durations are first + slope k for k = 0, 1, ...: their sum.
        inside = start + (step + 1) * first + 0.5 * slope * step * (step + 1) > since_s
        later_s = (first + slope * step)[inside]
        return pooled([(first_s, np.ones(len(first_s))), (later_s, members[inside])])
