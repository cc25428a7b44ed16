"""One replica of a deployment: its iteration cost, its memory, and why it cannot run where it cannot."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from evaluator.catalog import load_calibration, load_hardware, load_model
from evaluator.catalog.calibration import Calibration
from evaluator.catalog.hardware import Hardware
from evaluator.catalog.iterations import Iterations
from evaluator.catalog.model import Model
from evaluator.cost.fitted import fit_of, fitted_problem, iteration_cost
from evaluator.cost.iteration import IterationCost
from evaluator.cost.memory import KvLayout, memory_plan, memory_problem
from evaluator.cost.operators import operators
from evaluator.cost.parallel import Parallel, parallel_problem
from evaluator.cost.precision import Precision
from evaluator.cost.utilisation import IdealTime, ideal_times
from evaluator.metrics.outcomes import OK
from evaluator.policies import policy
from evaluator.replica.inputs import Change, changed
from evaluator.scenario.scenario import Batching, Deployment

CHUNKED_TOKENS = 2048
"""Default token budget of an iteration: vLLM's ``max_num_batched_tokens`` with chunked prefill."""


@dataclass(frozen=True)
class Replica:
    """A replica that can run: its iteration cost, its KV cache, and its work in seconds at the peaks.

    Every pipeline rank pays the host's overheads of an iteration once: each has a worker process that prepares the
    inputs and launches the kernels of its own layers (vLLM), and takes up its next batch only after that.
    """

    pipeline_ranks: tuple[IterationCost, ...]  # of a pipeline, each with the host's time of its own worker
    kv: KvLayout
    compute: IdealTime  # at peak FLOP/s: for MFU; summed over the ranks
    memory: IdealTime  # at full bandwidth: for MBU
    weight_bytes: float  # per device
    fit: Iterations | None = None  # where the cost was fitted to measured iterations, which have a range

    @property
    def cost(self) -> IterationCost:
        """The iteration cost of the first pipeline rank: of the replica, where there is one."""
        return self.pipeline_ranks[0]


@dataclass(frozen=True, eq=False)
class Design:
    """What configurations with the same replica share: ``status`` is ok, or why there is none and what to do.

    Two are the same only if they are one object: they are cached.
    """

    status: str
    model: Model
    hardware: Hardware
    devices: int  # of one replica
    calibration: Calibration
    replica: Replica | None = None
    change: Change | None = None  # the input in which it differs from what its names say

    @property
    def provenance(self) -> str:
        """Of the calibration set."""
        return self.calibration.provenance

    @property
    def ready(self) -> Replica:
        """The replica of a design whose status is ok."""
        if self.replica is None:
            raise AssertionError(f"no replica: {self.status}")
        return self.replica


def token_budget(batching: Batching, longest_prompt: int) -> int:
    """``max_num_batched_tokens``, or its default: 2,048 for chunks, just room for the longest prompt otherwise.

    Whole prompts that share an iteration with decodes need room for both. Where the policy itself has no token budget
    (Orca) this is what the activations are given memory for.
    """
    if batching.max_num_batched_tokens is not None:
        return batching.max_num_batched_tokens
    record = policy(batching.policy)
    if not record.whole_prompts:
        return max(CHUNKED_TOKENS, batching.max_num_seqs)
    beside = 0 if record.prefill_alone else batching.max_num_seqs
    return max(CHUNKED_TOKENS, longest_prompt + beside)


def design(deployment: Deployment, longest_prompt: int) -> Design:
    """The replica of a deployment under prompts of at most ``longest_prompt`` tokens to compute. Cached."""
    return _design(
        deployment.model,
        deployment.hardware,
        deployment.calibration,
        deployment.precision,
        _parallel(deployment),
        deployment.kv.memory_fraction,
        deployment.kv.block_tokens,
        token_budget(deployment.batching, longest_prompt),
        deployment.batching.max_num_seqs,
    )


def varied(built: Design, deployment: Deployment, change: Change) -> Design:
    """A design that can run, with one input changed: it takes other times, and has the same memory. Cached."""
    return _varied(built, deployment.precision, _parallel(deployment), change)


@lru_cache(maxsize=8192)
def _varied(built: Design, precision: Precision, parallel: Parallel, change: Change) -> Design:
    hardware, calibration = changed(built.hardware, built.calibration, change)
    replica = replace(built.ready, **_times(built.model, hardware, calibration, precision, parallel))
    return replace(built, hardware=hardware, calibration=calibration, replica=replica, change=change)


def _parallel(deployment: Deployment) -> Parallel:
    return Parallel(deployment.tensor_parallel, deployment.pipeline_parallel, deployment.expert_parallel)


@lru_cache(maxsize=65536)
def _design(
    model_name: str,
    hardware_name: str,
    calibration_name: str,
    precision: Precision,
    parallel: Parallel,
    memory_fraction: float,
    block_tokens: int,
    max_num_batched_tokens: int,
    max_num_seqs: int,
) -> Design:
    model, hardware = load_model(model_name), load_hardware(hardware_name)
    calibration = load_calibration(calibration_name, hardware.name, foreign=True)
    known = Design(OK, model, hardware, parallel.devices, calibration)
    problem = fitted_problem(calibration, model, hardware, precision, parallel)
    if problem is not None:
        return replace(known, status=f"unsupported: {problem}")
    problem = parallel_problem(model, hardware, parallel)
    if problem is not None:
        return replace(known, status=f"infeasible: {problem}")
    memory = memory_plan(
        model, hardware, precision, parallel,
        memory_fraction=memory_fraction, block_tokens=block_tokens,
        max_num_batched_tokens=max_num_batched_tokens, max_num_seqs=max_num_seqs,
    )  # fmt: skip
    problem = memory_problem(model, hardware, precision, parallel, memory)
    if problem is not None:
        return replace(known, status=f"infeasible: {problem}")
    times = _times(model, hardware, calibration, precision, parallel)
    fit = fit_of(calibration, model, precision, parallel)
    return replace(known, replica=Replica(kv=memory.kv, weight_bytes=memory.weight_bytes, fit=fit, **times))


def _times(
    model: Model, hardware: Hardware, calibration: Calibration, precision: Precision, parallel: Parallel
) -> dict[str, Any]:
    """The fields of a replica that are times."""
    compute, bytes_moved = ideal_times(operators(model, precision, parallel), hardware)
    pipeline_ranks = tuple(
        iteration_cost(
            model, hardware, calibration, precision, parallel, pipeline_rank if parallel.pipeline > 1 else None
        )
        for pipeline_rank in range(parallel.pipeline)
    )
    return {"pipeline_ranks": pipeline_ranks, "compute": compute, "memory": bytes_moved}
