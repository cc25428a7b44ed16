"""Nemotron-H: a pattern of letters, one part per layer: Mamba-2, attention or a feed-forward without gate."""

from __future__ import annotations

from dataclasses import replace

from evaluator.catalog.huggingface.attention import softmax_attention
from evaluator.catalog.huggingface.config import Config, Family, layer_kinds
from evaluator.catalog.model import DenseFeedForward, FeedForward, LayerKind, Mixer, SoftmaxAttention, StateSpace
from evaluator.errors import InputError


def _layers(config: Config) -> tuple[LayerKind, ...]:
    parts: dict[str, tuple[Mixer | None, FeedForward | None]] = {
        "M": (_state_space(config), None),
        "*": (_attention(config), None),
        "-": (None, _feed_forward(config)),
    }
    pattern, layers = config.text("hybrid_override_pattern"), config.integer("num_hidden_layers")
    place = config.place("hybrid_override_pattern")
    for letter in pattern:
        if letter not in parts:
            raise InputError(f"{place}: unknown layer '{letter}' (known: M Mamba-2, * attention, - feed-forward)")
    if len(pattern) != layers:
        raise InputError(f"{place}: {len(pattern)} letters for num_hidden_layers {layers}")
    return layer_kinds([parts[letter] for letter in pattern])


def _attention(config: Config) -> SoftmaxAttention:
    config.expect("sliding_window", None)
    attention = softmax_attention(config)
    return replace(attention, head_dim=config.integer("attention_head_dim", attention.head_dim))


def _feed_forward(config: Config) -> DenseFeedForward:
    config.expect("mlp_hidden_act", "relu2")
    config.expect("mlp_bias", False)
    return DenseFeedForward(config.integer("intermediate_size"), gated=False)


def _state_space(config: Config) -> StateSpace:
    for key in ("use_bias", "mamba_proj_bias"):
        config.expect(key, False)
    config.expect("use_conv_bias", True)
    return StateSpace(
        heads=config.integer("mamba_num_heads"),
        head_dim=config.integer("mamba_head_dim"),
        state_size=config.integer("ssm_state_size"),
        groups=config.integer("n_groups"),
        conv_kernel=config.integer("conv_kernel"),
    )


# expand repeats mamba_num_heads * mamba_head_dim / hidden_size; time_step_rank is of Mamba-1.
_IGNORED = frozenset(
    """
    chunk_size expand mamba_hidden_act num_logits_to_keep rescale_prenorm_residual residual_in_fp32 time_step_floor
    time_step_limit time_step_max time_step_min time_step_rank use_mamba_kernels
    """.split()
)
FAMILIES = {"nemotron_h": Family(_layers, _IGNORED)}
