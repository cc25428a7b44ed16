"""A model of no known family, Solar Open 2 and GigaChat 3.5: each layer's kind by the keys that are there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from evaluator.catalog.model import Mixer, SoftmaxAttention
from evaluator.errors import InputError
from evaluator.huggingface.blocks import experts, gated_silu
from evaluator.huggingface.config import Config
from evaluator.huggingface.family import Family, keys
from evaluator.huggingface.mixers import MixerReader, latent, softmax, sparse, windowed
from evaluator.huggingface.pattern import Words
from evaluator.huggingface.recurrences import gated_delta, kimi_delta, mamba1, mamba2, short_convolution

# A key that only one kind of recurrence has -> its reader.
_RECURRENCES: Mapping[str, MixerReader] = {
    "linear_attn_config": kimi_delta(gate_rank=True),
    "linear_num_value_heads": gated_delta,
    "mamba_num_heads": mamba2,
    "mamba_state": mamba1,
    "conv_L_cache": short_convolution,
}
_UNUSED = keys(
    """
    first_k_dense_replace moe_layer_freq qk_head_dim num_key_value_heads head_dim intermediate_size ep_size seq_aux
    mamba_chunk_size chunk_size mamba_expand kda_lower_bound kda_allow_neg_eigval
    """
)


def _attention(config: Config) -> Mixer:
    """Latent attention where there is a rank of keys and values, over chosen tokens with an indexer; else heads."""
    if config.has("kv_lora_rank"):
        return (sparse(latent()) if config.has("index_topk") else latent())(config)
    # Off where nothing is said: a gate has as many weights as the queries, which a family that is only
    # guessed must not get.
    gated = config.flag("attn_output_gate", False)
    mixer = softmax()(config)
    assert isinstance(mixer, SoftmaxAttention)
    return replace(mixer, output_gate=gated)


def _recurrence(config: Config) -> Mixer:
    for key, read in _RECURRENCES.items():
        if config.has(key):
            return read(config)
    raise InputError(f"{config.where}: some layers have no softmax attention, but no key says what they have instead")


def _experts_if_any(config: Config, layers: int) -> Words:
    """Experts in every layer where there are any, but for the first ones that a key calls dense."""
    return ["moe" if config.has("num_experts") else "dense"] * layers


def _solar(config: Config, layers: int) -> Words:
    """Solar Open 2: one layer with softmax attention, then ``gqa_interval`` without, from the first layer on."""
    # The interval counts the layers between two with softmax attention, not the period.
    period = config.integer("gqa_interval", 3) + 1
    return ["linear" if index % period else "full" for index in range(layers)]


GENERAL = Family(
    {"full": _attention, "window": windowed(_attention), "sparse": _attention, "linear": _recurrence},
    {"dense": gated_silu(), "moe": experts()},
    block_rule=_experts_if_any,
    ignored=_UNUSED,
)

FAMILIES: Mapping[str, Family] = {
    "general": GENERAL,
    "gigachat3_5": replace(
        GENERAL,
        keys={"mla_use_output_gate": ("gated_attention",)},
        ignored=_UNUSED | keys("num_krope_heads use_mla_scaling_factor linear_use_short_conv nextn_is_sparse"),
    ),
    "solar_open2": replace(
        GENERAL,
        mixer_rule=_solar,
        keys={"attn_output_gate": ("use_gqa_gate",)},
        ignored=_UNUSED | keys("gqa_interval gqa_layers kda_use_full_proj"),
    ),
}
