"""The estimate of one replica: one batch of equal sequences, and the steady state under a rate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from evaluator.accuracy import load_errors
from evaluator.accuracy.basis import Basis, design_basis, of_release
from evaluator.catalog import Calibration
from evaluator.catalog.attention_kernels import AUTO
from evaluator.catalog.engine_rules import dotted
from evaluator.catalog.engines import DEFAULT_ENGINE, SchedulerDefaults, serving_engine
from evaluator.catalog.hardware import Hardware, load_hardware
from evaluator.catalog.model import Adapters, Model
from evaluator.catalog.own_server import ServedLoad
from evaluator.catalog.read_model import load_model
from evaluator.cost.batch import decode_batch, prefill_batch, together
from evaluator.cost.feed_forward_apart import Apart, feed_forward_bytes
from evaluator.cost.fitted import verdict
from evaluator.cost.frontend import Frontend, delay_s
from evaluator.cost.iteration import BatchStatistics
from evaluator.cost.memory import MemoryPlan, kv_bytes_per_token, kv_units, model_window
from evaluator.cost.parallel import GATHER, Parallel
from evaluator.cost.precision import Precision
from evaluator.cost.quantities import peaks
from evaluator.cost.speculative import SpeculativeCost
from evaluator.cost.steady import SteadyState, steady_state
from evaluator.errors import InputError
from evaluator.estimation.batches import read_layout
from evaluator.estimation.drafts import Drafts, read_speculative
from evaluator.estimation.phases import EqualSequences, PhaseEstimate, decode_time, phase
from evaluator.keys import Place
from evaluator.metrics.model_error import end_to_end
from evaluator.policies import policy
from evaluator.replica import ReplicaBuild, ReplicaSpec, UnpipelinedCost, build, default_budget, kept_model, passage
from evaluator.scenario.adapters import Lora, NamedAdapters, read_adapters
from evaluator.scenario.feed_forward_apart import FeedForwardApart, read_apart
from evaluator.scenario.token_sampling import TokenSampling, asked_of_sampler
from evaluator.speculation import Speculative, decode_tokens, mean_tokens


@dataclass(frozen=True)
class Estimate:
    """One replica of a design. Bytes are per device; times of ``batch`` sequences that start and go on together.

    ``ttft_s`` and ``e2e_s`` are those of a client, as in a simulation; ``client_delay_s`` of them passes outside the
    engine and on iterations that it has planned ahead. Throughput is the engine's.
    With data parallelism ``batch``, KV capacity and most sequences are those of each rank, throughput and load of all.
    """

    model: str
    hardware: str
    calibration: str
    provenance: str
    parallel: Parallel
    precision: Precision
    devices: int
    apart: Apart | None  # devices of their own for feed-forwards
    feed_forward_bytes: float  # weights on each of these, where ``memory`` is that of an attention device; 0: none
    attention_backend: str
    adapters: Adapters | None  # the places for them, and those that requests name
    prompt_tokens: int
    output_tokens: int
    batch: int
    engine: str  # its name and the release whose defaults hold, as people write them
    status: str  # ok, or why it cannot run; times are then those of a device with more memory
    max_num_seqs: int  # the limits that ``memory.activation_bytes`` makes room for
    max_num_batched_tokens: int
    memory: MemoryPlan
    kv_bytes_per_token: float
    kv_capacity_tokens: float
    max_sequences: int  # of prompt_tokens + output_tokens tokens
    prefill: PhaseEstimate
    decode: PhaseEstimate  # at mid-output context
    drafts: Drafts | None
    ttft_s: float
    tpot_s: float
    e2e_s: float
    client_delay_s: float
    output_tok_per_s: float
    total_tok_per_s: float
    load: SteadyState | None
    model_error: tuple[float, ...]  # expected relative errors of TTFT, TPOT and E2E in a server; NaN: not known
    model_error_basis: str  # what they rest on


def estimate(
    model: Model | str,
    hardware: Hardware | str,
    *,
    calibration: Calibration | str = "auto",
    prompt_tokens: int,
    output_tokens: int,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    expert_parallel: int = 1,
    data_parallel: int = 1,
    redundant_experts: int = 0,
    expert_exchange: str = GATHER,
    decode_context_parallel: int = 1,
    prefill_context_parallel: int = 1,
    batch: int = 1,
    rate_rps: float | None = None,
    precision: Precision | None = None,
    engine: str = DEFAULT_ENGINE,
    engine_version: str | None = None,
    memory_fraction: float | None = None,
    block_tokens: int | None = None,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    eager: bool = False,
    attention_backend: str = AUTO,
    feed_forward_apart: FeedForwardApart | Mapping[str, Any] | None = None,
    lora: Lora | Mapping[str, Any] | None = None,
    adapters: NamedAdapters | Mapping[str, Any] | None = None,
    speculative: Speculative | Mapping[str, Any] | None = None,
    sampling: TokenSampling | Mapping[str, Any] | None = None,
    two_batch_overlap: bool = False,
) -> Estimate:
    """Estimate one replica. InputError where the split is impossible or a number is out of range.

    Model, hardware and calibration are names of the catalog, or what its readers return. What is None of
    ``memory_fraction`` and the three keys behind it is as the serving ``engine`` has it in ``engine_version``, by
    default the newest that its table knows. ``speculative`` is what a scenario has at ``deployment.speculative``; times
    and throughput are then those that are expected of the drafts. ``sampling`` is ``workload.sampling``, and
    ``adapters`` are ``workload.adapters``, of which a batch names as many as are expected, ``max_loras`` at most:
    requests for others wait, which the estimate does not count. ``eager``, ``attention_backend``, ``lora``,
    ``two_batch_overlap`` and ``feed_forward_apart`` are keys of a deployment; with the last one ``batch`` is that of
    all attention ranks. Of it, of batches that overlap and of prompts that are split, no single operators are told.
    ``batch`` sequences are in one batch; a pipeline has one batch in flight per rank, each taking the latency through
    all ranks, so throughput counts all of them. Of data-parallel ranks each has such a batch, and its share of the
    rate. All sequences of a batch have contexts of one length, under a rate, too: no batch waits for a longest one, as
    those of a simulation do where the calibration set knows what that costs.
    """
    layout = read_layout(
        tensor_parallel, pipeline_parallel, expert_parallel, data_parallel, redundant_experts, expert_exchange,
        decode_context_parallel, prefill_context_parallel, attention_backend, engine, engine_version,
        two_batch_overlap,
    )  # fmt: skip
    device = load_hardware(hardware) if isinstance(hardware, str) else hardware
    drafts = read_speculative(speculative)
    described = load_model(model) if isinstance(model, str) else model
    # Ranks of a dense model are replicas, each with the whole limits of its engine.
    ranks = data_parallel if described.has_experts else 1
    usual = serving_engine(engine).defaults(device, tensor_parallel * pipeline_parallel * ranks, ranks, engine_version)
    stated = {"memory_fraction": memory_fraction, "block_tokens": block_tokens, "max_num_seqs": max_num_seqs,
            "max_num_batched_tokens": max_num_batched_tokens}  # fmt: skip
    used = _limits(usual, stated, decode_tokens(drafts), prompt_tokens)
    spec = ReplicaSpec(
        described, device, calibration, precision or Precision(), layout,
        memory_fraction=used.memory_fraction, block_tokens=used.block_tokens, engine=engine,
        max_num_batched_tokens=used.max_num_batched_tokens, max_num_seqs=used.max_num_seqs,
        drafting=None if drafts is None else drafts.drafting,
        asked=asked_of_sampler(sampling, Place("estimate", "sampling")),
        eager=eager,
        engine_version=engine_version,
        unequal=0.0,  # sequences of one length, which are where the others are
        adapters=read_adapters(lora, adapters, Place("estimate", "")),
        attention_backend=attention_backend,
        apart=read_apart(feed_forward_apart, Place("estimate", "feed_forward_apart")),
    )  # fmt: skip
    _check_numbers(prompt_tokens, output_tokens, batch, rate_rps)
    # After all numbers are checked: a wrong one is said by its name, not by what it makes of the
    # memory.
    built = build(spec)
    if built.memory is None:
        raise InputError(built.reason)
    _check_model(built.model, prompt_tokens, output_tokens)
    through = passage(built)
    _check_draft(through, prompt_tokens + output_tokens)
    served = EqualSequences(batch, prompt_tokens, output_tokens, model_window(built.model), drafts)
    # A decode has KV slots for its drafts beside its own token.
    slots = prompt_tokens + output_tokens + (0 if drafts is None else drafts.tokens)
    # In whole units of a sequence each, as an engine takes them; of a device, whose KV all devices
    # of a replica have alike.
    most = int(built.memory.kv.capacity_units // kv_units(built.memory.kv, slots))
    load = None if rate_rps is None else _load(built, through, served, rate_rps, most)
    rules = serving_engine(engine).rules
    of_engine = f"{rules.label} {dotted(rules.release(engine_version))}"
    basis = of_release(design_basis(built), built, engine_version)
    return _estimated(built, built.memory, through, served, most, load, of_engine, basis)


def _check_numbers(prompt: int, output: int, batch: int, rate: float | None) -> None:
    for name, value in (("prompt", prompt), ("output", output), ("batch", batch)):
        if value < 1:
            raise InputError(f"{name}: must be at least 1, not {value}")
    if rate is not None and not (0 < rate < float("inf")):
        raise InputError(f"rate: must be a positive number of requests per second, not {rate}")


def _check_model(model: Model, prompt: int, output: int) -> None:
    if not model.gives_tokens:
        raise InputError(f"model: {model.name} gives a vector and no tokens; use it in a stage of a pipeline")
    if prompt + output > model.max_positions:
        raise InputError(
            f"prompt {prompt} + output {output} tokens exceed the {model.max_positions} positions of {model.name}"
        )


def _check_draft(through: UnpipelinedCost, tokens: int) -> None:
    most = None if through.drafts is None else through.drafts.max_positions
    if most is not None and tokens > most:
        raise InputError(
            f"speculative.model: prompt and output of {tokens:,} tokens exceed its {most:,} positions; use another "
            "draft model or shorter texts"
        )


def _load(
    built: ReplicaBuild, through: UnpipelinedCost, served: EqualSequences, rate_rps: float, most: int
) -> SteadyState:
    # The steady state is that of one data-parallel rank, which gets an equal share of the rate; what it serves and
    # holds is multiplied again below.
    ranks = built.spec.parallel.data
    steady = steady_state(
        through.cost,
        rate_rps / ranks,
        prompt_tokens=served.prompt_tokens,
        output_tokens=served.output_tokens,
        pipeline_ranks=built.spec.parallel.pipeline,
        max_sequences=min(most, built.spec.max_num_seqs),
        max_num_batched_tokens=built.spec.max_num_batched_tokens,
        window=served.window,
        drafted=served.decode_steps,
    )
    # Saturated times are infinite already.
    delay = _client_delay(through, served, steady.e2e_s - steady.ttft_s) if not steady.saturated else 0.0
    return replace(
        steady,
        rate_rps=rate_rps,
        capacity_rps=ranks * steady.capacity_rps,
        concurrency=ranks * steady.concurrency,
        ttft_s=steady.ttft_s + delay,
        e2e_s=steady.e2e_s + delay,
    )


def _client_delay(through: UnpipelinedCost, served: EqualSequences, decode_s: float) -> float:
    """How much later than the engine the client has a request's tokens, seconds."""
    return float(
        delay_s(Frontend.of(through.calibration, mean_tokens(served.drafts)), 0.0, decode_s, served.output_tokens)
    )


def _estimated(
    built: ReplicaBuild,
    memory: MemoryPlan,
    through: UnpipelinedCost,
    served: EqualSequences,
    most: int,
    load: SteadyState | None,
    of_engine: str,
    basis: Basis,
) -> Estimate:
    """The estimate of sequences of which memory holds at most ``most``."""
    precision, parallel, apart = built.spec.precision, built.spec.parallel, built.spec.apart
    in_flight = served.count * parallel.pipeline  # on a data-parallel rank
    beyond, provenance = _range(through, served, load, parallel.data)
    prefill = phase(through, built.hardware, served.prefill)
    decode_s = decode_time(through, served)
    decode = phase(through, built.hardware, served.middle, served.tokens_per_iteration)
    in_engine = prefill.time_s + decode_s
    delay = _client_delay(through, served, decode_s)
    errors = load_errors()
    each_serves = ServedLoad(parallel.data * in_flight, served.prompt_tokens, served.output_tokens)
    kv_bytes = kv_bytes_per_token(kept_model(built), precision.kv, parallel.tensor) / parallel.context
    return Estimate(
        model=built.model.name,
        hardware=built.hardware.title,
        calibration=through.calibration.name,
        provenance=provenance,
        parallel=parallel,
        precision=precision,
        devices=built.devices,
        apart=apart,
        feed_forward_bytes=0.0 if apart is None else feed_forward_bytes(built.model, precision, apart),
        attention_backend=built.spec.attention_backend,
        adapters=built.spec.adapters,
        prompt_tokens=served.prompt_tokens,
        output_tokens=served.output_tokens,
        batch=served.count,
        engine=of_engine,
        # The first of these that there is, from what no engine runs to what the fit does not tell.
        status=built.reason
        or _crowded(in_flight, most)
        or _beyond_limit(in_flight, built.spec.max_num_seqs)
        or beyond
        or "ok",
        max_num_seqs=built.spec.max_num_seqs,
        max_num_batched_tokens=built.spec.max_num_batched_tokens,
        memory=memory,
        # Layers are spread over the pipeline ranks, so that a device has its share of each token's KV.
        kv_bytes_per_token=kv_bytes / parallel.pipeline,
        kv_capacity_tokens=memory.kv.capacity_tokens,
        max_sequences=most,
        prefill=prefill,
        decode=decode,
        drafts=_drafts(through, served, decode),
        ttft_s=prefill.time_s + delay,
        tpot_s=decode_s / (served.output_tokens - 1) if served.output_tokens > 1 else float("nan"),
        e2e_s=in_engine + delay,
        client_delay_s=delay,
        # The engine is full all along: so many sequences leave it in every ``in_engine`` seconds.
        output_tok_per_s=parallel.data * in_flight * served.output_tokens / in_engine,
        total_tok_per_s=parallel.data * in_flight * (served.prompt_tokens + served.output_tokens) / in_engine,
        load=load,
        model_error=_in_server(basis.bands(errors, each_serves), prefill.time_s + delay, decode_s),
        model_error_basis=basis.text(errors, each_serves.concurrency),
    )


def _in_server(bands: tuple[float, ...], first_token_s: float, decode_s: float) -> tuple[float, ...]:
    """The expected errors of TTFT, TPOT and E2E: none of a TPOT that is not there, of E2E at least that of its TTFT."""
    ttft, itl, e2e = bands
    first_s, whole_s = np.array(first_token_s), np.array(first_token_s + decode_s)
    return ttft, itl if decode_s > 0.0 else math.nan, float(end_to_end(np.array(e2e), np.array(ttft), first_s, whole_s))


def _drafts(through: UnpipelinedCost, served: EqualSequences, decode: PhaseEstimate) -> Drafts | None:
    """What drafting takes of a decode iteration, and what it is good for."""
    cost = through.cost
    if served.drafts is None or not isinstance(cost, SpeculativeCost):
        return None
    draft_s = float(cost.drafting_s(served.middle))
    tokens_each = served.tokens_per_iteration if served.output_tokens > 1 else float("nan")
    return Drafts(served.drafts, float(served.iterations.sum()), tokens_each, draft_s, decode.time_s - draft_s)


def _crowded(sequences: int, most: int) -> str | None:
    if sequences <= most:
        return None
    return (
        f"does not fit: the KV cache holds {most} such sequences at a time, not {sequences}; remedy: a batch <= {most}"
    )


def _beyond_limit(sequences: int, most: int) -> str | None:
    """Why the scheduler does not run so many sequences, over all pipeline ranks; None where it does."""
    if sequences <= most:
        return None
    return (
        f"infeasible: max_num_seqs lets {most:,} sequences run at a time, not {sequences:,}; "
        "raise it or lower the batch"
    )


def _range(
    through: UnpipelinedCost, served: EqualSequences, load: SteadyState | None, ranks: int
) -> tuple[str | None, str]:
    """Why a fit to measured iterations does not tell of these batches, and the provenance of what is told."""
    # The last decode attends to all tokens but the one it gives.
    prompt, longest = served.prompt_tokens, served.prompt_tokens + served.output_tokens - 1.0
    decodes = float(served.count) if served.output_tokens > 1 else 0.0
    # Without the window: ranges of fits are of contexts as they are.
    batches = [prefill_batch(float(served.count), prompt, None), decode_batch(decodes, longest, None)]
    if load is not None and not load.saturated:
        batches.append(
            together(prefill_batch(1.0, prompt, None), decode_batch(load.concurrency / ranks, longest, None))
        )
    largest = np.max([peaks(BatchStatistics(*map(float, statistics))) for statistics in batches], axis=0)
    return verdict(through.calibration, through.fit, largest)


# --- what one replica may take: the engine's own limits, and those that are said in their place


def _limits(
    usual: SchedulerDefaults, given: Mapping[str, float | None], decode_tokens: int, prompt_tokens: int
) -> SchedulerDefaults:
    """The engine's own limits with those that are said (None: is not), for decodes of so many tokens."""
    stated: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    for name, value in stated.items():
        if name != "memory_fraction" and value < 1:
            raise InputError(f"{name}: must be at least 1, not {value}")
    # The budget that was said may lower the engine's own number of sequences, unless that was said, too.
    used = replace(usual.within(stated.get("max_num_batched_tokens"), decode_tokens), **stated)
    if not 0 < used.memory_fraction <= 1:
        raise InputError(f"memory_fraction: must be above 0 and at most 1, not {used.memory_fraction}")
    decodes = used.max_num_seqs * decode_tokens
    # The engine's own budget gives way to long prompts and many decodes, as of a scenario; one that
    # was said is checked instead.
    if "max_num_batched_tokens" not in stated:
        budget = default_budget(used.policy, used.max_num_batched_tokens, decodes, prompt_tokens)
        return replace(used, max_num_batched_tokens=budget)
    record = policy(used.policy)
    if record.whole_prompts and prompt_tokens > used.max_num_batched_tokens:
        raise InputError(
            f"max_num_batched_tokens: {used.max_num_batched_tokens:,} are fewer than the {prompt_tokens:,} of a "
            f"prompt, which policy {used.policy} computes whole; raise it or shorten the prompt"
        )
    if used.max_num_batched_tokens < decodes and not record.prefill_alone:
        drafts = f", each with {decode_tokens - 1} drafts," if decode_tokens > 1 else ""
        raise InputError(
            f"max_num_batched_tokens: {used.max_num_batched_tokens:,} are fewer than {used.max_num_seqs:,} sequences"
            f"{drafts} decode in an iteration; raise it or lower max_num_seqs"
        )
    return used
