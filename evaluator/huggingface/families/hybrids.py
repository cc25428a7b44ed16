"""Layers without softmax attention, alone or between layers with it: Mamba, linear attention, convolutions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from evaluator.catalog.model import DenseFeedForward, FeedForward, Mixer
from evaluator.huggingface.blocks import dense, experts, half_gated, with_branch, without_experts_dense
from evaluator.huggingface.config import Config
from evaluator.huggingface.families.experts import BAILING
from evaluator.huggingface.families.plain import GATED
from evaluator.huggingface.family import Family, Part, keys
from evaluator.huggingface.mixers import softmax, windowed
from evaluator.huggingface.pattern import always, every, one_part, stated
from evaluator.huggingface.recurrences import (
    lightning,
    mamba1,
    mamba2,
    mlstm,
    rg_lru,
    rwkv,
    short_convolution,
)

MAMBA_UNUSED = keys(
    """
    chunk_size mamba_chunk_size expand mamba_expand mamba_act mamba_hidden_act mamba_norm_before_gate mamba_rms_norm
    mamba_use_mlp use_mem_eff_path time_step_rank mamba_dt_rank use_fast_kernels mamba_kernel num_key_value_heads
    attention_head_dim mamba_proj_bias rms_norm ssm_cfg fused_add_norm pad_vocab_size_multiple attn_layer_idx attn_cfg
    d_intermediate conv_bias mixer_rms_eps mamba_num_groups
    """
)


# ---- one part per layer


def _nemotron_attention(config: Config) -> Mixer:
    config.expect("sliding_window", None)
    return softmax()(config)


def _nemotron_dense(config: Config) -> FeedForward:
    # Squared ReLU has no gate. Another activation would say that the file is of other code, whose block may have one.
    config.expect("hidden_act", "relu2")
    return dense(gated=False)(config)


NEMOTRON_H = Family(
    {"full": _nemotron_attention, "linear": mamba2},
    {"dense": _nemotron_dense, "moe": experts(gated=False)},
    # One letter per layer; without it nothing tells how many of the layers attend, and the KV cache would be a guess.
    mixer_rule=stated("hybrid_override_pattern"),
    block_rule=one_part,
    ignored=MAMBA_UNUSED
    | keys(
        """
        intermediate_size moe_intermediate_size n_shared_experts moe_shared_expert_intermediate_size
        n_routed_experts num_experts_per_tok moe_latent_size moe_shared_expert_overlap ssm_state_size
        moe_shared_expert_intermediate mamba_ssm_cache_dtype layer_norm_epsilon mlp_bias mlp_hidden_act
        num_nextn_predict_layers mtp_hybrid_override_pattern sliding_window use_bias
        """
    ),
)  # fmt: skip


# ---- attention and Mamba beside each other


def _both(config: Config, block: FeedForward | None) -> list[Part]:
    """Falcon-H1 (arXiv:2507.22448): Mamba-2 and attention read the same input; here they follow each other."""
    # In sequence the time is the sum of both; on one device neither could run beside the other without slowing it down.
    return [(mamba2(config), None, None), (softmax()(config), block, None)]


# ---- MiniMax


MINIMAX = Family(
    {"full": softmax(), "linear": lightning},
    {"moe": experts(key="intermediate_size")},
    mixer_rule=every("full_attention_interval", "full", "linear", default=2),
    block_rule=always("moe"),
    ignored=keys(
        """
        block_size full_attn_alpha_factor full_attn_beta_factor linear_attn_alpha_factor linear_attn_beta_factor
        mlp_alpha_factor mlp_beta_factor sliding_window layernorm_full_attention_alpha layernorm_full_attention_beta
        layernorm_linear_attention_alpha layernorm_linear_attention_beta layernorm_mlp_alpha layernorm_mlp_beta postnorm
        shared_moe_mode
        """
    ),
)
RING_LINEAR = Family(
    {"full": softmax(), "linear": lightning},
    {"dense": dense(), "moe": experts()},
    mixer_rule=stated("layer_group_size"),
    block_rule=always("moe"),
    keys={"attention_bias": ("use_qkv_bias",)},
    ignored=BAILING.ignored | keys("group_norm_size max_window_layers use_linear_gate rotary_dim"),
)


# ---- LFM2


def _lfm2_width(config: Config) -> FeedForward:
    """``block_auto_adjust_ff_dim``: two thirds of the stated width times a factor, rounded up."""
    block = dense()(config)
    assert isinstance(block, DenseFeedForward)
    factor = config.number("block_ffn_dim_multiplier", 1.0)
    multiple = config.integer("block_multiple_of", 256)
    if not config.flag("block_auto_adjust_ff_dim", True):
        return block
    # As `Lfm2MLP` of transformers computes it, with its rounding down at each step.
    width = int(factor * int(2 * block.intermediate / 3))
    return replace(block, intermediate=-(-width // multiple) * multiple)


_LFM_UNUSED = keys(
        """
        block_dim block_mlp_init_scale block_norm_eps block_out_init_scale block_use_swiglu
        block_use_xavier_init conv_dim conv_dim_out conv_use_xavier_init full_attn_idxs use_pos_enc
        conv_L_cache conv_bias block_ff_dim use_attention_gate use_sandwich_norm use_expert_bias theta
        """
    )  # fmt: skip
LFM2 = Family(
    {"full": softmax(qk_norm=True), "linear": short_convolution},
    {"dense": _lfm2_width},
    mixer_rule=always("full"),
    tied=True,
    keys={"intermediate_size": ("block_ff_dim", "intermediate_size")},
    ignored=_LFM_UNUSED,
)


# ---- RWKV and xLSTM


def _channel_mix(config: Config) -> FeedForward:
    """RWKV-4's channel mixing: key and value without gate, and the receptance, a square matrix more."""
    hidden = config.integer("hidden_size")
    block = dense(gated=False, times_hidden=4)
    # A column of a branch counts twice the hidden size (down and up): half as many columns are the square matrix.
    return with_branch(block, lambda config: hidden // 2)(config)


def _xlstm_block(config: Config) -> FeedForward:
    step = config.integer("ffn_round_up_to_multiple_of", 1)
    # As ``round_up_to_next_multiple_of`` of xLSTM's code rounds the width.
    width = int(config.number("ffn_proj_factor") * config.integer("hidden_size"))
    return DenseFeedForward(-(-width // step) * step)


# Mamba's layers have no feed-forward: the expansion inside the mixer takes its place.
MAMBA = Family({"linear": mamba1}, {}, mixer_rule=always("linear"), block_rule=always("none"), tied=True,
               keys={"mamba_inner": ("intermediate_size", "d_inner")},
               ignored=MAMBA_UNUSED | keys("use_falcon_mamba n_layer"))  # fmt: skip
_MAMBA_ATTENTION = {"full": softmax(), "linear": mamba2}

FAMILIES: Mapping[str, Family] = {
    "nemotron_h": NEMOTRON_H,
    "nemotron_h_puzzle": replace(
        NEMOTRON_H, ignored=NEMOTRON_H.ignored | keys("block_configs mtp_block_configs mtp_hybrid_override_pattern")
    ),
    "mamba": MAMBA,
    "falcon_mamba": MAMBA,
    "mamba2": Family(
        {"linear": mamba2},
        {},
        mixer_rule=always("linear"),
        block_rule=always("none"),
        keys={"mamba_num_heads": ("num_heads",), "mamba_head_dim": ("head_dim",)},
        ignored=MAMBA_UNUSED | keys("num_heads head_dim intermediate_size norm_before_gate"),
    ),
    "bamba": replace(
        GATED, mixers=_MAMBA_ATTENTION, mixer_rule=always("linear"), ignored=MAMBA_UNUSED | keys("attn_layer_indices")
    ),
    "granitemoehybrid": Family(
        _MAMBA_ATTENTION,
        {"moe": without_experts_dense(experts(key="intermediate_size"), dense(key="shared_intermediate_size"))},
        mixer_rule=always("linear"),
        block_rule=always("moe"),
        tied=True,
        keys={"shared_intermediate_size": ("shared_intermediate_size",)},
        ignored=MAMBA_UNUSED | keys("intermediate_size num_experts_per_tok init_method"),
    ),
    "falcon_h1": replace(
        GATED,
        mixers=_MAMBA_ATTENTION,
        mixer_rule=always("hybrid"),
        combined=_both,
        ignored=MAMBA_UNUSED | keys("projectors_bias attn_layer_indices mlp_expansion_factor"),
        notes=("attention and Mamba-2 of a layer, which run beside each other, are two layer kinds",),
    ),
    "jamba": Family(
        {"full": softmax(), "linear": mamba1},
        {"dense": dense(), "moe": experts()},
        mixer_rule=stated("attn_layer_period"),
        block_rule=always("dense"),
        ignored=MAMBA_UNUSED
        | keys(
            """
        num_experts num_experts_per_tok sliding_window attn_layer_offset expert_layer_offset
        """
        ),
    ),
    "minimax": MINIMAX,
    "minimax_text_01": MINIMAX,
    "minimax_m1": MINIMAX,
    "bailing_moe_linear": RING_LINEAR,
    "bailing_moe_linear_v2": RING_LINEAR,
    "lfm2": LFM2,
    "lfm2_moe": replace(LFM2, blocks={"dense": dense(), "moe": experts()}, block_rule=always("moe")),
    "lfm3": replace(LFM2, blocks={"dense": dense()}, mixers={**LFM2.mixers, "window": windowed(softmax(qk_norm=True))}),
    "recurrent_gemma": Family(
        # Griffin has no attention over the whole context: ``attention`` in its ``block_types`` is local.
        {"full": windowed(softmax()), "linear": rg_lru},
        {"dense": half_gated(bias=True)},
        mixer_rule=always("linear"),
        tied=True,
        defaults={"max_position_embeddings": 8192},
        ignored=keys(
            """
        attention_window_size final_w_init_variance_scale w_init_variance_scale
        embeddings_scale_by_sqrt_dim logits_soft_cap
        """
        ),
    ),
    "rwkv": Family(
        {"linear": rwkv},
        {"dense": _channel_mix},
        mixer_rule=always("linear"),
        ignored=keys("rescale_every layer_norm_epsilon"),
    ),
    "xlstm": Family(
        {"linear": mlstm},
        {"dense": _xlstm_block},
        mixer_rule=always("linear"),
        ignored=keys(
            """
        add_out_norm autocast_kernel_dtype chunk_size chunkwise_kernel gate_soft_cap
        inference_state_dtype max_inference_chunksize mode norm_reduction_force_float32
        output_logit_soft_cap sequence_kernel step_kernel use_bias weight_mode
        """
        ),
    ),
}
