"""The JSON Schema of a scenario file, for editors: made from the tables of keys, which are what files are read by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evaluator.keys import Reader, Schema, key_schema, required, schema_of, section_schema
from evaluator.scenario.axes import SAMPLE
from evaluator.scenario.from_command import FROM, SAYS
from evaluator.scenario.load import TOP
from evaluator.scenario.pools import deployment_reader
from evaluator.scenario.short_names import key_readers
from evaluator.scenario.workload import workload_reader

DRAFT = "https://json-schema.org/draft/2020-12/schema"

_PLAIN: Schema = {"type": ["string", "number", "boolean", "null", "object"]}
_TABLE: Schema = {"type": "string", "description": "CSV or Parquet: columns are keys, a row is a design."}
_ENDS: Schema = {"type": ["number", "string"]}
_ZIP: Schema = {"type": "array", "items": {"type": "object", "minProperties": 1}, "minItems": 1}


def scenario_schema() -> dict[str, Any]:
    """The schema (draft 2020-12) as plain mappings and lists; names are those of the catalog as it is now.

    It refuses less than the loader does: rules that join several keys, and what a sweep makes of the keys, are not in
    it. Keys that must be there are required only where nothing is swept, since an axis may give them.
    """
    schemas = {name: schema_of(entry.read) for name, entry in TOP.items()} | {"sweep": _sweep()}
    properties: dict[str, Schema] = {name: {"description": entry.says, **schemas[name]} for name, entry in TOP.items()}
    properties |= {name: key_schema(TOP[name]) for name in ("pipeline", "slo")}  # which may be null
    needed: dict[str, Any] = {
        name: {"required": required(reader.table)}
        for name, reader in (("workload", workload_reader), ("deployment", deployment_reader))
    }
    # Pools may say it each, and a script says the model.
    needed["deployment"] = {"anyOf": [needed["deployment"], {"required": ["pools"]}, {"required": [FROM]}]}
    deployment = properties["deployment"]
    below = {**deployment["properties"], FROM: {"type": "string", "description": SAYS}}
    properties["deployment"] = {**deployment, "properties": below}
    return {
        "$schema": DRAFT,
        "title": "Scenario of evaluator",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "required": required(TOP),
        # JSON Schema's way to make keys required on a condition: with a sweep an axis may give the model or the
        # arrivals.
        "if": {"not": {"required": ["sweep"]}},
        "then": {"properties": needed},
        "$defs": {"form": _forms()},
    }


def _sweep() -> Schema:
    designs = [{"zip": _ZIP}, {"table": _TABLE}]
    conditions = {"type": "array", "items": {"type": "string"}}
    return {
        "type": ["object", "null"],
        "properties": {
            # Every key path by itself, so that an editor completes them.
            **{path: _axis(reader) for path, reader in key_readers().items() if path != "workload.seeds"},
            "table": {**_TABLE, "type": ["string", "null"]},
            "sample": {
                "description": "Designs spread over the axes, instead of their product.",
                "anyOf": [section_schema(SAMPLE, required(SAMPLE)), {"type": "null"}],
            },
            "where": {
                "description": "Conditions on the points, such as tensor_parallel * replicas <= 8.",
                "anyOf": [{"type": ["string", "null"]}, conditions],
            },
        },
        "patternProperties": {r"^(workload|deployment|pipeline|slo)(\.|$)": _axis(None)},
        "additionalProperties": {"anyOf": [*(_only(form) for form in designs), {"type": "null"}]},
        # Seeds match the pattern of paths and are refused by the loader.
        "propertyNames": {"not": {"const": "workload.seeds"}},
    }


def _axis(reader: Reader | None) -> Schema:
    """The forms of an axis; ``reader`` reads its values where it is the axis of one key."""
    value = _PLAIN if reader is None else {"anyOf": [schema_of(reader), {"type": ["null", "object"]}]}
    return {"anyOf": [{"type": "array", "items": value, "minItems": 1}, {"$ref": "#/$defs/form"}]}


def _forms() -> Schema:
    """Every form of an axis but a list of its values."""
    spaced = {
        "type": "array",
        "prefixItems": [_ENDS, _ENDS, {"type": "integer", "minimum": 1}],
        "minItems": 3,
        "maxItems": 3,
    }
    between: dict[str, Schema] = {
        "between": {"type": "array", "items": _ENDS, "minItems": 2, "maxItems": 2},
        "log": {"type": "boolean"},
    }
    forms = [
        *(_only({form: spaced}) for form in ("linspace", "logspace", "geomspace")),
        _only({"range": {"type": "array", "items": _ENDS, "minItems": 3, "maxItems": 3}}),
        _only({"zip": _ZIP}),
        {**_only(between), "required": ["between"]},
        {"type": "null"},
    ]
    return {"anyOf": forms}


def _only(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }
