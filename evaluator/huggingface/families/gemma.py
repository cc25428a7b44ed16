"""Gemma 1 to 4: windows between full layers, tied embeddings; per-layer inputs and shared KV from 3n on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from evaluator.catalog.model import DenseFeedForward, FeedForward, Mixer, MoeFeedForward, SoftmaxAttention
from evaluator.huggingface.blocks import dense, experts, with_branch
from evaluator.huggingface.config import Config
from evaluator.huggingface.families.plain import GATED, NORMALISED
from evaluator.huggingface.family import Family, keys
from evaluator.huggingface.mixers import MixerReader
from evaluator.huggingface.pattern import every


def _gemma4(of: MixerReader) -> MixerReader:
    """Global layers: heads of ``global_head_dim``, ``num_global_key_value_heads``; keys as values where so set."""

    def read(config: Config) -> Mixer:
        mixer = of(config)
        assert isinstance(mixer, SoftmaxAttention)
        same = config.flag("attention_k_eq_v", False)
        heads = config.integer("num_global_key_value_heads", None)
        stated = config.has("per_layer_config")
        # With ``per_layer_config`` the layer's own ``head_dim`` has been read already and goes before the
        # one of all global layers.
        size = mixer.head_dim if stated else config.integer("global_head_dim", 512)
        # Where keys serve as values the projection of values is left out and the cache holds one of the
        # two; only these layers have ``num_global_key_value_heads``.
        return replace(mixer, head_dim=size, kv_heads=heads if same and heads else mixer.kv_heads, keys_as_values=same)

    return read


def _per_layer_columns(config: Config) -> int:
    """Gemma 3n and 4: the gate and projection of the layer's own input, its share of the model's projection (as wide
    as the hidden state, once), LAUREL, and the layer's share of the AltUp projections of Gemma 3n."""
    size = config.integer("hidden_size_per_layer_input", 0, minimum=0)
    laurel = config.integer("laurel_rank", 0, minimum=0)
    streams = config.integer("altup_num_inputs", 1)
    altup = (streams - 1) * config.integer("hidden_size") // config.layers()
    # A column of a branch goes down from the hidden state and back up. The share of the model's projection has no way
    # back, so it counts half.
    return size + size // 2 + laurel + altup


def _per_layer_tables(config: Config) -> int:
    size = config.integer("hidden_size_per_layer_input", 0, minimum=0)
    # A table for every layer, looked up by token: memory, and hardly any time.
    rows = config.integer("vocab_size_per_layer_input", config.integer("vocab_size"))
    return rows * size * config.layers()


def _twice_as_wide(config: Config) -> bool:
    """Gemma 4's small models widen the feed-forward of layers that share KV."""
    first = config.layers() - config.integer("num_kv_shared_layers", 0, minimum=0)
    return config.flag("use_double_wide_mlp", False) and config.layer is not None and config.layer >= first


def _gemma4_block(config: Config) -> FeedForward:
    """Dense, or beside a dense block so many experts."""
    block = with_branch(dense(), _per_layer_columns)(config)
    assert isinstance(block, DenseFeedForward)
    wide = 2 * block.intermediate if _twice_as_wide(config) else block.intermediate
    # Dense members of the family carry the numbers of experts along; off, they count as read.
    if not config.flag("enable_moe_block", False):
        config.skip("num_experts", "num_experts_per_tok", "moe_intermediate_size")
        return replace(block, intermediate=wide)
    moe = experts()(config)
    assert isinstance(moe, MoeFeedForward)
    return replace(moe, shared_intermediate=wide)


# ``Gemma3TextConfig`` of transformers. Configs of Gemma 3 rely on it: the text level of the 27B leaves
# vocabulary, positions and the activation out.
_GEMMA3_DEFAULTS = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
    "hidden_act": "gelu_pytorch_tanh",
}
GEMMA2 = replace(GATED, tied=True, mixer_rule=every("layers_between", "full", "window", default=2),
                 keys={"layers_between": ("layers_between",)},
                 defaults={"head_dim": 256, "sliding_window": 4096})  # fmt: skip
GEMMA3 = replace(GATED, mixers=NORMALISED, tied=True, defaults=_GEMMA3_DEFAULTS,
                 mixer_rule=every("sliding_window_pattern", "full", "window", default=6))  # fmt: skip
GEMMA3N = replace(
    GEMMA3,
    blocks={"dense": with_branch(dense(), _per_layer_columns)},
    # Gemma 3n has one full layer in five where Gemma 3 has one in six.
    mixer_rule=every("sliding_window_pattern", "full", "window", default=5),
    lookups=_per_layer_tables,
    ignored=keys(
        """
        activation_sparsity_pattern altup_active_idx altup_correct_scale altup_coef_clip
        """
    ),
    defaults=_GEMMA3_DEFAULTS
    | {"vocab_size": 262400, "hidden_size": 2048, "intermediate_size": 16384, "num_hidden_layers": 35,
       "num_key_value_heads": 2, "max_position_embeddings": 32768, "sliding_window": 512, "num_kv_shared_layers": 15,
       "vocab_size_per_layer_input": 262144, "hidden_size_per_layer_input": 256, "laurel_rank": 64,
       "altup_num_inputs": 4},
)  # fmt: skip

GEMMA4 = replace(
    GEMMA3,
    mixers={"full": _gemma4(NORMALISED["full"]), "window": NORMALISED["window"]},
    blocks={"dense": _gemma4_block},
    lookups=_per_layer_tables,
    defaults=_GEMMA3_DEFAULTS
    | {"vocab_size": 262144, "num_hidden_layers": 30, "sliding_window": 512, "hidden_size_per_layer_input": 256,
       "vocab_size_per_layer_input": 262144},
)  # fmt: skip

FAMILIES: Mapping[str, Family] = {
    "gemma": replace(
        GATED, tied=True, defaults={"head_dim": 256}, nested={"vocab_size": 256000, "max_position_embeddings": 8192}
    ),
    "gemma2": GEMMA2,
    "vaultgemma": GEMMA2,
    "gemma3_text": GEMMA3,
    "gemma3n_text": GEMMA3N,
    "gemma4_text": GEMMA4,
    # Without inputs by layer: those of GEMMA4's defaults must not be assumed.
    "gemma4_unified_text": replace(GEMMA4, lookups=None, defaults=_GEMMA3_DEFAULTS | {"sliding_window": 512}),
}
