"""One server and its requests -> a station of the engine -> times as the client sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluator.compare.servers import Server
from evaluator.cost.fitted import verdict
from evaluator.cost.memory import kv_units
from evaluator.errors import InputError
from evaluator.experiments.traffic import MeasuredRequests
from evaluator.plan import StationPlan, station_group
from evaluator.plan.simulators import CompileKey, program
from evaluator.records import kept_with_record
from evaluator.traffic.jobs import Demand, Jobs

if TYPE_CHECKING:
    from evaluator.stations.engine import LaneResult


@dataclass(frozen=True, eq=False)
class Times:
    """What the client of one seed saw, each (request,) in seconds."""

    requests: MeasuredRequests
    ttft_s: np.ndarray
    e2e_s: np.ndarray


def simulate_server(server: Server, loads: Sequence[MeasuredRequests]) -> list[Times]:
    """Run the requests of each seed through the engine; times of the client, NaN where a request was never served.

    KV is taken on demand, as vLLM does. InputError where the run leaves the range of a cost that was fitted to measured
    iterations, and where prompts that are computed in one piece are too long for an iteration.
    """
    from evaluator.device import configure

    # Before JAX is loaded, which takes longer than this check.
    for load in loads:
        _check_prompts(server, load)
    configure()
    return [_times(server, load, result) for load, result in zip(loads, _served(server, loads), strict=True)]


def _check_prompts(server: Server, load: MeasuredRequests) -> None:
    budget, prompt = server.design.spec.max_num_batched_tokens, int(load.compute_tokens.max())
    if not server.experiment.chunked_prefill and prompt > budget:
        raise InputError(
            f"prompts of {prompt} tokens exceed max_num_batched_tokens {budget}, and chunked_prefill is off"
        )


def _served(server: Server, loads: Sequence[MeasuredRequests]) -> list[LaneResult]:
    """Data-parallel ranks run together, for a request goes to one by what the others have."""
    which = program(server.deployment, joint=server.deployment.ranks > 1, lockstep=server.design.lockstep)
    return _run(which, [_station(server, load) for load in loads], len(loads))


def _run(which: CompileKey, given: Sequence[tuple[StationPlan, Jobs]], lanes_per_call: int) -> list[Any]:
    """Results of the jobs of each seed at its station, all of one server; see ``run_lanes``."""
    from evaluator.simulation.lanes import run_lanes
    from evaluator.stations.lane_jobs import OPEN_LOOP, LaneJobs

    pools = [pool for pool, _ in given]
    # -1: all replicas of the pool are one lane.
    replica = 0 if which.replicas == 1 else -1
    lanes = [
        LaneJobs(number, number, replica, jobs, jobs.order, len(jobs), OPEN_LOOP)
        for number, (_, jobs) in enumerate(given)
    ]
    group = station_group(which, pools, max(lane.count for lane in lanes))
    return run_lanes(group, pools, lanes, lanes_per_call)


def _station(server: Server, load: MeasuredRequests) -> tuple[StationPlan, Jobs]:
    """The station and the jobs of one seed; requests share the prompts in the prefix cache, where these stay."""
    resident = kept_units(server, load)
    demand = _demand(load, None if resident is None else server.experiment.block_tokens)
    # Nothing is served before the kernels of experts are compiled; whoever comes earlier waits for that.
    ready_s = np.maximum(load.arrival_s, load.arrival_s[0] + server.replica.warm_up_s)
    count, budget = len(ready_s), server.design.spec.max_num_batched_tokens
    station = StationPlan("server", server.deployment, server.design, demand.extremes, budget, resident or 0)
    return station, Jobs(np.arange(count), ready_s, demand, np.ones(count, dtype=bool))


@kept_with_record(16)
def _demand(load: MeasuredRequests, shared_blocks_of: int | None = None) -> Demand:
    """One object for all calibrations of a fit, because what is derived from a demand is cached by its identity."""
    prompt, output = load.prompt_tokens, load.output_tokens
    nothing = np.zeros_like(prompt)
    return Demand(
        prompt_tokens=prompt,
        output_tokens=output,
        cached_tokens=prompt - load.compute_tokens,
        compute_tokens=load.compute_tokens,
        # The last token of an output is not computed on: its KV is never written.
        kv_tokens=prompt + output - 1,
        later_tokens=nothing,
        shared_tokens=nothing if shared_blocks_of is None else whole_blocks(load, shared_blocks_of),
        model=nothing,
    )


def _times(server: Server, load: MeasuredRequests, result: LaneResult) -> Times:
    from evaluator.cost.frontend import Frontend, client_times

    # A run that left the range of a fit is refused when its largest batch is known.
    problem, _ = verdict(server.design.calibration, server.replica.fit, result.totals.peaks.tolist())
    if problem is not None:
        raise InputError(problem)
    count = len(load.arrival_s)
    first, last = result.first_token_s[:count], result.last_token_s[:count]
    served = np.isfinite(last)
    first, last = np.where(served, first, np.nan), np.where(served, last, np.nan)
    first, last = client_times(Frontend.of(server.design.calibration), first, last, load.output_tokens)
    return Times(load, first - load.arrival_s, last - load.arrival_s)


# --- what the prompts of an experiment share in the prefix cache of its server


def kept_units(server: Server, load: MeasuredRequests) -> int | None:
    """KV units that the prompts take in the prefix cache for good; None where nothing is shared.

    The fixed prompts stay, as long as they are sent again and again; their whole blocks are there once, the system
    prompt of a group once for all its prompts. Without the cache, or where they would fill half of it, nothing is.
    """
    experiment, workload, kv = server.experiment, server.experiment.workload, server.replica.kv
    block, fixed = experiment.block_tokens, workload.groups * workload.prompts_per_group
    # The first requests are the fixed prompts, each once, in the order in which generators send them: later
    # ones repeat them.
    distinct = kv_units(kv, whole_blocks(load, block)[:fixed])
    system = int(kv_units(kv, workload.system_tokens // block * block))
    # Each group's system prompt is in the blocks of all its prompts, and is there once.
    resident = int(distinct.sum()) - system * (len(distinct) - workload.groups)
    # Half: a cache that is nearly full of them would evict some between two uses, which no constant of resident
    # units tells.
    if not (experiment.prefix_caching and experiment.chunked_prefill) or resident > kv.capacity_units / 2:
        return None
    return max(resident, 0)


def whole_blocks(load: MeasuredRequests, block_tokens: int) -> np.ndarray:
    """Prompt tokens of each request in whole blocks, (request,); one token at least is left to compute."""
    return (load.prompt_tokens - 1) // block_tokens * block_tokens
