"""What a language model is to the cost model: layer kinds with counts, never a list of tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class SoftmaxAttention:
    """Multi-head, grouped-query or multi-query attention, over all of the context or a window of it.

    ``window`` is None for full attention. ``chunked`` marks Llama-4's chunked local attention, whose context
    restarts every ``window`` tokens; it is costed as a sliding window of the same size (never too cheap).
    ``output_gate`` adds the sigmoid gate of Qwen3-Next, which doubles the query projection. ``qk_norm`` says that
    queries and keys are normalised before they are rotated (Qwen3, Gemma 3, OLMo 2). ``value_dim`` is the size
    of a value head where it is not that of a key head (MiMo-V2); ``keys_as_values`` says that there is no value
    projection (Gemma 4); ``shared_kv`` that the layer reads the KV of an earlier one and has neither projections nor
    KV of its own (Gemma 3n; cross-layer attention, arXiv:2405.12981). ``q_rank`` splits the query projection in two
    (Step-3, arXiv:2507.19427); ``input_width`` is what the projections read where it is not the hidden size (Zamba).
    ``bidirectional`` is that of encoders (BERT, arXiv:1810.04805): every token attends to all, later ones too, so that
    a text is computed whole and no KV outlives the pass. ``index_top_k``, ``index_heads`` and ``index_head_dim`` are
    those of ``LatentAttention``: an indexer chooses which tokens are attended to (MiniMax-M3, Qwen4).
    """

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None
    chunked: bool = False
    output_gate: bool = False
    qk_norm: bool = False
    bias: bool = False
    output_bias: bool = False
    value_dim: int | None = None
    keys_as_values: bool = False
    shared_kv: bool = False
    q_rank: int | None = None
    input_width: int | None = None
    bidirectional: bool = False
    index_top_k: int | None = None
    index_heads: int = 0
    index_head_dim: int = 0

    @property
    def value_size(self) -> int:
        """Elements of one value head."""
        return self.value_dim or self.head_dim


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): one compressed KV vector per token.

    ``index_top_k`` makes it sparse (DeepSeek Sparse Attention, DeepSeek-V3.2, arXiv:2512.02556): an indexer of
    ``index_heads`` heads of ``index_head_dim`` scores every token of the context, and attention sees the best
    ``index_top_k``. With ``index_heads`` 0 a layer takes the choice of an earlier one (GLM-5). ``output_gate`` is a
    sigmoid gate on the heads' values, one more projection of the hidden state. ``shared_kv`` says that the layer reads
    the latent of an earlier one (Mistral Large 4); it expands it with an up-projection of its own.
    """

    heads: int
    kv_lora_rank: int
    nope_head_dim: int
    rope_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None = None
    window: int | None = None
    output_gate: bool = False
    index_top_k: int | None = None
    index_heads: int = 0
    index_head_dim: int = 0
    shared_kv: bool = False


@dataclass(frozen=True)
class CompressedAttention:
    """DeepSeek-V4's attention: multi-query on one vector per token that is key and value, most of them compressed.

    A query sees the last ``window`` tokens and, where ``ratio`` is not 0, entries that stand for so many tokens each:
    the ``reach`` / ``ratio`` best of them by an indexer (``index_heads`` heads of ``index_head_dim``, whose keys are
    compressed alike), or without one all. ``reach`` is the number of tokens that statistics of windows are taken over,
    the same in all layers: what the window is less counts as a share of it. Queries pass a rank; the output passes
    ``output_groups`` groups of heads with ``output_rank`` each.
    """

    heads: int
    head_dim: int
    q_rank: int
    output_groups: int
    output_rank: int
    window: int
    reach: int
    ratio: int = 0
    index_heads: int = 0
    index_head_dim: int = 0

    @property
    def near_share(self) -> float:
        """Vectors that a query reads per token of its ``reach``: of the window, and of the entries that are chosen."""
        return self.window / self.reach + (1.0 / self.ratio if self.index_heads else 0.0)


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


RecurrenceForm = Literal["selective_scan", "lightning", "kimi_delta", "mlstm", "rg_lru", "rwkv", "short_convolution"]


@dataclass(frozen=True)
class Recurrence:
    """Any other mixer with a state of fixed size per sequence, by the sizes that its cost follows from.

    ``width`` channels in ``heads`` heads leave the recurrence and enter the output projection; the input projection
    has ``projected`` columns; ``state`` elements are kept per sequence; ``convolved`` channels pass a causal
    convolution of ``conv_kernel`` taps; ``gates`` is the number of further weights per channel, in products that make
    decays, steps and gates, and ``vectors`` of those in no product (biases, A, D). The forms, and what these numbers
    are for each:

    * ``selective_scan``: Mamba-1 (arXiv:2312.00752): projected 2 width, state width x N, gates 2 dt_rank + 2 N;
    * ``lightning``: lightning attention (arXiv:2401.04658; MiniMax-01, arXiv:2501.08313): projected 4 width (queries,
      keys, values, output gate), state width x head size;
    * ``kimi_delta``: Kimi Delta Attention (arXiv:2510.26692): projected 3 width + heads, gates of two low-rank pairs;
    * ``mlstm``: xLSTM (arXiv:2405.04517); ``rg_lru``: Griffin (arXiv:2402.19427); ``rwkv``: RWKV-4 (arXiv:2305.13048);
    * ``short_convolution``: LFM2 (arXiv:2511.23404): projected 3 width, no state but the convolution's last inputs.
    """

    form: RecurrenceForm
    heads: int
    width: int
    projected: int
    state: int = 0
    convolved: int = 0
    conv_kernel: int = 1
    gates: int = 0
    vectors: int = 0


@dataclass(frozen=True)
class DenseFeedForward:
    """Two projections (up, down), or three when ``gated`` (gate, up, down).

    ``branch`` is the width of further low-rank branches of the layer, each a projection there and back, which no
    engine shards (the per-layer input and LAUREL of Gemma 3n).
    """

    intermediate: int
    gated: bool = True
    bias: bool = False
    branch: int = 0


@dataclass(frozen=True)
class MoeFeedForward:
    """Routed experts plus shared ones that every token visits.

    ``intermediate`` is of one routed expert; ``shared_intermediate`` is of all shared experts together
    (0: none); ``shared_gate`` is Qwen's sigmoid gate on the shared output (one more vector of weights). ``latent`` is
    the size in which the routed experts work where it is not the hidden size (Nemotron 3: two more projections).
    """

    experts: int
    experts_per_token: int
    intermediate: int
    gated: bool = True
    shared_intermediate: int = 0
    shared_gate: bool = False
    bias: bool = False
    latent: int | None = None


Mixer = SoftmaxAttention | LatentAttention | CompressedAttention | LinearAttention | StateSpace | Recurrence
FeedForward = DenseFeedForward | MoeFeedForward


@dataclass(frozen=True)
class LayerKind:
    """``count`` identical layers; a hybrid's layer may have a mixer only or a feed-forward only.

    ``weight_sets`` is how many sets of weights these layers have between them, where they share some (Zamba's
    transformer blocks); None: every layer has its own.
    """

    count: int
    mixer: Mixer | None
    feed_forward: FeedForward | None
    weight_sets: int | None = None

    @property
    def held(self) -> int:
        """Layers whose weights are held in memory."""
        return self.weight_sets or self.count


Output = Literal["tokens", "vector"]
"""What a model gives for a text: the next token, or a vector or score (embedding models, re-rankers)."""

DTypeName = Literal["fp32", "bf16", "fp16", "fp8", "fp8_block", "int8", "int4", "mxfp4", "nvfp4"]


@dataclass(frozen=True)
class CheckpointPrecision:
    """The dtype in which the published checkpoint stores each part (``quantization_config`` where there is one)."""

    attention: DTypeName = "bf16"
    feed_forward: DTypeName = "bf16"
    experts: DTypeName = "bf16"
    embedding: DTypeName = "bf16"
    head: DTypeName = "bf16"


@dataclass(frozen=True)
class AskedOfSampler:
    """What requests ask of the sampler that takes time; None: what the model's ``generation_config.json`` asks."""

    nucleus: bool | None = None
    penalties: bool | None = None


AS_PUBLISHED = AskedOfSampler()

ATTENTION, FEED_FORWARD, ALL_MODULES = "attention", "feed_forward", "all"
ADAPTED = (ALL_MODULES, ATTENTION, FEED_FORWARD)
"""The matrices of a model that may have adapters."""


@dataclass(frozen=True)
class Adapters:
    """LoRA adapters (arXiv:2106.09685) with which a model is deployed, and which of them requests name.

    A device has room for ``resident`` of them, of so high a ``rank``, of the matrices ``modules`` (one of ADAPTED).
    ``popularity``: (how many adapters, with what chance a request names a given one of them), group by group; none
    where nobody names any.
    """

    rank: int
    resident: int
    modules: str = ALL_MODULES
    popularity: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class Model:
    """A language model, decoder or encoder. Counts are of the unsharded model.

    ``output`` vector: there is no output head, the states of the last layer are pooled into one vector or score.

    ``lookup_parameters`` are in tables of which a token reads a row (learned positions, embeddings per layer);
    ``encoder_parameters`` are those of vision and audio encoders, which take memory and are not run here. ``notes``
    say what an import assumed.
    """

    name: str
    source: str
    hidden: int
    vocabulary: int
    max_positions: int
    layers: tuple[LayerKind, ...]
    tied_embeddings: bool = False
    checkpoint: CheckpointPrecision = field(default_factory=CheckpointPrecision)
    published_parameters: float | None = None
    lookup_parameters: int = 0
    encoder_parameters: int = 0
    notes: tuple[str, ...] = ()
    output: Output = "tokens"
    nucleus_sampling: bool = False  # its generation_config.json asks for top-p, which engines then do by default
    penalties: bool = False  # the same of a penalty for what was said before (repetition, presence, frequency)
    counts_said: bool = False  # as deployed, of no file: the engine penalises by counts that it keeps on the device
    filled_rows: float = (
        0.0  # as deployed, of no file: with which kernels fill up every expert (``tuned.FilledExperts``)
    )
    prediction_layers: int = 0  # modules for the tokens after the next that come with it (MTP), none of its ``layers``
    adapters: Adapters | None = None  # with which it is deployed; none of any file

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The notes that tell what was assumed because the config.json does not say it."""
        return tuple(note for note in self.notes if note.startswith("assumed"))

    @property
    def gives_tokens(self) -> bool:
        """Whether it generates; else it makes one pass over a text."""
        return self.output == "tokens"

    @property
    def has_experts(self) -> bool:
        """Whether any layer has routed experts."""
        return any(isinstance(kind.feed_forward, MoeFeedForward) for kind in self.layers)

    @property
    def keeps_all_tokens(self) -> bool:
        """Every layer keeps something of every token, so that a number of tokens says how much KV there is."""
        mixers = [kind.mixer for kind in self.layers if kind.mixer is not None]
        return all(isinstance(mixer, SoftmaxAttention | LatentAttention) and mixer.window is None for mixer in mixers)

    @property
    def whole_texts(self) -> bool:
        """Whether any layer attends in both directions, so that a prompt cannot be computed in chunks."""
        return any(isinstance(kind.mixer, SoftmaxAttention) and kind.mixer.bidirectional for kind in self.layers)
