"""Which family reads a config: by its model_type, by the class it names, or by the keys that it has."""

from __future__ import annotations

import re
from collections.abc import Callable

from evaluator.catalog.huggingface.config import Config
from evaluator.catalog.huggingface.families import FAMILIES
from evaluator.catalog.store import close_matches
from evaluator.errors import InputError

# Families whose keys are those of many others, the plainest first. All their feed-forwards are gated.
_PLAIN = (
    "llama", "exaone_moe", "mixtral", "deepseek_v3", "deepseek_v32", "minicpm3", "qwen3_5_text", "qwen3_next",
    "kimi_linear", "bamba", "jamba", "granitemoehybrid", "falcon_h1", "nemotron_h", "minimax", "lfm2", "lfm2_moe",
)  # fmt: skip
_CLASS = re.compile(r"(?:For(?:CausalLM|ConditionalGeneration)|LMHeadModel|ModelLM|Model|VL)$")
_PART = re.compile(r"(?:_text|_model)$")


def stated_types(levels: list[Config]) -> list[str]:
    """The model types of the levels, the language model's own first."""
    return [kind for level in reversed(levels) if (kind := level.text("model_type", None)) is not None]


def stated_family(levels: list[Config]) -> tuple[str | None, str | None]:
    """The family that the config names, and what was assumed to find it.

    Engines choose the code by the class under ``architectures``. So where the ``model_type`` is of no family, or of
    another one than the class of the language model, the class counts.
    """
    types = stated_types(levels)
    known = next((kind for kind in types if kind in FAMILIES), None)
    for level in reversed(levels):
        named = _class_family(level)
        if named is not None and named != known and (known is None or _differ(level, known, named)):
            what = f"model_type {types[0]}" if types else "a config without model_type"
            return named, f"assumed: {what} has the layers of {named}, for its class is {level.raw('architectures')[0]}"
    return known, None


def _differ(level: Config, known: str, named: str) -> bool:
    """Whether the class of the level is of another family than its own model_type (MiniMax-M2 says ``minimax``)."""
    return level.text("model_type", None) == known and FAMILIES[named] is not FAMILIES[known]


def _class_family(level: Config) -> str | None:
    """The family that the first of ``architectures`` names: its words are those of the ``model_type``."""
    classes = level.raw("architectures", None)
    if not isinstance(classes, list) or not classes or not isinstance(classes[0], str):
        return None
    return _BY_WORDS.get(_words(_CLASS.sub("", classes[0])))


def _words(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


_BY_WORDS = {_words(_PART.sub("", name)): name for name in reversed(FAMILIES)} | {
    "decilm": "deci",
    "grok1": "git",
    "hunyuandensev1": "hunyuan_v1_dense",
    "hunyuanmoev1": "hunyuan_v1_moe",
    "minimaxtext01": "minimax_text_01",
}


def likely_family(levels: list[Config], reads: Callable[[str], object]) -> tuple[str, str]:
    """The plainest family that reads every key of a config of no known family, and the note on it.

    ``reads`` imports the config as that of a family, and raises InputError where it cannot. Raises InputError where no
    family can, with what the most likely one did not know.
    """
    types = stated_types(levels)
    outer, text = levels[0], levels[-1]
    if not types and not text.has("architectures"):
        raise InputError(f"{outer.place('model_type')}: missing; add it, or import with --like FAMILY")
    complaints: dict[str, InputError] = {}
    for name in _PLAIN:
        try:
            reads(name)
        except InputError as error:
            complaints[name] = error
            continue
        what = f"model_type {types[0]} is not known" if types else "the config has no model_type"
        return name, f"assumed: {what}; {name} reads all of its keys, so it is taken to have the layers of {name}"
    closest = "deepseek_v3" if text.has("kv_lora_rank") else "exaone_moe" if text.has("num_experts") else "llama"
    kind = types[0] if types else text.raw("architectures")[0]
    raise InputError(
        f"{text.where}: unknown model_type '{kind}'{close_matches(kind, sorted(FAMILIES))}; no known family reads all"
        f" of its keys ({closest}: {complaints[closest]}); if its layers are those of a known family, import with"
        " --like FAMILY (for example --like llama)"
    )
