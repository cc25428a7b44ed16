"""Models as YAML: reading one strictly, and writing one so that it reads back equal."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, get_args

from evaluator.catalog.fields import MOST_FILES, Fields, load_called
from evaluator.catalog.model import (
    CheckpointPrecision,
    CompressedAttention,
    DenseFeedForward,
    DTypeName,
    LatentAttention,
    LayerKind,
    LinearAttention,
    Model,
    MoeFeedForward,
    Output,
    Recurrence,
    RecurrenceForm,
    SoftmaxAttention,
    StateSpace,
)
from evaluator.errors import InputError

# The word in the file -> the part of a layer it stands for.
MIXERS: Mapping[str, type] = {
    "softmax_attention": SoftmaxAttention,
    "latent_attention": LatentAttention,
    "compressed_attention": CompressedAttention,
    "linear_attention": LinearAttention,
    "state_space": StateSpace,
    "recurrence": Recurrence,
}
FEED_FORWARDS: Mapping[str, type] = {"dense": DenseFeedForward, "moe": MoeFeedForward}
_MAY_BE_ZERO = (
    "shared_intermediate",
    "branch",
    "index_heads",
    "index_head_dim",
    "rope_head_dim",
    "ratio",
    "state",
    "convolved",
    "gates",
    "vectors",
)


def load_model(name: str) -> Model:
    """The model ``name`` of the catalog, as it is published, or of a path to a YAML or ``config.json``.

    Raises InputError where it is unusable.
    """
    if isinstance(name, str) and name.endswith(".json"):
        # Imported here, since the room of published configs reads into the records of this one; and its families are
        # twice as much code as the catalog, which a model by name does without.
        from evaluator.huggingface import config_file

        return _imported(config_file(name).absolute())
    # Imported here, since it reads entries by this function, for what their sources say.
    from evaluator.catalog.published import entry_named

    return load_called("models", name, read_model, entry_named)


@functools.lru_cache(maxsize=MOST_FILES)
def _imported(path: Path) -> Model:
    from evaluator.huggingface import import_config

    return import_config(path)


def read_model(document: Any, where: str, expected_name: str | None = None) -> Model:
    """A Model from the content of its YAML; ``where`` is the file's name in messages."""
    given = Fields(document, where)
    name = given.named(expected_name)
    entries = given.sequence("layers")
    output: Any = given.choice("output", get_args(Output), "tokens")
    model = Model(
        name=name,
        source=given.text("source"),
        hidden=given.integer("hidden"),
        vocabulary=given.integer("vocabulary"),
        max_positions=given.integer("max_positions"),
        layers=tuple(_layer(entry, f"{given.place('layers')}[{index}]") for index, entry in enumerate(entries)),
        tied_embeddings=given.flag("tied_embeddings", False),
        checkpoint=_checkpoint(given.inner("checkpoint", {})),
        published_parameters=given.number("published_parameters", None, low=1.0),
        lookup_parameters=given.integer("lookup_parameters", 0, minimum=0),
        encoder_parameters=given.integer("encoder_parameters", 0, minimum=0),
        notes=_notes(given),
        output=output,
        nucleus_sampling=given.flag("nucleus_sampling", False),
        penalties=given.flag("penalties", False),
        prediction_layers=given.integer("prediction_layers", 0, minimum=0),
    )
    given.finish()
    # A decode attends to earlier tokens' KV, of which such a layer keeps none.
    if model.whole_texts and model.gives_tokens:
        raise InputError(f"{given.place('output')}: a model with bidirectional attention gives no tokens; use vector")
    return model


def model_to_yaml(model: Model) -> str:
    """The YAML of a model: ``read_model`` of it gives an equal Model. Values at their default are left out."""
    lines = [f"name: {_name(model.name)}", f"source: {_quoted(model.source)}"]
    if model.published_parameters is not None:
        # 15 digits: counts of parameters are whole numbers below 10^15, and come back equal.
        lines.append(f"published_parameters: {model.published_parameters:.15g}  # model card")
    lines += [
        f"hidden: {model.hidden}",
        f"vocabulary: {model.vocabulary}",
        f"max_positions: {model.max_positions}",
    ]
    if model.tied_embeddings:
        lines.append("tied_embeddings: true")
    if not model.gives_tokens:
        lines.append(f"output: {model.output}")
    lines += [f"{flag}: true" for flag in ("nucleus_sampling", "penalties") if getattr(model, flag)]
    for key in ("lookup_parameters", "encoder_parameters", "prediction_layers"):
        if getattr(model, key):
            lines.append(f"{key}: {getattr(model, key)}")
    if model.notes:
        lines += ["notes:", *(f"  - {_quoted(note)}" for note in model.notes)]
    stored = {part.name: getattr(model.checkpoint, part.name) for part in fields(CheckpointPrecision)}
    lines.append(f"checkpoint: {_flow(stored)}")
    lines.append("layers:")
    for kind in model.layers:
        lines.append(f"  - count: {kind.count}")
        if kind.weight_sets is not None:
            lines.append(f"    weight_sets: {kind.weight_sets}")
        if kind.mixer is not None:
            lines.append(f"    {_word(MIXERS, kind.mixer)}: {_flow(_changed(kind.mixer))}")
        if kind.feed_forward is not None:
            lines.append(f"    {_word(FEED_FORWARDS, kind.feed_forward)}: {_flow(_changed(kind.feed_forward))}")
    return "\n".join(lines) + "\n"


def _layer(entry: Any, where: str) -> LayerKind:
    given = Fields(entry, where)
    count, sets = given.integer("count"), given.integer("weight_sets", None)
    kind = LayerKind(count, _part(given, MIXERS), _part(given, FEED_FORWARDS), sets)
    given.finish()
    if sets is not None and sets > count:
        raise InputError(f"{given.place('weight_sets')}: {sets} sets of weights for {count} layers")
    if kind.mixer is None and kind.feed_forward is None:
        raise InputError(f"{where}: a layer needs one of {', '.join([*MIXERS, *FEED_FORWARDS])}")
    return kind


def _part(given: Fields, words: Mapping[str, type]) -> Any:
    chosen = [word for word in words if given.raw(word, None) is not None]
    if not chosen:
        return None
    if len(chosen) > 1:
        raise InputError(f"{given.where}: {' and '.join(chosen)} exclude each other")
    inner = given.inner(chosen[0])
    part = words[chosen[0]](**{item.name: _value(inner, item) for item in fields(words[chosen[0]])})
    inner.finish()
    _check(part, inner.where)
    return part


def _value(given: Fields, item: Field[Any]) -> Any:
    # The record says which keys a part must have: a field without a default is a key that must be there.
    default = {} if item.default is MISSING else {"default": item.default}
    if item.type == "bool":
        return given.flag(item.name, **default)
    if item.type == "RecurrenceForm":
        return given.choice(item.name, get_args(RecurrenceForm), **default)
    return given.integer(item.name, **default, minimum=0 if item.name in _MAY_BE_ZERO else 1)


def _check(part: Any, where: str) -> None:
    if isinstance(part, SoftmaxAttention) and part.heads % part.kv_heads:
        raise InputError(f"{where}: {part.heads} heads cannot share {part.kv_heads} kv_heads evenly")
    if isinstance(part, SoftmaxAttention) and part.chunked and part.window is None:
        raise InputError(f"{where}: chunked needs a window")
    if isinstance(part, SoftmaxAttention) and part.bidirectional and part.shared_kv:
        raise InputError(f"{where}: bidirectional attention keeps no KV; shared_kv has none to share")
    if isinstance(part, LatentAttention) and bool(part.index_heads) != bool(part.index_head_dim):
        raise InputError(f"{where}: an indexer needs both index_heads and index_head_dim")
    if isinstance(part, LatentAttention) and part.index_heads and part.index_top_k is None:
        raise InputError(f"{where}: index_heads needs index_top_k, the tokens that the indexer chooses")
    if isinstance(part, LatentAttention) and part.index_top_k is not None and part.window is not None:
        raise InputError(f"{where}: window and index_top_k exclude each other")
    if isinstance(part, Recurrence) and part.width % part.heads:
        raise InputError(f"{where}: {part.heads} heads do not divide width {part.width}")
    if isinstance(part, MoeFeedForward) and part.experts_per_token > part.experts:
        raise InputError(f"{where}: experts_per_token {part.experts_per_token} exceeds experts {part.experts}")


def _checkpoint(given: Fields) -> CheckpointPrecision:
    parts = {part.name: given.choice(part.name, get_args(DTypeName), "bf16") for part in fields(CheckpointPrecision)}
    given.finish()
    return CheckpointPrecision(**parts)  # type: ignore[arg-type]  # checked against the same list of names


def _notes(given: Fields) -> tuple[str, ...]:
    notes = given.sequence("notes", ())
    if not all(isinstance(note, str) and note.strip() for note in notes):
        raise InputError(f"{given.place('notes')}: expected a list of texts")
    return tuple(notes)


def _changed(part: Any) -> dict[str, Any]:
    values = {item.name: getattr(part, item.name) for item in fields(part)}
    return {item.name: values[item.name] for item in fields(part) if values[item.name] != item.default}


def _word(words: Mapping[str, type], part: Any) -> str:
    return next(word for word, kind in words.items() if kind is type(part))


def _flow(values: Mapping[str, Any]) -> str:
    shown = {key: str(value).lower() if isinstance(value, bool) else value for key, value in values.items()}
    return "{" + ", ".join(f"{key}: {value}" for key, value in shown.items()) + "}"


def _name(text: str) -> str:
    plain = re.fullmatch(r"[a-z][a-z0-9]*[-.][a-z0-9.-]*", text)  # with a letter and a dash it is nothing but a text
    return text if plain else _quoted(text)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
