"""Delta-rule attention between softmax or latent attention: Qwen3-Next to Qwen4, Kimi Linear, GLM-5-Next, Ring."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from evaluator.catalog.model import LatentAttention, Mixer
from evaluator.errors import InputError
from evaluator.huggingface.blocks import dense, experts, gated_silu
from evaluator.huggingface.config import Config
from evaluator.huggingface.family import Family, keys
from evaluator.huggingface.mixers import latent, softmax, sparse, sparse_softmax
from evaluator.huggingface.pattern import always, every, layer_groups, stated
from evaluator.huggingface.recurrences import gated_delta, kimi_delta, lightning

# ---- Qwen


def _qwen(moe: bool) -> Family:
    return Family(
        {"full": softmax(gate="attn_output_gate", qk_norm=True), "linear": gated_delta},
        {"dense": gated_silu(), "moe": experts(shared_gate=True)},
        mixer_rule=every("full_attention_interval", "full", "linear", default=4),
        block_rule=always("moe" if moe else "dense"),
        ignored=keys("intermediate_size full_attention_interval"),
    )


def _budget(config: Config) -> int | None:
    return config.integer("indexer_budget", None)


def _ngram_tables(config: Config) -> int:
    """Qwen4's embeddings of n-grams: in each listed layer ``heads_per_ngram`` tables per length of n-gram, their rows
    as many as the base (or the primes next to it), and the projections of what is found into the streams."""
    listed = config.entries("ple_layer_ids", int) or []
    width, hidden = config.integer("ple_embed_dim", config.integer("hidden_size")), config.integer("hidden_size")
    tables = (config.integer("ngram_size", 3, minimum=2) - 1) * config.integer("heads_per_ngram", 8)
    # The tables of all lengths share the width out between them, and their looked-up rows are joined to one
    # vector of it.
    if width % tables:
        raise InputError(f"{config.place('ple_embed_dim')}: {tables} tables of n-grams do not divide it")
    rows = tables * config.integer("ngram_vocab_size_base", 20_000_000)
    projections = width * hidden * (config.integer("hc_count", 4) + 1)
    # Rows are counted as the base says: primes near 20 million lie some 17 apart, so that those of all
    # tables are within 1e-4 of it.
    return len(listed) * (rows * (width // tables) + projections)


def _mixed_streams(config: Config) -> int:
    """Columns of the low-rank products that mix Qwen4's residual streams, before the mixer and before the experts."""
    return 2 * config.integer("hc_count", 4) * config.integer("hc_lowrank", 0, minimum=0)


def _qwen4_lookups(config: Config) -> int:
    return _ngram_tables(config) + config.layers() * 2 * config.integer("hidden_size") * _mixed_streams(config)


# ---- Kimi Linear, Ring, GLM-5-Next


def _gated_latent(config: Config) -> LatentAttention:
    """Bailing's attention has a gate per head, under 1 % of its weights, which is not counted."""
    mixer = latent()(config)
    assert isinstance(mixer, LatentAttention)
    return mixer


def _bailing_linear(config: Config) -> Mixer:
    """Kimi's delta attention, or the lightning attention of Ling and Ring 2.5, whose outputs are normed by groups."""
    # Ling 2.5 and Ling 3 both call themselves bailing_hybrid; the groups of the norm are in the former's config alone.
    if config.has("group_norm_size"):
        return lightning(config)
    return kimi_delta(gate_rank=not config.flag("no_kda_lora", True))(config)


_KIMI_UNUSED = keys(
    """
    num_key_value_heads head_dim mla_use_nope moe_layer_freq first_k_dense_replace qk_head_dim kda_lower_bound
    kda_safe_gate layer_group_size moe_router_activation_func use_grouped_topk num_shared_experts kda_allow_neg_eigval
    attn_res_block_size latent_moe_use_norm activation_situ_beta activation_situ_linear_beta
    """
)
KIMI_LINEAR = Family(
    {"full": latent(), "linear": kimi_delta(gate_rank=True)},
    {"dense": dense(), "moe": experts()},
    block_rule=always("moe"),
    mixer_rule=stated("linear_attn_config"),
    ignored=_KIMI_UNUSED,
)
GLM5_NEXT = replace(
    KIMI_LINEAR,
    mixers={"full": sparse(latent()), "sparse": sparse(latent()), "linear": kimi_delta(gate_rank=True)},
    mixer_rule=every("full_attention_interval", "full", "linear", default=4),
    ignored=_KIMI_UNUSED
    | keys("linear_lower_bound hc_mult hc_eps hc_sinkhorn_iters index_kpool index_kpool_always_select_tail"),
    notes=("hyper-connections are not counted",),
)

FAMILIES: Mapping[str, Family] = {
    "qwen3_next": replace(_qwen(moe=True), defaults={"num_nextn_predict_layers": 1}),  # as vLLM: SpeculativeConfig
    "qwen3_5_moe": _qwen(moe=True),
    "qwen3_5_moe_text": _qwen(moe=True),
    "qwen3_5": _qwen(moe=False),
    "qwen3_5_text": _qwen(moe=False),
    "olmo_hybrid": Family(
        {"full": softmax(), "linear": gated_delta},
        {"dense": dense()},
        mixer_rule=every("full_attention_interval", "full", "linear", default=4),
        ignored=keys(
            """
        linear_a_log_max linear_a_log_min linear_allow_neg_eigval linear_dt_init_floor linear_dt_max
        linear_dt_min linear_use_gate
        """
        ),
    ),
    "qwen4_exp_text": replace(
        _qwen(moe=True),
        mixers={
            "full": sparse_softmax(softmax(gate=True), _budget, "indexer_n_heads", "indexer_head_dim"),
            "sparse": sparse_softmax(softmax(gate=True), _budget, "indexer_n_heads", "indexer_head_dim"),
            "linear": gated_delta,
        },
        lookups=_qwen4_lookups,
        ignored=keys(
            """
            full_attention_interval hc_sinkhorn_iters ple_conv_kernel_size make_ngram_vocab_size_divisible_by seed
            split_ngram_parts indexer_kv_heads indexer_compress_ratio output_gate_type intermediate_size
            number_of_conv_states
            """
        ),
        notes=("the products that mix residual streams take memory and no time",),
    ),
    "kimi_linear": KIMI_LINEAR,
    "bailing_hybrid": replace(
        KIMI_LINEAR,
        mixers={"full": _gated_latent, "linear": _bailing_linear},
        mixer_rule=layer_groups("layer_group_size", default=6),
        ignored=_KIMI_UNUSED
        | keys(
            """
        group_norm_size linear_silu max_window_layers num_kv_heads_for_linear_attn use_linear_gqa use_bias use_qkv_bias
        use_sliding_window sliding_window short_conv_kernel_size no_kda_lora
        """
        ),
    ),
    "glm5_next_text": GLM5_NEXT,
}
