"""The keys of ``config.json`` files: other words for the same figure, and what changes neither shapes nor sizes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# The usual key -> what other families write for it. A reader asks for the first.
ALIASES: Mapping[str, tuple[str, ...]] = {
    "hidden_size": ("n_embd", "d_model", "model_dim", "embedding_dim"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers", "num_blocks"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads", "attention_heads"),
    "num_key_value_heads": ("n_head_kv", "n_kv_heads", "num_kv_heads", "num_query_groups", "num_attention_groups"),
    "head_dim": ("attention_head_dim", "kv_channels"),
    "intermediate_size": (
        "n_inner", "ffn_dim", "ffn_hidden_size", "d_ff", "dff", "mlp_hidden_size",
        "ff_intermediate_size",
    ),
    "max_position_embeddings": (
        "n_positions", "n_ctx", "max_seq_len", "max_sequence_length", "seq_length", "context_length",
        "model_max_length", "max_position_embedding", "max_target_positions",
    ),
    "hidden_act": (
        "activation_function", "hidden_activation", "activation", "mlp_hidden_act", "afn", "ffn_act_fn",
        "hidden_mamba_act",
    ),
    "attention_bias": ("qkv_bias", "use_qkv_bias", "attn_qkv_bias", "add_qkv_bias", "attention_qkv_bias"),
    "sliding_window": (
        "sliding_window_size", "attention_window_size", "window_size", "local_attention", "sliding_windows",
    ),
    "num_experts": (
        "num_local_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts", "num_moe_experts",
    ),
    "num_experts_per_tok": (
        "num_experts_per_token", "moe_topk", "moe_k", "moe_top_k", "top_k_experts", "experts_per_token",
        "num_selected_experts",
    ),
    "moe_intermediate_size": ("expert_ffn_hidden_size", "moe_ffn_hidden_size", "expert_intermediate_size"),
    "n_shared_experts": ("num_shared_experts", "num_shared_expert", "moe_num_shared_experts", "n_shared_expert"),
    "shared_expert_intermediate_size": (
        "shared_intermediate_size", "moe_shared_expert_intermediate_size", "share_expert_dim",
        "shared_experts_intermediate_size",
    ),
    "first_k_dense_replace": ("num_dense_layers", "first_num_dense_layers", "n_dense_layers"),
    "mamba_num_heads": ("mamba_n_heads", "n_mamba_heads", "num_mamba_heads"),
    "mamba_head_dim": ("mamba_d_head", "mamba_headdim"),
    "mamba_groups": ("mamba_n_groups", "n_groups", "mamba_ngroups"),
    "mamba_state": ("mamba_d_state", "ssm_state_size", "state_size"),
    "mamba_conv": ("mamba_d_conv", "conv_kernel", "conv1d_width"),
    "mamba_expansion": ("mamba_expand", "expand"),
    "mamba_step_rank": ("mamba_dt_rank", "time_step_rank"),
    "moe_latent_size": ("routed_expert_hidden_size",),
    "attn_output_gate": ("attention_output_gate", "use_attention_output_gate", "use_gqa_gate"),
    "use_qk_norm": ("qk_layernorm", "qk_norm"),
    "layers_block_type": ("layer_block_types",),
    "num_nextn_predict_layers": ("num_mtp_layers", "mtp_num_hidden_layers", "num_mtp_modules", "mtp_num_layers"),
}  # fmt: skip

# Keys that say how large or of which kind something is, in one family or another.
KNOWN = frozenset(ALIASES) | frozenset(name for names in ALIASES.values() for name in names)

# Keys whose names need not agree: the activation function changes no size, and a model may be served for longer than
# it was trained (Command-R). The first name counts.
MAY_DIFFER = frozenset({"hidden_act", "max_position_embeddings", "num_nextn_predict_layers"})

# Whatever a key's owner: tokens, dropout, epsilons, initialisation, losses, switches of the Python class.
_PATTERNS = re.compile(
    r".*_token_id$|.*_token_index$|.*_token_ids$|.*dropout.*|.*_pdrop$|.*_eps(_.*)?$|.*_epsilon$|^eps$|^norm_eps.*|^initializer_.*"
    r"|.*_initializer_range$|.*init_std$|.*_loss.*|^_.*|.*_aux_.*|^output_(attentions|hidden_states|router_logits|past)$"
    r"|^return_.*|^summary_.*|^(embedding|attention|residual|key|lm_head|attention_in|attention_out|ssm_in|ssm_out|"
    r"logits_mup_width)_multiplier$|^(ssm|mlp)_multipliers$|.*softcap.*|.*soft_cap.*|^rope_(theta|scaling|parameters|type|pct|interleave|dim|ratio|"
    r"local_base_freq|traditional|interleaved|layout)$"
)
# Whatever of these a family does read (``num_nextn_predict_layers``, ``mamba_ssm_cache_dtype``) it reads
# before this list is asked: an entry here only keeps a key from being refused.
IGNORED = frozenset(
    """
    ep_size add_bos_token add_cross_attention alpha_attention architectures attention_chunk_temperature
    attn_implementation auto_map bad_words_ids begin_suppress_tokens cache_implementation
    chunk_size_feed_forward classifier_activation classifier_bias clip_qkv embedding_scale
    enable_moe_fp32_combine expert_selection_fn finetuning_task for_llm_compressor for_mm_llm id2label
    init_device is_decoder is_encoder_decoder keys_to_ignore_at_inference label2id layer_norm_elementwise_affine
    layer_rope_theta layerdrop logit_scale logits_scaling mamba_ssm_cache_dtype mamba_ssm_dtype max_length
    mlp_alpha_factor model_type moe_renormalize moe_router_activation_func moe_router_enable_expert_bias
    moe_router_use_sigmoid mtp_layer_types mtp_layers_block_type mtp_mlp_layer_types mtp_num_hidden_layers
    mtp_num_layers mtp_transformer_layers mtp_use_dedicated_embeddings n_group norm_topk_prob
    normalization_function normalize_expert_weights num_expert_group num_logits_to_keep num_mtp_layers
    num_mtp_modules num_nextn_predict_layers original_max_position_embeddings partial_rotary_factor
    partial_rotary_factors seq_aux
    position_embedding_type pretraining_tp problem_type qk_layernorm qk_norm query_pre_attn_scalar
    rescale_prenorm_residual residual_in_fp32 rotary_dim rotary_emb_base rotary_pct rotary_percent route_scale
    routed_scaling_factor router_dtype router_jitter_noise router_scaling_factor scale_emb scale_embedding
    score_function scoring_func sep_token suppress_tokens swiglu_limit task_specific_params temperature
    cross_attention_hidden_size diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size
    exponential_decay_length_penalty forced_bos_token_id forced_eos_token_id length_penalty min_length
    no_repeat_ngram_size num_beam_groups num_beams num_return_sequences output_scores prefix pruned_heads
    remove_invalid_values repetition_penalty tie_encoder_decoder top_k top_p typical_p use_bfloat16
    logits_to_keep gradient_checkpointing max_model_len nextn_use_scmoe mtp_loss_scaling_factor
    decoder_start_token_id is_vision_model num_image_tokens use_kernels use_fused_ops rope_type
    tf_legacy_loss time_step_floor time_step_init_scheme time_step_limit time_step_max time_step_min
    time_step_scale tokenizer_class topk_group topk_method torchscript transformers_version unsloth_fixed
    unsloth_version use_associative_scan use_bidirectional_attention use_cache use_cache_quantization
    use_flash_attn use_grouped_topk use_mamba_kernels use_mambapy use_qk_norm is_composition is_llama_config
    pixel_shuffle_factor transformers.js_config
    """.split()
)


# Words in names of switches that change norms, positions, number formats or the code that runs, and no size.
_SWITCHES = re.compile(
    r"norm|rope|rotary|scal(e|ing)|fus(e|ed|ion)|flash|kernel|cache|recompute|checkpoint|debug|precision|fp16|bf16|fp32"
    r"|grouped_mm|deepep|routing|router|logits|softmax|implementation|position_id|pad|sanity|balance|rmsnorm|temperature"
)
# Words in names of numbers of the same kind.
_NUMBERS = re.compile(
    r"rope|rotary|token|seed|version|temperature|scal(e|ing)|mup_|multiplier|limit|gamma|theta|mscale"
)
# Words of a period or an offset, which with 1 or 0 says that all layers are alike.
_PERIODS = re.compile(r"every|interval|freq|period|_mod$|offset|_factor$|_step$|num_skipped")


def is_neutral(key: str, value: Any) -> bool:
    """Whether the name of a switch or number that no reader knows tells that it can state no size."""
    if isinstance(value, bool):
        return _SWITCHES.search(key) is not None
    if not isinstance(value, int):
        return False
    # 0 switches off, a period of 1 treats all layers alike; any other number may be a size and is refused.
    return value == 0 or (value == 1 and _PERIODS.search(key) is not None) or _NUMBERS.search(key) is not None


def is_ignored(key: str) -> bool:
    """Whether a key changes neither the size nor the shape of the text model, whatever the family."""
    return key in IGNORED or _PATTERNS.match(key) is not None
