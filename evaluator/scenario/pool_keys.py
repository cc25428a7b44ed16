"""The keys of ``deployment`` that are about several pools: ``pools``, ``transfer``, and routers by role."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evaluator.routing import HEAVY_LIGHT, PREFIX_AWARE, ROUTERS, Choice, HeavyLight, PrefixAware
from evaluator.scenario.fields import (
    REQUIRED,
    Field,
    Place,
    Reader,
    Schema,
    Table,
    choice,
    count,
    flag,
    known,
    listed,
    number,
    quantity,
    shown,
)
from evaluator.scenario.pools import STAGE
from evaluator.scenario.scenario import LinkFigures, Pool, Routers, Transfer
from evaluator.scenario.tables import Named, Section, named, read_section, schema_of, section, section_schema

ROLE = Field(
    choice("mixed", "prefill", "decode", STAGE),
    says="Which phases of a request the replicas compute; stage: none, they serve stages of the pipeline.",
)
WEIGHT = Field(
    number(above=0),
    None,
    "Share of the requests, relative to the other pools of this role and model; as many as its replicas where absent.",
)


def pools_reader(replica: Table) -> Named:
    """Reads {NAME: {role: ..., ...}}: the keys ``replica`` of a deployment, which may be left out, and a role."""
    return named(section({"role": ROLE, **_optional(replica), "weight": WEIGHT}, Pool), _check_roles)


def _optional(table: Table) -> dict[str, Field]:
    """The same keys, None where they are absent; sections with nothing but None in them."""
    found = {}
    for key, field in table.items():
        if isinstance(field.read, Section):
            inner = _optional(field.read.table)
            nothing = field.read.build(**{name: each.default for name, each in inner.items()})
            found[key] = Field(section(inner, field.read.build), nothing, field.says)
        else:
            found[key] = Field(field.read, None, field.says)
    return found


def _check_roles(pools: Mapping[str, Pool], place: Place) -> None:
    """Mixed pools, or a prefill side and a decode side; with any number of pools for stages."""
    if not pools:
        raise place.error("holds no pool: all are null; describe one such as {a: {role: mixed}}, or leave pools out")
    pools = {name: pool for name, pool in pools.items() if pool.role != STAGE}
    having = {role: [name for name, pool in pools.items() if pool.role == role] for role in ROLE_NAMES}
    if having["mixed"] and len(having["mixed"]) < len(pools):
        others = [*having["prefill"], *having["decode"]]
        raise place.error(
            f"mixed pools ({listed(having['mixed'])}) beside prefill and decode pools ({listed(others)}) are not "
            "implemented yet: a request would have two ways to go; use pools of mixed, or of prefill and decode"
        )
    for role, other in (("prefill", "decode"), ("decode", "prefill")):
        if having[role] and not having[other]:
            raise place.error(
                f"the {role} pool {having[role][0]} needs a {other} pool beside it; add one with role: {other}, "
                "or use role: mixed"
            )


ROLE_NAMES = ("mixed", "prefill", "decode")


HEAVY_LIGHT_KEYS: Table = {
    "prompt_tokens": Field(count(), says="Prompts of at least so many tokens are heavy."),
    "heavy_replicas": Field(
        count(), HeavyLight.heavy_replicas, "The first so many replicas serve them, and only them."
    ),
}
PREFIX_AWARE_KEYS: Table = {
    "threshold": Field(
        number(least=0, most=1), PrefixAware.threshold, "Least part of a prompt in a cache for which it goes there."
    ),
    "imbalance": Field(
        count(least=0), PrefixAware.imbalance, "So many requests more than on another replica are too uneven a load,"
    ),
    "imbalance_ratio": Field(
        number(least=1), PrefixAware.imbalance_ratio, "if they are also more than so many times as many."
    ),
}
WITH_KEYS: dict[str, Section] = {
    HEAVY_LIGHT.name: section(HEAVY_LIGHT_KEYS, HeavyLight),
    PREFIX_AWARE.name: section(PREFIX_AWARE_KEYS, PrefixAware),
}
"""Routers with keys of their own, written {NAME: {KEY: VALUE}}."""
NEEDING_KEYS = tuple(
    name for name, keys in WITH_KEYS.items() if any(field.default is REQUIRED for field in keys.table.values())
)
_plain_router = choice(*(name for name in ROUTERS if name not in NEEDING_KEYS))


def _router(value: Any, place: Place) -> Choice:
    if isinstance(value, str) and value in NEEDING_KEYS:
        raise place.error(f"{value} needs its keys: {{{value}: {{{listed(WITH_KEYS[value].table)}}}}}")
    if value == PREFIX_AWARE.name:
        return PrefixAware()
    if not isinstance(value, Mapping):
        return _plain_router(value, place)
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
    return {"anyOf": [schema_of(_plain_router), *with_keys]}


_one_router = Reader(_router, _router_schema)
ROLE_ROUTERS: Table = {
    "prefill": Field(_one_router, Routers.prefill, "Of the prefill side."),
    "decode": Field(_one_router, Routers.decode, "Of the decode side."),
}


def _routers(value: Any, place: Place) -> Choice | Routers:
    if isinstance(value, Mapping) and not any(name in value for name in WITH_KEYS):
        return Routers(**read_section(value, ROLE_ROUTERS, place))
    return _router(value, place)


router_reader = Reader(_routers, lambda: {"anyOf": [*_router_schema()["anyOf"], section_schema(ROLE_ROUTERS)]})
"""Reads a router: its name, {heavy_light: {...}}, or {prefill: ROUTER, decode: ROUTER}."""


def _load_link(name: str) -> Any:
    from evaluator.catalog import load_link

    return load_link(name)


def _link_names() -> list[str]:
    from evaluator.catalog import names

    return names("links")


FIGURES: Table = {
    "bandwidth": Field(quantity("byte/s", above=0), says="Bytes per second between a prefill and a decode replica."),
    "latency": Field(quantity("s", least=0), LinkFigures.latency, "Seconds until bytes that were sent arrive."),
}
_named_link = known(_load_link, _link_names)


def _link(value: Any, place: Place) -> Any:
    if isinstance(value, Mapping):
        return LinkFigures(**read_section(value, FIGURES, place))
    if not isinstance(value, str):
        raise place.error(f"expected the name of a link or {{bandwidth: 50GB/s, latency: 5us}}, got {shown(value)}")
    return _named_link(value, place)


def _link_schema() -> Schema:
    figures = {**section_schema(FIGURES), "required": ["bandwidth"]}
    return {"anyOf": [*schema_of(_named_link)["anyOf"], figures]}


def transfer_reader(dtypes: tuple[str, ...]) -> Section:
    """Reads ``transfer``; ``dtypes`` are those of KV caches."""
    table: Table = {
        "link": Field(
            Reader(_link, _link_schema), Transfer.link, "A link of the catalog, or {bandwidth: 50GB/s, latency: 5us}."
        ),
        "granularity": Field(
            choice("cache", "layer"),
            Transfer.granularity,
            "cache: sent once the prompt is computed. layer: sent layer by layer while it is computed.",
        ),
        "dtype": Field(choice("auto", *dtypes), Transfer.dtype, "Sent so; auto: as the narrower KV cache of the two."),
        "shared": Field(
            choice("per_replica", "none"),
            Transfer.shared,
            "per_replica: a prefill replica sends one request after the other. none: all at once, none waits.",
        ),
        "figures": Field(
            choice("per_replica", "per_device"),
            Transfer.figures,
            "per_replica: the link is of all devices of a replica. per_device: every device has one, and the side with "
            "fewer devices bounds a transfer.",
        ),
        "groups": Field(
            count(),
            Transfer.groups,
            "1: any decode replica serves what any prefill replica computed. More: within fixed groups of replicas.",
        ),
        "backpressure": Field(
            flag,
            Transfer.backpressure,
            "Whether a prefill replica keeps a request's KV until it is sent, which waits for room on the decode side.",
        ),
    }
    return section(table, Transfer)
