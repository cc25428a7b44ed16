"""Names in experiment files -> names of the catalog."""

from __future__ import annotations

import re

from evaluator.catalog import load_hardware, load_model
from evaluator.catalog.store import names, suggestion
from evaluator.errors import InputError
from evaluator.scenario.scenario import Precision

_TUNED = re.compile(
    r"-(instruct|chat|base|hf|it|dynamic|v[0-9.]+|[0-9]{4}|fp8|bf16|fp16|awq|gptq|w[0-9]+a[0-9]+)(?=-|$)"
)
_SAME_LAYERS = {
    "meta-llama-3.1-8b": "llama-3.1-8b",
    "meta-llama-3.1-70b": "llama-3.1-70b",
    "meta-llama-3-8b": "llama-3.1-8b",
    "meta-llama-3-70b": "llama-3.1-70b",
    "llama-3-8b": "llama-3.1-8b",
    "llama-3-70b": "llama-3.1-70b",
    "llama-3.3-70b": "llama-3.1-70b",
}
"""Published models with the layers of one in the catalog: only position tables and training differ."""


def model_name(published: str) -> str:
    """The catalog's name of a published model: by its own name, by the source of an entry, or without tuning suffixes.

    Raises InputError where no entry has these layers.
    """
    known = names("models")
    short = published.rsplit("/", 1)[-1].lower()
    plain = _TUNED.sub("", short)
    kept = f"{plain}-fp8" if "fp8" in short else plain
    for name in (published, short, _SAME_LAYERS.get(short, ""), kept):
        if name in known:
            return name
    for name in known:
        if re.search(rf"\b{re.escape(published)}(?![\w.-])", load_model(name).source, re.IGNORECASE):
            return name
    plain = _SAME_LAYERS.get(plain, plain)
    if plain in known:
        return plain
    raise InputError(
        f"model {published} is not in the catalog{suggestion(plain, known)}; remedy: `evaluator catalog import "
        f"config.json --out my/models/llm/{plain}.yaml` with its published config.json, and EVALUATOR_PATH=my"
    )


def hardware_name(published: str) -> str:
    """The catalog's name of a GPU such as ``H100-SXM-80GB``, ``A100-80GB`` or ``RTXPRO6000``; else InputError.

    A GPU whose name says another memory than the catalog's is another one.
    """
    known = names("hardware")
    found = _hardware(published, known)
    stated = re.search(r"(\d+) ?GB\b", published, re.IGNORECASE)
    memory = load_hardware(found).memory_bytes / 1e9
    if stated and not 0.85 < float(stated[1]) / memory < 1.15:
        raise InputError(f"GPU {published} is not in the catalog: its {found} has {memory:.0f} GB")
    return found


def _hardware(published: str, known: list[str]) -> str:
    plain = re.sub(r"[\s_]+", "-", published.strip().lower().removeprefix("nvidia").strip(" -_"))
    plain = re.sub(r"-(\d+gb|hbm\d\w*|gpu)(?=-|$)", "", plain)
    for name in (published, plain, plain.replace("-sxm4", "-sxm").replace("-sxm5", "-sxm"), f"{plain}-sxm"):
        if name in known:
            return name
    joined = {name.replace("-", ""): name for name in known}
    if plain.replace("-", "") in joined:
        return joined[plain.replace("-", "")]
    raise InputError(
        f"GPU {published} is not in the catalog{suggestion(plain, known)}; remedy: its data sheet as "
        f"my/models/hardware/{plain}.yaml, like the ones there, and EVALUATOR_PATH=my"
    )


def precision(model: str, weights: str, kv: str) -> Precision:
    """The precisions of a server: the checkpoint's own where it is as narrow as recorded, else the recorded one."""
    stored = load_model(model).checkpoint
    parts = {stored.attention, stored.feed_forward, stored.experts}
    wide = parts <= {"bf16", "fp16", "fp32"}
    recorded = next((dtype for dtype in ("nvfp4", "mxfp4", "fp8", "int8", "int4") if dtype in weights.lower()), "")
    if recorded:
        chosen = recorded if wide else "checkpoint"
    else:
        chosen = "checkpoint" if wide or weights in ("auto", "checkpoint") else "bf16"
    return Precision(weights=chosen, kv="fp8" if kv.lower().startswith("fp8") else "bf16")
