"""One design in closed form: memory, prefill and decode times, where they go, and the load that a rate puts on it.

No requests and no queue: for those, sweep or simulate. Plain NumPy, milliseconds per call.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from evaluator.catalog import Calibration, load_calibration, load_hardware, load_model
from evaluator.catalog.hardware import Hardware
from evaluator.catalog.model import Model
from evaluator.cost.batch import decode_batch, prefill_batch, together
from evaluator.cost.breakdown import OperatorTime, breakdown
from evaluator.cost.fitted import fit_of, fitted_problem, iteration_cost, verdict
from evaluator.cost.iteration import BatchStatistics, IterationCost, iteration_time, share_touched
from evaluator.cost.kernel import Operator
from evaluator.cost.memory import (
    MemoryPlan,
    kv_bytes_per_token,
    kv_units,
    memory_plan,
    memory_problem,
    model_window,
)
from evaluator.cost.operators import operators
from evaluator.cost.parallel import Parallel, parallel_problem
from evaluator.cost.precision import Precision
from evaluator.cost.quantities import peaks
from evaluator.cost.steady import SteadyState, steady_state
from evaluator.cost.utilisation import ideal_time, ideal_times
from evaluator.errors import InputError


@dataclass(frozen=True)
class Phase:
    """One iteration: its time, MFU, MBU and operators (none where the cost was fitted to whole iterations)."""

    time_s: float
    mfu: float
    mbu: float
    operators: tuple[OperatorTime, ...]


@dataclass(frozen=True)
class Estimate:
    """One replica of a design. Bytes are per device; times of ``batch`` sequences that start and go on together."""

    model: str
    hardware: str
    calibration: str
    provenance: str
    parallel: Parallel
    precision: Precision
    prompt_tokens: int
    output_tokens: int
    batch: int
    status: str  # ok, or why it cannot run; times are then those of a device with more memory
    memory: MemoryPlan
    kv_bytes_per_token: float
    kv_capacity_tokens: float
    max_sequences: int  # of prompt_tokens + output_tokens tokens
    prefill: Phase
    decode: Phase  # at mid-output context
    ttft_s: float
    tpot_s: float
    e2e_s: float
    output_tok_per_s: float
    total_tok_per_s: float
    load: SteadyState | None


@dataclass(frozen=True)
class _Design:
    """What every part of the estimate needs."""

    model: Model
    hardware: Hardware
    calibration: Calibration
    precision: Precision
    parallel: Parallel
    operators: tuple[Operator, ...]
    parameters: IterationCost
    window: int | None
    prompt_tokens: int
    output_tokens: int


def estimate(
    model: Model | str,
    hardware: Hardware | str,
    *,
    calibration: Calibration | str = "datasheet",
    prompt_tokens: int,
    output_tokens: int,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    expert_parallel: int = 1,
    batch: int = 1,
    rate_rps: float | None = None,
    precision: Precision | None = None,
    memory_fraction: float = 0.9,
    block_tokens: int = 16,
    max_num_seqs: int = 256,
    max_num_batched_tokens: int = 2048,
) -> Estimate:
    """Estimate one replica. InputError where the split is impossible or a number is out of range.

    Model, hardware and calibration are names of the catalog, or what its readers return.
    ``batch`` sequences are in one batch; a pipeline has one batch in flight per rank, each taking the latency
    through all ranks, so throughput counts all of them.
    """
    model = load_model(model) if isinstance(model, str) else model
    hardware = load_hardware(hardware) if isinstance(hardware, str) else hardware
    calibration = load_calibration(calibration, hardware.name) if isinstance(calibration, str) else calibration
    precision = precision or Precision()
    parallel = Parallel(tensor_parallel, pipeline_parallel, expert_parallel)
    calibration = _host_of_every_stage(calibration, parallel)
    _check(model, hardware, parallel, prompt_tokens, output_tokens, batch, rate_rps)
    problem = fitted_problem(calibration, model, hardware, precision, parallel)
    if problem is not None:
        raise InputError(problem)
    found = operators(model, precision, parallel)
    design = _Design(
        model, hardware, calibration, precision, parallel, found,
        iteration_cost(model, hardware, calibration, precision, parallel),
        model_window(model), prompt_tokens, output_tokens,
    )  # fmt: skip
    plan = memory_plan(
        model, hardware, precision, parallel, memory_fraction=memory_fraction, block_tokens=block_tokens,
        max_num_batched_tokens=max_num_batched_tokens, max_num_seqs=max_num_seqs,
    )  # fmt: skip
    most = int(plan.kv.capacity_units // kv_units(plan.kv, prompt_tokens + output_tokens))
    load = None if rate_rps is None else _load(design, rate_rps, min(most, max_num_seqs), max_num_batched_tokens)
    return _estimated(design, plan, batch, most, load)


def _host_of_every_stage(calibration: Calibration, parallel: Parallel) -> Calibration:
    """A batch passes the host of every pipeline rank, each a worker process of its own, as in the simulators."""
    pipeline_ranks = parallel.pipeline
    return replace(
        calibration,
        step_overhead_s=pipeline_ranks * calibration.step_overhead_s,
        sequence_overhead_s=pipeline_ranks * calibration.sequence_overhead_s,
    )


def _load(design: _Design, rate_rps: float, max_sequences: int, max_num_batched_tokens: int) -> SteadyState:
    return steady_state(
        design.parameters,
        rate_rps,
        prompt_tokens=design.prompt_tokens,
        output_tokens=design.output_tokens,
        pipeline_ranks=design.parallel.pipeline,
        max_sequences=max_sequences,
        max_num_batched_tokens=max_num_batched_tokens,
        window=design.window,
    )


def _estimated(design: _Design, plan: MemoryPlan, batch: int, most: int, load: SteadyState | None) -> Estimate:
    """The estimate of ``batch`` sequences, where memory holds at most ``most``."""
    model, hardware, precision, parallel = design.model, design.hardware, design.precision, design.parallel
    prompt_tokens, output_tokens = design.prompt_tokens, design.output_tokens
    in_flight = batch * parallel.pipeline
    beyond, provenance = _range(design, batch, load)
    status = memory_problem(model, hardware, precision, parallel, plan) or _crowded(in_flight, most) or beyond
    prefill = _phase(design, prefill_batch(float(batch), prompt_tokens, design.window))
    middle = decode_batch(float(batch), prompt_tokens + output_tokens / 2, design.window)
    decode_s = _decode_time(design, batch)
    e2e = prefill.time_s + decode_s
    return Estimate(
        model=model.name,
        hardware=hardware.name,
        calibration=design.calibration.name,
        provenance=provenance,
        parallel=parallel,
        precision=precision,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        batch=batch,
        status=status or "ok",
        memory=plan,
        kv_bytes_per_token=kv_bytes_per_token(model, precision.kv, parallel.tensor) / parallel.pipeline,
        kv_capacity_tokens=plan.kv.capacity_tokens,
        max_sequences=most,
        prefill=prefill,
        decode=_phase(design, middle),
        ttft_s=prefill.time_s,
        tpot_s=decode_s / (output_tokens - 1) if output_tokens > 1 else float("nan"),
        e2e_s=e2e,
        output_tok_per_s=in_flight * output_tokens / e2e,
        total_tok_per_s=in_flight * (prompt_tokens + output_tokens) / e2e,
        load=load,
    )


def _check(
    model: Model, hardware: Hardware, parallel: Parallel, prompt: int, output: int, batch: int, rate: float | None
) -> None:
    for name, value in (("prompt", prompt), ("output", output), ("batch", batch)):
        if value < 1:
            raise InputError(f"{name}: must be at least 1, not {value}")
    if rate is not None and not (0 < rate < float("inf")):
        raise InputError(f"rate: must be a positive number of requests per second, not {rate}")
    if prompt + output > model.max_positions:
        raise InputError(
            f"prompt {prompt} + output {output} tokens exceed the {model.max_positions} positions of {model.name}"
        )
    problem = parallel_problem(model, hardware, parallel)
    if problem:
        raise InputError(problem)


def _crowded(sequences: int, most: int) -> str | None:
    if sequences <= most:
        return None
    return (
        f"does not fit: the KV cache holds {most} such sequences at a time, not {sequences}; remedy: a batch <= {most}"
    )


def _range(design: _Design, sequences: int, load: SteadyState | None) -> tuple[str | None, str]:
    """Why a fit to measured iterations does not tell of these batches, and the provenance of what is told."""
    prompt, longest = design.prompt_tokens, design.prompt_tokens + design.output_tokens - 1.0
    decodes = float(sequences) if design.output_tokens > 1 else 0.0
    batches = [prefill_batch(float(sequences), prompt, None), decode_batch(decodes, longest, None)]
    if load is not None and not load.saturated:
        batches.append(together(prefill_batch(1.0, prompt, None), decode_batch(load.concurrency, longest, None)))
    largest = np.max([peaks(BatchStatistics(*map(float, each))) for each in batches], axis=0)
    fit = fit_of(design.calibration, design.model, design.precision, design.parallel)
    return verdict(design.calibration, fit, largest)


def _phase(design: _Design, batch: BatchStatistics) -> Phase:
    """Time and breakdown of one iteration. MFU and MBU are of all devices, with one batch in flight per rank."""
    time = float(iteration_time(design.parameters, batch))
    compute, memory = ideal_times(design.operators, design.hardware)
    tokens = batch.decodes + batch.prefill_tokens
    touched = share_touched(design.parameters, tokens)
    return Phase(
        time_s=time,
        mfu=float(ideal_time(compute, batch)) / time,
        mbu=float(ideal_time(memory, batch, touched=touched)) / time,
        operators=breakdown(design.operators, design.hardware, design.calibration, batch)
        if design.calibration.form == "roofline"
        else (),
    )


def _decode_time(design: _Design, sequences: float) -> float:
    """All decode steps after the first token, which the prefill gives: they attend to prompt + 1, + 2, ... tokens."""
    context = design.prompt_tokens + np.arange(1.0, design.output_tokens)
    batch = decode_batch(np.full_like(context, sequences), context, design.window)
    return float(np.sum(iteration_time(design.parameters, batch)))


def format_estimate(result: Estimate) -> str:
    """The estimate as text for a terminal: a summary and one table of operators per phase."""
    return "\n".join([*_summary(result), "", *_table("prefill", result.prefill), "", *_table("decode", result.decode)])


def _summary(result: Estimate) -> list[str]:
    split = result.parallel
    dtypes = result.precision
    memory = result.memory
    lines = [
        f"{result.model} on {split.devices} x {result.hardware}"
        f" (TP {split.tensor}, PP {split.pipeline}, EP {split.expert})",
        f"  weights {dtypes.weights}, activations {dtypes.activations}, KV {dtypes.kv}; "
        f"efficiencies: {result.calibration} ({result.provenance})",
        f"  batch {result.batch}, prompt {result.prompt_tokens}, output {result.output_tokens} tokens",
        "",
        f"status            {result.status}",
        f"weights           {memory.weight_bytes / 1e9:.2f} GB per device of {memory.usable_bytes / 1e9:.1f} GB usable",
        f"KV capacity       {_capacity(result)}, {result.max_sequences:,} sequences of this length",
        f"TTFT              {_milliseconds(result.ttft_s)}",
        f"TPOT              {_milliseconds(result.tpot_s)}",
        f"end to end        {_milliseconds(result.e2e_s)}",
        f"throughput        {result.output_tok_per_s:,.1f} output tokens/s, {result.total_tok_per_s:,.1f} with prompts",
    ]
    return lines + ([] if result.load is None else _load_lines(result.load))


def _capacity(result: Estimate) -> str:
    if math.isinf(result.kv_capacity_tokens):
        return "no KV, a state of fixed size per sequence"
    return f"{result.kv_capacity_tokens:,.0f} tokens of {result.kv_bytes_per_token:,.0f} byte per device"


def _load_lines(load: SteadyState) -> list[str]:
    head = [
        "",
        f"at {load.rate_rps:g} requests/s (steady state, no queueing):",
        f"utilisation       {100 * load.utilisation:.1f} % of {load.capacity_rps:.3g} requests/s",
    ]
    if load.saturated:
        return [*head, "saturated         the queue grows without bound"]
    return [
        *head,
        f"concurrency       {load.concurrency:.1f} requests in the system, step {_milliseconds(load.step_s)}",
        f"TTFT, TPOT, e2e   {_milliseconds(load.ttft_s)}, {_milliseconds(load.tpot_s)}, {_milliseconds(load.e2e_s)}",
    ]


def _table(title: str, phase: Phase) -> list[str]:
    """Operators in order; what takes no time in this phase is left out. Measured iterations know none."""
    head = f"{title} iteration: {_milliseconds(phase.time_s)}, MFU {100 * phase.mfu:.1f} %, MBU {100 * phase.mbu:.1f} %"
    if not phase.operators:
        return [head]
    lines = [
        head,
        f"  {'operator':<28}{'time':>12}{'share':>8}{'GFLOP':>12}{'memory MB':>13}{'sent MB':>13}  bound by",
    ]
    return lines + [
        f"  {each.name:<28}{_milliseconds(each.time_s):>12}{100 * each.share:>7.1f}%{each.flops / 1e9:>12,.2f}"
        f"{each.bytes / 1e6:>13,.2f}{each.message_bytes / 1e6:>13,.2f}  {each.bound}"
        for each in phase.operators
        if each.time_s > 1e-15
    ]


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.3f} ms"
