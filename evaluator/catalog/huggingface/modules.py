"""Names of modules, and patterns of them, in a quantisation's lists: which part of the model they speak of."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import cache

# Modules that say nothing of a part, for their weights are few or of no part: routers, norms, convolutions and gates of
# recurrences, encoders, layers that predict further tokens.
_OF_NO_PART = re.compile(
    r"vision|visual|multi_modal|mm_projector|audio|router|(^|[._])gate($|[^_a-z])|shared_expert_gate|norm|mtp|patch_"
    r"|conv1d|in_proj_(a|b|ba)($|[^a-z_])|a_log|dt_bias|indexer|weights_proj|eh_proj|kv_scale|[kv]_scale|rotary"
)
_NAMES = {
    "attention": re.compile(r"attn|attention|mixer|mamba"),
    "experts": re.compile(r"(?<!shared_)experts"),
    "feed_forward": re.compile(r"mlp|ffn|feed_forward|shared_expert"),
    "embedding": re.compile(r"embed"),
    "head": re.compile(r"lm_head|output_layer"),
}
# What modules of each part are called, for patterns to match.
_EXAMPLES = {
    "attention": (
        "model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.o_proj", "model.layers.0.self_attn.kv_b_proj",
        "model.layers.0.attn.wq_b", "model.layers.0.linear_attn.in_proj_qkv", "model.layers.0.linear_attn.out_proj",
        "model.layers.0.mixer.in_proj", "backbone.layers.0.mixer.q_proj",
    ),
    "experts": (
        "model.layers.0.mlp.experts.0.gate_proj", "model.layers.0.mlp.experts.0.down_proj",
        "model.layers.0.mlp.experts.gate_up_proj", "model.layers.0.block_sparse_moe.experts.0.w1",
        "model.layers.0.feed_forward.experts.0.down_proj", "model.layers.0.ffn.experts.0.gate_proj",
        "model.layers.0.mixer.experts.0.up_proj",
    ),
    "feed_forward": (
        "model.layers.0.mlp.gate_proj", "model.layers.0.mlp.down_proj", "model.layers.0.mlp.gate_up_proj",
        "model.layers.0.mlp.shared_experts.gate_proj", "model.layers.0.mlp.shared_experts.down_proj",
        "model.layers.0.mlp.shared_expert.down_proj", "model.layers.0.ffn.gate_proj",
        "model.layers.0.ffn.shared_experts.gate_proj", "model.layers.0.feed_forward.shared_expert.down_proj",
        "model.layers.0.feed_forward.down_proj",
    ),
    "embedding": ("model.embed_tokens",),
    "head": ("lm_head",),
}  # fmt: skip


@cache
def named_parts(module: str) -> Sequence[str]:
    """The parts that a module's name, or a pattern (``re:...``, or with ``*``), speaks of; of most names one."""
    if module.startswith("re:"):
        found = _matching(module[3:])
        return found if found is not None else _by_words(module)
    if "*" in module and layer_of(module) is None:
        return tuple(
            part
            for part, names in _EXAMPLES.items()
            if any(fnmatchcase(name, module) or fnmatchcase(f"language_model.{name}", module) for name in names)
        ) or _by_words(module)
    return _by_words(module)


def _matching(pattern: str) -> Sequence[str] | None:
    """By the examples that match; None where the pattern matches none of them or is no pattern."""
    try:
        compiled = re.compile(pattern)
    except re.error:
        return None
    found = tuple(
        part
        for part, names in _EXAMPLES.items()
        if any(compiled.match(name) or compiled.match(f"language_model.{name}") for name in names)
    )
    return found or None


def _by_words(module: str) -> Sequence[str]:
    name = module.lower()
    if _OF_NO_PART.search(name):
        return ()
    return next(((part,) for part, names in _NAMES.items() if names.search(name)), ())


def layer_of(module: str) -> int | None:
    """The number of the layer in a module's name."""
    number = re.search(r"(?:^|\.)layers\.(\d+)(?:\.|\*|$)", module) or re.search(r"\.(\d+)\.", module)
    return int(number.group(1)) if number and not module.startswith("re:") else None
