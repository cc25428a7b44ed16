"""What a layer keeps of a sequence on one device: KV per token, or a state of fixed size."""

from __future__ import annotations

from evaluator.catalog.model import LatentAttention, LinearAttention, Mixer, SoftmaxAttention, StateSpace
from evaluator.cost.dtypes import BYTES, stream_bytes
from evaluator.cost.projections import local_heads

STATE_BYTES = 4.0
"""Recurrent states are kept in fp32: ``mamba_ssm_dtype`` of Qwen3.5, and the kernels of flash-linear-attention."""


def kv_bytes(mixer: Mixer | None, kv: str, tensor: int) -> float:
    """Bytes of KV per token and layer. MLA's compressed vector is the same on every rank (arXiv:2405.04434)."""
    match mixer:
        case SoftmaxAttention():
            return 2 * local_heads(mixer.kv_heads, tensor) * mixer.head_dim * BYTES[kv]
        case LatentAttention():
            return (mixer.kv_lora_rank + mixer.rope_head_dim) * BYTES[kv]
    return 0.0


def conv_channels(mixer: LinearAttention | StateSpace, tensor: int) -> int:
    """Channels that pass through the short causal convolution."""
    if isinstance(mixer, LinearAttention):
        keys = mixer.key_heads // tensor * mixer.key_head_dim
        return 2 * keys + mixer.value_heads // tensor * mixer.value_head_dim
    inner = mixer.heads // tensor * mixer.head_dim
    return inner + 2 * local_heads(mixer.groups, tensor) * mixer.state_size


def state_elements(mixer: LinearAttention | StateSpace, tensor: int) -> int:
    """Elements of the recurrent state of one sequence."""
    if isinstance(mixer, LinearAttention):
        return mixer.value_heads // tensor * mixer.key_head_dim * mixer.value_head_dim
    return mixer.heads // tensor * mixer.head_dim * mixer.state_size


def state_bytes(mixer: Mixer | None, activations: str, tensor: int) -> float:
    """Bytes of fixed-size state per sequence and layer: the recurrent state and the convolution's last inputs."""
    if not isinstance(mixer, LinearAttention | StateSpace):
        return 0.0
    convolution = (mixer.conv_kernel - 1) * conv_channels(mixer, tensor) * stream_bytes(activations)
    return state_elements(mixer, tensor) * STATE_BYTES + convolution
