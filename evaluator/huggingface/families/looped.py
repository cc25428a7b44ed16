"""Layers that run several times with the same weights: Zamba's shared blocks, HRM, Ouro."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from evaluator.catalog.model import DenseFeedForward, FeedForward, SoftmaxAttention
from evaluator.huggingface.blocks import dense, gated_silu
from evaluator.huggingface.config import Config
from evaluator.huggingface.families.hybrids import MAMBA_UNUSED
from evaluator.huggingface.families.plain import QWEN_UNUSED
from evaluator.huggingface.family import Family, Part, keys
from evaluator.huggingface.mixers import MixerReader, softmax
from evaluator.huggingface.pattern import always
from evaluator.huggingface.recurrences import mamba1, mamba2


def _zamba(config: Config, mamba: MixerReader) -> list[Part]:
    """Zamba (arXiv:2405.16712) and Zamba2 (arXiv:2411.15242): a shared transformer block over the hidden state beside
    the embedding, a projection of its own back into the stream, and Mamba; low-rank adapters per use in Zamba2."""
    hidden, sets = config.integer("hidden_size"), config.integer("num_mem_blocks", 1)
    config.skip("attention_hidden_size")
    attention = softmax()(config)
    assert isinstance(attention, SoftmaxAttention)
    # The stream and the embedding stand beside each other, so that queries, keys and values read twice the hidden size.
    shared = (replace(attention, input_width=2 * hidden), dense()(config), sets)
    block = shared[1]
    assert isinstance(block, DenseFeedForward)
    rank = config.integer("adapter_rank", 0, minimum=0)
    # The adapter of the gate and up projections: hidden -> rank -> 2 intermediate; the projection back: hidden^2.
    columns = -(-rank * (hidden + 2 * block.intermediate) // (2 * hidden)) + hidden // 2
    return [shared, (mamba(config), DenseFeedForward(columns, gated=False), None)]


def _hrm(config: Config, block: FeedForward | None) -> list[Part]:
    """HRM-Text (arXiv:2506.21734): a high-level stack runs ``H_cycles`` times, a low-level one ``L_cycles`` times in
    each of them; every run has a KV of its own. ``num_hidden_layers`` counts the runs where ``num_layers_per_stack``
    states the layers of a stack, else it is theirs."""
    # Each high-level cycle runs its low-level stack ``L_cycles`` times and then once itself.
    runs = config.integer("H_cycles", 2) * (config.integer("L_cycles", 3) + 1)
    stack = config.integer("num_layers_per_stack", None)
    part: Part = (softmax(gate=True)(config), block, 2 * (stack or config.layers()))
    # This is called for each of ``num_hidden_layers``: where these count runs already, a call gives one.
    return [part] * (1 if stack else runs)


def _ouro(config: Config, block: FeedForward | None) -> list[Part]:
    """Ouro (arXiv:2510.25741): all layers run ``total_ut_steps`` times, each time with a KV of its own."""
    part: Part = (softmax()(config), block, config.layers())
    # Every pass over the layers has weights in common (the third entry counts the sets) and KV of its own.
    return [part] * config.integer("total_ut_steps", 4)


FAMILIES: Mapping[str, Family] = {
    "zamba": Family(
        {"linear": mamba1},
        {},
        mixer_rule=always("linear"),
        block_rule=always("none"),
        tied=True,
        combined=lambda config, block: _zamba(config, mamba1),
        keys={"head_dim": ("attention_head_dim",), "hidden_act": ("hidden_act",)},
        # Jamba's rule for these keys would call Zamba's hybrid layers full.
        silent=keys("attn_layer_period attn_layer_offset"),
        ignored=MAMBA_UNUSED | keys("hidden_mamba_act"),
    ),
    "zamba2": Family(
        {"linear": mamba2},
        {},
        mixer_rule=always("linear"),
        block_rule=always("none"),
        tied=True,
        combined=lambda config, block: _zamba(config, mamba2),
        keys={"head_dim": ("attention_head_dim",)},
        ignored=MAMBA_UNUSED
        | keys(
            """
        kv_channels add_bias_linear ffn_hidden_size gated_linear_unit num_query_groups use_long_context
        use_mem_rope use_shared_attention_lora use_shared_mlp_lora
        use_shared_attention_adapter use_shared_mlp_adapter use_shared_block_lora lora_rank
        num_layers
        """
        ),
    ),
    "hrm_text": Family(
        {},
        {"dense": gated_silu()},
        mixer_rule=always("hybrid"),
        combined=_hrm,
        ignored=keys("L_bp_cycles prefix_lm"),
        notes=("prompts are computed causally, though the model reads them in both directions",),
    ),
    "ouro": Family(
        {},
        {"dense": gated_silu()},
        mixer_rule=always("hybrid"),
        combined=_ouro,
        silent=keys("layer_types use_sliding_window"),
        ignored=QWEN_UNUSED | keys("early_exit_threshold early_exit_step layer_types"),
        notes=("every token passes all loops: early exits are not taken",),
    ),
}
