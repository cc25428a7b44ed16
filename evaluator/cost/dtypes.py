"""How wide a dtype is in memory, and in which dtype a product of two is computed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from evaluator.catalog.model import LatentAttention, Model
from evaluator.cost.precision import Precision

BYTES: dict[str, float] = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "fp8_block": 1.0 + 4 / 128**2,  # one 32-bit scale per 128 x 128 weights (DeepSeek-V3, arXiv:2412.19437, 3.3)
    "int8": 1.0,
    "int4": 0.5 + 2 / 128,  # one 16-bit scale per group of 128 (GPTQ, AWQ: arXiv:2306.00978)
    "mxfp4": 0.5 + 1 / 32,  # one 8-bit scale per 32 (OCP Microscaling Formats v1.0)
    "nvfp4": 0.5 + 1 / 16,  # one fp8 scale per 16 (NVIDIA, "Introducing NVFP4", 2025)
}
"""Bytes of one element, block scales included."""

_BITS = {"fp32": 32, "bf16": 16, "fp16": 16, "fp8": 8, "fp8_block": 8, "int8": 8, "int4": 4, "mxfp4": 4, "nvfp4": 4}

COMPUTE_DTYPES = ("fp32", "bf16", "fp16", "fp8", "int8", "fp4", "mxfp8")
"""The dtypes that hardware has a peak for; an index into this tuple selects the peak. ``mxfp8`` (fp8 with a scale per
block of 32) has that of fp8 on devices whose units scale blocks (``rates.has_fp4``)."""

PEAK_FALLBACKS: dict[str, tuple[str, ...]] = {
    "fp32": ("fp32", "bf16", "fp16"),
    "bf16": ("bf16", "fp16", "fp32"),
    "fp16": ("fp16", "bf16", "fp32"),
    "fp8": ("fp8", "bf16", "fp16", "fp32"),
    "int8": ("int8", "bf16", "fp16", "fp32"),
    "fp4": ("fp4", "bf16", "fp16", "fp32"),
    "mxfp8": ("mxfp8", "bf16", "fp16", "fp32"),
}
"""Where hardware has no unit for a dtype the operands are widened to the next one it has. Products in fp4 and mxfp8 go
to 16 bits: engines then only unpack the weights, and leave the activations as they are (Marlin)."""


_ON_THE_FLY = {"fp8": "fp8", "fp8_block": "fp8", "nvfp4": "fp4"}


def wider(first: str, second: str) -> str:
    """The dtype of the two with more bits; the second where both have the same."""
    return first if _BITS[first] > _BITS[second] else second


def stream_bytes(activations: str) -> float:
    """Bytes of one element of the residual stream and of an operator's output: never under 16 bits.

    Engines quantise an activation where it enters a matrix product and keep everything between in 16 bits.
    """
    return max(2.0, BYTES[activations])


def compute_dtype(weight: str, activations: str) -> str:
    """The dtype in which a matrix product runs, one of ``COMPUTE_DTYPES``.

    The wider of the two, with two exceptions: fp8 and nvfp4 weights meet 16-bit activations in fp8 and in fp4, because
    engines quantise the activations on the fly (vLLM ``Fp8LinearMethod`` and ``ModelOptNvFp4LinearMethod``); for
    devices without units for fp4 see ``PEAK_FALLBACKS``. Other weights of 4 bits, and int8, under 16-bit activations
    are unpacked and computed in 16 bits (Marlin and its kin).
    """
    if weight in _ON_THE_FLY and _BITS[activations] == 16:
        return _ON_THE_FLY[weight]
    dtype = wider(weight, activations)
    # There is no peak for 4-bit integers, whose units went with Hopper: int4 under int8 runs as int8.
    return {"fp8_block": "fp8", "int4": "int8", "mxfp4": "fp4", "nvfp4": "fp4"}.get(dtype, dtype)


def experts_dtype(weight: str, activations: str) -> str:
    """The dtype in which the products of routed experts run.

    That of ``compute_dtype``, but mxfp4 weights meet 16-bit activations in mxfp8 where a device has units for it: vLLM,
    SGLang and TensorRT-LLM quantise the activations on Blackwell (vLLM ``Mxfp4MoEMethod``, TensorRT-LLM
    ``W4A8_MXFP4_MXFP8``). Elsewhere they unpack the weights, as those of int4.
    """
    if weight == "mxfp4" and _BITS[activations] == 16:
        return "mxfp8"
    return compute_dtype(weight, activations)


def is_unpacked(weight: str, activations: str) -> bool:
    """Whether experts in 4 bits are computed in 16 bits on any device, by kernels that unpack them."""
    # The compute dtypes fp4 and mxfp8 are not in _BITS and give 0: units that take them need no unpacking.
    return _BITS[weight] == 4 and _BITS[activations] == 16 and _BITS.get(experts_dtype(weight, activations), 0) == 16


@cache
def weight_dtypes(model: Model, precision: Precision) -> Mapping[str, str]:
    """The dtype of every part of the weights under a scenario's ``precision``.

    ``checkpoint`` keeps what is published. Any other dtype goes to all matrices of the layers, but nvfp4 not to MLA:
    checkpoints in nvfp4 keep it in 16 bits (``exclude_modules`` of nvidia/DeepSeek-V3-0324-NVFP4 has ``self_attn*`` of
    all layers; those without MLA, such as nvidia/Qwen3-30B-A3B-NVFP4, do not). Embedding and output head follow it only
    at 16 bits and above: quantisation leaves them as they are (llm-compressor and AutoFP8 recipes, vLLM online fp8).
    Under fp8 a part that is published in fp8 with block scales stays so.
    Router and norms (``router``) stay in 16 bits. ``precision.attention`` is what is said of attention's projections
    (those of layers with a state, too), whatever the others have.
    """
    dtypes = _of_weights(model, precision.weights)
    if precision.attention is None:
        return dtypes
    kept = model.checkpoint.attention if precision.attention == "checkpoint" else precision.attention
    return {**dtypes, "attention": kept}


def _of_weights(model: Model, wanted: str) -> Mapping[str, str]:
    """The same under ``precision.weights`` alone."""
    checkpoint = model.checkpoint
    published: dict[str, str] = {
        "attention": checkpoint.attention,
        "feed_forward": checkpoint.feed_forward,
        "experts": checkpoint.experts,
        "embedding": checkpoint.embedding,
        "head": checkpoint.head,
        "router": "bf16",
    }
    if wanted == "checkpoint":
        return published
    parts = ("attention", "feed_forward", "experts") + (("embedding", "head") if _BITS[wanted] >= 16 else ())
    dtypes = published | dict.fromkeys(parts, wanted)
    if wanted == "fp8":
        dtypes |= {part: published[part] for part in parts if published[part] == "fp8_block"}
    if wanted == "nvfp4" and any(isinstance(kind.mixer, LatentAttention) for kind in model.layers):
        dtypes["attention"] = wider("bf16", checkpoint.attention)
    return dtypes
