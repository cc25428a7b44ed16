"""Softmax attention as most families write it: heads, key-value heads, head size, sliding windows."""

from __future__ import annotations

from dataclasses import replace

from evaluator.catalog.huggingface.config import Config, layer_types
from evaluator.catalog.model import SoftmaxAttention
from evaluator.errors import InputError


def softmax_attention(config: Config, bias: bool = False) -> SoftmaxAttention:
    """Attention over all of the context; ``bias`` where the config has no ``attention_bias``."""
    heads = config.integer("num_attention_heads")
    kv_heads = config.integer("num_key_value_heads", heads)
    head_dim = config.integer("head_dim", None)
    if head_dim is None:
        hidden = config.integer("hidden_size")
        if hidden % heads:
            raise InputError(f"{config.place('num_attention_heads')}: {heads} does not divide hidden_size {hidden}")
        head_dim = hidden // heads
    if heads % kv_heads:
        raise InputError(f"{config.place('num_key_value_heads')}: {kv_heads} does not divide {heads} heads")
    return SoftmaxAttention(heads, kv_heads, head_dim, bias=config.flag("attention_bias", bias))


def windowed_layers(config: Config, full: SoftmaxAttention, layers: int) -> list[SoftmaxAttention]:
    """The attention of every layer: Qwen's switch and first windowed layer, a list of layer types, or all alike."""
    window = config.integer("sliding_window", None)
    local = full if window is None else replace(full, window=window)
    kinds = {"full_attention": full, "sliding_attention": local}
    types = layer_types(config, layers, kinds)
    first = config.integer("max_window_layers", None, minimum=0)
    used = config.flag("use_sliding_window", first is None)  # Qwen: off unless said; Mistral has neither key
    if types is not None:
        return [kinds[word] for word in types]
    if not used:
        return [full] * layers
    return [local if index >= (first or 0) else full for index in range(layers)]
