"""Lists of tiers in a scenario: each is a storage of the catalog by its name, or a section with figures of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from evaluator.catalog import load_storage
from evaluator.catalog.storage import UNKNOWN, Storage
from evaluator.keys import Place, Reader, Schema, in_catalog, schema_of, section, shown

storage_name = in_catalog("storage", load_storage)


class ListedTier(Protocol):
    """What the sections of such a list have in common; None where a tier does not say it."""

    @property
    def storage(self) -> str | None: ...
    @property
    def bandwidth(self) -> float | None: ...
    @property
    def latency(self) -> float | None: ...
    @property
    def capacity(self) -> float | None: ...
    @property
    def shared_by(self) -> int | str | None: ...


def figures_of(tier: ListedTier) -> Storage:
    """What a tier is made of: its storage, with the figures that it says itself."""
    # A bandwidth of NaN is never used: `_check_tier` wants one where no storage has it.
    base = UNKNOWN if tier.storage is None else load_storage(tier.storage)
    return base.instead(tier.bandwidth, tier.latency, tier.capacity, tier.shared_by)


def _check_tier(tier: ListedTier, place: Place) -> None:
    if tier.storage is None and tier.bandwidth is None:
        raise place.error("needs a storage of the catalog, or a bandwidth")


def tiers_reader(record: type, example: str) -> Reader:
    """Reads a list such as ``example`` as a tuple of the ``record``, a ``ListedTier``."""
    of_tier = section(record, _check_tier)

    def read(value: Any, place: Place) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise place.error(f"expected a list of tiers such as {example}, got {shown(value)}")
        sections = (entry if isinstance(entry, Mapping) else {"storage": entry} for entry in value)
        return tuple(of_tier(entry, place.item(index)) for index, entry in enumerate(sections))

    def schema() -> Schema:
        return {"type": "array", "items": {"anyOf": [schema_of(storage_name), schema_of(of_tier)]}}

    return Reader(read, schema)
