"""DeepSeek-V2, V3 (R1) and Kimi-K2: multi-head latent attention, dense layers first, then experts with shared ones."""

from __future__ import annotations

from evaluator.catalog.huggingface.config import Config, Family, layer_kinds
from evaluator.catalog.huggingface.dense import gated_feed_forward
from evaluator.catalog.model import LatentAttention, LayerKind, MoeFeedForward


def _layers(config: Config) -> tuple[LayerKind, ...]:
    config.expect("attention_bias", False)
    mixer = LatentAttention(
        heads=config.integer("num_attention_heads"),
        kv_lora_rank=config.integer("kv_lora_rank"),
        nope_head_dim=config.integer("qk_nope_head_dim"),
        rope_head_dim=config.integer("qk_rope_head_dim"),
        v_head_dim=config.integer("v_head_dim"),
        q_lora_rank=config.integer("q_lora_rank", None),
    )
    dense, moe = gated_feed_forward(config), _experts(config)
    first = config.integer("first_k_dense_replace", 0, minimum=0)
    every = config.integer("moe_layer_freq", 1)
    layers = range(config.integer("num_hidden_layers"))
    return layer_kinds([(mixer, moe if index >= first and index % every == 0 else dense) for index in layers])


def _experts(config: Config) -> MoeFeedForward:
    intermediate = config.integer("moe_intermediate_size")
    return MoeFeedForward(
        experts=config.integer("n_routed_experts"),
        experts_per_token=config.integer("num_experts_per_tok"),
        intermediate=intermediate,
        shared_intermediate=config.integer("n_shared_experts", 0, minimum=0) * intermediate,
    )


# Routing details change which experts a token visits, not how many; num_key_value_heads means nothing under MLA;
# num_nextn_predict_layers is the multi-token-prediction module, which is not counted.
_IGNORED = frozenset(
    """
    aux_loss_alpha ep_size head_dim n_group num_key_value_heads num_nextn_predict_layers qk_head_dim
    rope_interleave routed_scaling_factor scoring_func seq_aux topk_group topk_method
    """.split()
)
FAMILIES = {kind: Family(_layers, _IGNORED) for kind in ("deepseek_v2", "deepseek_v3", "kimi_k2")}
