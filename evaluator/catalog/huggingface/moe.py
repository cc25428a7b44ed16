"""Mixtures of experts with softmax attention in every layer: Mixtral, Qwen2-MoE, Qwen3-MoE."""

from __future__ import annotations

from evaluator.catalog.huggingface.attention import softmax_attention, windowed_layers
from evaluator.catalog.huggingface.config import Config, Family, layer_kinds
from evaluator.catalog.huggingface.dense import gated_feed_forward
from evaluator.catalog.model import DenseFeedForward, LayerKind, MoeFeedForward


def qwen_moe_layers(config: Config, layers: int) -> list[DenseFeedForward | MoeFeedForward]:
    """The feed-forward of every layer of a Qwen MoE: ``mlp_only_layers`` and every step-th layer decide."""
    config.expect("hidden_act", "silu")
    shared = config.integer("shared_expert_intermediate_size", 0, minimum=0)
    moe = MoeFeedForward(
        experts=config.integer("num_experts"),
        experts_per_token=config.integer("num_experts_per_tok"),
        intermediate=config.integer("moe_intermediate_size"),
        shared_intermediate=shared,
        shared_gate=shared > 0,
    )
    step = config.integer("decoder_sparse_step", 1)
    dense_layers = config.entries("mlp_only_layers", int)
    dense = [index in dense_layers or (index + 1) % step != 0 for index in range(layers)]
    intermediate = config.integer("intermediate_size") if any(dense) else config.integer("intermediate_size", None)
    return [DenseFeedForward(intermediate) if is_dense else moe for is_dense in dense]


def _mixtral(config: Config) -> tuple[LayerKind, ...]:
    block = gated_feed_forward(config)
    moe = MoeFeedForward(
        experts=config.integer("num_local_experts"),
        experts_per_token=config.integer("num_experts_per_tok"),
        intermediate=block.intermediate,
    )
    mixers = windowed_layers(config, softmax_attention(config), config.integer("num_hidden_layers"))
    return layer_kinds([(mixer, moe) for mixer in mixers])


def _qwen_moe(config: Config, bias: bool) -> tuple[LayerKind, ...]:
    layers = config.integer("num_hidden_layers")
    mixers = windowed_layers(config, softmax_attention(config, bias), layers)
    return layer_kinds(list(zip(mixers, qwen_moe_layers(config, layers), strict=True)))


FAMILIES = {
    "mixtral": Family(_mixtral),
    "qwen2_moe": Family(lambda config: _qwen_moe(config, bias=True)),
    "qwen3_moe": Family(lambda config: _qwen_moe(config, bias=False)),
}
