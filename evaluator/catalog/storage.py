"""Storage devices that keep KV, as YAML: bandwidth, lookup latency, capacity, and where each figure is from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from evaluator.catalog.fields import Fields, load

ALL = "all"
_FIGURES = ("bandwidth", "latency", "capacity")


@dataclass(frozen=True)
class Storage:
    """Bytes per second read from it, seconds to look a context up in it, bytes that it keeps (inf: no limit).

    ``shared_by`` replicas have one together: 1, more, or ``all``.
    """

    name: str
    bandwidth: float
    latency_s: float
    capacity_bytes: float
    sources: Mapping[str, str]
    shared_by: int | str = 1

    def instead(
        self,
        bandwidth: float | None,
        latency_s: float | None,
        capacity_bytes: float | None,
        shared_by: int | str | None,
    ) -> Storage:
        """The same with the figures that are given."""
        given: dict[str, Any] = {
            "bandwidth": bandwidth, "latency_s": latency_s, "capacity_bytes": capacity_bytes, "shared_by": shared_by,
        }  # fmt: skip
        return replace(self, **{name: value for name, value in given.items() if value is not None})

    def sharing(self, replicas: int) -> int:
        """Replicas that have one together, of so many in all."""
        return replicas if isinstance(self.shared_by, str) else min(self.shared_by, replicas)


UNKNOWN = Storage("", math.nan, 0.0, math.inf, {})
"""What a tier that names no storage begins with; its bandwidth must be said."""


def load_storage(name: str) -> Storage:
    """The storage ``name`` of the catalog, or of a path to a YAML; raises InputError where it is unusable."""
    return load("storage", name, _read)


def _read(document: Any, where: str, expected_name: str) -> Storage:
    given = Fields(document, where)
    name = given.named(expected_name)
    given.text("note", None)
    shared = ALL if given.raw("shared_by", 1) == ALL else given.integer("shared_by", 1)
    # A device of one replica alone is the default and needs no source.
    figures = _FIGURES if shared == 1 else (*_FIGURES, "shared_by")
    storage = Storage(
        name,
        given.quantity("bandwidth", "byte/s"),
        given.quantity("latency", "s", zero=True),
        # `null` must be written: a capacity that was forgotten would be one without a limit.
        math.inf if given.raw("capacity") is None else given.quantity("capacity", "byte"),
        given.sources(figures),
        shared,
    )
    given.finish()
    return storage
