"""Which family reads a config: by its model_type, by the class it names, or by the keys that it has."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from evaluator.catalog.store import close_matches
from evaluator.errors import InputError
from evaluator.huggingface.config import Config
from evaluator.huggingface.families import FAMILIES

# Families that many others are like, the plainest first. Each refuses a config that does not say what its layers are.
_PLAIN = ("llama", "exaone_moe", "deepseek_v3", "deepseek_v32", "minicpm3", "general")
_GATED = ("silu", "swish", "swiglu")
_CLASS = re.compile(r"(?:For(?:CausalLM|ConditionalGeneration)|LMHeadModel|ModelLM|Model|VL)$")
Reads = Callable[[str], object]
"""Imports the config as that of a family; raises InputError where it cannot."""
_PART = re.compile(r"(?:_text|_model)$")


def stated_types(levels: list[Config]) -> list[str]:
    """The model types of the levels, the language model's own first."""
    return [kind for level in reversed(levels) if (kind := level.text("model_type", None)) is not None]


def stated_family(levels: list[Config], reads: Reads) -> tuple[str | None, str | None]:
    """The family that the config names, and what was assumed to find it.

    Engines choose the code by the class under ``architectures``. So it counts where the ``model_type`` is of no family,
    or of one that cannot read the config (MiniMax-M2 calls itself ``minimax``).
    """
    types = stated_types(levels)
    typed = next((kind for kind in types if kind in FAMILIES), None)
    for level in reversed(levels):
        named = _class_family(level)
        # Several types share one record (Qwen2 and Qwen2.5-VL's text): then the class says nothing new.
        if named is None or (typed is not None and FAMILIES[named] is FAMILIES[typed]):
            continue
        # The class only where the ``model_type`` does not do: trying both is an import of the whole config, and most
        # agree.
        if typed is None or (level.text("model_type", None) == typed and not _can(reads, typed) and _can(reads, named)):
            what = f"model_type {types[0]}" if types else "a config without model_type"
            return named, f"assumed: {what} has the layers of {named}, for its class is {_class_of(level)}"
    return typed, None


def _can(reads: Reads, name: str) -> bool:
    try:
        reads(name)
    except InputError:
        return False
    return True


def _class_of(level: Config) -> str | None:
    """The first of ``architectures``; None where it names none."""
    classes = level.raw("architectures", None)
    return classes[0] if isinstance(classes, list) and classes and isinstance(classes[0], str) else None


def _class_family(level: Config) -> str | None:
    """The family that the class of a level names: its words are those of the ``model_type``."""
    named = _class_of(level)
    return None if named is None else _BY_WORDS.get(_words(_CLASS.sub("", named)))


def _words(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


# Reversed, so that of two types with the same words (with and without ``_text``) the first one in the
# tables stands. The names below are of classes whose words are not those of the type.
_BY_WORDS = {_words(_PART.sub("", name)): name for name in reversed(list(FAMILIES))} | {
    "decilm": "deci",
    "grok1": "git",
    "hunyuandensev1": "hunyuan_v1_dense",
    "hunyuanmoev1": "hunyuan_v1_moe",
    "minimaxtext01": "minimax_text_01",
}


def likely_family(levels: list[Config], reads: Reads) -> tuple[str, str]:
    """The plainest family that reads every key of a config of no known family, and the note on it.

    Raises InputError where none does, with what the most likely one did not know.
    """
    types = stated_types(levels)
    outer, text = levels[0], levels[-1]
    kind = types[0] if types else _class_of(text)
    if kind is None:
        raise InputError(f"{outer.place('model_type')}: missing; add it, or import with --like FAMILY")
    complaints: dict[str, InputError] = {}
    # From the plainest on: a config that a plain family reads to the last key has nothing that a richer one would add.
    for name in _PLAIN if _is_gated(text) else ():
        try:
            reads(name)
        except InputError as error:
            complaints[name] = error
            continue
        what = f"model_type {types[0]} is not known" if types else "the config has no model_type"
        tables = (
            ""
            if any(level.has("tie_word_embeddings", "tie_embedding") for level in levels)
            else "; embedding and output head count as two tables"
        )
        return name, f"assumed: {what}; its layers are those of {name}, which reads all of its keys{tables}"
    raise InputError(
        f"{text.where}: unknown model_type '{kind}'{close_matches(kind, sorted(FAMILIES))}; {_why(text, complaints)};"
        " if its layers are those of a known family, import with --like FAMILY (for example --like llama)"
    )


def _is_gated(text: Config) -> bool:
    """Whether the activation function is that of gated feed-forwards; another one may be with a gate or without."""
    return text.raw("hidden_act", "silu") in _GATED


def _why(text: Config, complaints: Mapping[str, InputError]) -> str:
    """What the likeliest of the families did not know."""
    if not complaints:
        return f"hidden_act {text.raw('hidden_act')!r} does not tell whether its feed-forwards are gated"
    # The family whose complaint helps most: of MLA's keys llama would complain in the first place.
    closest = "deepseek_v3" if text.has("kv_lora_rank") else "exaone_moe" if text.has("num_experts") else "llama"
    return f"no known family reads all of its keys ({closest}: {complaints[closest]})"
