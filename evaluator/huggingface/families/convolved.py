"""Softmax attention whose queries, keys or values pass a short convolution: Zaya, Inkling 1 and 2."""

from __future__ import annotations

from collections.abc import Mapping

from evaluator.catalog.model import FeedForward
from evaluator.huggingface.blocks import dense, experts
from evaluator.huggingface.config import Config
from evaluator.huggingface.family import Family, keys
from evaluator.huggingface.mixers import MixerReader, softmax, windowed
from evaluator.huggingface.pattern import Rule, Words, always

NOTE = "short convolutions, relative positions and residual scales (under 1 % of the weights) are not counted"


def _full_every(count: int) -> Rule:
    """Each layer of that number is full, the others windowed, where the config lists none."""

    def rule(config: Config, layers: int) -> Words:
        return ["hybrid" if (index + 1) % count == 0 else "window" for index in range(layers)]

    return rule


def _inkling_dense(config: Config, layers: int) -> Words:
    first = config.integer("dense_mlp_idx", 0, minimum=0)
    return ["dense" if index < first else "moe" for index in range(layers)]


def _inkling_experts(config: Config) -> FeedForward:
    """With ``dense_intermediate_size`` the plain key is the width of an expert."""
    if config.has("dense_intermediate_size"):
        return experts(key="intermediate_size")(config)
    return experts()(config)


def _inkling_width(config: Config) -> FeedForward:
    # Where the dense width has a key of its own, the plain key is an expert's: see ``_inkling_experts``.
    return dense(key="dense_intermediate_size" if config.has("dense_intermediate_size") else "intermediate_size")(
        config
    )


def _kinds(full: MixerReader, window: MixerReader) -> Mapping[str, MixerReader]:
    """These families call a layer with convolutions hybrid, whatever its attention."""
    return {"full": full, "hybrid": full, "window": windowed(window)}


_INKLING_UNUSED = keys(
    """
    unpadded_vocab_size d_rel rel_extent log_scaling_n_floor log_scaling_alpha sconv_kernel_size conv_kernel_size
    shared_expert_sink chain_hidden_post_norm mtp_hidden_states_first mtp_local_layer_ids number_of_conv_states
    qk_l2_clip_threshold rel_l2_clip_threshold n_layers_per_attn_res_block mlp_gate_softcap mlp_up_softcap
    dense_mlp_idx intermediate_size use_embed_norm use_sconv local_layer_ids norm_after_topk use_global_scale
    use_gate_bias gate_activation model_max_length swa_num_attention_heads swa_num_key_value_heads swa_head_dim
    """
)
# Windowed layers may have other numbers of heads than the full ones (``swa_num_attention_heads`` ...).
_INKLING_HEADS = softmax(prefix="swa_")

FAMILIES: Mapping[str, Family] = {
    "zaya": Family(
        _kinds(softmax(), softmax()),
        {"moe": experts()},  # one expert per token; the router, a small network of its own, counts as one matrix
        mixer_rule=always("full"),
        block_rule=always("moe"),
        tied=True,
        keys={"num_experts_per_tok": ("num_experts_per_tok", "moe_router_topk")},
        ignored=keys(
            """
            lm_head_bias router_hidden_size cca_time0 cca_time1 cca sliding_window intermediate_size
            """
        ),
        notes=(NOTE,),
    ),
    "inkling_text": Family(
        _kinds(softmax(), _INKLING_HEADS),
        {"dense": _inkling_width, "moe": _inkling_experts},
        mixer_rule=_full_every(6),
        block_rule=_inkling_dense,
        ignored=_INKLING_UNUSED,
        notes=(NOTE,),
    ),
    "inkling2_text": Family(
        _kinds(softmax(gate=True), softmax(gate=True, prefix="swa_")),
        {"moe": experts()},
        mixer_rule=_full_every(6),
        block_rule=always("moe"),
        ignored=_INKLING_UNUSED,
        notes=(NOTE,),
    ),
}
