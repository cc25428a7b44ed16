"""Hybrids in whose layers attention and recurrences take turns: Phi-4-mini-flash, PLaMo; and RWKV-7."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from evaluator.catalog.model import Mixer, SoftmaxAttention
from evaluator.huggingface.blocks import dense
from evaluator.huggingface.config import Config
from evaluator.huggingface.families.hybrids import MAMBA_UNUSED
from evaluator.huggingface.families.plain import GATED
from evaluator.huggingface.family import Family, keys
from evaluator.huggingface.mixers import MixerReader, softmax, windowed
from evaluator.huggingface.pattern import Words, always, every
from evaluator.huggingface.recurrences import gated_memory, mamba1, plamo, rwkv7


def _decoder_of_decoder(config: Config, layers: int) -> Words:
    """SambaY (arXiv:2507.06607): Mamba and windows in turn, one full layer, then memory units and its KV in turn."""
    step, half = config.integer("mb_per_layer", 2), layers // 2
    words = []
    for index in range(layers):
        if index % step == 0:
            # Memory units need no state of their own: they gate the state of the last Mamba layer of the first half.
            words.append("linear" if index <= half else "memory")
        else:
            # One full layer writes the KV that all later attention reads, so that a token's cache does not
            # grow with the depth.
            words.append("window" if index < half else "full" if index == half + 1 else "reader")
    return words


def _reader(of: MixerReader) -> MixerReader:
    def read(config: Config) -> Mixer:
        mixer = of(config)
        assert isinstance(mixer, SoftmaxAttention)
        return replace(mixer, shared_kv=True)

    return read


_BIASED = softmax(bias=True, output_bias=True)


def _plamo_mixers(config: Config, layers: int) -> Words:
    """One attention layer in ``mamba_step``, in its middle; windowed but for those in ``full_attention_idx``."""
    step, full = config.integer("mamba_step", 2), config.indices("full_attention_idx", layers) or set()
    attention = [index % step == step // 2 for index in range(layers)]
    # As ``is_mamba`` of PLaMo 2's code (and of vLLM's plamo2.py): a model too short to have a layer in the
    # middle of its first group has its last one for attention.
    if layers <= step // 2:
        attention = [index == layers - 1 for index in range(layers)]
    kinds = ["full" if index in full or not config.has("sliding_window") else "window" for index in range(layers)]
    return [kind if chosen else "linear" for kind, chosen in zip(kinds, attention, strict=True)]


_PLAMO_KEYS: Mapping[str, tuple[str, ...]] = {"head_dim": ("hidden_size_per_head", "head_dim")}
_PLAMO_UNUSED = keys(
    """
    capacity_factor eval_attention_n_bit eval_mlp_n_bit expert_dropout group_size image_feature_size image_proj_type
    k_expert linear_type mamba_chunk_size mamba_enabled mlp_type n_expert sparse_intermediate_size sparse_step
    sparse_expert shared_intermediate_size use_predefined_initial_state full_attention_idx attention_window_size
    """
)

FAMILIES: Mapping[str, Family] = {
    "phi4flash": Family(
        {
            "linear": mamba1, "memory": gated_memory, "window": windowed(_BIASED), "full": _BIASED,
            "reader": _reader(_BIASED),
        },
        {"dense": dense()},
        mixer_rule=_decoder_of_decoder,
        tied=True,
        ignored=MAMBA_UNUSED | keys("mb_per_layer lm_head_bias sliding_window"),
    ),
    "plamo2": Family(
        {"linear": plamo, "full": softmax(), "window": windowed(softmax())},
        {"dense": dense()},
        mixer_rule=_plamo_mixers,
        tied=True,
        keys=_PLAMO_KEYS,
        ignored=_PLAMO_UNUSED,
    ),
    "plamo3": replace(
        GATED,
        tied=True,
        mixer_rule=every("sliding_window_pattern", "full", "window", default=8),
        keys=_PLAMO_KEYS,
        ignored=_PLAMO_UNUSED,
    ),
    "rwkv7": Family(
        {"linear": rwkv7},
        {"dense": dense(gated=False, times_hidden=4)},
        mixer_rule=always("linear"),
        ignored=keys("value_dim hidden_ratio norm_first head_dim num_heads attn_mode fuse_norm"),
    ),
}  # fmt: skip
