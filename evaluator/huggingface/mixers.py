"""Readers of mixers with attention: each makes the reader of a family from what the family's keys mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from evaluator.catalog.model import LatentAttention, Mixer, SoftmaxAttention
from evaluator.errors import InputError
from evaluator.huggingface.config import Config, all_of

MixerReader = Callable[[Config], Mixer]


def softmax(
    *,
    bias: bool = False,
    output_bias: bool = False,
    gate: bool | str = False,
    qk_norm: bool = False,
    values: bool = False,
    one_kv_head: Callable[[Config], bool] | None = None,
    prefix: str = "",
) -> MixerReader:
    """Attention over all of the context.

    ``bias``: on queries, keys and values where the config has no ``attention_bias``; ``gate``: the output gate, or the
    key that says whether there is one (with true where it is absent); ``qk_norm``: queries and keys are normalised
    where no key says otherwise; ``values``: heads of values have their own size, ``v_head_dim``; ``one_kv_head`` tells
    multi-query attention; ``prefix`` of keys that this kind of layer has for itself, the ones without being its
    defaults.
    """

    def read(config: Config) -> SoftmaxAttention:
        def number(key: str, otherwise: int | None) -> int | None:
            # The plain key is read even where the prefixed one decides, or it would be refused as unknown.
            common = config.integer(key, otherwise)
            return config.integer(prefix + key, common) if prefix else common

        heads = number("num_attention_heads", None) or config.integer("num_attention_heads")
        several = one_kv_head is None or not one_kv_head(config)
        kv_heads = number("num_key_value_heads", heads) or heads
        return SoftmaxAttention(
            heads=heads,
            kv_heads=_kv_heads(config, heads, kv_heads) if several else 1,
            head_dim=number("head_dim", None) or _head_dim(config, heads),
            output_gate=config.flag(gate, True) if isinstance(gate, str) else gate,
            qk_norm=config.flag("use_qk_norm", qk_norm),
            bias=config.flag("attention_bias", bias),
            output_bias=output_bias,
            value_dim=number("v_head_dim", None) if values else None,
        )

    return read


def _kv_heads(config: Config, heads: int, kv_heads: int) -> int:
    if heads % kv_heads:
        raise InputError(f"{config.place('num_key_value_heads')}: {kv_heads} does not divide {heads} heads")
    return kv_heads


def _head_dim(config: Config, heads: int) -> int:
    hidden = config.integer("hidden_size")
    if hidden % heads:
        # Without ``head_dim`` transformers takes hidden_size // heads, rounded down without a word; a config where it
        # does not divide has the size elsewhere, under a key that this family does not read.
        raise InputError(f"{config.place('num_attention_heads')}: {heads} does not divide hidden_size {hidden}")
    return hidden // heads


def windowed(of: MixerReader, key: str = "sliding_window", chunked: bool = False) -> MixerReader:
    """The same attention over a window; ``chunked`` as in Llama 4."""

    def read(config: Config) -> Mixer:
        mixer, window = of(config), config.integer(key)
        if isinstance(mixer, SoftmaxAttention):
            return replace(mixer, window=window, chunked=chunked)
        assert isinstance(mixer, LatentAttention)
        return replace(mixer, window=window)

    return read


def latent(gate: bool = False) -> MixerReader:
    """Multi-head latent attention, DeepSeek's keys; ``gate`` where no ``mla_use_output_gate`` says otherwise."""

    def read(config: Config) -> LatentAttention:
        config.expect("attention_bias", False)
        return LatentAttention(
            heads=config.integer("num_attention_heads"),
            kv_lora_rank=config.integer("kv_lora_rank"),
            nope_head_dim=config.integer("qk_nope_head_dim"),
            rope_head_dim=config.integer("qk_rope_head_dim", minimum=0),
            v_head_dim=config.integer("v_head_dim"),
            q_lora_rank=config.integer("q_lora_rank", None),
            output_gate=config.flag("mla_use_output_gate", gate),
        )

    return read


def sparse(of: MixerReader) -> MixerReader:
    """Latent attention with DeepSeek's indexer; ``indexer_types`` says which layers take an earlier layer's choice."""

    def read(config: Config) -> Mixer:
        mixer = of(config)
        assert isinstance(mixer, LatentAttention)
        types = _indexer_types(config)
        heads, size = config.integer("index_n_heads"), config.integer("index_head_dim")
        # An earlier layer's choice takes no indexer: neither weights nor time, but the same number of attended tokens.
        shared = types is not None and config.layer is not None and types[config.layer] == "shared"
        return replace(
            mixer,
            index_top_k=config.integer("index_topk"),
            index_heads=0 if shared else heads,
            index_head_dim=0 if shared else size,
        )

    return read


def _indexer_types(config: Config) -> list[str] | None:
    """``full`` where a layer has an indexer, ``shared`` where it takes an earlier layer's choice.

    By a list, by letters, or every ``index_topk_freq``-th layer from ``index_skip_topk_offset`` - 1 on (GLM-5).
    """
    pattern = config.raw("index_topk_pattern", None)
    every, offset = config.integer("index_topk_freq", 1), config.integer("index_skip_topk_offset", 2, minimum=0)
    if isinstance(pattern, str):
        if len(pattern) != config.layers() or set(pattern) - {"F", "S"}:
            raise InputError(f"{config.place('index_topk_pattern')}: expected one letter, F or S, per layer")
        return ["shared" if letter == "S" else "full" for letter in pattern]
    stated = config.entries("indexer_types", str, config.layers())
    if stated is not None:
        all_of(config, "indexer_types", stated, {"full": "full", "shared": "shared"})
    # GLM-5's published code: the first layers (up to the offset) each choose for themselves, then one in
    # ``every`` does.
    if stated is None and every > 1:
        return ["shared" if max(layer - offset + 1, 0) % every else "full" for layer in range(config.layers())]
    return stated


def sparse_softmax(of: MixerReader, budget: Callable[[Config], int | None], heads: str, size: str) -> MixerReader:
    """Softmax attention over the ``budget`` of tokens that an indexer chooses; over all where there is none.

    ``heads`` and ``size`` are the keys of the indexer's heads and of their size.
    """

    def read(config: Config) -> SoftmaxAttention:
        mixer, chosen = of(config), budget(config)
        assert isinstance(mixer, SoftmaxAttention)
        # Layers without the indexer have its keys in their level, too.
        config.skip(heads, size)
        if chosen is None:
            return mixer
        return replace(
            mixer, index_top_k=chosen, index_heads=config.integer(heads), index_head_dim=config.integer(size)
        )

    return read


def factorised(rank_key: str) -> MixerReader:
    """Step-3's multi-matrix factorisation attention (arXiv:2507.19427): queries through a rank, one KV head."""

    def read(config: Config) -> Mixer:
        attention = softmax()(config)
        assert isinstance(attention, SoftmaxAttention)
        # Queries go through a rank as in MLA, but keys and values are usual ones of a single head.
        return replace(attention, q_rank=config.integer(rank_key))

    return read
