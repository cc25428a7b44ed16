"""gpt-oss: windowed and full attention in turn, biases everywhere, experts in every layer."""

from __future__ import annotations

from evaluator.catalog.huggingface.attention import softmax_attention, windowed_layers
from evaluator.catalog.huggingface.config import Config, Family, layer_kinds
from evaluator.catalog.huggingface.dense import gated_feed_forward
from evaluator.catalog.model import LayerKind, MoeFeedForward
from evaluator.errors import InputError


def _layers(config: Config) -> tuple[LayerKind, ...]:
    if "layer_types" not in config.values:  # without the list every layer would be taken for windowed
        raise InputError(f"{config.place('layer_types')}: missing")
    moe = MoeFeedForward(
        experts=config.integer("num_local_experts"),
        experts_per_token=config.integer("num_experts_per_tok"),
        intermediate=gated_feed_forward(config).intermediate,
        bias=True,
    )
    mixers = windowed_layers(config, softmax_attention(config, bias=True), config.integer("num_hidden_layers"))
    return layer_kinds([(mixer, moe) for mixer in mixers])


# experts_per_token repeats num_experts_per_tok.
FAMILIES = {"gpt_oss": Family(_layers, frozenset({"experts_per_token", "initial_context_length", "swiglu_limit"}))}
