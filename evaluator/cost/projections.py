"""The weight matrices of a layer as one device of a tensor-parallel group holds them.

Operators and memory both read them from here. Sharding is that of Megatron-LM (arXiv:1909.08053) as in vLLM: the first
projection by columns, the last by rows; KV heads fewer than ranks are replicated; MLA's down-projections and the
router are replicated; routed experts are dealt out whole (expert parallel) and cut over the devices that are left.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from evaluator.catalog.model import (
    CompressedAttention,
    DenseFeedForward,
    FeedForward,
    LatentAttention,
    LinearAttention,
    Mixer,
    MoeFeedForward,
    Recurrence,
    SoftmaxAttention,
    StateSpace,
)
from evaluator.catalog.parameters import compressor_sides
from evaluator.cost.parallel import Parallel


@dataclass(frozen=True)
class Projection:
    """One matrix on one device: ``inputs`` x ``outputs`` of ``part`` (a key of ``weight_dtypes``)."""

    name: str
    part: str
    inputs: int
    outputs: int


def local_heads(heads: int, tensor: int) -> int:
    """Heads on one rank; those fewer than the ranks are replicated, one each."""
    return max(1, heads // tensor)


@cache
def mixer_projections(mixer: Mixer | None, hidden: int, parallel: Parallel) -> tuple[Projection, ...]:
    """Matrices of a mixer on one device; empty without a mixer."""
    tensor = parallel.tensor
    match mixer:
        case SoftmaxAttention():
            return _softmax_projections(mixer, hidden, tensor)
        case LatentAttention():
            return _latent_projections(mixer, hidden, tensor)
        case CompressedAttention():
            return _compressed_projections(mixer, hidden, tensor)
        case LinearAttention():
            keys = mixer.key_heads // tensor * mixer.key_head_dim
            values = mixer.value_heads // tensor * mixer.value_head_dim
            # A decay and a step size per value head.
            gates = 2 * mixer.value_heads // tensor
            return (
                Projection("linear_attention.in", "attention", hidden, 2 * keys + 2 * values + gates),
                Projection("linear_attention.out", "attention", values, hidden),
            )
        case StateSpace():
            inner = mixer.heads // tensor * mixer.head_dim
            groups = 2 * local_heads(mixer.groups, tensor) * mixer.state_size
            return (
                # Inputs and their gate, B and C of every group, and a step size per head.
                Projection("state_space.in", "attention", hidden, 2 * inner + groups + mixer.heads // tensor),
                Projection("state_space.out", "attention", inner, hidden),
            )
        case Recurrence():
            return _recurrence_projections(mixer, hidden, tensor)
    return ()


def _softmax_projections(mixer: SoftmaxAttention, hidden: int, tensor: int) -> tuple[Projection, ...]:
    """One matrix for queries, keys and values; queries through a rank have one more, which every rank holds."""
    inputs, local = mixer.input_width or hidden, mixer.heads // tensor
    # A gate on the output is as wide as the queries, and one product makes both.
    queries = local * mixer.head_dim * (1 + mixer.output_gate)
    widths = mixer.head_dim + mixer.value_size * (not mixer.keys_as_values)
    keys = 0 if mixer.shared_kv else local_heads(mixer.kv_heads, tensor) * widths
    out = Projection("attention.out", "attention", local * mixer.value_size, hidden)
    if mixer.q_rank is None:
        # Without a rank for queries the indexer's are made of the hidden state, too.
        indexer = _indexer_projections(mixer, hidden, hidden)
        return Projection("attention.qkv", "attention", inputs, queries + keys), *indexer, out
    return (
        Projection("attention.down", "attention", inputs, mixer.q_rank + keys),
        Projection("attention.query_up", "attention", mixer.q_rank, queries),
        out,
    )


def _recurrence_projections(mixer: Recurrence, hidden: int, tensor: int) -> tuple[Projection, ...]:
    width = mixer.width // tensor
    gates = (Projection("recurrence.gates", "attention", width, mixer.gates),) if mixer.gates else ()
    return (
        # Some have sizes that ranks do not divide; the last rank is then padded.
        Projection("recurrence.in", "attention", hidden, -(-mixer.projected // tensor)),
        *gates,
        Projection("recurrence.out", "attention", width, hidden),
    )


def _latent_projections(mixer: LatentAttention, hidden: int, tensor: int) -> tuple[Projection, ...]:
    """Query and KV down-projections are one replicated matrix, as vLLM fuses them (``fused_qkv_a_proj``)."""
    heads = mixer.heads // tensor
    query = heads * (mixer.nope_head_dim + mixer.rope_head_dim)
    latent = 0 if mixer.shared_kv else mixer.kv_lora_rank + mixer.rope_head_dim
    rank = mixer.q_lora_rank
    first = (
        (
            Projection("attention.down", "attention", hidden, rank + latent),
            Projection("attention.query_up", "attention", rank, query),
        )
        if rank
        else (
            Projection("attention.query", "attention", hidden, query),
            *((Projection("attention.down", "attention", hidden, latent),) if latent else ()),
        )
    )
    gate = (Projection("attention.gate", "attention", hidden, heads * mixer.v_head_dim),) if mixer.output_gate else ()
    return (
        *first,
        *_indexer_projections(mixer, hidden, mixer.q_lora_rank or hidden),
        *gate,
        Projection(
            "attention.kv_up", "attention", mixer.kv_lora_rank, heads * (mixer.nope_head_dim + mixer.v_head_dim)
        ),
        Projection("attention.out", "attention", heads * mixer.v_head_dim, hidden),
    )


def _compressed_projections(mixer: CompressedAttention, hidden: int, tensor: int) -> tuple[Projection, ...]:
    """Queries and output by heads; the vector of a token, compressors and indexer on every rank."""
    heads, groups = mixer.heads // tensor, local_heads(mixer.output_groups, tensor)
    first = mixer.q_rank + (1 + compressor_sides(mixer)) * mixer.head_dim
    index = mixer.index_heads * mixer.index_head_dim
    indexer = (
        Projection("attention.indexer.key", "attention", hidden, 4 * mixer.index_head_dim + mixer.index_heads),
        Projection("attention.indexer.query", "attention", mixer.q_rank, index),
    )
    return (
        Projection("attention.down", "attention", hidden, first),
        Projection("attention.query_up", "attention", mixer.q_rank, heads * mixer.head_dim),
        *(indexer if index else ()),
        # Heads are joined group by group before the last product, so that its rows are those of the groups' ranks.
        Projection("attention.out_down", "attention", heads * mixer.head_dim // groups, groups * mixer.output_rank),
        Projection("attention.out", "attention", groups * mixer.output_rank, hidden),
    )


def _indexer_projections(mixer: SoftmaxAttention | LatentAttention, hidden: int, inputs: int) -> tuple[Projection, ...]:
    """The indexer of DeepSeek-V3.2, which every rank holds whole: keys and head weights, queries of ``inputs``."""
    if not mixer.index_heads:
        return ()
    queries = mixer.index_heads * mixer.index_head_dim
    return (
        Projection("attention.indexer.key", "attention", hidden, mixer.index_head_dim + mixer.index_heads),
        Projection("attention.indexer.query", "attention", inputs, queries),
    )


@cache
def feed_forward_projections(
    feed_forward: FeedForward | None, hidden: int, parallel: Parallel
) -> tuple[Projection, ...]:
    """Matrices of a feed-forward that every token visits: the dense one, or the router and the shared experts."""
    match feed_forward:
        case DenseFeedForward():
            intermediate = feed_forward.intermediate // parallel.tensor
            block = _up_down("feed_forward", "feed_forward", hidden, intermediate, feed_forward.gated)
            branch = feed_forward.branch
            return block + (_up_down("branch", "feed_forward", hidden, branch, gated=False) if branch else ())
        case MoeFeedForward():
            shared = feed_forward.shared_intermediate // parallel.tensor
            # The router is whole on every device, since each decides for all tokens it sees.
            router = (Projection("experts.router", "router", hidden, feed_forward.experts + feed_forward.shared_gate),)
            return (
                router
                + _latent_experts(feed_forward, hidden)
                + (_up_down("shared_experts", "feed_forward", hidden, shared, feed_forward.gated) if shared else ())
            )
    return ()


def _latent_experts(moe: MoeFeedForward, hidden: int) -> tuple[Projection, ...]:
    """Into the size in which the routed experts work, and back; every rank holds both."""
    if moe.latent is None:
        return ()
    return (
        Projection("experts.latent_in", "feed_forward", hidden, moe.latent),
        Projection("experts.latent_out", "feed_forward", moe.latent, hidden),
    )


def expert_projections(moe: MoeFeedForward, hidden: int, parallel: Parallel) -> tuple[Projection, ...]:
    """Matrices of one routed expert on one device."""
    intermediate = moe.intermediate // parallel.expert_shards
    return _up_down("experts", "experts", moe.latent or hidden, intermediate, moe.gated)


def local_experts(moe: MoeFeedForward, parallel: Parallel) -> int:
    """Routed experts that one device holds, whole or in part, redundant copies among them."""
    return (moe.experts + parallel.redundant) // parallel.expert


def _up_down(name: str, part: str, hidden: int, intermediate: int, gated: bool) -> tuple[Projection, ...]:
    up = "gate_up" if gated else "up"
    return (
        Projection(f"{name}.{up}", part, hidden, intermediate * (2 if gated else 1)),
        Projection(f"{name}.down", part, intermediate, hidden),
    )
