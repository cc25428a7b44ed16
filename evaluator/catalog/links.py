"""Links between pools, over which KV is sent, as YAML: a bandwidth, a latency, and where both are from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evaluator.catalog.fields import Fields, load


@dataclass(frozen=True)
class PoolLink:
    """Bytes per second that one replica sends over it with all its devices together, and seconds until they arrive."""

    name: str
    bandwidth: float
    latency_s: float
    sources: Mapping[str, str]


def load_link(name: str) -> PoolLink:
    """The link ``name`` of the catalog, or of a path to a YAML; raises InputError where it is unusable."""
    return load("links", name, _read)


def _read(document: Any, where: str, expected_name: str) -> PoolLink:
    given = Fields(document, where)
    name = given.named(expected_name)
    given.text("note", None)
    link = PoolLink(
        name,
        given.quantity("bandwidth", "byte/s"),
        given.quantity("latency", "s", zero=True),
        given.sources(("bandwidth", "latency")),
    )
    given.finish()
    return link
