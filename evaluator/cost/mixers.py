"""Operators of one layer's mixer: attention of every kind, or a recurrence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, NamedTuple

from evaluator.catalog.model import (
    CompressedAttention,
    LatentAttention,
    LinearAttention,
    Mixer,
    Model,
    Recurrence,
    RecurrenceForm,
    SoftmaxAttention,
    StateSpace,
)
from evaluator.catalog.parameters import compressor_sides
from evaluator.cost.context_parallel import split_along_context
from evaluator.cost.dtypes import BYTES, compute_dtype, stream_bytes, wider
from evaluator.cost.gemm import all_reduce, gemm, traffic
from evaluator.cost.kernel import OpClass, Operator, Scaling
from evaluator.cost.layer_state import conv_channels, indexer_bytes, read_bytes, state_bytes, state_elements
from evaluator.cost.parallel import Parallel
from evaluator.cost.precision import Precision
from evaluator.cost.prefill_context import expand_again, gather_keys
from evaluator.cost.projections import local_heads, mixer_projections

Phase = Literal["prefill", "decode"]

_ATTENTION_LAUNCH = Operator("attention.launch", "attention_decode", "linear_tokens")
"""Starting the attention kernel: apart from its work, which is proportional to the context and nothing else."""
_INDEXER_LAUNCH = Operator("attention.indexer.launch", "attention_prefill", "linear_tokens")
_LATENT_LAUNCH = replace(_ATTENTION_LAUNCH, op_class="mla_decode")


def mixer_operators(model: Model, mixer: Mixer | None, precision: Precision, parallel: Parallel) -> list[Operator]:
    """All operators of one layer's mixer on one device, its norm and its all-reduce included."""
    match mixer:
        case SoftmaxAttention():
            core = _softmax_attention(model, mixer, precision, parallel.tensor)
        case LatentAttention():
            core = _latent_attention(model, mixer, precision, parallel.tensor)
        case CompressedAttention():
            core = _compressed_attention(model, mixer, precision, parallel.tensor)
        case LinearAttention():
            core = _linear_attention(model, mixer, precision, parallel.tensor)
        case StateSpace():
            core = _state_space(model, mixer, precision, parallel.tensor)
        case Recurrence():
            core = _other_recurrence(model, mixer, precision, parallel.tensor)
        case _:
            return []
    if parallel.context > 1 and isinstance(mixer, SoftmaxAttention | LatentAttention):
        core = split_along_context(core, mixer, precision, parallel)
    if parallel.prefill > 1 and isinstance(mixer, SoftmaxAttention | LatentAttention):
        core = gather_keys(core, mixer, precision, parallel)
    products = [
        # The one product that decodes do in another form than prompts: MLA absorbs it into queries and output.
        gemm(projection, model, precision, absorbed=projection.name == "attention.kv_up")
        for projection in mixer_projections(mixer, model.hidden, parallel)
    ]
    if parallel.prefill > 1:
        products += expand_again(products, parallel)
    return products + core + list(all_reduce("attention.all_reduce", model, precision, parallel))


def _attention_dtype(precision: Precision) -> str:
    """Scores and values are computed in the wider of the KV and the activation dtype."""
    dtype = wider(precision.kv, precision.activations)
    return compute_dtype(dtype, dtype)


def _softmax_attention(model: Model, mixer: SoftmaxAttention, precision: Precision, tensor: int) -> list[Operator]:
    """FlashAttention (arXiv:2205.14135): 2 d FLOPs for a score and 2 d for its value, per head and attended token.

    KV is read once per head group, also by a layer that shares an earlier one's and stores none. Chunks and decodes
    share one kernel, started once per layer whatever the batch.

    Without a mask (``bidirectional``) a text of n tokens has n^2 pairs. The batch counts causal ones, n (n + 1) / 2,
    of which twice the work is taken, n (n + 1): 1/n too much of the attention. Such a model has no decodes.
    """
    heads, kv_heads = mixer.heads // tensor, local_heads(mixer.kv_heads, tensor)
    stream, dim = stream_bytes(precision.activations), mixer.head_dim
    flops, read = 2.0 * heads * (dim + mixer.value_size), read_bytes(mixer, precision.kv, tensor)
    dtype = _attention_dtype(precision)
    # To the engine a choice of the best tokens is a window: both bound how many tokens a query attends to.
    window = mixer.window is not None or mixer.index_top_k is not None
    suffix = "" if not window else "_window" if mixer.window is not None else "_sparse"
    gate = 3 * heads * dim if mixer.output_gate else 0
    keys = 0 if mixer.shared_kv else kv_heads
    # vLLM up to 0.24 normalises queries and keys before it rotates them, in a kernel of its own
    # (``PassConfig.enable_qk_norm_rope_fusion`` is off).
    in_place = 2 * (heads + keys) * dim
    elements = (
        4 * model.hidden  # norm with the residual added: two read, two written
        + in_place * (1 + mixer.qk_norm)  # rotary embedding
        + gate
    )
    # A layer that shares KV reads that of an earlier one and writes none.
    stored = 0.0 if mixer.shared_kv or mixer.bidirectional else read
    # Queries and output, new keys and values read and stored.
    token_bytes = (heads + keys) * (dim + mixer.value_size) * stream + stored
    around = [
        _ATTENTION_LAUNCH,
        traffic("attention.elementwise", elements * stream, 3.0 + mixer.output_gate + mixer.qk_norm),
    ]
    prefill = Operator(
        f"attention.prefill{suffix}", "attention_prefill", "prefill_window" if window else "prefill", dtype=dtype,
        flops=flops, activation_bytes=read, launches=0.0, heads=heads, kv_heads=kv_heads, token_bytes=token_bytes,
        query_elements=heads * dim,
    )  # fmt: skip
    # Without decodes there is no kernel for them, and no edge of a mask to lose half a tile at.
    if mixer.bidirectional:
        return [replace(prefill, flops=2.0 * flops, masked=False), *around]
    return [
        prefill,
        Operator(f"attention.decode{suffix}", "attention_decode", "decode_window" if window else "decode",
                 dtype=dtype, flops=flops, activation_bytes=read, launches=0.0, heads=heads, kv_heads=kv_heads,
                 token_bytes=token_bytes),
        *_indexer(mixer),
        *around,
    ]  # fmt: skip


def _latent_attention(model: Model, mixer: LatentAttention, precision: Precision, tensor: int) -> list[Operator]:
    """MLA, DeepSeek-V2 (arXiv:2405.04434, sections 2.1 and 2.1.2 on absorbing the up-projections).

    Prefill runs on heads expanded by ``kv_up`` (scores of nope + rope dims, values of v dims), whose keys and values it
    reads. Decode absorbs ``kv_up`` into query and output and is multi-query attention on the latent: scores of
    rank + rope dims, values of rank dims; the latent is read once. What ``kv_up`` costs on a token is the same in both.
    Expanding a chunk's history again is not counted. Sparse attention: see ``_sparse_attention``.
    """
    heads, rank, rope = mixer.heads // tensor, mixer.kv_lora_rank, mixer.rope_head_dim
    elements = (
        4 * model.hidden
        + 2 * ((mixer.q_lora_rank or 0) + rank)  # norms of the two compressed vectors
        + 2 * (heads + 1) * rope
        + 3 * heads * mixer.v_head_dim * mixer.output_gate
    )
    elementwise = traffic("attention.elementwise", elements * stream_bytes(precision.activations), 4.0)
    if mixer.index_top_k is not None:
        return [*_sparse_attention(mixer, precision, tensor), _ATTENTION_LAUNCH, elementwise]
    return [*latent_kernels(mixer, precision, tensor), _LATENT_LAUNCH, elementwise]


def latent_kernels(mixer: LatentAttention, precision: Precision, tensor: int = 1) -> tuple[Operator, Operator]:
    """The kernels of MLA proper on one of ``tensor`` ranks, of prefill and of decode: see ``_latent_attention``."""
    heads, rank, rope = mixer.heads // tensor, mixer.kv_lora_rank, mixer.rope_head_dim
    stream, latent = stream_bytes(precision.activations), read_bytes(mixer, precision.kv, tensor)
    dtype = _attention_dtype(precision)
    key, value = mixer.nope_head_dim + rope, mixer.v_head_dim
    suffix: Literal["", "_window"] = "_window" if mixer.window is not None else ""
    prefill: Scaling = "prefill_window" if suffix else "prefill"
    decode: Scaling = "decode_window" if suffix else "decode"
    # The latent, read and stored; the attention kernel's queries and output.
    # Two kernels, two counts of heads: prompts expand the latent to all heads, decodes are multi-query (one KV head).
    token_bytes = (rank + rope + heads * (key + value)) * stream + (0.0 if mixer.shared_kv else latent)
    return (
        Operator(f"attention.prefill{suffix}", "mla_prefill", prefill, dtype=dtype,
                 flops=2.0 * heads * (key + value), activation_bytes=latent + heads * (key + value) * stream,
                 launches=0.0, heads=heads, kv_heads=heads, token_bytes=token_bytes),
        Operator(f"attention.decode{suffix}", "mla_decode", decode, dtype=dtype,
                 flops=2.0 * heads * (2 * rank + rope), activation_bytes=latent, launches=0.0, heads=heads, kv_heads=1,
                 token_bytes=token_bytes),
    )  # fmt: skip


def _sparse_attention(mixer: LatentAttention, precision: Precision, tensor: int) -> list[Operator]:
    """DeepSeek Sparse Attention (DeepSeek-V3.2, arXiv:2512.02556, section 2.1).

    Attention proper sees min(context, ``index_top_k``) tokens, as if they were a window, in prefill as in decode with
    the absorbed ``kv_up`` (multi-query attention on the latent, as FlashMLA's sparse kernels). The indexer's product
    of every query with every key of the context, 2 d FLOPs per indexer head, runs in fp8 on every rank, and reads the
    indexer's keys. Choosing the best is not counted.
    """
    heads, rank, rope = mixer.heads // tensor, mixer.kv_lora_rank, mixer.rope_head_dim
    latent, dtype = read_bytes(mixer, precision.kv, tensor), _attention_dtype(precision)
    stored = 0.0 if mixer.shared_kv else latent
    token_bytes = (rank + rope + heads * (2 * rank + rope)) * stream_bytes(precision.activations) + stored
    flops = 2.0 * heads * (2 * rank + rope)
    operators = [
        Operator("attention.prefill_sparse", "attention_prefill", "prefill_window", dtype=dtype, flops=flops,
                 activation_bytes=latent, launches=0.0, heads=heads, kv_heads=1, token_bytes=token_bytes),
        Operator("attention.decode_sparse", "attention_decode", "decode_window", dtype=dtype, flops=flops,
                 activation_bytes=latent, launches=0.0, heads=heads, kv_heads=1, token_bytes=token_bytes),
    ]  # fmt: skip
    return [*operators, *_indexer(mixer)]


def _compressed_attention(
    model: Model, mixer: CompressedAttention, precision: Precision, tensor: int
) -> list[Operator]:
    """DeepSeek-V4: as ``_sparse_attention`` on its vectors: those of the window and the chosen entries (``near_share``
    of each of the last ``reach`` tokens), or all entries, one per ``ratio`` tokens of the context.

    Scaling by the reach is exact once the context is as long. Compressing is counted as moving its inputs.
    """
    heads, dim = mixer.heads // tensor, mixer.head_dim
    vector, dtype = dim * BYTES[precision.kv], _attention_dtype(precision)
    stream = stream_bytes(precision.activations)
    token_bytes, flops = (dim + 2 * heads * dim) * stream + vector, 4.0 * heads * dim
    # With an indexer the chosen entries count as near; without one all entries are read.
    far = 1.0 / mixer.ratio if mixer.ratio and not mixer.index_heads else 0.0

    def kernel(phase: Phase, scaling: Scaling, name: str, share: float) -> Operator:
        of: OpClass = "attention_prefill" if phase == "prefill" else "attention_decode"
        return Operator(f"attention.{phase}_{name}", of, scaling, dtype=dtype, flops=flops * share,
                        activation_bytes=vector * share, launches=0.0, heads=heads, kv_heads=1,
                        token_bytes=token_bytes if name == "near" else 0.0)  # fmt: skip

    near = [
        kernel("prefill", "prefill_window", "near", mixer.near_share),
        kernel("decode", "decode_window", "near", mixer.near_share),
    ]
    all_entries = [kernel("prefill", "prefill", "far", far), kernel("decode", "decode", "far", far)] if far else []
    # The indexer scores entries, of which there is one per ``ratio`` tokens.
    indexer = [
        replace(operator, flops=operator.flops / mixer.ratio, activation_bytes=operator.activation_bytes / mixer.ratio)
        for operator in _indexer(mixer)
    ]
    elements = 4 * model.hidden + 2 * mixer.q_rank + 2 * heads * dim + compressor_sides(mixer) * dim
    around = [_ATTENTION_LAUNCH, traffic("attention.elementwise", elements * stream, 5.0)]
    return [*near, *all_entries, *indexer, *around]


def _indexer(mixer: SoftmaxAttention | LatentAttention | CompressedAttention) -> list[Operator]:
    """The scores of an indexer over the whole context; none without one, or where an earlier layer's choice holds."""
    if not mixer.index_heads:
        return []
    score, key = 2.0 * mixer.index_heads * mixer.index_head_dim, indexer_bytes(mixer)
    return [
        Operator("attention.indexer.prefill", "attention_prefill", "prefill", dtype="fp8", flops=score,
                 activation_bytes=key, launches=0.0),
        Operator("attention.indexer.decode", "attention_decode", "decode", dtype="fp8", flops=score,
                 activation_bytes=key, launches=0.0),
        _INDEXER_LAUNCH,
    ]  # fmt: skip


def _linear_attention(model: Model, mixer: LinearAttention, precision: Precision, tensor: int) -> list[Operator]:
    """Gated delta rule (arXiv:2412.06464): per state element and token 7 FLOPs.

    Decay 1, read the old value for the key 2, add the outer product 2, read out for the query 2. The extra work inside
    the chunks of the parallel form is not counted.
    """
    values = mixer.value_heads // tensor * mixer.value_head_dim
    inside = conv_channels(mixer, tensor) + values  # the recurrence's inputs and output; the gated norm moves 3 more
    return _recurrence(model, mixer, precision, tensor, _Update("linear_attention", 7.0, inside + 3 * values))


def _state_space(model: Model, mixer: StateSpace, precision: Precision, tensor: int) -> list[Operator]:
    """Mamba-2 (arXiv:2405.21060): per state element and token 5 FLOPs: decay 1, add the outer product 2, read out 2."""
    inner = mixer.heads // tensor * mixer.head_dim
    inside = conv_channels(mixer, tensor) + inner
    return _recurrence(model, mixer, precision, tensor, _Update("state_space", 5.0, inside + 3 * inner))


class _Update(NamedTuple):
    """What a token does to a recurrent state."""

    name: str  # of the mixer, first part of its operators' names
    flops: float  # per element of the state
    elements: int  # that the recurrence and its gated norm move


_STATE_FLOPS: Mapping[RecurrenceForm, float] = {
    "selective_scan": 8.0,  # step x A and its exponential 2, step x B x input 2, decay 1, add 1, read out 2
    "lightning": 5.0,  # as Mamba-2: decay 1, add the outer product 2, read out 2
    "kimi_delta": 7.0,  # as the gated delta rule, whose decay is a vector here
    "mlstm": 5.0,  # forget 1, add the outer product 2, read out 2
    "rg_lru": 4.0,  # decay 1, scaled and gated input 2, add 1
    "rwkv": 8.0,  # numerator and denominator: decay, exponential of the key, add, each with the running maximum
    "short_convolution": 0.0,
}
"""FLOPs per state element and token, counted from the equations of the papers that ``Recurrence`` names."""


def _other_recurrence(model: Model, mixer: Recurrence, precision: Precision, tensor: int) -> list[Operator]:
    """Inputs, outputs and a gate of the recurrence move once per token; see ``_STATE_FLOPS``."""
    width = mixer.width // tensor
    inside = mixer.projected // tensor + width
    flops = _STATE_FLOPS[mixer.form]
    return _recurrence(model, mixer, precision, tensor, _Update("recurrence", flops, inside + 3 * width))


def _recurrence(
    model: Model, mixer: LinearAttention | StateSpace | Recurrence, precision: Precision, tensor: int, update: _Update
) -> list[Operator]:
    """A state of fixed size: updated by every token (FLOPs), read and written once per sequence (bytes)."""
    stream = stream_bytes(precision.activations)
    convolution = 2 * conv_channels(mixer, tensor)
    dtype = compute_dtype(precision.activations, precision.activations)
    return [
        # No set measures these kernels: the FLOP efficiency of prefill attention and the bandwidth of decode stand in.
        Operator(f"{update.name}.update", "attention_prefill", "linear_tokens", dtype=dtype, launches=0.0,
                 flops=update.flops * state_elements(mixer, tensor)),
        Operator(f"{update.name}.state", "attention_decode", "linear_sequences",
                 activation_bytes=2.0 * state_bytes(mixer, precision.activations, tensor)),
        traffic(f"{update.name}.elementwise", (4 * model.hidden + convolution + update.elements) * stream, 3.0),
    ]  # fmt: skip
