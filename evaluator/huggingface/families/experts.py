"""Mixtures of experts with softmax attention in every layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from evaluator.catalog.model import FeedForward, MoeFeedForward, SoftmaxAttention
from evaluator.errors import InputError
from evaluator.huggingface.blocks import dense, experts, gated_silu, without_experts_dense
from evaluator.huggingface.config import Config
from evaluator.huggingface.families.plain import (
    HUNYUAN_UNUSED,
    MUSE_UNUSED,
    NORMALISED,
    QWEN_UNUSED,
    attention_kinds,
    window_if_stated,
)
from evaluator.huggingface.family import Family, keys
from evaluator.huggingface.mixers import factorised, softmax, sparse_softmax, windowed
from evaluator.huggingface.pattern import Words, always, block_words, every, stated

_SOFTMAX = attention_kinds(softmax())
_BIASED = attention_kinds(softmax(bias=True))
MOE = Family(_SOFTMAX, {"dense": dense(), "moe": experts()}, block_rule=always("moe"))
MIXTRAL = Family(_SOFTMAX, {"moe": experts(key="intermediate_size"), "dense": gated_silu()},
                 mixer_rule=window_if_stated, block_rule=always("moe"))  # fmt: skip
_QWEN_BLOCKS = {"dense": gated_silu(), "moe": experts(shared_gate=True)}
# ``intermediate_size`` is the width of dense layers: Qwen's configs state it where no layer is dense, too.
_QWEN_IGNORED = QWEN_UNUSED | keys("intermediate_size shared_expert_intermediate_size")
QWEN_MOE = replace(MOE, blocks=_QWEN_BLOCKS, ignored=_QWEN_IGNORED)
QWEN3_MOE = replace(QWEN_MOE, mixers=NORMALISED)


def _llama4_rotated(config: Config, layers: int) -> Words:
    """One flag per layer, 1 where positions are rotated and attention is local; an empty list stands for every
    fourth layer without."""
    # transformers' Llama4TextConfig makes the list from the interval where a config has `no_rope_layers: []`.
    flags = config.entries("no_rope_layers", int) or []
    if not flags:
        return every("no_rope_layer_interval", "full", "chunked", default=4)(config, layers) or []
    if len(flags) != layers:
        raise InputError(f"{config.place('no_rope_layers')}: {len(flags)} entries for {layers} layers")
    return ["chunked" if flag else "full" for flag in flags]


def _llama4_unrotated(config: Config) -> SoftmaxAttention:
    attention = softmax()(config)
    assert isinstance(attention, SoftmaxAttention)
    # ``Llama4TextAttention`` of transformers normalises queries and keys that it rotates, and no others.
    return replace(attention, qk_norm=False)


def _llama4_experts(config: Config) -> FeedForward:
    moe = experts(key="intermediate_size")(config)
    assert isinstance(moe, MoeFeedForward)
    # ``Llama4TextMoe`` of transformers: the shared expert is a block of ``intermediate_size``, as each
    # routed one; dense layers have ``intermediate_size_mlp``.
    return replace(moe, shared_intermediate=moe.intermediate)


def _jetmoe(config: Config) -> SoftmaxAttention:
    """JetMoE's mixture of attention heads (arXiv:2404.07413): each chosen expert has queries for all KV heads."""
    attention = softmax()(config)
    assert isinstance(attention, SoftmaxAttention)
    # A token's queries are those of the experts that it chose, so that the heads that compute are fewer
    # than those stored: the rest is in ``_unchosen_attention``.
    return replace(attention, heads=attention.kv_heads * config.integer("num_experts_per_tok"))


def _unchosen_attention(config: Config) -> int:
    width = config.integer("num_key_value_heads") * config.integer("head_dim")
    others = config.integer("num_experts") - config.integer("num_experts_per_tok")
    # Keys and values are shared by all experts: only queries and outputs (2) are each expert's own.
    return config.layers() * others * 2 * config.integer("hidden_size") * width


def _two_widths(config: Config) -> tuple[int, int]:
    """ERNIE 4.5 VL: ``moe_intermediate_size`` is a list, of an expert of texts and of one of images."""
    widths = config.entries("moe_intermediate_size", int, 2)
    if widths is None or min(widths) < 1:
        raise InputError(f"{config.place('moe_intermediate_size')}: expected the widths of both kinds of experts")
    return widths[0], widths[1]


def _of_two_modes(config: Config) -> MoeFeedForward:
    width, count = _two_widths(config)[0], config.integer("num_experts")
    shared = config.integer("n_shared_experts", 0, minimum=0) * width
    return MoeFeedForward(count, config.integer("num_experts_per_tok"), width, shared_intermediate=shared)


def _experts_of_images(config: Config) -> int:
    words = block_words(config, config.layers(), always("moe"))
    # Gate, up and down projection, and the expert's row of the router: experts of images have one of their own.
    per_expert = config.integer("hidden_size") * (3 * _two_widths(config)[1] + 1)
    return words.count("moe") * config.integer("num_experts") * per_expert


def _arctic(config: Config) -> FeedForward:
    """Snowflake Arctic: a dense block of the hidden size beside the experts."""
    moe = experts(key="intermediate_size")(config)
    assert isinstance(moe, MoeFeedForward)
    # ``ArcticMLP(is_residual_mlp=True)`` takes the hidden size for its width; ``intermediate_size`` is an expert's.
    return replace(moe, shared_intermediate=config.integer("hidden_size"))


def _dbrx_attention(config: Config) -> SoftmaxAttention:
    level = config.level("attn_config")
    # DBRX nests its figures: what is not asked for here must be named, since a level with unread keys is refused.
    level.skip("clip_qkv", "rope_theta", "attn_pdrop")
    heads = config.integer("num_attention_heads")
    return SoftmaxAttention(heads, level.integer("kv_n_heads", heads), config.integer("hidden_size") // heads)


def _dbrx_experts(config: Config) -> MoeFeedForward:
    level = config.level("ffn_config")
    level.skip(
        "ffn_act_fn", "moe_jitter_eps", "moe_normalize_expert_weights", "moe_loss_weight", "uniform_expert_assignment"
    )
    return MoeFeedForward(
        level.integer("moe_num_experts"), level.integer("moe_top_k"), level.integer("ffn_hidden_size")
    )


def _blocks(config: Config) -> int | None:
    """MiniMax-M3: the chosen blocks and those right before the query, in tokens."""
    blocks = config.integer("index_topk_blocks") + config.integer("index_local_blocks", 0, minimum=0)
    # The indexer chooses blocks and not tokens, but what attention then reads is counted in tokens, as for DeepSeek's.
    return blocks * config.integer("index_block_size")


LLAMA4 = Family(
    {"full": _llama4_unrotated, "chunked": windowed(softmax(), "attention_chunk_size", chunked=True)},
    {"dense": gated_silu("intermediate_size_mlp"), "moe": _llama4_experts},
    mixer_rule=_llama4_rotated,
    block_rule=always("moe"),
    # The default of transformers' ``Llama4TextConfig``.
    defaults={"attention_chunk_size": 8192},
    ignored=keys(
        """
        attn_scale attn_temperature_tuning floor_scale no_rope_layers no_rope_layer_interval moe_layers
        interleave_moe_layer_step intermediate_size_mlp attention_chunk_size
        """
    ),
)
_FIRST_DENSE = keys("first_k_dense_replace moe_layer_freq")
GLM4_MOE = replace(MOE, mixers=_BIASED, ignored=_FIRST_DENSE)
GRANITE_MOE = replace(
    MOE,
    # The code for models with experts serves dense ones, too: Granite 4.0 Micro says 0 experts.
    blocks={"moe": without_experts_dense(experts(key="intermediate_size"), dense()), "dense": dense()},
    tied=True,
    ignored=keys("shared_intermediate_size intermediate_size"),
)
_STEP_UNUSED = keys(
    """
    attention_other_setting gating moe_router_scaling_factor need_fp32_gate num_attention_heads_per_layer
    query_pre_attn_scalar share_expert_dims swiglu_limits swiglu_limits_shared use_head_wise_attn_gate use_moe
    use_moe_router_bias use_rope_layers yarn_only_types zero_centered att_impl_type moe_dynamic_exp_p norm_expert_weight
    use_im_start_end_boost_rope share_q_dim max_seq_len
    """
)


def _step_window(config: Config) -> SoftmaxAttention:
    """Step-3.5: windowed layers may have heads of their own, in a number or in ``attention_other_setting``."""
    attention = windowed(softmax(qk_norm=True))(config)
    assert isinstance(attention, SoftmaxAttention)
    heads = config.integer("num_sliding_attention_heads", attention.heads)
    if not config.has("attention_other_setting"):
        return replace(attention, heads=heads)
    other = config.level("attention_other_setting")
    other.skip("attention_type", "true_head_dim")
    return replace(
        attention,
        heads=other.integer("num_attention_heads", heads),
        kv_heads=other.integer("num_key_value_heads", attention.kv_heads),
        head_dim=other.integer("head_dim", attention.head_dim),
    )


STEP = replace(
    MOE,
    mixers={"full": softmax(qk_norm=True), "window": _step_window},
    ignored=_STEP_UNUSED - {"share_q_dim"} | keys("num_sliding_attention_heads"),
)
BAILING = replace(
    MOE,
    keys={"attention_bias": ("use_qkv_bias",), "n_shared_experts": ("num_shared_experts",)},
    ignored=_FIRST_DENSE
    | keys(
        """
        use_bias moe_router_enable_expert_bias norm_softmax norm_head use_rmsnorm router_type multi_gate
        max_window_layers sliding_window use_sliding_window
        """
    ),
)

MIMO_V2 = replace(
    MOE,
    # MiMo-V2's values are narrower than its keys (``v_head_dim`` 128 under ``head_dim`` 192), which the KV
    # cache follows.
    mixers={"full": softmax(values=True), "window": windowed(softmax(values=True, prefix="swa_"))},
    ignored=keys(
        """
        attention_value_scale add_swa_attention_sink_bias add_full_attention_sink_bias sliding_window
        attention_chunk_size hybrid_block_size swa_rope_theta intermediate_size n_shared_experts
        num_nextn_predict_layers
        """
    ),
)

ERNIE_VL = replace(
    MOE,
    tied=True,
    keys={"attention_bias": ("use_bias",)},
    blocks={"dense": dense(), "moe": _of_two_modes},
    ignored=keys(
        """
        moe_norm_min moe_capacity moe_gate moe_gate_act moe_use_aux_free moe_multimodal_dispatch_use_allgather
        moe_layer_start_index moe_layer_end_index moe_layer_interval moe_dense_experts_token_type_id freq_allocation
        im_patch_id pixel_hidden_size spatial_conv_size temporal_conv_size token_balance_seqlen ignored_index
        """
    ),
    lookups=_experts_of_images,
    notes=("a text visits the experts of texts; those of images take memory only",),
)

FAMILIES: Mapping[str, Family] = {
    "mixtral": MIXTRAL,
    "qwen2_moe": replace(QWEN_MOE, mixers=_BIASED),
    "qwen3_moe": QWEN3_MOE,
    "qwen3_vl_moe_text": QWEN3_MOE,
    "flint": replace(QWEN_MOE, blocks={"dense": gated_silu(), "moe": experts()}, defaults={"head_dim": 128}),
    "kolibri1": replace(QWEN_MOE, blocks={"dense": gated_silu(), "moe": experts()}),
    "llama4": LLAMA4,
    "llama4_text": LLAMA4,
    "gpt_oss": Family(
        _BIASED,
        {"moe": experts(bias=True, key="intermediate_size"), "dense": gated_silu()},
        block_rule=always("moe"),
        # transformers would alternate windows where the list is missing; half of the KV hangs on it, so it
        # must be said.
        mixer_rule=stated("layer_types", "which layers are windowed"),
        ignored=keys("experts_per_token initial_context_length swiglu_alpha"),
    ),
    "phimoe": replace(
        MIXTRAL,
        mixers=attention_kinds(softmax(output_bias=False)),
        ignored=keys("input_jitter_noise lm_head_bias mlp_bias"),
    ),
    "olmoe": replace(MIXTRAL, mixers=NORMALISED),
    "flex_olmo": replace(MIXTRAL, mixers=NORMALISED),
    "granitemoe": GRANITE_MOE,
    "granitemoe_swa": GRANITE_MOE,
    "granitemoeshared": GRANITE_MOE,
    "glm4_moe": GLM4_MOE,
    "glm4v_moe_text": GLM4_MOE,
    "dots1": replace(MOE, mixers=NORMALISED, ignored=_FIRST_DENSE | QWEN_UNUSED),
    "ernie4_5_moe": replace(
        MOE,
        tied=True,
        keys={"attention_bias": ("use_bias",)},
        ignored=keys(
            """
        moe_capacity moe_gate moe_norm_min moe_use_aux_free moe_layer_interval moe_layer_start_index
        moe_layer_end_index num_nextn_predict_layers fuse_rms_norm moe_multimodal_dispatch_use_allgather
        """
        ),
    ),
    # The released class has a shared expert always, whether or not the config counts it.
    "hunyuan_v1_moe": replace(MOE, mixers=NORMALISED, defaults={"n_shared_experts": 1}, ignored=HUNYUAN_UNUSED),
    "hunyuan": replace(MOE, ignored=HUNYUAN_UNUSED),
    "minimax_m2": replace(
        MIXTRAL,
        ignored=keys(
            """
        mlp_intermediate_size attn_window_size
        attn_type_list use_mtp use_routing_bias qk_norm_type shared_moe_mode use_mtp_layer
        """
        ),
    ),
    "mimo_v2_flash": MIMO_V2,
    "mimo_v2": MIMO_V2,
    "bailing_moe": BAILING,
    "bailing_moe_v2": BAILING,
    "afmoe": replace(
        MOE,
        mixers=attention_kinds(softmax(gate=True, qk_norm=True)),
        mixer_rule=every("global_attn_every_n_layers", "full", "window", default=4),
        ignored=_FIRST_DENSE
        | keys(
            """
        mup_enabled score_func load_balance_coeff num_limited_groups num_expert_groups route_norm
        use_grouped_mm
        """
        ),
    ),
    "beam": replace(MOE, mixers=attention_kinds(softmax(gate=True))),
    "exaone_moe": replace(MOE, mixers=NORMALISED, ignored=_FIRST_DENSE | keys("first_last_k_dense_replace")),
    "cohere2_moe": replace(
        MOE,
        blocks={"moe": experts(key="intermediate_size"), "dense": dense()},
        tied=True,
        mixer_rule=every("sliding_window_pattern", "full", "window", default=4),
        ignored=keys(
            """
        prefix_dense_intermediate_size prefix_dense_sliding_window_pattern norm_eps
        shared_expert_combination_strategy num_experts_per_tok
        """
        ),
    ),
    "hy_v3": replace(MOE, ignored=_FIRST_DENSE),
    "laguna": replace(
        MOE,
        ignored=keys(
            """
        gating moe_apply_router_weight_on_input moe_routed_scaling_factor moe_router_logit_softcapping
        """
        ),
    ),
    "mellum": MOE,
    "solar_open": replace(MOE, ignored=_FIRST_DENSE | keys("intermediate_size")),
    "aria_text": replace(MOE, blocks={"moe": experts(key="intermediate_size"), "dense": dense()}),
    "arctic": replace(
        MIXTRAL,
        blocks={"moe": _arctic, "dense": dense()},
        ignored=keys(
            """
        parallel_attn_mlp_res moe_layer_frequency moe_eval_capacity_factor moe_min_capacity
        moe_train_capacity_factor moe_token_dropping enable_expert_tensor_parallelism use_residual
        enc_index
        """
        ),
    ),
    "dbrx": Family({"full": _dbrx_attention}, {"moe": _dbrx_experts}, block_rule=always("moe"), tied=False),
    "step3_text": Family(
        {"full": factorised("share_q_dim")},
        {"dense": dense(), "moe": experts()},
        block_rule=always("moe"),
        defaults={"num_key_value_heads": 1},
        ignored=_STEP_UNUSED,
    ),
    "step3p7": STEP,
    "step3p5": STEP,
    "minimax_m3_vl_text": replace(
        MOE,
        mixers={**_SOFTMAX, "sparse": sparse_softmax(softmax(), _blocks, "index_n_heads", "index_head_dim")},
        blocks={"moe": experts(key="intermediate_size"), "dense": dense(key="dense_intermediate_size")},
        ignored=keys(
            """
        index_block_size index_head_dim index_local_blocks index_n_heads index_topk_blocks swiglu_alpha
        use_gemma_norm
        dense_intermediate_size
        """
        ),
    ),
    "jetmoe": replace(
        MIXTRAL,
        tied=True,
        # JetMoE's class computes ``num_attention_heads`` as KV heads times chosen experts, and some configs
        # carry the product along: the KV heads are what both follow from.
        keys={"num_attention_heads": ("num_key_value_heads",)},
        mixers={"full": _jetmoe},
        ignored=keys("num_attention_heads"),
        mixer_rule=always("full"),
        lookups=_unchosen_attention,
        notes=("attention is that of the chosen experts; the others' queries and outputs take memory only",),
    ),
    "ernie4_5_vl_moe_text": ERNIE_VL,
    "ernie4_5_moe_vl": ERNIE_VL,
    "muse_spark_text": replace(
        MOE,
        mixers=attention_kinds(softmax(gate=True)),
        keys={"moe_latent_size": ("moe_hidden_size",)},
        ignored=MUSE_UNUSED,
    ),
    "doge": replace(
        MOE,
        block_rule=always("dense"),
        ignored=keys(
            """
        is_moe keep_window_size sliding_window num_experts num_experts_per_tok
        """
        ),
    ),
}
