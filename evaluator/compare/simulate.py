"""One server and its requests -> the engine -> times as the client sees them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluator.compare.servers import Server
from evaluator.cost.fitted import verdict
from evaluator.cost.lanes import common_counts, stack
from evaluator.cost.memory import kv_units
from evaluator.errors import InputError
from evaluator.experiments.traffic import Requests
from evaluator.plan.engines import on_demand
from evaluator.policies import policy

if TYPE_CHECKING:
    from evaluator.stations.engine import LaneLimits, LaneResult
    from evaluator.stations.engine import Requests as EngineRequests


@dataclass(frozen=True, eq=False)
class Times:
    """What the client of one seed saw, each (request,) in seconds."""

    requests: Requests
    ttft_s: np.ndarray
    e2e_s: np.ndarray


def simulate_server(server: Server, load: Requests) -> Times:
    """Run the requests through the engine; times as the client sees them, NaN where a request was never served.

    KV is taken on demand, as vLLM does. InputError where the run leaves the range of a cost that was fitted to measured
    iterations, and where prompts that are computed in one piece are too long for an iteration.
    """
    from evaluator.device import configure
    from evaluator.simulation.frontend import client_times

    limits, prompt = server.experiment, int(load.compute_tokens.max())
    if not limits.chunked_prefill and prompt > limits.max_num_batched_tokens:
        raise InputError(
            f"prompts of {prompt} tokens exceed max_num_batched_tokens {limits.max_num_batched_tokens}, and "
            f"chunked_prefill is off"
        )
    configure()
    found = _run(server, _waiting(server, load), int(load.output_tokens.max()))
    problem, _ = verdict(server.design.calibration, server.replica.fit, found.peaks.tolist())
    if problem is not None:
        raise InputError(problem)
    count = len(load.arrival_s)
    first, last = found.first_token_s[:count], found.last_token_s[:count]
    served = np.isfinite(last)
    first, last = np.where(served, first, np.nan), np.where(served, last, np.nan)
    first, last = client_times(server.design.calibration, first, last, load.output_tokens)
    return Times(load, first - load.arrival_s, last - load.arrival_s)


def _run(server: Server, waiting: EngineRequests, longest_output: int) -> LaneResult:
    """All KV of a request reserved if that keeps nobody waiting, which is the same and three times as fast."""
    from evaluator.stations.engine import any_order, in_order

    ring, windowed, pipeline_ranks = 256, server.replica.kv.window is not None, len(server.replica.pipeline_ranks)
    while ring < longest_output + 2:
        ring *= 2
    limits = _limits(server, len(waiting.arrival_s) - 1)
    if pipeline_ranks == 1:
        lane = in_order.Lane(_first(stack([server.replica.pipeline_ranks[0]])), limits)
        found = _alone(in_order.run_lanes, lane, waiting, in_order.Structure(ring, windowed))
        if not on_demand(server.deployment) or found.kv_units_max + waiting.kv_units.max() <= limits.kv_units:
            return found
    rows = common_counts(server.replica.pipeline_ranks)
    costs = tuple(_first(stack([cost], rows)) for cost in server.replica.pipeline_ranks)
    shared, kept = _shared(server, waiting)
    limits = limits._replace(kv_units=limits.kv_units - kept)
    waiting = waiting._replace(kv_units=np.maximum(waiting.kv_units - shared, 0).astype(np.int32))
    structure = any_order.Structure(ring, windowed, pipeline_ranks, peaks=False)
    return _alone(any_order.run_lanes, any_order.Lane(costs, limits, _rules(server), shared), waiting, structure)


def _alone(run: Any, lane: Any, waiting: EngineRequests, structure: Any) -> LaneResult:
    """A run of one lane, in NumPy."""
    import jax

    batch = jax.tree.map(lambda leaf: np.asarray(leaf)[None], (lane, waiting))
    return jax.tree.map(lambda leaf: np.asarray(leaf)[0], run(*batch, structure))


def _first(stacked: Any) -> Any:
    import jax

    return jax.tree.map(lambda values: values[..., 0], stacked)


def _limits(server: Server, count: int) -> LaneLimits:
    from evaluator.stations.engine import LaneLimits, Policy, decisions

    limits = server.experiment
    return LaneLimits(
        policy=Policy(*(flag[0] for flag in decisions([policy(server.deployment.batching.policy)]))),
        prompts_resident=np.array(False),
        max_num_seqs=np.float64(limits.max_num_seqs),
        max_num_batched_tokens=np.float64(limits.max_num_batched_tokens),
        kv_units=np.float64(server.replica.kv.capacity_units),
        window=np.float64(server.replica.kv.window or 0),
        users=np.int32(1 << 30),
        requests=np.int32(count),
        measured_from=np.int32(0),
    )


def _rules(server: Server) -> Any:
    """Those of vLLM v1."""
    from evaluator.simulation.lanes import units_of
    from evaluator.stations.engine.any_order import KvUnits, Rules

    return Rules(
        on_demand=np.bool_(on_demand(server.deployment)),
        whole_kv=np.bool_(False),
        watermark_units=np.float64(0.0),
        long_prefill_tokens=np.float64(np.inf),
        least_work=np.bool_(False),
        look_every=np.int32(0),
        kv=KvUnits(*map(np.float64, units_of(server.replica.kv))),
    )


def _shared(server: Server, waiting: EngineRequests) -> tuple[np.ndarray, int]:
    """Units of each request's prompt that lie in the prefix cache, (request + 1,), and what all prompts take there.

    The fixed prompts stay, as long as they are sent again and again; their whole blocks are there once, the system
    prompt of a group once for all its prompts. Without the cache, or where they would fill half of it, nothing is.
    """
    experiment, workload = server.experiment, server.experiment.workload
    block, prompts = experiment.block_tokens, workload.groups * workload.prompts_per_group
    whole = np.maximum(waiting.prompt_tokens - 1, 0) // block * block
    shared = kv_units(server.replica.kv, whole).astype(np.int32)
    system = int(kv_units(server.replica.kv, workload.system_tokens // block * block))
    kept = int(shared[:-1][:prompts].sum()) - system * (min(prompts, len(shared) - 1) - workload.groups)
    if not (experiment.prefix_caching and experiment.chunked_prefill) or kept > server.replica.kv.capacity_units / 2:
        return np.zeros_like(shared), 0
    return shared, max(kept, 0)


def _waiting(server: Server, load: Requests) -> EngineRequests:
    from evaluator.stations.engine import Requests as EngineRequests

    width = len(load.arrival_s) + 1
    arrival = np.full(width, np.inf)
    arrival[:-1] = np.maximum(load.arrival_s, load.arrival_s[0] + server.replica.warm_up_s)
    tokens = np.zeros((4, width), dtype=np.int32)
    units = kv_units(server.replica.kv, load.prompt_tokens + load.output_tokens - 1)
    for row, values in enumerate((load.compute_tokens, load.prompt_tokens, load.output_tokens, units)):
        tokens[row, :-1] = values
    return EngineRequests(arrival, *tokens)
