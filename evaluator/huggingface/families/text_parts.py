"""Text models of multimodal wrappers whose layers are those of another family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from evaluator.huggingface.families.experts import FAMILIES as EXPERTS
from evaluator.huggingface.families.gemma import FAMILIES as GEMMA
from evaluator.huggingface.families.latent import FAMILIES as LATENT
from evaluator.huggingface.families.plain import FAMILIES as PLAIN
from evaluator.huggingface.families.plain import GATED, MUSE_UNUSED, UNGATED, attention_kinds
from evaluator.huggingface.family import Family, keys
from evaluator.huggingface.mixers import softmax

_ALIKE: Mapping[str, tuple[Mapping[str, Family], str]] = {
    "glm4v_text": (PLAIN, "glm4"),
    "paddleocr_vl_text": (PLAIN, "ernie4_5"),
    "qwen2_5_omni_text": (PLAIN, "qwen2"),
    "qwen3_omni_moe_text": (EXPERTS, "qwen3_moe"),
    "voxtral_realtime_text": (PLAIN, "mistral"),
    "granite_docling_text": (PLAIN, "granite"),
    "granite4_vision_text": (PLAIN, "granite"),
    "cohere_compass_text": (PLAIN, "cohere2"),
    "emu3_text_model": (PLAIN, "llama"),
    "hunyuan_vl_text": (PLAIN, "hunyuan_v1_dense"),
}

# The decoder of DeepSeek-OCR 2 has DeepSeek-V2's experts under usual heads.
_DEEPSEEK_OF_HEADS = replace(LATENT["deepseek_v2"], mixers=attention_kinds(softmax()))

FAMILIES: Mapping[str, Family] = {
    # The same record, not a copy: ``stated_family`` compares records by identity to see whether a class
    # says anything new.
    **{name: families[like] for name, (families, like) in _ALIKE.items()},
    "glm_ocr_text": GATED,
    "unlimited_ocr_text": _DEEPSEEK_OF_HEADS,
    "deepseek_ocr2_text": _DEEPSEEK_OF_HEADS,
    "molmo2_text": replace(
        GATED,
        ignored=keys("additional_vocab_size qk_norm_type norm_after rope_scaling_layers"),
    ),
    "cosmos3_edge_text": UNGATED,
    "muse_glimmer_text": replace(GATED, mixers=attention_kinds(softmax(gate=True)), ignored=MUSE_UNUSED),
    "diffusion_gemma_text": GEMMA["gemma4_text"],
}
