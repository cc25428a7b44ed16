"""Attention over compressed entries beside a window: DeepSeek-V4."""

from __future__ import annotations

from collections.abc import Mapping

from evaluator.catalog.model import CompressedAttention
from evaluator.huggingface.blocks import experts
from evaluator.huggingface.config import Config
from evaluator.huggingface.family import Family, keys
from evaluator.huggingface.mixers import MixerReader
from evaluator.huggingface.pattern import always, stated

_RATIOS = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}


def _ratio(config: Config, kind: str, short: str) -> int:
    """Tokens per entry: below ``compress_rates``, in a key of its own, or the family's."""
    rate = config.integer(short, _RATIOS[kind])
    return config.level("compress_rates").integer(kind, rate) if config.has("compress_rates") else rate


def _attention(kind: str | None) -> MixerReader:
    """Layers with a window only (no ``kind``), with chosen entries of few tokens, or with all entries of many."""

    def read(config: Config) -> CompressedAttention:
        few = _ratio(config, "compressed_sparse_attention", "compress_rate_csa")
        many = _ratio(config, "heavily_compressed_attention", "compress_rate_hca")
        chosen = kind == "compressed_sparse_attention"
        heads, size, top = (config.integer(key) for key in ("index_n_heads", "index_head_dim", "index_topk"))
        # All query heads read the one entry of a token (multi-query), so that another number of KV heads
        # would be another layout of the cache.
        config.expect("num_key_value_heads", 1)
        config.expect("attention_bias", False)
        return CompressedAttention(
            heads=config.integer("num_attention_heads"),
            head_dim=config.integer("head_dim"),
            q_rank=config.integer("q_lora_rank"),
            output_groups=config.integer("o_groups"),
            output_rank=config.integer("o_lora_rank"),
            window=config.integer("sliding_window"),
            # Windows of all layers are counted over one reach, that of the sparse layers: top-k entries of few tokens
            # each.
            reach=top * few,
            # 0: the layer has its window alone, as the first two and the predicting one of DeepSeek-V4-Flash.
            ratio=0 if kind is None else few if chosen else many,
            index_heads=heads if chosen else 0,
            index_head_dim=size if chosen else 0,
        )

    return read


FAMILIES: Mapping[str, Family] = {
    "deepseek_v4": Family(
        {
            "window": _attention(None),
            "compressed": _attention("compressed_sparse_attention"),
            "heavily_compressed": _attention("heavily_compressed_attention"),
        },
        {"moe": experts()},
        mixer_rule=stated("compress_ratios"),
        block_rule=always("moe"),
        ignored=keys(
            """
            hc_mult hc_eps hc_sinkhorn_iters compress_rope_theta num_hash_layers qk_rope_head_dim qk_nope_head_dim
            intermediate_size compress_rope_parameters rope_interleave default_num_hash_layers kv_lora_rank v_head_dim
            first_k_dense_replace
            """
        ),
        notes=("hyper-connections are not counted",),
    ),
}
