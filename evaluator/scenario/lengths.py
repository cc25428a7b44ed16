"""``workload.lengths``, and the shares of requests that have lengths of their own: how long prompts and outputs are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from evaluator.catalog import load_lengths
from evaluator.errors import InputError
from evaluator.keys import (
    Key,
    Place,
    Reader,
    Schema,
    Table,
    Variant,
    catalog_model,
    count,
    did_you_mean,
    file_there,
    in_catalog,
    key,
    listed,
    number,
    read_section,
    required,
    schema_of,
    section_schema,
    shown,
    table_of,
    text,
    variant,
)


@dataclass(frozen=True)
class Lengths:
    """How long prompts and outputs are: a catalog distribution, a formula, or a trace file.

    ``parameters`` are those of a formula, by the keys of ``FORMULAS``.
    """

    source: str  # a catalog name | fixed | lognormal | normal | uniform | zipf | trace
    parameters: Mapping[str, float] = field(default_factory=dict)
    file: str | None = None

    def written(self) -> dict[str, Any]:
        """The section it could have been read from."""
        return {"trace": self.file} if self.source == "trace" else {"source": self.source, **self.parameters}


def _of_both(**columns: Key) -> dict[str, Key]:
    """The same keys for the prompt and for the output."""
    return {
        f"{part}_{name}": Key(entry.read, entry.default, entry.says.format(part=f"{part}s"))
        for part in ("prompt", "output")
        for name, entry in columns.items()
    }


# Texts with a place for the part: the same key stands for prompts and for outputs.
_TOKENS = Key(count(), says="Tokens of all {part}.")
_MEAN = Key(number(above=0, most=1e9), says="Mean tokens of {part}, before rounding and clips.")
_LEAST = Key(count(), 1, "Fewest tokens of {part}.")
_MOST = "Most tokens of {part}."
_CLIPS = {"min": _LEAST, "max": Key(count(), None, _MOST)}

FORMULAS: Mapping[str, Table] = {
    "fixed": _of_both(tokens=_TOKENS),
    "lognormal": _of_both(mean=_MEAN, cv=Key(number(above=0), says="Coefficient of variation of {part}."), **_CLIPS),
    "normal": _of_both(mean=_MEAN, std=Key(number(least=0), says="Standard deviation of {part}, tokens."), **_CLIPS),
    "uniform": _of_both(min=Key(count(), says=_LEAST.says), max=Key(count(), says=_MOST)),
    # Bounded above: a law with an exponent of up to 2 has no mean without a bound.
    "zipf": _of_both(
        exponent=Key(number(least=0, most=20), says="Exponent of the law of {part}; 0 is uniform."),
        min=_LEAST,
        max=Key(count(most=10**7), says=_MOST),
    ),
}
"""The keys of each length formula. ``mean``, ``cv`` and ``std`` are those before rounding and before the clips."""

_SOURCE = "A named distribution of the catalog, or a formula: fixed, lognormal, normal, uniform, zipf."


def _formula(source: str, values: dict[str, Any], place: Place) -> Lengths:
    for part in ("prompt", "output"):
        low, high = values.get(f"{part}_min"), values.get(f"{part}_max")
        if low is not None and high is not None and high < low:
            raise place.key(f"{part}_max").error(f"must be at least {part}_min = {low}, got {high}")
    # What was not said is left out, so that equal formulas are equal records whichever clips they name as
    # absent.
    return Lengths(source, {name: entry for name, entry in values.items() if entry is not None})


_formulas = variant("source", FORMULAS, _formula, _SOURCE)
_named = in_catalog("lengths", load_lengths)
_TRACE: Table = {"trace": Key(file_there, says="CSV, Parquet or JSONL with prompt_tokens and output_tokens.")}


def _read(value: Any, place: Place) -> Lengths:
    # `trace: null` takes a trace of an overlaid file away.
    if isinstance(value, Mapping) and value.get("trace") is not None:
        return Lengths("trace", file=read_section(value, _TRACE, place)["trace"])
    if isinstance(value, Mapping) and value.get("source") is None:
        raise place.key("source").error(f"is required: {listed(FORMULAS)}, a name of the catalog, or trace: FILE")
    if isinstance(value, Mapping) and str(value["source"]) not in FORMULAS:
        name = _catalog_name(value["source"], place.key("source"))
        read_section(value, {"source": Key(text), "trace": Key(text, None)}, place)  # nothing beside it
        return Lengths(name)
    return _formulas(value, place)


def _catalog_name(value: Any, place: Place) -> str:
    try:
        return _named(value, place)
    except InputError as error:
        # A word in this place may be a misspelt formula as well as a misspelt name.
        raise InputError(f"{error}; or a formula: {listed(FORMULAS)}{did_you_mean(value, FORMULAS)}") from None


def _schema() -> Schema:
    catalog: Table = {"source": Key(_named, says=_SOURCE)}
    alone = [section_schema(table, needed=table) for table in (catalog, _TRACE)]
    return {"anyOf": [*alone, schema_of(_formulas)]}


# A key of its own in an axis may be a name of the catalog, too.
_source = Reader(text.read, lambda: {"anyOf": [{"enum": list(FORMULAS)}, schema_of(_named)]})

lengths_reader = Variant(_read, _schema, {**_formulas.keys, "source": Key(_source, says=_SOURCE), **_TRACE})
"""Reads {source: NAME, ...} or {trace: FILE}."""

share_reader = number(above=0)


@dataclass(frozen=True)
class ModelShare:
    """Requests that ask for one model, or take one pipeline: ``share`` of all requests, relative to the others.

    ``lengths`` None: as those of the workload.
    """

    share: float = key(share_reader, says="Of all requests, relative to the shares of the other {kind}s.")
    lengths: Lengths | None = key(
        lengths_reader, None, "Of this {kind}'s requests; as those of the workload if absent."
    )


def shares_reader(kind: str, example: str, record: Any = ModelShare, read_name: Reader = text) -> Reader:
    """Reads {NAME: SHARE, NAME: {share: SHARE, ...}}, the keys of ``record``, by the names of what is of this kind."""
    table = {
        name: Key(entry.read, entry.default, entry.says.format(kind=kind)) for name, entry in table_of(record).items()
    }

    def read(value: Any, place: Place) -> dict[str, ModelShare]:
        if not isinstance(value, Mapping) or not value:
            raise place.error(f"expected shares by {kind} such as {{{example}: 0.7}}, got {shown(value)}")
        shares = {}
        for name, entry in value.items():
            here = place.key(name)
            # The name of a share is a key of the file, so that it is read as a value would be: a model must be in the
            # catalog, and goes by the name that it has there.
            known_as = str(read_name(name, here))
            if known_as in shares:
                raise here.error(f"is {known_as}, which has a share already")
            # A number alone is the share, as most have no lengths of their own.
            values = (
                read_section(entry, table, here) if isinstance(entry, Mapping) else {"share": share_reader(entry, here)}
            )
            shares[known_as] = record(**values)
        return shares

    def schema() -> Schema:
        below = {"anyOf": [schema_of(share_reader), section_schema(table, required(table))]}
        return {"type": "object", "additionalProperties": below, "minProperties": 1}

    return Reader(read, schema)


models_reader = shares_reader("model", "llama-3.1-8b", read_name=catalog_model)
"""Reads {MODEL: 0.7, MODEL: {share: 0.3, lengths: {...}}}: which models the requests ask for."""

pipelines_reader = shares_reader("pipeline", "rag")
"""Reads {NAME: 0.7, NAME: {share: 0.3, lengths: {...}}}: which pipeline the requests take."""
