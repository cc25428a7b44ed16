"""The dtype in which a checkpoint stores each part: its dtype, or its ``quantization_config``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from evaluator.catalog.huggingface.config import Config
from evaluator.catalog.model import CheckpointPrecision, LayerKind, MoeFeedForward
from evaluator.catalog.store import suggestion
from evaluator.errors import InputError

_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_PARTS = tuple(part.name for part in fields(CheckpointPrecision))
_LINEAR = ("attention", "feed_forward", "experts")  # what "all Linear layers but the head" means

# A module that is left unquantised speaks for a part when its name matches; routers and vision parts speak for none.
_OF_NO_PART = re.compile(r"vision|visual|multi_modal|router|(^|[._])gate($|[^_a-z])|shared_expert_gate|norm|mtp|patch_")
_PART_NAMES = {
    "attention": re.compile(r"attn|attention|mixer|mamba"),
    "experts": re.compile(r"(?<!shared_)experts"),
    "feed_forward": re.compile(r"mlp|feed_forward|shared_expert"),
    "embedding": re.compile(r"embed"),
    "head": re.compile(r"lm_head|output_layer"),
}


def checkpoint_precision(outer: Config, text: Config, layers: Sequence[LayerKind]) -> CheckpointPrecision:
    """What the published weights of ``layers`` are stored in; raises InputError for an unknown quantisation."""
    plain = _plain_dtype(outer, text)
    stored = dict.fromkeys(_PARTS, plain)
    given = [level.raw("quantization_config", None) for level in (outer, text)]
    content = next((item for item in given if item is not None), None)
    if content is not None:
        config = Config(content, outer.place("quantization_config"))
        dtype, parts = _quantised(config)
        kept = _kept(config, layers)
        config.finish(_IGNORED)
        stored.update({part: dtype for part in parts if part not in kept})
    return CheckpointPrecision(**stored)  # type: ignore[arg-type]  # all of them names of dtypes


def _plain_dtype(outer: Config, text: Config) -> str:
    words = [level.raw(key, None) for level in (text, outer) for key in ("torch_dtype", "dtype")]
    word = next((item for item in words if item is not None), "bfloat16")
    if word not in _DTYPES:
        raise InputError(f"{text.place('torch_dtype')}: unknown dtype {word!r}{suggestion(str(word), list(_DTYPES))}")
    return _DTYPES[word]


def _quantised(config: Config) -> tuple[str, Sequence[str]]:
    """(dtype, parts it is applied to) of the method of ``config``."""
    method = config.text("quant_method")
    if method not in _METHODS:
        raise InputError(
            f"{config.place('quant_method')}: unknown method '{method}'{suggestion(method, list(_METHODS))}"
        )
    return _METHODS[method](config)


def _fp8(config: Config) -> tuple[str, Sequence[str]]:
    config.expect("fmt", "e4m3", "float8_e4m3fn")
    return "fp8", _LINEAR


def _mxfp4(config: Config) -> tuple[str, Sequence[str]]:
    return "mxfp4", ("experts",)


def _integer(config: Config) -> tuple[str, Sequence[str]]:
    """AWQ and GPTQ: ``bits`` per weight of every Linear layer, the head too where ``lm_head`` says so."""
    bits = config.integer("bits")
    if bits not in (4, 8):
        raise InputError(f"{config.place('bits')}: {bits} bits are not supported (4 or 8)")
    return f"int{bits}", (*_LINEAR, "head") if config.flag("lm_head", False) else _LINEAR


def _groups(config: Config) -> tuple[str, Sequence[str]]:
    """compressed-tensors and modelopt: groups of layers with the type and bits of their weights."""
    groups = config.raw("config_groups", None)
    algorithm = config.raw("quant_algo", None)
    if groups is None:
        known = {"FP8": "fp8", "NVFP4": "nvfp4"}
        if algorithm not in known:
            raise InputError(f"{config.place('quant_algo')}: unknown {algorithm!r} (known: {', '.join(known)})")
        return known[algorithm], _LINEAR
    if not isinstance(groups, Mapping) or not groups:
        raise InputError(f"{config.place('config_groups')}: expected a mapping of groups")
    dtypes = {_group_dtype(config.inner("config_groups").inner(name)) for name in groups}
    if len(dtypes) > 1:
        raise InputError(
            f"{config.place('config_groups')}: several weight dtypes ({', '.join(sorted(dtypes))}) are not supported"
        )
    return dtypes.pop(), _LINEAR


def _group_dtype(group: Any) -> str:
    targets = group.raw("targets", ["Linear"])
    if targets != ["Linear"]:
        raise InputError(f"{group.place('targets')}: {targets!r} is not supported (only ['Linear'])")
    weights = group.inner("weights")
    kind = (weights.text("type", "int"), weights.integer("num_bits"))
    known = {("float", 8): "fp8", ("int", 8): "int8", ("int", 4): "int4", ("float", 4): "nvfp4"}
    if kind not in known:
        raise InputError(
            f"{weights.place('num_bits')}: weights of {kind[1]} bits of type '{kind[0]}' are not supported"
        )
    return known[kind]


def _kept(config: Config, layers: Sequence[LayerKind]) -> set[str]:
    """The parts that stay unquantised: those with a module in one of the lists of exceptions.

    One exempt projection keeps its whole part at the plain dtype (more bytes, never fewer), but a part that is exempt
    in some layers only cannot be said of a whole model and is refused.
    """
    modules = [name for key in _EXEMPT for name in config.entries(key, str) or []]
    kept: dict[str, set[int | None]] = {}
    for module in modules:
        part = _part_of(module)
        if part is not None:
            number = re.search(r"\.(\d+)\.", module)
            kept.setdefault(part, set()).add(int(number.group(1)) if number else None)
    for part, numbers in kept.items():
        there = _layers_with(part, layers)
        if None not in numbers and len(numbers) < there:
            raise InputError(
                f"{config.where}: {part} is left unquantised in {len(numbers)} of {there} layers, which cannot be"
                " expressed; write the model's YAML by hand"
            )
    return set(kept)


def _layers_with(part: str, layers: Sequence[LayerKind]) -> int:
    if part == "attention":
        return sum(kind.count for kind in layers if kind.mixer is not None)
    if part == "experts":
        return sum(kind.count for kind in layers if isinstance(kind.feed_forward, MoeFeedForward))
    return sum(kind.count for kind in layers if kind.feed_forward is not None and _all_visit(kind))


def _all_visit(kind: LayerKind) -> bool:
    block = kind.feed_forward
    return not isinstance(block, MoeFeedForward) or block.shared_intermediate > 0


def _part_of(module: str) -> str | None:
    if _OF_NO_PART.search(module):
        return None
    return next((part for part, names in _PART_NAMES.items() if names.search(module)), None)


_METHODS: Mapping[str, Callable[[Config], tuple[str, Sequence[str]]]] = {
    "fp8": _fp8,
    "mxfp4": _mxfp4,
    "awq": _integer,
    "gptq": _integer,
    "compressed-tensors": _groups,
    "modelopt": _groups,
    "modelopt_fp4": _groups,
}
_EXEMPT = ("ignore", "modules_to_not_convert", "ignored_layers", "exclude_modules")
_IGNORED = frozenset(
    """
    activation_scheme backend checkpoint_format damp_percent desc_act format global_compression_ratio group_size
    kv_cache_quant_algo kv_cache_scheme meta model_file_base_name model_name_or_path modules_in_block_to_quantize
    producer quantization_status quantizer sparsity_config static_groups sym true_sequential transform_config version
    weight_block_size zero_point
    """.split()
)
