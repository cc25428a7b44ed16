"""What fits on a device: weights, activations, and the KV cache that is left."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import ArrayLike

from evaluator.catalog.hardware import Hardware
from evaluator.catalog.model import (
    DenseFeedForward,
    FeedForward,
    LatentAttention,
    LayerKind,
    LinearAttention,
    Mixer,
    Model,
    MoeFeedForward,
    Recurrence,
    SoftmaxAttention,
)
from evaluator.cost.dtypes import BYTES, stream_bytes, weight_dtypes
from evaluator.cost.ends import vocabulary_shard
from evaluator.cost.kv import KvUnits, units
from evaluator.cost.layer_state import conv_channels, kv_bytes, state_bytes
from evaluator.cost.operators import rank_kinds
from evaluator.cost.parallel import Parallel, parallel_problem
from evaluator.cost.precision import Precision
from evaluator.cost.projections import (
    expert_projections,
    feed_forward_projections,
    local_experts,
    local_heads,
    mixer_projections,
)

RUNTIME_BYTES = 1.6e9
"""Bytes per device that an engine cannot use: what the driver keeps, CUDA context and graphs, communicators. Median of
what the KV blocks that vLLM 0.15 reported on H100 leave over for five dense models (1.0 to 2.0 GB; TP 1 to 4)."""


@cache
def rank_parameters(model: Model, parallel: Parallel, pipeline_rank: int) -> dict[str, float]:
    """Parameters that one device of a pipeline rank holds, by part: the keys of ``weight_dtypes``.

    Norms and biases are under ``router``. What tensor parallelism replicates (norms, router, MLA's down-projections,
    KV heads fewer than ranks) counts in full. Tables that are looked up and encoders are on the first rank, sharded.
    """
    total: defaultdict[str, float] = defaultdict(float)
    for kind, count in rank_kinds(model, parallel.pipeline, pipeline_rank):
        for part, parameters in _layer_parameters(model, kind, parallel).items():
            total[part] += parameters * (count if kind.weight_sets is None else count * kind.held / kind.count)
    table = vocabulary_shard(model, parallel.tensor) * model.hidden
    last = pipeline_rank == parallel.pipeline - 1
    if pipeline_rank == 0:
        total["embedding"] += table + model.lookup_parameters / parallel.tensor
        total["router"] += model.encoder_parameters / parallel.tensor
    if last:
        total["router"] += model.hidden  # final norm
        if not (model.tied_embeddings and pipeline_rank == 0):
            total["embedding" if model.tied_embeddings else "head"] += table
    return dict(total)


def _layer_parameters(model: Model, kind: LayerKind, parallel: Parallel) -> dict[str, float]:
    hidden = model.hidden
    total: defaultdict[str, float] = defaultdict(float)
    for each in mixer_projections(kind.mixer, hidden, parallel) + feed_forward_projections(
        kind.feed_forward, hidden, parallel
    ):
        total[each.part] += each.inputs * each.outputs
    norms = hidden * ((kind.mixer is not None) + (kind.feed_forward is not None))
    total["router"] += norms + _mixer_vectors(kind.mixer, parallel.tensor)
    if isinstance(kind.feed_forward, DenseFeedForward) and kind.feed_forward.bias:
        sides = 1 + kind.feed_forward.gated
        total["router"] += sides * kind.feed_forward.intermediate // parallel.tensor + hidden
    total["router"] += hidden * (isinstance(kind.mixer, SoftmaxAttention) and kind.mixer.output_bias)
    if isinstance(kind.feed_forward, MoeFeedForward):
        routed = expert_projections(kind.feed_forward, hidden, parallel)
        held = local_experts(kind.feed_forward, parallel)
        total["experts"] += held * sum(each.inputs * each.outputs for each in routed)
        total["router"] += _expert_biases(kind.feed_forward, hidden, parallel)
    return dict(total)


def _mixer_vectors(mixer: Mixer | None, tensor: int) -> int:
    """Parameters of a mixer that are in no matrix: biases, inner norms, convolutions, per-head scalars."""
    match mixer:
        case SoftmaxAttention():
            queries = mixer.heads // tensor * (1 + mixer.output_gate) * mixer.head_dim
            widths = mixer.head_dim + mixer.value_size * (not mixer.keys_as_values)
            keys = 0 if mixer.shared_kv else local_heads(mixer.kv_heads, tensor) * widths
            return mixer.bias * (queries + keys) + (mixer.q_rank or 0)
        case LatentAttention():
            return (mixer.q_lora_rank or 0) + mixer.kv_lora_rank + 2 * mixer.index_head_dim
        case Recurrence():
            return mixer.conv_kernel * conv_channels(mixer, tensor) + mixer.vectors * (mixer.width // tensor)
        case LinearAttention():
            own = 2 * mixer.value_heads // tensor + mixer.value_head_dim
            return mixer.conv_kernel * conv_channels(mixer, tensor) + own
        case None:
            return 0
    heads = mixer.heads // tensor
    return (mixer.conv_kernel + 1) * conv_channels(mixer, tensor) + 3 * heads + heads * mixer.head_dim


def _expert_biases(moe: MoeFeedForward, hidden: int, parallel: Parallel) -> int:
    wide = sum(each.outputs for each in expert_projections(moe, hidden, parallel))
    return moe.bias * (local_experts(moe, parallel) * wide + moe.experts)


def weight_bytes(model: Model, precision: Precision, parallel: Parallel, pipeline_rank: int = 0) -> float:
    """Bytes of weights on one device of a pipeline rank."""
    dtypes = weight_dtypes(model.checkpoint, precision)
    return sum(count * BYTES[dtypes[part]] for part, count in rank_parameters(model, parallel, pipeline_rank).items())


def model_window(model: Model) -> int | None:
    """How many tokens windowed layers attend to, or sparse ones choose (the most, should they differ); None without."""
    mixers = (kind.mixer for kind in model.layers)
    limits = (_attended(mixer) for mixer in mixers)
    return max((limit for limit in limits if limit is not None), default=None)


def _attended(mixer: Mixer | None) -> int | None:
    if isinstance(mixer, LatentAttention) and mixer.index_top_k is not None:
        return mixer.index_top_k
    return mixer.window if isinstance(mixer, SoftmaxAttention | LatentAttention) else None


def _windowed(mixer: Mixer | None) -> bool:
    """Whether a layer keeps its window only; sparse attention keeps every token, any of which it may choose."""
    return isinstance(mixer, SoftmaxAttention | LatentAttention) and mixer.window is not None


def kv_bytes_per_token(model: Model, kv: str, tensor: int = 1) -> float:
    """Bytes of KV per token over all layers on one of ``tensor`` ranks; tensor 1: of the whole model."""
    return sum(kind.count * kv_bytes(kind.mixer, kv, tensor) for kind in model.layers)


def activation_bytes(
    model: Model, precision: Precision, parallel: Parallel, max_num_batched_tokens: int, max_num_seqs: int
) -> float:
    """Peak of the activations on one device, bytes: an estimate, where an engine would measure by a dry run.

    Per token of the largest batch the residual stream twice and the widest layer's intermediate values (both sides
    of the gate and its product; for experts those of all visited ones and their outputs), in 16 bits; per sequence
    the logits in 16 bits and in fp32.
    """
    widest = max(
        max(_mixer_width(model, kind.mixer, parallel), _feed_forward_width(model, kind.feed_forward, parallel))
        for kind in model.layers
    )
    per_token = (2 * model.hidden + widest) * stream_bytes(precision.activations)
    return max_num_batched_tokens * per_token + min(max_num_seqs, max_num_batched_tokens) * model.vocabulary * 6.0


def _mixer_width(model: Model, mixer: Mixer | None, parallel: Parallel) -> float:
    """Outputs of the largest projection and inputs of the last one."""
    found = mixer_projections(mixer, model.hidden, parallel)
    return max(each.outputs for each in found) + found[-1].inputs if found else 0


def _feed_forward_width(model: Model, feed_forward: FeedForward | None, parallel: Parallel) -> float:
    if feed_forward is None:
        return 0
    sides = 3 if feed_forward.gated else 2
    if isinstance(feed_forward, DenseFeedForward):
        return sides * feed_forward.intermediate / parallel.tensor
    visits = feed_forward.experts_per_token / parallel.expert
    cut = 1 if parallel.expert > 1 else parallel.tensor
    shared = sides * feed_forward.shared_intermediate / parallel.tensor
    return visits * (sides * feed_forward.intermediate / cut + model.hidden) + shared


@dataclass(frozen=True)
class KvLayout:
    """What sequences keep on one device of the pipeline rank that has least room, and how much of it there is.

    A unit is ``block_tokens`` tokens in every attention layer (one sequence's state, in a model without KV).
    """

    bytes_per_token_full: float
    bytes_per_token_window: float
    window: int | None
    bytes_per_sequence: float
    block_tokens: int
    unit_bytes: float
    capacity_units: int

    @property
    def capacity_tokens(self) -> float:
        """Tokens of KV that fit where every one is kept in every layer; inf for a model without KV."""
        has_kv = self.bytes_per_token_full + self.bytes_per_token_window > 0
        return float(self.capacity_units * self.block_tokens) if has_kv else math.inf


@dataclass(frozen=True)
class MemoryPlan:
    """One device of the pipeline rank that has least room, bytes: what there is and who takes it.

    ``activation_bytes`` is all that is neither weights nor KV: the activations, and what the engine itself takes.
    """

    pipeline_rank: int
    usable_bytes: float
    weight_bytes: float
    activation_bytes: float
    kv: KvLayout


def memory_plan(
    model: Model,
    hardware: Hardware,
    precision: Precision,
    parallel: Parallel,
    *,
    memory_fraction: float = 0.9,
    block_tokens: int = 16,
    max_num_batched_tokens: int = 2048,
    max_num_seqs: int = 256,
) -> MemoryPlan:
    """Weights, activations and KV capacity per device; the capacity is 0 where the other two leave nothing."""
    usable = memory_fraction * hardware.memory_bytes
    active = RUNTIME_BYTES + activation_bytes(model, precision, parallel, max_num_batched_tokens, max_num_seqs)
    plans = []
    for pipeline_rank in range(parallel.pipeline):
        weights = weight_bytes(model, precision, parallel, pipeline_rank)
        layout = _layout(model, precision, parallel, pipeline_rank, block_tokens, usable - weights - active)
        plans.append(MemoryPlan(pipeline_rank, usable, weights, active, layout))
    return min(plans, key=lambda plan: (plan.kv.capacity_units, plan.usable_bytes - plan.weight_bytes))


def _layout(
    model: Model, precision: Precision, parallel: Parallel, pipeline_rank: int, block_tokens: int, free: float
) -> KvLayout:
    full = window = per_sequence = 0.0
    for kind, count in rank_kinds(model, parallel.pipeline, pipeline_rank):
        size = count * kv_bytes(kind.mixer, precision.kv, parallel.tensor)
        if _windowed(kind.mixer):
            window += size
        else:
            full += size
        per_sequence += count * state_bytes(kind.mixer, precision.activations, parallel.tensor)
    unit = block_tokens * (full + window) or per_sequence
    capacity = max(0, math.floor(free / unit * (1 + 1e-12)))
    return KvLayout(full, window, model_window(model), per_sequence, block_tokens, unit, capacity)


def units_of(layout: KvLayout) -> KvUnits:
    """The layout as the formula of the units takes it."""
    block = layout.block_tokens
    full, window, sequence = layout.bytes_per_token_full, layout.bytes_per_token_window, layout.bytes_per_sequence
    return KvUnits(block, full, window, math.ceil((layout.window or 0) / block) * block, sequence, layout.unit_bytes)


def kv_units(layout: KvLayout, tokens: ArrayLike) -> np.ndarray:
    """Units that a sequence of ``tokens`` tokens occupies (any shape), int64."""
    return units(units_of(layout), np.asarray(tokens, dtype=np.float64)).astype(np.int64)


def memory_problem(
    model: Model,
    hardware: Hardware,
    precision: Precision,
    parallel: Parallel,
    plan: MemoryPlan,
    *,
    may_pipeline: bool = True,
) -> str | None:
    """Why the model does not fit on these devices and what would help; None where it fits and leaves room for KV.

    ``may_pipeline``: whether more pipeline ranks are a remedy that the caller can simulate.
    """
    if plan.kv.capacity_units > 0:
        return None
    budget = f"the {plan.usable_bytes / 1e9:.1f} GB usable of {hardware.memory_bytes / 1e9:.0f} GB on {hardware.name}"
    if plan.weight_bytes > plan.usable_bytes:
        reason = f"{plan.weight_bytes / 1e9:.1f} GB of weights per device exceed {budget}"
    else:
        reason = (
            f"{plan.weight_bytes / 1e9:.1f} GB of weights and {plan.activation_bytes / 1e9:.1f} GB of activations "
            f"per device leave no room for KV in {budget}"
        )
    return f"does not fit: {reason}; remedy: {_remedy(model, hardware, precision, parallel, plan, may_pipeline)}"


def _remedy(
    model: Model, hardware: Hardware, precision: Precision, parallel: Parallel, plan: MemoryPlan, may_pipeline: bool
) -> str:
    """The smallest larger tensor or pipeline parallelism that the model can be split by and that fits, if any."""
    wider = [Parallel(n, parallel.pipeline, n if parallel.expert > 1 else 1) for n in _larger(parallel.tensor)]
    deeper = [Parallel(parallel.tensor, n, parallel.expert) for n in _larger(parallel.pipeline) if may_pipeline]

    def fits(split: Parallel) -> bool:
        if parallel_problem(model, hardware, split):
            return False
        worst = max(weight_bytes(model, precision, split, pipeline_rank) for pipeline_rank in range(split.pipeline))
        return worst + plan.activation_bytes < plan.usable_bytes

    found = [f"tensor_parallel >= {split.tensor}" for split in wider if fits(split)][:1]
    found += [f"pipeline_parallel >= {split.pipeline}" for split in deeper if fits(split)][:1]
    return " or ".join(found) or "narrower weights, fewer batched tokens or devices with more memory"


def _larger(size: int) -> list[int]:
    return [wider for wider in (2, 4, 8, 16, 32) if wider > size]
