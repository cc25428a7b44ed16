"""The JSON Schema of a scenario file, for editors: made from the tables of keys, which are what files are read by."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evaluator.scenario.axes import SAMPLE
from evaluator.scenario.fields import REQUIRED, Reader, Schema, file_name
from evaluator.scenario.keys import deployment_reader, read_slo
from evaluator.scenario.names import key_readers
from evaluator.scenario.pipeline_keys import pipeline_reader
from evaluator.scenario.question_keys import BUDGET, DEMAND
from evaluator.scenario.tables import schema_of, section_schema
from evaluator.scenario.workload_keys import workload_table

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
    workload, deployment = workload_table(Path()), deployment_reader.table
    properties = {
        "name": {"description": "Names the files of the results.", **schema_of(file_name)},
        "workload": {"description": "What is asked of the servers.", **section_schema(workload)},
        "deployment": {"description": "What serves it.", **schema_of(deployment_reader)},
        "pipeline": {
            "description": "The stages that a request passes; prefill and decode where absent.",
            "anyOf": [schema_of(pipeline_reader), {"type": "null"}],
        },
        "slo": {"description": "Objectives: bounds in seconds.", "anyOf": [schema_of(read_slo), {"type": "null"}]},
        "sweep": {"description": "The axes of the grid, which is their product.", **_sweep()},
        "budget": {"description": "What a design may take, for optimize.", **section_schema(BUDGET)},
        "demand": {"description": "What a design has to serve, for optimize.", **section_schema(DEMAND)},
    }
    needed: dict[str, Any] = {
        name: {"required": [key for key, field in table.items() if field.default is REQUIRED]}
        for name, table in (("workload", workload), ("deployment", deployment))
    }
    needed["deployment"] = {"anyOf": [needed["deployment"], {"required": ["pools"]}]}  # which may say it each
    return {
        "$schema": DRAFT,
        "title": "Scenario of evaluator",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "required": ["workload", "deployment"],
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
            **{path: _axis(reader) for path, reader in key_readers().items() if path != "workload.seeds"},
            "table": {**_TABLE, "type": ["string", "null"]},
            "sample": {
                "description": "Designs spread over the axes, instead of their product.",
                "anyOf": [{**section_schema(SAMPLE), "required": ["size"]}, {"type": "null"}],
            },
            "where": {
                "description": "Conditions on the points, such as tensor_parallel * replicas <= 8.",
                "anyOf": [{"type": ["string", "null"]}, conditions],
            },
        },
        "patternProperties": {r"^(workload|deployment|pipeline|slo)(\.|$)": _axis(None)},
        "additionalProperties": {"anyOf": [*(_only(form) for form in designs), {"type": "null"}]},
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
