"""Dense decoders: Llama 1-3 and its like (Yi, CodeLlama), Mistral, Qwen2, Qwen3."""

from __future__ import annotations

from evaluator.catalog.huggingface.attention import softmax_attention, windowed_layers
from evaluator.catalog.huggingface.config import Config, Family, layer_kinds
from evaluator.catalog.model import DenseFeedForward, LayerKind


def gated_feed_forward(config: Config, key: str = "intermediate_size") -> DenseFeedForward:
    """The gated (SwiGLU) block without biases."""
    config.expect("hidden_act", "silu", "swish")
    config.expect("mlp_bias", False)
    return DenseFeedForward(config.integer(key), gated=True)


def _llama(config: Config) -> tuple[LayerKind, ...]:
    attention, feed_forward = softmax_attention(config), gated_feed_forward(config)
    return layer_kinds([(attention, feed_forward)] * config.integer("num_hidden_layers"))


def _windowed(config: Config, bias: bool) -> tuple[LayerKind, ...]:
    feed_forward = gated_feed_forward(config)
    mixers = windowed_layers(config, softmax_attention(config, bias), config.integer("num_hidden_layers"))
    return layer_kinds([(mixer, feed_forward) for mixer in mixers])


FAMILIES = {
    "llama": Family(_llama),
    "mistral": Family(lambda config: _windowed(config, bias=False)),
    "qwen2": Family(lambda config: _windowed(config, bias=True)),
    "qwen3": Family(lambda config: _windowed(config, bias=False)),
}
