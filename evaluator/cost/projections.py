"""The weight matrices of a layer as one device of a tensor-parallel group holds them.

Operators and memory both read them from here. Sharding is that of Megatron-LM (arXiv:1909.08053) as in vLLM: the first
projection by columns, the last by rows; KV heads fewer than ranks are replicated; MLA's down-projections and the
router are replicated; routed experts are cut (tensor parallel) or dealt out whole (expert parallel).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from evaluator.catalog.model import (
    DenseFeedForward,
    FeedForward,
    LatentAttention,
    LinearAttention,
    Mixer,
    MoeFeedForward,
    SoftmaxAttention,
    StateSpace,
)
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
            queries = mixer.heads // tensor * mixer.head_dim
            keys = local_heads(mixer.kv_heads, tensor) * mixer.head_dim
            return (
                Projection("attention.qkv", "attention", hidden, queries * (1 + mixer.output_gate) + 2 * keys),
                Projection("attention.out", "attention", queries, hidden),
            )
        case LatentAttention():
            return _latent_projections(mixer, hidden, tensor)
        case LinearAttention():
            keys = mixer.key_heads // tensor * mixer.key_head_dim
            values = mixer.value_heads // tensor * mixer.value_head_dim
            gates = 2 * mixer.value_heads // tensor
            return (
                Projection("linear_attention.in", "attention", hidden, 2 * keys + 2 * values + gates),
                Projection("linear_attention.out", "attention", values, hidden),
            )
        case StateSpace():
            inner = mixer.heads // tensor * mixer.head_dim
            groups = 2 * local_heads(mixer.groups, tensor) * mixer.state_size
            return (
                Projection("state_space.in", "attention", hidden, 2 * inner + groups + mixer.heads // tensor),
                Projection("state_space.out", "attention", inner, hidden),
            )
    return ()


def _latent_projections(mixer: LatentAttention, hidden: int, tensor: int) -> tuple[Projection, ...]:
    """Query and KV down-projections are one replicated matrix, as vLLM fuses them (``fused_qkv_a_proj``)."""
    heads = mixer.heads // tensor
    query = heads * (mixer.nope_head_dim + mixer.rope_head_dim)
    latent = mixer.kv_lora_rank + mixer.rope_head_dim
    rank = mixer.q_lora_rank
    first = (
        (
            Projection("attention.down", "attention", hidden, rank + latent),
            Projection("attention.query_up", "attention", rank, query),
        )
        if rank
        else (
            Projection("attention.query", "attention", hidden, query),
            Projection("attention.down", "attention", hidden, latent),
        )
    )
    return (
        *first,
        Projection(
            "attention.kv_up", "attention", mixer.kv_lora_rank, heads * (mixer.nope_head_dim + mixer.v_head_dim)
        ),
        Projection("attention.out", "attention", heads * mixer.v_head_dim, hidden),
    )


@cache
def feed_forward_projections(
    feed_forward: FeedForward | None, hidden: int, parallel: Parallel
) -> tuple[Projection, ...]:
    """Matrices of a feed-forward that every token visits: the dense one, or the router and the shared experts."""
    match feed_forward:
        case DenseFeedForward():
            return _up_down(
                "feed_forward", "feed_forward", hidden, feed_forward.intermediate // parallel.tensor, feed_forward.gated
            )
        case MoeFeedForward():
            shared = feed_forward.shared_intermediate // parallel.tensor
            router = (Projection("experts.router", "router", hidden, feed_forward.experts + feed_forward.shared_gate),)
            return router + (
                _up_down("shared_experts", "feed_forward", hidden, shared, feed_forward.gated) if shared else ()
            )
    return ()


def expert_projections(moe: MoeFeedForward, hidden: int, parallel: Parallel) -> tuple[Projection, ...]:
    """Matrices of one routed expert on one device."""
    intermediate = moe.intermediate // (1 if parallel.expert > 1 else parallel.tensor)
    return _up_down("experts", "experts", hidden, intermediate, moe.gated)


def local_experts(moe: MoeFeedForward, parallel: Parallel) -> int:
    """Routed experts that one device holds, whole or in part."""
    return moe.experts // parallel.expert


def _up_down(name: str, part: str, hidden: int, intermediate: int, gated: bool) -> tuple[Projection, ...]:
    up = "gate_up" if gated else "up"
    return (
        Projection(f"{name}.{up}", part, hidden, intermediate * (2 if gated else 1)),
        Projection(f"{name}.down", part, intermediate, hidden),
    )
