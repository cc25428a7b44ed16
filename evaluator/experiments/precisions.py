"""How experiment files and checkpoints call precisions -> those that the cost model knows."""

from __future__ import annotations

import re

from evaluator.catalog import load_model
from evaluator.cost.precision import Precision
from evaluator.errors import InputError
from evaluator.experiments.experiment import UNRECORDED

_OPAQUE = {"compressed-tensors", "modelopt", "quantized"}
"""Formats that hold any precision: name or checkpoint must say which."""

_UNSTATED = {"", "auto", "none", "default", "checkpoint", UNRECORDED} | _OPAQUE
"""What leaves it to the checkpoint."""

_LOOSE = {"fp4", "gptq"}
"""Labels of several precisions, which a name tells apart."""

_WIDE = re.compile(r"(bf16|bfloat16|fp16|float16|half|16bit|w16a16)")
_KNOWN = {
    r"bnb|bitsandbytes|nf4|gguf|q\d-\w+|w4a8\w*|w4a4": None,  # unpacked in ways that no cost is known of
    r"mxfp4": ("mxfp4", "bf16"),
    r"nvfp4(a16)?|fp4": ("nvfp4", "bf16"),
    r"fp8|float8|f8|e4m3|w8a8-fp8": ("fp8", "bf16"),
    r"w8a8": ("int8", "int8"),
    r"int8|8-?bit|w8a16": ("int8", "bf16"),
    r"awq|gptq|int4|4-?bit|w4a16": ("int4", "bf16"),
}
"""Words for a precision -> the dtypes of weights and activations; the first that occurs counts, None is refused."""

_KV = {
    r"|auto|none|default|bf16|bfloat16|fp16|float16|half": "bf16",
    r"fp8(_e4m3|_e5m2)?(fn)?|float8(_e4m3fn|_e5m2)?": "fp8",
    r"int8": "int8",
    r"int4": "int4",
    r"nvfp4": "nvfp4",
}


def precision(published: str, model: str, weights: str, kv: str) -> Precision:
    """The precisions of a server of the catalog's ``model`` that was ``published`` so, as recorded.

    A precision in the published name wins over a label that leaves it open or names 16 bits (then the dtype of the
    activations); so does a checkpoint that is narrow as published over an open label. InputError for words that say
    no precision with a known cost, and where name and record contradict each other.
    """
    stored = load_model(model).checkpoint
    parts = {stored.attention, stored.feed_forward, stored.experts}
    label = weights.strip().lower()
    short = published.strip().rstrip("/ ").rsplit("/", 1)[-1].lower()
    named, recorded = _narrow(short, published), _narrow(label, weights)
    if recorded is None and label not in _UNSTATED and not _WIDE.fullmatch(label):
        raise InputError(f"weight_precision {weights} is not known: fp8, int8, int4, nvfp4 and bf16 are")
    # The name of a repository says what its weights are, a record says what somebody typed: where both are exact and
    # differ, one of them is of another run.
    if named and recorded and named[0] != recorded[0] and label not in _LOOSE:
        raise InputError(f"weight_precision {weights} contradicts the name of the model, {published}")
    kv_dtype = _kv(kv)
    chosen = named or recorded
    if chosen is None:
        if label in _OPAQUE and parts <= {"bf16", "fp16", "fp32"}:
            raise InputError(f"weight_precision {weights} does not say which: fp8, int8, int4 or nvfp4")
        wide = bool(_WIDE.fullmatch(label)) or bool(re.search(r"[-_](bf16|fp16)$", short))
        # A label of 16 bits is what was served: a checkpoint that is narrow as published then counts as bf16.
        keep = not wide or parts <= {"bf16", "fp16", "fp32"}
        return Precision(weights="checkpoint" if keep else "bf16", kv=kv_dtype)
    dtype, activations = chosen
    # fp4 is either of two formats; the checkpoint tells which (gpt-oss is published in mxfp4).
    if label == "fp4" and "mxfp4" in parts:
        dtype = "mxfp4"
    # As stored wherever that is the dtype asked for: a checkpoint leaves some parts wider (norms,
    # the head), which a dtype for all would make narrow.
    return Precision(weights="checkpoint" if dtype in parts else dtype, activations=activations, kv=kv_dtype)


def _narrow(text: str, shown: str) -> tuple[str, str] | None:
    """The dtypes of weights and activations that a text says, None for none under 16 bits."""
    for words, dtypes in _KNOWN.items():
        # Whole words, and the first row in which one occurs counts: "w8a8-fp8" stands before "w8a8".
        if re.search(rf"(?<![a-z0-9])({words})(?![a-z0-9])", text.replace("_", "-")):
            if dtypes is None:
                raise InputError(f"the cost of the precision of {shown} is not known: fp8, int8, int4, nvfp4, bf16 are")
            return dtypes
    return None


def _kv(stated: str) -> str:
    for words, dtype in _KV.items():
        if re.fullmatch(words, stated.strip().lower()):
            return dtype
    raise InputError(f"kv_cache_dtype {stated} is not known: auto, bf16, fp8, int8, int4 and nvfp4 are")
