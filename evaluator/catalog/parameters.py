"""How many parameters a model has, by the part whose dtype they share."""

from __future__ import annotations

from evaluator.catalog.model import (
    CompressedAttention,
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
    StateSpace,
)

PARTS = ("attention", "feed_forward", "experts", "embedding", "head", "norm", "encoder")


def parameter_count(model: Model) -> float:
    """All parameters, embeddings, output head and encoders included; a shared (tied) table counts once."""
    return sum(parameters_by_part(model).values())


def active_parameters(model: Model) -> float:
    """Parameters in the products that one token passes: without the experts that it does not visit, tables that are
    looked up (the embedding, unless it is the output head as well), and encoders; as gpt-oss' model card counts them.

    Layers that run several times with the same weights count once per set.
    """
    parts = parameters_by_part(model)
    unvisited = sum(kind.held * _unvisited(kind.feed_forward, model.hidden) for kind in model.layers)
    # A tied table is read as a whole by the output head, and only by rows as an embedding.
    is_head = model.tied_embeddings and model.gives_tokens
    looked_up = parts["embedding"] - (float(model.vocabulary) * model.hidden if is_head else 0.0)
    return sum(parts.values()) - unvisited - looked_up - parts["encoder"]


def _unvisited(block: FeedForward | None, hidden: int) -> float:
    """Parameters of the experts that a token does not visit."""
    if not isinstance(block, MoeFeedForward):
        return 0.0
    return _routed(block, hidden, 3 if block.gated else 2) * (1.0 - block.experts_per_token / block.experts)


def parameters_by_part(model: Model) -> dict[str, float]:
    """Parameters of the whole model by part, with all of PARTS as keys.

    ``attention`` is every mixer (SSM and linear attention too), ``feed_forward`` is dense layers, shared experts and
    routers, ``experts`` the routed experts, ``norm`` the norms over the hidden size, ``embedding`` every table that is
    looked up, ``encoder`` vision and audio encoders. With tied embeddings ``head`` is 0, as of a model that
    gives a vector. Norms over a head (under 1e-5 of the weights) are left out. Layers that share their weights count
    once per set.
    """
    total = dict.fromkeys(PARTS, 0.0)
    for kind in model.layers:
        for part, count in layer_parameters(model, kind).items():
            total[part] += kind.held * count
    table = float(model.vocabulary) * model.hidden
    total["embedding"] += table + model.lookup_parameters
    # One table counts as the embedding alone, where both are the same; an encoder has no head.
    total["head"] += 0.0 if model.tied_embeddings or not model.gives_tokens else table
    total["norm"] += model.hidden
    total["encoder"] += model.encoder_parameters
    return total


def layer_parameters(model: Model, kind: LayerKind) -> dict[str, float]:
    """Parameters of one layer of ``kind`` by part (attention, feed_forward, experts, norm)."""
    mixer = 0.0 if kind.mixer is None else float(mixer_parameters(kind.mixer, model.hidden))
    shared, routed = (
        (0.0, 0.0) if kind.feed_forward is None else feed_forward_parameters(kind.feed_forward, model.hidden)
    )
    # One norm before each block that a layer has (RMSNorm: a weight per channel).
    norms = model.hidden * ((kind.mixer is not None) + (kind.feed_forward is not None))
    return {"attention": mixer, "feed_forward": shared, "experts": routed, "norm": float(norms)}


def mixer_parameters(mixer: Mixer, hidden: int) -> int:
    """Parameters of one attention, linear-attention or SSM block with its projections."""
    if isinstance(mixer, SoftmaxAttention):
        return _softmax(mixer, hidden)
    if isinstance(mixer, LatentAttention):
        return _latent(mixer, hidden)
    if isinstance(mixer, CompressedAttention):
        return _compressed(mixer, hidden)
    if isinstance(mixer, LinearAttention):
        return _linear(mixer, hidden)
    if isinstance(mixer, Recurrence):
        return _recurrence(mixer, hidden)
    return _state_space(mixer, hidden)


def feed_forward_parameters(block: FeedForward, hidden: int) -> tuple[float, float]:
    """(what every token visits, the routed experts) of one feed-forward block."""
    # Gate, up and down of SwiGLU, or up and down alone.
    matrices = 3 if block.gated else 2
    if isinstance(block, DenseFeedForward):
        # Gate and up have a bias of the inner width each, down one of the hidden size.
        biases = ((matrices - 1) * block.intermediate + hidden) * block.bias
        return float(hidden * (matrices * block.intermediate + 2 * block.branch) + biases), 0.0
    return _shared(block, hidden, matrices), _routed(block, hidden, matrices)


def _shared(block: MoeFeedForward, hidden: int, matrices: int) -> float:
    # The router sees the hidden state also where the experts work in a latent size: those two projections are every
    # token's.
    router = block.experts * (hidden + block.bias)
    latent = 2 * hidden * (block.latent or 0)
    return float(router + matrices * hidden * block.shared_intermediate + hidden * block.shared_gate + latent)


def _routed(block: MoeFeedForward, hidden: int, matrices: int) -> float:
    inside = block.latent or hidden
    bias = ((matrices - 1) * block.intermediate + inside) * block.bias
    return float(block.experts * (matrices * inside * block.intermediate + bias))


def _softmax(mixer: SoftmaxAttention, hidden: int) -> int:
    inputs, value = mixer.input_width or hidden, mixer.value_size
    query = mixer.heads * mixer.head_dim * (2 if mixer.output_gate else 1)
    key_value = 0 if mixer.shared_kv else mixer.kv_heads * (mixer.head_dim + value * (not mixer.keys_as_values))
    # The 1 is the norm between both halves, a weight per channel of the rank.
    queries = inputs * query if mixer.q_rank is None else mixer.q_rank * (inputs + 1 + query)
    bias = (query + key_value) * mixer.bias + hidden * mixer.output_bias
    return queries + inputs * key_value + mixer.heads * value * hidden + bias + _indexer(mixer, hidden, hidden)


def _latent(mixer: LatentAttention, hidden: int) -> int:
    """Multi-head latent attention (arXiv:2405.04434, section 2.1), the norms of the compressed vectors included."""
    query_width = mixer.heads * (mixer.nope_head_dim + mixer.rope_head_dim)
    if mixer.q_lora_rank is None:
        query = hidden * query_width
    else:
        query = mixer.q_lora_rank * (hidden + 1 + query_width)
    own_kv = not mixer.shared_kv
    # W^DKV and W^KR are one projection in checkpoints (`kv_a_proj_with_mqa`), with a norm on the compressed part.
    down = own_kv * (hidden * (mixer.kv_lora_rank + mixer.rope_head_dim) + mixer.kv_lora_rank)
    up = mixer.kv_lora_rank * mixer.heads * (mixer.nope_head_dim + mixer.v_head_dim)
    out = mixer.heads * mixer.v_head_dim * hidden * (1 + mixer.output_gate)
    return query + down + up + out + _indexer(mixer, hidden, mixer.q_lora_rank or hidden)


def _indexer(mixer: SoftmaxAttention | LatentAttention, hidden: int, inputs: int) -> int:
    """Queries from ``inputs`` channels (the compressed query, where there is one), one key with its norm, a weight per
    head (DeepSeek-V3.2, section 2.1)."""
    if not mixer.index_heads:
        return 0
    queries = inputs * mixer.index_heads * mixer.index_head_dim
    return queries + hidden * (mixer.index_head_dim + mixer.index_heads) + 2 * mixer.index_head_dim


def _compressed(mixer: CompressedAttention, hidden: int) -> int:
    """DeepSeek-V4: queries through a rank, one vector per token, grouped output; compressors of keys and gates."""
    width = mixer.heads * mixer.head_dim
    queries = mixer.q_rank * (hidden + 1 + width)
    out = width * mixer.output_rank + mixer.output_groups * mixer.output_rank * hidden
    sides = compressor_sides(mixer)
    compressor = sides * mixer.head_dim * (hidden + mixer.ratio // 2)
    indexer = mixer.index_heads * (hidden + mixer.q_rank * mixer.index_head_dim) + 4 * hidden * mixer.index_head_dim
    return queries + hidden * mixer.head_dim + mixer.head_dim + out + compressor + indexer


def compressor_sides(mixer: CompressedAttention) -> int:
    """Vectors that a layer's compressor projects a token to: key and gate, both twice where blocks overlap."""
    return 0 if not mixer.ratio else 4 if mixer.index_heads else 2


def _recurrence(mixer: Recurrence, hidden: int) -> int:
    """Projections in and out, the further products, and the convolution."""
    products = hidden * (mixer.projected + mixer.width) + mixer.gates * mixer.width
    return products + mixer.conv_kernel * mixer.convolved + mixer.vectors * mixer.width


def _linear(mixer: LinearAttention, hidden: int) -> int:
    """Gated delta net as in Qwen3-Next: projections q, k, v, z, beta, alpha and output; convolution over q, k, v."""
    key = mixer.key_heads * mixer.key_head_dim
    value = mixer.value_heads * mixer.value_head_dim
    # beta and alpha are a number per value head each (`in_proj_ba` of Qwen3-Next), hence 2 * value_heads.
    projections = hidden * (2 * key + 2 * value + 2 * mixer.value_heads) + value * hidden
    return projections + mixer.conv_kernel * (2 * key + value) + 2 * mixer.value_heads + mixer.value_head_dim


def _state_space(mixer: StateSpace, hidden: int) -> int:
    """Mamba-2 (arXiv:2405.21060): one input projection, convolution with bias, A, D and dt per head, gated norm."""
    inner = mixer.heads * mixer.head_dim
    convolved = inner + 2 * mixer.groups * mixer.state_size
    projections = hidden * (inner + convolved + mixer.heads) + inner * hidden
    # A, D and dt_bias per head; one in ``conv_kernel + 1`` is the convolution's bias.
    return projections + (mixer.conv_kernel + 1) * convolved + 3 * mixer.heads + inner
