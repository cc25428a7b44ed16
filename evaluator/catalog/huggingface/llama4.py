"""Llama 4: chunked local attention with every fourth layer full, experts in every n-th layer, one shared expert."""

from __future__ import annotations

from dataclasses import replace

from evaluator.catalog.huggingface.attention import softmax_attention
from evaluator.catalog.huggingface.config import Config, Family, layer_kinds, layer_types
from evaluator.catalog.huggingface.dense import gated_feed_forward
from evaluator.catalog.model import DenseFeedForward, LayerKind, MoeFeedForward, SoftmaxAttention
from evaluator.errors import InputError


def _layers(config: Config) -> tuple[LayerKind, ...]:
    layers = config.integer("num_hidden_layers")
    return layer_kinds(list(zip(_attention(config, layers), _feed_forward(config, layers), strict=True)))


def _attention(config: Config, layers: int) -> list[SoftmaxAttention]:
    full = softmax_attention(config)
    local = replace(full, window=config.integer("attention_chunk_size", 8192), chunked=True)
    kinds = {"full_attention": full, "chunked_attention": local}
    interval = config.integer("no_rope_layer_interval", 4)
    # One flag per layer, 1 where positions are rotated; an empty list stands for every fourth layer without.
    rotated = config.entries("no_rope_layers", int) or [(index + 1) % interval != 0 for index in range(layers)]
    if len(rotated) != layers:
        raise InputError(f"{config.place('no_rope_layers')}: {len(rotated)} entries for {layers} layers")
    types = layer_types(config, layers, kinds)
    if types is not None:
        return [kinds[word] for word in types]
    return [local if flag else full for flag in rotated]


def _feed_forward(config: Config, layers: int) -> list[DenseFeedForward | MoeFeedForward]:
    dense = gated_feed_forward(config, "intermediate_size_mlp")
    expert = config.integer("intermediate_size")
    moe = MoeFeedForward(
        experts=config.integer("num_local_experts"),
        experts_per_token=config.integer("num_experts_per_tok"),
        intermediate=expert,
        shared_intermediate=expert,
    )
    step = config.integer("interleave_moe_layer_step", 1)
    with_experts = config.entries("moe_layers", int) or list(range(step - 1, layers, step))
    return [moe if index in with_experts else dense for index in range(layers)]


_IGNORED = frozenset({"attn_scale", "attn_temperature_tuning", "floor_scale"})
FAMILIES = {"llama4": Family(_layers, _IGNORED), "llama4_text": Family(_layers, _IGNORED)}
