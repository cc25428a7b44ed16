"""Qwen3-Next and Qwen3.5: three gated delta-net layers to one of gated softmax attention, experts in every layer."""

from __future__ import annotations

from dataclasses import replace

from evaluator.catalog.huggingface.attention import softmax_attention
from evaluator.catalog.huggingface.config import Config, Family, layer_kinds, layer_types
from evaluator.catalog.huggingface.dense import gated_feed_forward
from evaluator.catalog.huggingface.moe import qwen_moe_layers
from evaluator.catalog.model import DenseFeedForward, LayerKind, LinearAttention, MoeFeedForward, SoftmaxAttention


def _layers(config: Config, moe: bool) -> tuple[LayerKind, ...]:
    layers = config.integer("num_hidden_layers")
    blocks: list[DenseFeedForward | MoeFeedForward] = (
        qwen_moe_layers(config, layers) if moe else [gated_feed_forward(config)] * layers
    )
    return layer_kinds(list(zip(_mixers(config, layers), blocks, strict=True)))


def _mixers(config: Config, layers: int) -> list[SoftmaxAttention | LinearAttention]:
    full = replace(softmax_attention(config), output_gate=config.flag("attn_output_gate", True))
    linear = LinearAttention(
        key_heads=config.integer("linear_num_key_heads"),
        value_heads=config.integer("linear_num_value_heads"),
        key_head_dim=config.integer("linear_key_head_dim"),
        value_head_dim=config.integer("linear_value_head_dim"),
        conv_kernel=config.integer("linear_conv_kernel_dim"),
    )
    config.expect("use_sliding_window", False)
    kinds: dict[str, SoftmaxAttention | LinearAttention] = {"full_attention": full, "linear_attention": linear}
    interval = config.integer("full_attention_interval", 4)
    types = layer_types(config, layers, kinds)
    if types is not None:
        return [kinds[word] for word in types]
    return [full if (index + 1) % interval == 0 else linear for index in range(layers)]


# The layer that predicts a second token (MTP) is not part of the model that is served token by token.
_IGNORED = frozenset({"mamba_ssm_dtype", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"})
FAMILIES = {
    "qwen3_next": Family(lambda config: _layers(config, moe=True), _IGNORED),
    "qwen3_5_moe": Family(lambda config: _layers(config, moe=True), _IGNORED),
    "qwen3_5": Family(lambda config: _layers(config, moe=False), _IGNORED),
}
