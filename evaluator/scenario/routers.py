"""``deployment.router``: which replica a request goes to, by one router or by one for each phase."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from evaluator.keys import (
    Place,
    Reader,
    Schema,
    Section,
    choice,
    count,
    key,
    listed,
    read_section,
    required,
    schema_of,
    section,
    section_schema,
    shown,
    table_of,
    written,
)
from evaluator.routing import ROUTERS, Choice, name_of


# A router may be registered after this module is imported, so its keys are read when asked for, and once: a sweep
# reads the deployment of every design.
@cache
def _section(keys: type) -> Section:
    return section(keys)


def with_keys() -> dict[str, Section]:
    """Routers with keys of their own, written {NAME: {KEY: VALUE}}; those registered by now."""
    return {name: _section(router.keys) for name, router in ROUTERS.items() if router.keys is not None}


def _by_name() -> Reader:
    """Reads a router that is named alone, which one that needs keys is not."""
    sections = with_keys()
    return choice(*(name for name in ROUTERS if name not in sections or not required(sections[name].table)))


def _router(value: Any, place: Place) -> Choice:
    sections = with_keys()
    if isinstance(value, str) and value in sections:
        if required(sections[value].table):
            raise place.error(f"{value} needs its keys: {{{value}: {{{listed(sections[value].table)}}}}}")
        return sections[value]({}, place)
    if not isinstance(value, Mapping):
        return _by_name()(value, place)
    # A mapping of two names does not say which of them routes. None is in no table and so ends in the message.
    (name,) = value if len(value) == 1 else (None,)
    if name not in sections:
        forms = " or ".join(f"{{{name}: {{...}}}}" for name in sections)
        raise place.error(f"expected the name of a router or {forms}, got {shown(value)}")
    return sections[name](value[name], place.key(name))


def _router_schema() -> Schema:
    forms = [
        {"type": "object", "properties": {name: schema_of(keys)}, "additionalProperties": False, "required": [name]}
        for name, keys in with_keys().items()
    ]
    return {"anyOf": [schema_of(_by_name()), *forms]}


_one_router = Reader(_router, _router_schema)


@dataclass(frozen=True)
class Routers:
    """The routers of the prefill side and of the decode side."""

    prefill: Choice = key(_one_router, "round_robin", "Of the prefill side, and of mixed pools beside it.")
    decode: Choice = key(_one_router, "round_robin", "Of the decode side.")


@dataclass(frozen=True)
class Split:
    """Which requests prefill and decode pools serve between them where there are mixed pools beside these.

    ``prompt_tokens_above`` None: those for which the router chooses a prefill replica.
    """

    prompt_tokens_above: int | None = key(
        count(least=0),
        None,
        "Requests with more prompt tokens to compute go to prefill and decode pools, the others to mixed ones; where "
        "absent the router chooses among the replicas of both.",
    )


split_reader = section(Split)


def written_routers(routers: Choice | Routers) -> Any:
    """A router, or that of each phase, as the tree it could have been read from."""
    if isinstance(routers, Routers):
        return {"prefill": written_routers(routers.prefill), "decode": written_routers(routers.decode)}
    # Its record has its keys alone; which router they are of stands in front of them.
    return routers if isinstance(routers, str) else {name_of(routers): written(routers)}


def _routers(value: Any, place: Place) -> Choice | Routers:
    # A mapping either names a router with keys, or says one for each phase.
    if isinstance(value, Mapping) and not any(name in value for name in with_keys()):
        return Routers(**read_section(value, table_of(Routers), place))
    return _router(value, place)


router_reader = Reader(_routers, lambda: {"anyOf": [*_router_schema()["anyOf"], section_schema(table_of(Routers))]})
"""Reads a router: its name, {heavy_light: {...}}, or {prefill: ROUTER, decode: ROUTER}."""
