"""``deployment.router``: which replica a request goes to, by one router or by one for each phase."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evaluator.keys import (
    Place,
    Reader,
    Schema,
    Section,
    choice,
    key,
    listed,
    read_section,
    required,
    schema_of,
    section,
    section_schema,
    shown,
    table_of,
)
from evaluator.routing import ROUTERS, Choice

WITH_KEYS: dict[str, Section] = {
    name: section(router.keys) for name, router in ROUTERS.items() if router.keys is not None
}
"""Routers with keys of their own, written {NAME: {KEY: VALUE}}."""
NEEDING_KEYS = tuple(name for name, keys in WITH_KEYS.items() if required(keys.table))
_by_name = choice(*(name for name in ROUTERS if name not in NEEDING_KEYS))


def _router(value: Any, place: Place) -> Choice:
    if isinstance(value, str) and value in NEEDING_KEYS:
        raise place.error(f"{value} needs its keys: {{{value}: {{{listed(WITH_KEYS[value].table)}}}}}")
    if isinstance(value, str) and value in WITH_KEYS:
        return WITH_KEYS[value]({}, place)
    if not isinstance(value, Mapping):
        return _by_name(value, place)
    (name,) = value if len(value) == 1 else (None,)
    if name not in WITH_KEYS:
        forms = " or ".join(f"{{{name}: {{...}}}}" for name in WITH_KEYS)
        raise place.error(f"expected the name of a router or {forms}, got {shown(value)}")
    return WITH_KEYS[name](value[name], place.key(name))


def _router_schema() -> Schema:
    with_keys = [
        {"type": "object", "properties": {name: schema_of(keys)}, "additionalProperties": False, "required": [name]}
        for name, keys in WITH_KEYS.items()
    ]
    return {"anyOf": [schema_of(_by_name), *with_keys]}


_one_router = Reader(_router, _router_schema)


@dataclass(frozen=True)
class Routers:
    """The routers of the prefill side and of the decode side."""

    prefill: Choice = key(_one_router, "round_robin", "Of the prefill side.")
    decode: Choice = key(_one_router, "round_robin", "Of the decode side.")


def _routers(value: Any, place: Place) -> Choice | Routers:
    if isinstance(value, Mapping) and not any(name in value for name in WITH_KEYS):
        return Routers(**read_section(value, table_of(Routers), place))
    return _router(value, place)


router_reader = Reader(_routers, lambda: {"anyOf": [*_router_schema()["anyOf"], section_schema(table_of(Routers))]})
"""Reads a router: its name, {heavy_light: {...}}, or {prefill: ROUTER, decode: ROUTER}."""
