"""Weights that one device of a replica holds, part by part of the model."""

from __future__ import annotations

from collections import defaultdict
from functools import cache

from evaluator.catalog.model import (
    CompressedAttention,
    DenseFeedForward,
    LatentAttention,
    LayerKind,
    LinearAttention,
    Mixer,
    Model,
    MoeFeedForward,
    Recurrence,
    SoftmaxAttention,
)
from evaluator.catalog.parameters import compressor_sides
from evaluator.cost.adapters import adapter_bytes
from evaluator.cost.dtypes import BYTES, weight_dtypes
from evaluator.cost.embedding_and_head import vocabulary_shard
from evaluator.cost.layer_state import conv_channels
from evaluator.cost.operators import rank_kinds
from evaluator.cost.parallel import Parallel
from evaluator.cost.precision import Precision
from evaluator.cost.projections import (
    expert_projections,
    feed_forward_projections,
    local_experts,
    local_heads,
    mixer_projections,
)


@cache
def rank_parameters(model: Model, parallel: Parallel, pipeline_rank: int) -> dict[str, float]:
    """Parameters that one device of a pipeline rank holds, by part: the keys of ``weight_dtypes``.

    Norms and biases are counted under ``router``, because they keep its 16 bits whatever the precision of the weights.
    Tensor parallelism copies norms, router, MLA's down-projections and KV heads fewer than ranks to every device, so
    that each of these counts in full here. Tables that are looked up and encoders lie on the first rank, sharded.
    """
    total: defaultdict[str, float] = defaultdict(float)
    for kind, count in rank_kinds(model, parallel.pipeline, pipeline_rank):
        for part, parameters in _layer_parameters(model, kind, parallel).items():
            # Layers that share a set of weights (``weight_sets``) hold it once for all of them.
            total[part] += parameters * (count if kind.weight_sets is None else count * kind.held / kind.count)
    table = vocabulary_shard(model, parallel.tensor) * model.hidden
    last = pipeline_rank == parallel.pipeline - 1
    if pipeline_rank == 0:
        total["embedding"] += table + model.lookup_parameters / parallel.tensor
        # Encoders are neither quantised nor split by experts: 16 bits, as ``router``.
        total["router"] += model.encoder_parameters / parallel.tensor
    if last:
        total["router"] += model.hidden  # final norm
        # A tied head is the embedding itself on a single rank; the last of several keeps a copy.
        if model.gives_tokens and not (model.tied_embeddings and pipeline_rank == 0):
            total["embedding" if model.tied_embeddings else "head"] += table
    return dict(total)


def _layer_parameters(model: Model, kind: LayerKind, parallel: Parallel) -> dict[str, float]:
    hidden = model.hidden
    total: defaultdict[str, float] = defaultdict(float)
    for projection in mixer_projections(kind.mixer, hidden, parallel) + feed_forward_projections(
        kind.feed_forward, hidden, parallel
    ):
        total[projection.part] += projection.inputs * projection.outputs
    norms = hidden * ((kind.mixer is not None) + (kind.feed_forward is not None))
    total["router"] += norms + _mixer_vectors(kind.mixer, parallel.tensor)
    if isinstance(kind.feed_forward, DenseFeedForward) and kind.feed_forward.bias:
        sides = 1 + kind.feed_forward.gated
        # Biases of the first projections are split as their outputs, that of the last is whole on every rank.
        total["router"] += sides * kind.feed_forward.intermediate // parallel.tensor + hidden
    total["router"] += hidden * (isinstance(kind.mixer, SoftmaxAttention) and kind.mixer.output_bias)
    if isinstance(kind.feed_forward, MoeFeedForward):
        routed = expert_projections(kind.feed_forward, hidden, parallel)
        held = local_experts(kind.feed_forward, parallel)
        total["experts"] += held * sum(projection.inputs * projection.outputs for projection in routed)
        total["router"] += _expert_biases(kind.feed_forward, hidden, parallel)
    return dict(total)


def _mixer_vectors(mixer: Mixer | None, tensor: int) -> int:
    """Parameters of a mixer that are in no matrix: biases, inner norms, convolutions, per-head scalars."""
    match mixer:
        case SoftmaxAttention():
            queries = mixer.heads // tensor * (1 + mixer.output_gate) * mixer.head_dim
            widths = mixer.head_dim + mixer.value_size * (not mixer.keys_as_values)
            keys = 0 if mixer.shared_kv else local_heads(mixer.kv_heads, tensor) * widths
            return mixer.bias * (queries + keys) + (mixer.q_rank or 0) + 2 * mixer.index_head_dim
        case LatentAttention():
            latent = 0 if mixer.shared_kv else mixer.kv_lora_rank
            return (mixer.q_lora_rank or 0) + latent + 2 * mixer.index_head_dim
        case CompressedAttention():
            sides = compressor_sides(mixer)
            return mixer.q_rank + mixer.head_dim + sides * mixer.head_dim * (mixer.ratio // 2)
        case Recurrence():
            return mixer.conv_kernel * conv_channels(mixer, tensor) + mixer.vectors * (mixer.width // tensor)
        case LinearAttention():
            # A decay and a bias of the step size per value head, and the weights of the gated norm.
            scalars = 2 * mixer.value_heads // tensor + mixer.value_head_dim
            return mixer.conv_kernel * conv_channels(mixer, tensor) + scalars
        case None:
            return 0
    heads = mixer.heads // tensor
    # A convolution with a bias; a decay, a skip and a step size per head; the gated norm over all heads.
    return (mixer.conv_kernel + 1) * conv_channels(mixer, tensor) + 3 * heads + heads * mixer.head_dim


def _expert_biases(moe: MoeFeedForward, hidden: int, parallel: Parallel) -> int:
    wide = sum(projection.outputs for projection in expert_projections(moe, hidden, parallel))
    return moe.bias * (local_experts(moe, parallel) * wide + moe.experts)


def weight_bytes(model: Model, precision: Precision, parallel: Parallel, pipeline_rank: int = 0) -> float:
    """Bytes of weights on one device of a pipeline rank, with the adapters that it has room for."""
    dtypes = weight_dtypes(model, precision)
    stored = sum(count * BYTES[dtypes[part]] for part, count in rank_parameters(model, parallel, pipeline_rank).items())
    return stored + resident_bytes(model, precision, parallel, pipeline_rank)


def resident_bytes(model: Model, precision: Precision, parallel: Parallel, pipeline_rank: int = 0) -> float:
    """Bytes of the places for adapters on one device of a pipeline rank; an engine sets them aside when it starts."""
    if model.adapters is None:
        return 0.0
    kinds = rank_kinds(model, parallel.pipeline, pipeline_rank)
    places = sum(count * adapter_bytes(model, kind, precision, parallel) for kind, count in kinds)
    return model.adapters.resident * places
