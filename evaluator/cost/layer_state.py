"""What a layer keeps of a sequence on one device: KV per token, or a state of fixed size."""

from __future__ import annotations

import math

from evaluator.catalog.model import (
    CompressedAttention,
    LatentAttention,
    LinearAttention,
    Mixer,
    Recurrence,
    SoftmaxAttention,
    StateSpace,
)
from evaluator.cost.dtypes import BYTES, stream_bytes
from evaluator.cost.projections import local_heads

STATE_BYTES = 4.0
"""Recurrent states are kept in fp32: ``mamba_ssm_dtype`` of Qwen3.5, and the kernels of flash-linear-attention."""


def kept(mixer: Mixer | None, kv: str, tensor: int) -> tuple[tuple[float, float], ...]:
    """(bytes of KV per token, tokens that they are kept of) of a layer: of all tokens inf, else of a window."""
    if isinstance(mixer, CompressedAttention):
        # Two stores: the vectors of the last ``window`` tokens, and an entry for every ``ratio`` tokens, kept for
        # good. Attention reaches the window's vectors and the chosen entries. The layout knows one width, so that the
        # first store is spread over all tokens within reach.
        vector = mixer.head_dim * BYTES[kv]
        entries = (vector + indexer_bytes(mixer)) / mixer.ratio if mixer.ratio else 0.0
        return (vector * mixer.window / mixer.reach, float(mixer.reach)), (entries, math.inf)
    window = mixer.window if isinstance(mixer, SoftmaxAttention | LatentAttention) else None
    return ((kv_bytes(mixer, kv, tensor), math.inf if window is None else float(window)),)


def kv_bytes(mixer: Mixer | None, kv: str, tensor: int) -> float:
    """Bytes of KV that a layer keeps per token; none where it reads that of an earlier layer, or needs it once only.

    MLA's compressed vector and the indexer's key are the same on every rank (arXiv:2405.04434).
    """
    if isinstance(mixer, CompressedAttention):
        return sum(size for size, _ in kept(mixer, kv, tensor))
    match mixer:
        case SoftmaxAttention():
            # An encoder's keys and values are read in the iteration that computes them, and by no later one.
            unkept = mixer.shared_kv or mixer.bidirectional
            return (0.0 if unkept else read_bytes(mixer, kv, tensor)) + indexer_bytes(mixer)
        case LatentAttention():
            return (0.0 if mixer.shared_kv else read_bytes(mixer, kv, tensor)) + indexer_bytes(mixer)
    return 0.0


def read_bytes(mixer: SoftmaxAttention | LatentAttention, kv: str, tensor: int) -> float:
    """Bytes of KV that attention reads per token it attends to, its own or an earlier layer's."""
    if isinstance(mixer, LatentAttention):
        return (mixer.kv_lora_rank + mixer.rope_head_dim) * BYTES[kv]
    return local_heads(mixer.kv_heads, tensor) * (mixer.head_dim + mixer.value_size) * BYTES[kv]


def indexer_bytes(mixer: SoftmaxAttention | LatentAttention | CompressedAttention) -> float:
    """Bytes of the indexer's key per token: fp8 with an fp32 scale per 128, whatever the dtype of the KV.

    Source: vLLM, ``DeepseekV32IndexerCache`` (head size + head size // 128 x 4 bytes of uint8).
    """
    return float(mixer.index_head_dim + mixer.index_head_dim // 128 * 4)


def conv_channels(mixer: LinearAttention | StateSpace | Recurrence, tensor: int) -> int:
    """Channels that pass through the short causal convolution."""
    if isinstance(mixer, Recurrence):
        return mixer.convolved // tensor
    if isinstance(mixer, LinearAttention):
        keys = mixer.key_heads // tensor * mixer.key_head_dim
        # Queries, keys and values.
        return 2 * keys + mixer.value_heads // tensor * mixer.value_head_dim
    inner = mixer.heads // tensor * mixer.head_dim
    # The inner states, and B and C of every group.
    return inner + 2 * local_heads(mixer.groups, tensor) * mixer.state_size


def state_elements(mixer: LinearAttention | StateSpace | Recurrence, tensor: int) -> int:
    """Elements of the recurrent state of one sequence."""
    if isinstance(mixer, Recurrence):
        return mixer.state // tensor
    if isinstance(mixer, LinearAttention):
        return mixer.value_heads // tensor * mixer.key_head_dim * mixer.value_head_dim
    return mixer.heads // tensor * mixer.head_dim * mixer.state_size


def state_bytes(mixer: Mixer | None, activations: str, tensor: int) -> float:
    """Bytes of fixed-size state per sequence and layer: the recurrent state and the convolution's last inputs."""
    if not isinstance(mixer, LinearAttention | StateSpace | Recurrence):
        return 0.0
    # A causal convolution needs the inputs before the current one again.
    convolution = (mixer.conv_kernel - 1) * conv_channels(mixer, tensor) * stream_bytes(activations)
    return state_elements(mixer, tensor) * STATE_BYTES + convolution
