"""Methods of quantisation: which parts each stores in which dtype, from its ``quantization_config``.

The lists of a method name modules, or patterns of them; ``named_parts`` says which part of the model they speak of.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from evaluator.catalog.store import suggestion
from evaluator.errors import InputError
from evaluator.huggingface.config import Config

_LINEAR = ("attention", "feed_forward", "experts")  # what "all Linear layers but the head" means

Stored = Mapping[str, str]
"""The dtype of every part that is quantised."""


def quantised(config: Config) -> Stored:
    """The dtypes of the parts that the method of ``config`` is applied to."""
    method = config.text("quant_method", "modelopt" if config.has("quant_algo") else None)
    if method is None:
        raise InputError(f"{config.place('quant_method')}: missing; add it (there are: {', '.join(_METHODS)})")
    if method not in _METHODS:
        raise InputError(
            f"{config.place('quant_method')}: unknown method '{method}'{suggestion(method, list(_METHODS))}"
        )
    return _METHODS[method](config)


def _linear(dtype: str) -> dict[str, str]:
    return dict.fromkeys(_LINEAR, dtype)


def _fp8(config: Config) -> Stored:
    config.expect("fmt", "e4m3", "float8_e4m3fn", "ue8m0")
    block = config.raw("weight_block_size", None)
    in_rows = isinstance(block, list) and 1 in block  # MXFP8: no DeepGEMM
    return _linear("fp8" if block is None or in_rows else "fp8_block")


def _mxfp4(config: Config) -> Stored:
    # gpt-oss: its `modules_to_not_convert` names all but the experts.
    return {"experts": "mxfp4"}


def _integer(config: Config) -> Stored:
    """AWQ, GPTQ and their kin: ``bits`` per weight of every Linear layer, the head too where ``lm_head`` says so."""
    bits = config.integer("bits" if config.has("bits") else "w_bit")
    if bits not in (4, 8):
        raise InputError(f"{config.place('bits')}: {bits} bits are not supported (4 or 8)")
    stored = _linear(f"int{bits}")
    return stored | {"head": f"int{bits}"} if config.flag("lm_head", False) else stored


def _bitsandbytes(config: Config) -> Stored:
    if config.flag("load_in_4bit", False):
        return _linear("int4")
    # Neither: the file has a quantisation's level that is switched off, and its weights are as the dtype says.
    return _linear("int8") if config.flag("load_in_8bit", False) else {}


def _torchao(config: Config) -> Stored:
    """torchao: the name of a method, or its configuration with ``_type``, by the dtype of the weights in it."""
    kind = config.raw("quant_type", None)
    word = _deepest_type(kind)
    # In this order: names of mixed methods hold several dtypes (Float8DynamicActivationInt4Weight),
    # and float8 of whatever comes last.
    for pattern, dtype in _TORCHAO.items():
        if re.search(pattern, word, re.IGNORECASE):
            return _linear(dtype)
    raise InputError(f"{config.place('quant_type')}: {word!r} names no dtype of weights that is known")


def _deepest_type(kind: Any) -> str:
    """Of ``{"default": {"_type": ..., "_data": ...}}`` the type; a text as it is."""
    if isinstance(kind, Mapping):
        return str(kind["_type"]) if "_type" in kind else next((_deepest_type(inner) for inner in kind.values()), "")
    return str(kind)


_TORCHAO = {r"float8_?weight|float8wo|fp8": "fp8", r"nvfp4": "nvfp4", r"mxfp4|mx_?formats": "mxfp4",
            r"int4|uintx|4_?bit": "int4", r"int8_?weight|int8wo|int8": "int8", r"float8": "fp8"}  # fmt: skip


def _narrow_experts(config: Config) -> Stored:
    """SGLang's w4afp8: experts of 4 bits, the rest in fp8."""
    return _linear("fp8") | {"experts": "int4"}


def _hqq(config: Config) -> Stored:
    inner = config.inner("quant_config").inner("weight_quant_params")
    bits = inner.integer("nbits")
    if bits not in (4, 8):
        raise InputError(f"{inner.place('nbits')}: {bits} bits are not supported (4 or 8)")
    return _linear(f"int{bits}")


def _all(dtype: str) -> Callable[[Config], Stored]:
    """A method that has one dtype."""
    return lambda config: _linear(dtype)


def _groups(config: Config) -> Stored:
    """compressed-tensors and modelopt: groups of layers with the type and bits of their weights, or an algorithm."""
    groups = config.raw("config_groups", None)
    if groups is None:
        return _by_algorithm(config)
    if not isinstance(groups, Mapping) or not groups:
        raise InputError(f"{config.place('config_groups')}: expected a mapping of groups")
    dtypes: dict[str, str] = {}
    for name in groups:
        group = config.inner("config_groups").inner(name)
        dtype = _group_dtype(group)
        for part in _group_parts(group):
            # One dtype for a part of all layers is all that the cost model has; a mixture would be wrong in either.
            if dtypes.setdefault(part, dtype) != dtype:
                raise InputError(
                    f"{config.place('config_groups')}: several weight dtypes ({dtypes[part]}, {dtype}) of {part} "
                    "are not supported"
                )
    config.skip("quant_algo")
    return dtypes


def _group_parts(group: Config) -> Sequence[str]:
    """The parts that the targets of a group name: classes of modules, or patterns of their names."""
    targets = group.raw("targets", ["Linear"])
    if not isinstance(targets, list) or not all(isinstance(target, str) for target in targets):
        raise InputError(f"{group.place('targets')}: expected a list of names")
    parts: dict[str, None] = {}
    for target in targets:
        of = _CLASSES.get(target)
        parts |= dict.fromkeys(named_parts(target) if of is None else of)
    if not parts:
        raise InputError(
            f"{group.place('targets')}: {targets!r} name no part that is known (only ['Linear'] and names)"
        )
    return tuple(parts)


_CLASSES: Mapping[str, Sequence[str]] = {
    "Linear": _LINEAR,
    "FusedMoE": ("experts",),
    "MoEGate": (),
    "ParallelLMHead": ("head",),
}


def _group_dtype(group: Config) -> str:
    weights = group.inner("weights")
    kind = (weights.text("type", "int"), weights.integer("num_bits"))
    dtypes = {("float", 8): "fp8", ("int", 8): "int8", ("int", 4): "int4", ("float", 4): "nvfp4"}
    if kind not in dtypes:
        raise InputError(
            f"{weights.place('num_bits')}: weights of {kind[1]} bits of type '{kind[0]}' are not supported"
        )
    # Scales by block of 128 x 128 go with DeepGEMM's kernels, which are other ones than those of scales by row.
    if kind == ("float", 8) and weights.raw("strategy", None) == "block":
        return "fp8_block"
    # Four-bit floats in groups of 32 with power-of-two scales are mxfp4, in groups of 16 with fp8 scales nvfp4.
    scales_of_32 = kind == ("float", 4) and weights.raw("group_size", 16) == 32
    return "mxfp4" if scales_of_32 else dtypes[kind]


def _by_algorithm(config: Config) -> Stored:
    """modelopt's ``quant_algo`` of all layers, or of each of ``quantized_layers`` (MIXED_PRECISION)."""
    algorithm = config.raw("quant_algo", None)
    layers = config.raw("quantized_layers", None)
    if algorithm != "MIXED_PRECISION":
        config.skip("quantized_layers")
        return _linear(_algorithm_dtype(config, algorithm))
    if not isinstance(layers, Mapping) or not layers:
        raise InputError(f"{config.place('quantized_layers')}: expected a mapping of modules to their algorithms")
    counts: dict[tuple[str, str], int] = {}
    for name, level in layers.items():
        dtype = _algorithm_dtype(config, level.get("quant_algo") if isinstance(level, Mapping) else level)
        for part in named_parts(str(name)):
            counts[part, dtype] = counts.get((part, dtype), 0) + 1
    return {part: dtype for (part, dtype), _ in sorted(counts.items(), key=lambda item: item[1])}  # the most have it


def _algorithm_dtype(config: Config, algorithm: Any) -> str:
    if algorithm not in _ALGORITHMS:
        raise InputError(f"{config.place('quant_algo')}: unknown {algorithm!r} (known: {', '.join(_ALGORITHMS)})")
    return _ALGORITHMS[algorithm]


_ALGORITHMS = {
    "FP8": "fp8",
    "NVFP4": "nvfp4",
    "FP8_PB_WO": "fp8_block",
    "FP8_PB_REAL": "fp8_block",
    "FP8_BLOCK_SCALES": "fp8_block",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "MXFP8": "fp8",
    "MXFP4": "mxfp4",
    "W4A8_MXFP4_FP8": "mxfp4",
    "W4A16_MXFP4": "mxfp4",
    "NVFP4_AWQ": "nvfp4",
    "W4A8_NVFP4_FP8": "nvfp4",
    "W4A16_NVFP4": "nvfp4",
    "W4A16_AWQ": "int4",
    "W4A16": "int4",
    "W4A8_AWQ": "int4",
    "W8A16": "int8",
    "W8A8_SQ_PER_CHANNEL": "int8",
}
"""Source: TensorRT-LLM, ``QuantAlgo``, and what modelopt writes."""


def _quark(config: Config) -> Stored:
    """AMD Quark: one dtype for all layers, and others by patterns of names."""
    stored = _linear(_quark_dtype(config.inner("global_quant_config")))
    by_name = config.raw("layer_quant_config", {})
    for name in by_name if isinstance(by_name, Mapping) else ():
        # Quark's own order: a pattern of a layer's name goes before the global entry.
        stored |= dict.fromkeys(named_parts(name), _quark_dtype(config.inner("layer_quant_config").inner(name)))
    return stored


def _quark_dtype(level: Config) -> str:
    word = level.inner("weight").text("dtype")
    dtypes = {"fp8_e4m3": "fp8", "fp4": "mxfp4", "int4": "int4", "uint4": "int4", "int8": "int8"}
    if word not in dtypes:
        raise InputError(f"{level.place('weight')}: unknown dtype '{word}' (known: {', '.join(dtypes)})")
    return dtypes[word]


_METHODS: Mapping[str, Callable[[Config], Stored]] = {
    "fp8": _fp8,
    "mxfp4": _mxfp4,
    "awq": _integer,
    "gptq": _integer,
    "compressed-tensors": _groups,
    "modelopt": _groups,
    "modelopt_fp4": _groups,
    "modelopt_mixed": _groups,
    "fbgemm_fp8": _fp8,
    "finegrained_fp8": _fp8,
    "ptpc_fp8": _fp8,
    "mxfp8": _fp8,
    "auto-round": _integer,
    "awq_marlin": _integer,
    "gptq_marlin": _integer,
    "bitsandbytes": _bitsandbytes,
    "quark": _quark,
    "torchao": _torchao,
    "hqq": _hqq,
    "eetq": _all("int8"),
    "w8a8_int8": _all("int8"),
    "w8a8_fp8": _all("fp8"),
    "moe_wna16": _integer,
    "bitnet": _all("int4"),
    "fp_quant": lambda config: _linear(config.choice("forward_dtype", ("nvfp4", "mxfp4"))),
    "w4afp8": _narrow_experts,
}


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
        matching = _matching(module[3:])
        return matching if matching is not None else _by_words(module)
    if "*" in module and layer_of(module) is None:
        return tuple(
            part
            for part, names in _EXAMPLES.items()
            # Configs of multimodal models name the same modules below ``language_model.``.
            if any(fnmatchcase(name, module) or fnmatchcase(f"language_model.{name}", module) for name in names)
        ) or _by_words(module)
    return _by_words(module)


def _matching(pattern: str) -> Sequence[str] | None:
    """By the examples that match; None where the pattern matches none of them or is no pattern."""
    try:
        compiled = re.compile(pattern)
    except re.error:
        return None
    parts = tuple(
        part
        for part, names in _EXAMPLES.items()
        if any(compiled.match(name) or compiled.match(f"language_model.{name}") for name in names)
    )
    return parts or None


def _by_words(module: str) -> Sequence[str]:
    name = module.lower()
    if _OF_NO_PART.search(name):
        return ()
    return next(((part,) for part, names in _NAMES.items() if names.search(name)), ())


def layer_of(module: str) -> int | None:
    """The number of the layer in a module's name."""
    number = re.search(r"(?:^|\.)layers\.(\d+)(?:\.|\*|$)", module) or re.search(r"\.(\d+)\.", module)
    return int(number.group(1)) if number and not module.startswith("re:") else None
