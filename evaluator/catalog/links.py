"""Links between pools, over which KV is sent, as YAML: a bandwidth, a latency, and where both are from."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from evaluator.catalog.fields import Fields
from evaluator.catalog.store import find
from evaluator.yaml import load_yaml


@dataclass(frozen=True)
class PoolLink:
    """Bytes per second that one replica sends over it with all its devices together, and seconds until they arrive."""

    name: str
    bandwidth: float
    latency_s: float
    sources: Mapping[str, str]


def load_link(name: str) -> PoolLink:
    """The link ``name`` of the catalog, or of a path to a YAML; raises InputError where it is unusable."""
    return _load(find("links", name))


@functools.cache
def _load(path: Path) -> PoolLink:
    given = Fields(load_yaml(path), path.name)
    name = given.named(path.stem)
    given.text("note", None)
    link = PoolLink(
        name,
        given.quantity("bandwidth", "byte/s"),
        given.quantity("latency", "s", zero=True),
        given.sources(("bandwidth", "latency")),
    )
    given.finish()
    return link
