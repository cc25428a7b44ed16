"""Families whose code is published beside the weights and is in engines, not in transformers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from evaluator.catalog.model import FeedForward, MoeFeedForward, SoftmaxAttention
from evaluator.huggingface.blocks import dense, experts, half_gated
from evaluator.huggingface.config import Config
from evaluator.huggingface.families.experts import BAILING, MOE, QWEN_MOE
from evaluator.huggingface.families.latent import DEEPSEEK
from evaluator.huggingface.families.plain import GATED, LLAMA, QWEN2, QWEN3, attention_kinds
from evaluator.huggingface.family import Family, keys
from evaluator.huggingface.mixers import softmax, windowed

_BIASED = attention_kinds(softmax(bias=True))
_BLOCK_DIFFUSION = keys("block_size micro_forward save_logits skip_checkpoint")
_MEGATRON = keys(
    """
    add_bias_linear apply_query_key_layer_scaling apply_residual_connection_post_layernorm attention_softmax_in_fp32
    bias_dropout_fusion multi_query_attention original_rope post_layer_norm rmsnorm pre_seq_len prefix_projection
    quantization_bit interleaved_qkv masked_softmax_fusion offset_alibi skip_bias_add skip_bias_add_qkv slow_but_exact
    unk_token_id training_seqlen base_seqlen embed_layernorm relative_encoding logn
    """
)


def _grok(config: Config) -> FeedForward:
    """Grok-1; Grok-2 has a dense block beside the experts (``residual_moe``), and experts of another width."""
    moe = experts()(config)
    assert isinstance(moe, MoeFeedForward)
    # Grok-2 adds the dense block's output to that of the experts: every token visits it, as it would a shared expert.
    beside = config.integer("intermediate_size") if config.flag("residual_moe", False) else 0
    return replace(moe, shared_intermediate=beside)


def _windowed_heads(config: Config) -> SoftmaxAttention:
    """Baichuan-M1: windowed layers have heads of their own, as wide as the hidden size together."""
    heads, kv_heads = config.integer("num_swa_attention_heads"), config.integer("num_swa_key_value_heads")
    return SoftmaxAttention(heads, kv_heads, config.integer("hidden_size") // heads)


GROK = replace(
    MOE,
    blocks={"moe": _grok},
    ignored=keys("attn_output_multiplier embedding_multiplier_scale output_multiplier_scale max_attn_value"
                 " attn_temperature_len global_attn_every_n sliding_window intermediate_size"),
)  # fmt: skip
CHATGLM = replace(
    GATED,
    mixers=_BIASED,
    keys={
        # ChatGLM counts groups of queries; ``padded_vocab_size`` goes first, since the table has the padded rows.
        "num_key_value_heads": ("multi_query_group_num",),
        "vocab_size": ("padded_vocab_size", "vocab_size"),
    },
    ignored=_MEGATRON,
)
_BIAS_EVERYWHERE = replace(
    LLAMA, mixers=attention_kinds(softmax(bias=True, output_bias=True)), keys={"attention_bias": ("bias",)}
)

FAMILIES: Mapping[str, Family] = {
    "chatglm": CHATGLM,
    "qwen": replace(
        GATED,
        mixers=_BIASED,
        # The first Qwen states the width of gate and up projection together: each has half of it.
        blocks={"dense": half_gated()},
        ignored=keys("no_bias bf16 fp16 fp32 onnx_safe scale_attn_weights use_dynamic_ntk use_logn_attn"
                     " softmax_in_fp32 emb_dropout_prob attn_dropout_prob bias_dropout_fusion"),
    ),
    "deepseek": replace(MOE, ignored=keys("first_k_dense_replace moe_layer_freq aux_loss_alpha")),
    "git": GROK,  # what Grok-2 calls itself
    "grok-1": replace(GROK, tied=True),
    # Diffusion models are read for their memory and the time of one pass. How many passes an answer takes
    # is nowhere said.
    "llada": replace(
        GATED,
        keys={"vocab_size": ("vocab_size",), "attention_bias": ("include_qkv_bias",)},
        ignored=keys(
            """
        alibi alibi_bias_max attention_layer_norm_with_affine block_group_size block_type embedding_size include_bias
        mlp_ratio multi_query_attention rope input_emb_norm layer_norm_with_affine mask_token_id weight_tying
        """
        ),
        notes=("a diffusion model: one pass per denoising step is not what is costed",),
    ),
    "llada_moe": replace(
        MOE, ignored=keys("first_k_dense_replace moe_layer_freq intermediate_size"),
        notes=("a diffusion model: one pass per denoising step is not what is costed",),
    ),
    "llada2_moe": replace(
        BAILING, notes=("a diffusion model: one pass per denoising step is not what is costed",)
    ),
    "dream": replace(QWEN2, notes=("a diffusion model: one pass per denoising step is not what is costed",)),
    "sdar": replace(QWEN3, ignored=QWEN3.ignored | _BLOCK_DIFFUSION),
    "sdar_moe": replace(QWEN_MOE, ignored=QWEN_MOE.ignored | _BLOCK_DIFFUSION),
    "PanguEmbedded": _BIAS_EVERYWHERE,
    "internlm": replace(_BIAS_EVERYWHERE, ignored=keys("rotary")),
    "PanguProMoE": replace(
        QWEN_MOE, mixers=_BIASED, blocks={"dense": dense(), "moe": experts()},
        ignored=QWEN_MOE.ignored | keys("num_experts_per_group router_scale"),
    ),
    "pangu_ultra_moe": replace(
        DEEPSEEK,
        keys={
            "kv_lora_rank": ("kv_lora_rank", "attention_kv_lora_dim"),
            "q_lora_rank": ("q_lora_rank", "attention_q_lora_dim"),
            "qk_nope_head_dim": ("qk_nope_head_dim", "attention_qk_dim"),
            "qk_rope_head_dim": ("qk_rope_head_dim", "attention_qk_rope_dim"),
            "v_head_dim": ("v_head_dim", "attention_v_dim"),
        },
        ignored=DEEPSEEK.ignored | keys("sandwich_norm router_enable_expert_bias"),
    ),
    "telechat": replace(GATED, ignored=_MEGATRON),
    "solar": replace(GATED, ignored=keys("bskcn_1 bskcn_2 bskcn_3 bskcn_4 bskcn_tv sliding_window")),
    "phi3small": replace(
        GATED, mixers=_BIASED, blocks={"dense": dense(bias=True)}, tied=True,
        ignored=keys(
            """
        blocksparse_block_size blocksparse_homo_head_pattern blocksparse_num_local_blocks
        blocksparse_triton_kernel_block_size blocksparse_vert_stride dense_attention_every_n_layers
        dummy_token_indices ff_dim_multiplier gegelu_limit gegelu_pad_to_256 mup_use_scaling
        pad_sequence_to_multiple_of_64 reorder_and_upcast_attn rope_embedding_base mup_width_multiplier
        """
        ),
        notes=("block-sparse attention of every second layer is counted as full attention",),
    ),
    "molmo": replace(
        GATED, blocks={"dense": half_gated()}, mixers=_BIASED,
        ignored=keys("embedding_size weight_tying norm_after additional_vocab_size use_position_ids"),
        notes=("the vision encoder is not in the config and is not counted",),
    ),
    "baichuan_m1": replace(
        GATED,
        mixers={"full": softmax(), "window": windowed(_windowed_heads)},
        ignored=keys("conv_window max_window_layers num_swa_attention_heads num_swa_key_value_heads"),
        notes=("the short convolutions of keys and values (under 1 % of the weights) are not counted",),
    ),
    "dots_ocr": QWEN2,
    "kimi_vl": DEEPSEEK,
}  # fmt: skip
