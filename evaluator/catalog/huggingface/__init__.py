"""Models from a Hugging Face ``config.json``: every key is used, known to be irrelevant, or refused by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evaluator.catalog.huggingface import deepseek, dense, gpt_oss, llama4, moe, nemotron_h, qwen_next
from evaluator.catalog.huggingface.config import Config, Family
from evaluator.catalog.huggingface.quantization import checkpoint_precision
from evaluator.catalog.model import Model
from evaluator.catalog.store import suggestion
from evaluator.errors import InputError
from evaluator.yaml import read_text

__all__ = ["FAMILIES", "import_config"]

# model_type -> how its layers are read. One module per family of architectures; a new one is registered here.
FAMILIES: Mapping[str, Family] = {
    **dense.FAMILIES,
    **moe.FAMILIES,
    **llama4.FAMILIES,
    **qwen_next.FAMILIES,
    **deepseek.FAMILIES,
    **gpt_oss.FAMILIES,
    **nemotron_h.FAMILIES,
}


def import_config(config: str | Path | Mapping[str, Any], name: str | None = None) -> Model:
    """The text model that a ``config.json`` (a path, or its content) describes.

    ``name`` is the catalog name; without it the file's name, lower case, without the organisation before ``--``.
    Vision parts, and layers that predict further tokens, are not counted. Raises InputError for a model_type or a
    key that no reader knows: a structural field is never guessed. A ``generation_config.json`` beside the file says
    how the model samples.
    """
    content, where = (config, "config.json") if isinstance(config, Mapping) else (_read_json(config), Path(config).name)
    outer = Config(content, where)
    family = _family(outer)
    text = outer.text_config()
    model_name = name or _default_name(config)
    layers = family.layers(text)
    model = Model(
        name=model_name,
        source=f"{where} of {model_name} (Hugging Face), imported",
        hidden=text.integer("hidden_size"),
        vocabulary=text.integer("vocab_size"),
        max_positions=text.integer("max_position_embeddings"),
        layers=layers,
        tied_embeddings=_tied(outer, text, family),
        checkpoint=checkpoint_precision(outer, text, layers),
        nucleus_sampling=not isinstance(config, Mapping) and _nucleus(Path(config).parent / "generation_config.json"),
    )
    for part in {id(outer): outer, id(text): text}.values():
        part.finish(family.ignored)
    return model


def _family(outer: Config) -> Family:
    kind = outer.text("model_type")
    if kind not in FAMILIES:
        raise InputError(f"{outer.where}: unknown model_type '{kind}'{suggestion(kind, sorted(FAMILIES))}")
    return FAMILIES[kind]


def _tied(outer: Config, text: Config, family: Family) -> bool:
    inner, around = text.flag("tie_word_embeddings", None), outer.flag("tie_word_embeddings", None)
    return next((tied for tied in (inner, around) if tied is not None), family.tied_default)


def _nucleus(path: Path) -> bool:
    """Whether a ``generation_config.json`` asks for top-p; without the file no."""
    asked = _read_json(path) if path.is_file() else {}
    return (asked.get("top_p") or 1.0) < 1.0


def _read_json(path: str | Path) -> Any:
    try:
        return json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise InputError(f"{path}, line {error.lineno}: not JSON ({error.msg})") from None


def _default_name(config: str | Path | Mapping[str, Any]) -> str:
    if isinstance(config, Mapping):
        return str(config.get("_name_or_path") or config.get("model_type")).rsplit("/", 1)[-1].lower()
    path = Path(config)
    stem = path.resolve().parent.name if path.name == "config.json" else path.stem
    return stem.rsplit("--", 1)[-1].lower()
