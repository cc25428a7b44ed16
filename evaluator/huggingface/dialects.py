"""Files whose words are not those of a ``config.json`` of transformers, in its words: Mistral's, and Baidu's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evaluator.errors import InputError

_NAMES = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "hidden_dim": "intermediate_size",
    "tied_embeddings": "tie_word_embeddings",
    "max_seq_len": "max_position_embeddings",
}
_MOE_NAMES = {
    "num_experts": "num_experts",
    "num_experts_per_tok": "num_experts_per_tok",
    "expert_hidden_dim": "moe_intermediate_size",
    "num_shared_experts": "n_shared_experts",
    "first_k_dense_replace": "first_k_dense_replace",
    "route_every_n": "moe_layer_freq",
}
_UNUSED = frozenset(
    """
    rope_theta norm_eps yarn llama_4_scaling causal use_biases ragged_attention quantization moe vision_encoder
    multimodal vision_adapter
    """.split()
)
_MOE_UNUSED = frozenset(
    "expert_parallel expert_model_parallel num_expert_groups num_expert_groups_per_tok routed_scale".split()
)


def translated(content: Any) -> Any:
    """The content of a ``config.json`` as readers of families expect it; anything else as it is."""
    content = _of_mistral(content)
    if not isinstance(content, Mapping):
        return content
    return _of_texts(content) if content.get("model_type") == "ernie4_5_moe_vl" else content


def _of_mistral(content: Any) -> Any:
    """The content of a ``config.json`` for that of a ``params.json``; anything else as it is.

    A ``params.json`` has ``dim`` and ``n_layers`` and no ``model_type``. Keys that are not known here stay under their
    names, for the reader of the family to refuse.
    """
    # Other files of weights have ``dim`` and no layers, and whatever has a ``model_type`` is transformers' dialect.
    if not isinstance(content, Mapping) or "model_type" in content or not {"dim", "n_layers"} <= set(content):
        return content
    text = {_NAMES.get(key, key): value for key, value in content.items() if key not in _UNUSED}
    moe = _level(content, "moe")
    text |= {_MOE_NAMES.get(key, key): value for key, value in moe.items() if key not in _MOE_UNUSED}
    # Mistral's own files name no architecture: a rank of keys and values is that of MLA, as in DeepSeek-V3; of the
    # others only the experts tell.
    text["model_type"] = "deepseek_v3" if content.get("kv_lora_rank") else "mixtral" if moe else "mistral"
    # Their default, where transformers' is that of the model's class.
    text.setdefault("tie_word_embeddings", False)
    if content.get("quantization"):
        text["quantization_config"] = _quantization(content["quantization"])
    vision = _level(content, "vision_encoder") or _level(_level(content, "multimodal"), "vision_encoder")
    if not vision:
        return text
    # The wrapper has it on the outer level, where engines look first.
    quantised = {key: text.pop(key) for key in ("quantization_config",) if key in text}
    return {
        "model_type": "mistral3",
        "text_config": text,
        "vision_config": {**vision, "model_type": "pixtral"},
    } | quantised


def _level(content: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The level below ``key``, empty where there is none; InputError where it is none."""
    value = content.get(key) or {}
    if not isinstance(value, Mapping):
        raise InputError(f"params.json: {key}: expected a mapping of keys to values, got {value!r}")
    return value


def _quantization(given: Any) -> Any:
    fp8 = isinstance(given, Mapping) and str(given.get("qformat_weight", "")).startswith("fp8")
    # Anything else goes through as it is, for the methods to refuse by name.
    return {"quant_method": "fp8"} if fp8 else given


_OF_TEXTS_AND_IMAGES = ("moe_num_experts", "moe_layer_start_index", "moe_layer_end_index")


def _of_texts(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Baidu's own ERNIE 4.5 VL lists a figure for texts and one for images; the first counts, as in transformers.

    ``moe_intermediate_size`` stays a list, for images have experts of another width.
    """
    # Experts of texts and of images are equally many and lie in the same layers; only their widths differ.
    first = {
        key: content[key][0] for key in _OF_TEXTS_AND_IMAGES if isinstance(content.get(key), list) and content[key]
    }
    return {**content, **first}
