"""The dtype in which a checkpoint stores each part: its dtype, or its ``quantization_config``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from evaluator.catalog.model import CheckpointPrecision, LayerKind, MoeFeedForward
from evaluator.catalog.store import suggestion
from evaluator.errors import InputError
from evaluator.huggingface.config import Config
from evaluator.huggingface.methods import Stored, layer_of, named_parts, quantised

_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_PARTS = tuple(part.name for part in fields(CheckpointPrecision))


def checkpoint_precision(
    outer: Config, text: Config, layers: Sequence[LayerKind], beside: Mapping[str, Any] | None, notes: list[str]
) -> CheckpointPrecision:
    """What the published weights of ``layers`` are stored in; raises InputError for an unknown quantisation.

    ``beside`` is modelopt's ``hf_quant_config.json``, which counts where the config says nothing. ``notes`` gets what
    cannot be said of a whole model.
    """
    plain = _plain_dtype(outer, text)
    keys = ("quantization_config", "compression_config")
    given = [level.raw(key, None) for level in (outer, text) for key in keys]
    given.append(beside.get("quantization") if isinstance(beside, Mapping) else None)
    expert = text.text("expert_dtype", None)
    # Several levels may have one; the outermost is what engines read first.
    content = next((item for item in given if item not in (None, {})), None)
    stored: dict[str, str] = {}
    if content is not None:
        config = Config(content, outer.place("quantization_config"))
        stored = dict(quantised(config))
        if config.raw("quant_method", None) == "bitnet":
            notes.append("checkpoint: weights of three values, two bits each, are counted with four bits")
        for part in _kept(config, layers, stored, notes):
            del stored[part]
        expert = config.text("expert_dtype", config.text("store_dtype", expert))
        config.finish(_IGNORED)
    if expert is not None:
        stored.setdefault("experts", _EXPERTS.get(expert, plain))
        if stored["experts"] in ("fp8", "fp8_block") and expert != "fp8":
            # The method says fp8 for all Linear layers, the key beside it that experts are stored narrower
            # (DeepSeek-V4).
            stored["experts"] = _EXPERTS.get(expert, stored["experts"])
    return CheckpointPrecision(**(dict.fromkeys(_PARTS, plain) | stored))  # type: ignore[arg-type]  # names of dtypes


_EXPERTS = {"fp4": "mxfp4", "mxfp4": "mxfp4", "fp8": "fp8"}
"""DeepSeek-V4's ``expert_dtype``: experts in four bits with a scale per 32 where the rest is fp8."""


def _plain_dtype(outer: Config, text: Config) -> str:
    # transformers renamed ``torch_dtype`` to ``dtype``; the text level's own goes first.
    words = [level.raw(key, None) for level in (text, outer) for key in ("torch_dtype", "dtype")]
    word = next((item for item in words if item is not None), "bfloat16")
    if not isinstance(word, str) or word not in _DTYPES:
        raise InputError(f"{text.place('torch_dtype')}: unknown dtype {word!r}{suggestion(str(word), list(_DTYPES))}")
    return _DTYPES[word]


def _kept(config: Config, layers: Sequence[LayerKind], stored: Stored, notes: list[str]) -> set[str]:
    """The parts that stay unquantised: those of which more than half of the layers are in the lists of exceptions.

    One exempt projection exempts its part in that layer (more bytes, never fewer). Where fewer layers are exempt than
    not, the part counts as quantised in all of them, and a note says so.
    """
    modules = [name for key in _EXEMPT for name in config.entries(key, str) or []]
    exempt: dict[str, set[int | None]] = {}
    for module in modules:
        for part in named_parts(module):
            exempt.setdefault(part, set()).add(layer_of(module))
    unquantised = set()
    for part, numbers in exempt.items():
        having = _layers_with(part, layers)
        if part not in stored:
            continue
        # A name without a number of a layer exempts the part in all of them.
        if None in numbers or 2 * len(numbers) > having:
            unquantised.add(part)
        else:
            notes.append(
                f"checkpoint: {part} is left unquantised in {len(numbers)} of {having} layers, which are counted as"
                f" {stored[part]} like the others"
            )
    return unquantised


def _layers_with(part: str, layers: Sequence[LayerKind]) -> int:
    # A part is exempt by the share of the layers that have it, so each part counts its own.
    if part == "attention":
        return sum(kind.count for kind in layers if kind.mixer is not None)
    if part == "experts":
        return sum(kind.count for kind in layers if isinstance(kind.feed_forward, MoeFeedForward))
    return sum(kind.count for kind in layers if kind.feed_forward is not None and _all_visit(kind))


def _all_visit(kind: LayerKind) -> bool:
    block = kind.feed_forward
    return not isinstance(block, MoeFeedForward) or block.shared_intermediate > 0


_EXEMPT = ("ignore", "modules_to_not_convert", "ignored_layers", "exclude_modules", "exclude", "llm_int8_skip_modules")
_IGNORED = frozenset(
    """
    _load_in_4bit _load_in_8bit activation_scale_ub activation_scheme algo_config autoround_version backend
    batch_size block_name_to_quantize bnb_4bit_compute_dtype bnb_4bit_quant_storage bnb_4bit_quant_type
    bnb_4bit_use_double_quant cache_block_outputs checkpoint_format damp_percent data_type dataset desc_act do_fuse
    dynamic enable_norm_bias_tuning enable_quanted_input exllama_config expert_dtype export extra_config format
    fuse_max_seq_len global_compression_ratio group_size has_zero_point is_marlin_format iters kv_cache_quant_algo
    kv_cache_quant_config kv_cache_scheme layer_quant_config layer_type_quant_config layers_block_name
    llm_int8_enable_fp32_cpu_offload llm_int8_has_fp16_weight llm_int8_threshold lm_head load_in_4bit load_in_8bit
    low_cpu_mem_usage lr max_input_length meta minmax_lr model_file_base_name model_name_or_path modulelist
    modules_in_block_to_quantize modules_to_fuse nsamples pad_token_id pre_quant_scale producer quant_algo
    quant_method quant_mode quantization_status quantize_lm_head quantizer scale_fmt seqlen smoothquant_val
    softmax_quant_config sparsity_config static_groups sym tokenizer transform_config true_sequential use_cuda_fp16
    use_exllama version weight_block_size zero_point q_group_size w_bit quant_type quant_type_kwargs
    include_input_output_embeddings untie_embedding_weights skip_modules quant_config linear_class quantization_mode
    forward_dtype forward_method hadamard_group_size pseudoquantization transform_init pack_dtype packing_format
    dequantize rms_norm_eps
    """.split()
)
