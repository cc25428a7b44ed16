"""What a language model is to the cost model: layer kinds with counts, never a list of tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class SoftmaxAttention:
    """Multi-head, grouped-query or multi-query attention, over all of the context or a window of it.

    ``window`` is None for full attention. ``chunked`` marks Llama-4's chunked local attention, whose context
    restarts every ``window`` tokens; it is costed as a sliding window of the same size (never too cheap).
    ``output_gate`` adds the sigmoid gate of Qwen3-Next, which doubles the query projection.
    """

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None
    chunked: bool = False
    output_gate: bool = False
    bias: bool = False


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): one compressed KV vector per token."""

    heads: int
    kv_lora_rank: int
    nope_head_dim: int
    rope_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None = None


@dataclass(frozen=True)
class LinearAttention:
    """Gated delta-rule attention (Qwen3-Next): a state of fixed size per sequence instead of KV per token."""

    key_heads: int
    value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int


@dataclass(frozen=True)
class StateSpace:
    """Mamba-2 mixer (arXiv:2405.21060): ``heads`` heads of ``head_dim`` with an SSM state of ``state_size``."""

    heads: int
    head_dim: int
    state_size: int
    groups: int
    conv_kernel: int


@dataclass(frozen=True)
class DenseFeedForward:
    """Two projections (up, down), or three when ``gated`` (gate, up, down)."""

    intermediate: int
    gated: bool = True


@dataclass(frozen=True)
class MoeFeedForward:
    """Routed experts plus shared ones that every token visits.

    ``intermediate`` is of one routed expert; ``shared_intermediate`` is of all shared experts together
    (0: none); ``shared_gate`` is Qwen's sigmoid gate on the shared output (one more vector of weights).
    """

    experts: int
    experts_per_token: int
    intermediate: int
    gated: bool = True
    shared_intermediate: int = 0
    shared_gate: bool = False
    bias: bool = False


Mixer = SoftmaxAttention | LatentAttention | LinearAttention | StateSpace
FeedForward = DenseFeedForward | MoeFeedForward


@dataclass(frozen=True)
class LayerKind:
    """``count`` identical layers; a hybrid's layer may have a mixer only or a feed-forward only."""

    count: int
    mixer: Mixer | None
    feed_forward: FeedForward | None


DTypeName = Literal["fp32", "bf16", "fp16", "fp8", "int8", "int4", "mxfp4", "nvfp4"]


@dataclass(frozen=True)
class CheckpointPrecision:
    """The dtype in which the published checkpoint stores each part (``quantization_config`` where there is one)."""

    attention: DTypeName = "bf16"
    feed_forward: DTypeName = "bf16"
    experts: DTypeName = "bf16"
    embedding: DTypeName = "bf16"
    head: DTypeName = "bf16"


@dataclass(frozen=True)
class Model:
    """A decoder-only language model (text part only). Counts are of the unsharded model."""

    name: str
    source: str
    hidden: int
    vocabulary: int
    max_positions: int
    layers: tuple[LayerKind, ...]
    tied_embeddings: bool = False
    checkpoint: CheckpointPrecision = field(default_factory=CheckpointPrecision)
    published_parameters: float | None = None
    nucleus_sampling: bool = False  # its generation_config.json asks for top-p, which engines then do by default
