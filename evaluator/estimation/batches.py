"""Seconds of iterations by what is in their batches, for a replica of a design."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evaluator.catalog import Calibration
from evaluator.catalog.attention_kernels import AUTO, BACKENDS
from evaluator.catalog.engines import DEFAULT_ENGINE
from evaluator.catalog.hardware import Hardware
from evaluator.catalog.model import Model
from evaluator.cost.batch import decode_batch, prefill_batch, together
from evaluator.cost.iteration import iteration_time as time_of
from evaluator.cost.memory import model_window
from evaluator.cost.parallel import EXCHANGES, GATHER, Parallel
from evaluator.cost.precision import Precision
from evaluator.errors import InputError
from evaluator.estimation.drafts import read_speculative
from evaluator.keys import Place
from evaluator.replica import ReplicaSpec, build, passage
from evaluator.replica.scenario import deals_decodes, overlap
from evaluator.scenario.adapters import Lora, NamedAdapters, read_adapters
from evaluator.scenario.feed_forward_apart import FeedForwardApart, read_apart
from evaluator.scenario.token_sampling import TokenSampling, asked_of_sampler
from evaluator.speculation import Speculative


def iteration_time(
    model: Model | str,
    hardware: Hardware | str,
    *,
    prompt_tokens: ArrayLike = 0,
    history_tokens: ArrayLike = 0,
    prompts: ArrayLike = 1,
    decodes: ArrayLike = 0,
    context_tokens: ArrayLike = 0,
    calibration: Calibration | str = "auto",
    engine: str = DEFAULT_ENGINE,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    expert_parallel: int = 1,
    data_parallel: int = 1,
    redundant_experts: int = 0,
    expert_exchange: str = GATHER,
    decode_context_parallel: int = 1,
    prefill_context_parallel: int = 1,
    precision: Precision | None = None,
    eager: bool = False,
    lora: Lora | Mapping[str, Any] | None = None,
    adapters: NamedAdapters | Mapping[str, Any] | None = None,
    speculative: Speculative | Mapping[str, Any] | None = None,
    sampling: TokenSampling | Mapping[str, Any] | None = None,
    attention_backend: str = AUTO,
    feed_forward_apart: FeedForwardApart | Mapping[str, Any] | None = None,
    unequal: float | None = None,
    engine_version: str | None = None,
    two_batch_overlap: bool = False,
) -> NDArray[np.float64]:
    """Seconds of one iteration for each batch of an array, of the common shape of the columns that say what is in it.

    A batch has ``prompts`` pieces of prompts, each of which computes ``prompt_tokens`` tokens behind ``history_tokens``
    whose KV is there (chunks before it, a cached prefix), and ``decodes`` sequences, each of which attends to
    ``context_tokens`` tokens, the new one included. Where ``prompt_tokens`` is 0 there are no prompts. Of a pipeline it
    is the time through all ranks, of data-parallel ranks that of ranks with such a batch each. ``unequal``: how much
    longer than the mean the longest context of a batch is, of the mean; None: as in a chat, where the calibration set
    knows what it costs. The time is affine in it. ``engine_version``: as in ``estimate``. ``lora`` and ``adapters`` are
    ``deployment.lora`` and ``workload.adapters``, of which a batch names as many as are expected, and ``max_loras`` at
    most; ``attention_backend``, ``feed_forward_apart`` and ``two_batch_overlap`` are keys of a deployment, too. Model,
    hardware and calibration are names of the catalog, or what its readers return; memory is not looked at.

    >>> iteration_time("llama-3.1-8b", "h100-sxm", prompt_tokens=[2048, 0], decodes=[0, 64], context_tokens=1000)

    Errors: InputError for numbers below 0, a batch with nothing in it, and designs whose times are not known.
    """
    given = _columns({"prompt_tokens": prompt_tokens, "history_tokens": history_tokens, "prompts": prompts,
                      "decodes": decodes, "context_tokens": context_tokens})  # fmt: skip
    drafts = read_speculative(speculative)
    layout = read_layout(
        tensor_parallel, pipeline_parallel, expert_parallel, data_parallel, redundant_experts, expert_exchange,
        decode_context_parallel, prefill_context_parallel, attention_backend, engine, engine_version,
        two_batch_overlap,
    )  # fmt: skip
    spec = ReplicaSpec(
        model, hardware, calibration, precision or Precision(), layout, engine=engine,
        drafting=None if drafts is None else drafts.drafting,
        asked=asked_of_sampler(sampling, Place("iteration_time", "sampling")),
        eager=eager,
        unequal=unequal,
        adapters=read_adapters(lora, adapters, Place("iteration_time", "")),
        engine_version=engine_version,
        attention_backend=attention_backend,
        apart=read_apart(feed_forward_apart, Place("iteration_time", "feed_forward_apart")),
    )  # fmt: skip
    if unequal is not None and not (np.isfinite(unequal) and unequal >= 0.0):
        raise InputError(f"unequal: must be finite and not negative, not {unequal}")
    built = build(spec)
    if built.memory is None:
        # Whether the memory holds it is another question: here only the time must be known.
        raise InputError(built.reason)
    window = model_window(built.model)
    computed = prefill_batch(given["prompts"], given["prompt_tokens"], window, given["history_tokens"])
    decoded = decode_batch(given["decodes"], given["context_tokens"], window)
    return np.asarray(time_of(passage(built).cost, together(computed, decoded)), dtype=float)


def read_layout(
    tensor_parallel: int,
    pipeline_parallel: int,
    expert_parallel: int,
    data_parallel: int,
    redundant_experts: int,
    expert_exchange: str,
    decode_context_parallel: int,
    prefill_context_parallel: int,
    attention_backend: str,
    engine: str,
    engine_version: str | None,
    two_batch_overlap: bool,
) -> Parallel:
    """How a replica is split over devices. InputError for kernels that are not known, and for a number of devices that
    is not a whole one from 1 on."""
    for name, kernels, known_kernels in (
        ("expert_exchange", expert_exchange, EXCHANGES),
        ("attention_backend", attention_backend, BACKENDS),
    ):
        if kernels not in known_kernels:
            raise InputError(f"{name}: must be one of {', '.join(known_kernels)}, not {kernels}")
    devices = {"tensor_parallel": tensor_parallel, "pipeline_parallel": pipeline_parallel,
               "expert_parallel": expert_parallel, "data_parallel": data_parallel,
               "decode_context_parallel": decode_context_parallel,
               "prefill_context_parallel": prefill_context_parallel}  # fmt: skip
    for name, number in devices.items():
        if isinstance(number, bool) or not isinstance(number, int | np.integer) or number < 1:
            raise InputError(f"{name}: must be a whole number of at least 1, not {number!r}")
    return Parallel(
        tensor_parallel, pipeline_parallel, expert_parallel, data_parallel, redundant_experts, expert_exchange,
        decode_context_parallel, prefill_context_parallel,
        prefill_context_parallel > 1 and deals_decodes(engine, engine_version),
        overlap(engine, expert_exchange) if two_batch_overlap else None,
    )  # fmt: skip


def _columns(columns: Mapping[str, ArrayLike]) -> dict[str, NDArray[np.float64]]:
    """The columns of ``iteration_time`` in one shape, with no prompts where these have no tokens."""
    try:
        given = dict(zip(columns, np.broadcast_arrays(*(np.asarray(column, float) for column in columns.values())),
                         strict=True))  # fmt: skip
    except ValueError as error:
        raise InputError(f"{', '.join(columns)}: numbers or arrays of one shape are needed: {error}") from None
    for name, values in given.items():
        if not (np.isfinite(values) & (values >= 0)).all():
            raise InputError(f"{name}: must be finite and not negative")
    # Columns broadcast, so that a batch of decodes alone has ``prompts`` of the others beside its 0 prompt tokens.
    given["prompts"] = np.where(given["prompt_tokens"] > 0, given["prompts"], 0.0)
    if not (given["prompts"] + given["decodes"] > 0).all():
        raise InputError("prompt_tokens, decodes: a batch needs prompt tokens or decodes")
    return given
