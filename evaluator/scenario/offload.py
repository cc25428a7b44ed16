"""``deployment.kv.offload_tiers``: storage behind the host memory that a prefix cache spills to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evaluator.catalog import load_storage
from evaluator.catalog.storage import ALL, UNKNOWN, Storage
from evaluator.keys import Place, Reader, Schema, count_or, in_catalog, key, quantity, schema_of, section, shown

_storage = in_catalog("storage", load_storage)


@dataclass(frozen=True)
class OffloadTier:
    """One tier. Figures that are None are those of the ``storage``, a name of the catalog."""

    storage: str | None = key(_storage, None, "A storage of the catalog; absent: described by the other keys.")
    capacity: float | None = key(
        quantity("byte", least=0), None, "Of KV that it keeps, instead of the storage's; 0: there is no such tier."
    )
    bandwidth: float | None = key(
        quantity("byte/s", above=0), None, "Bytes per second in each direction, instead of the storage's."
    )
    latency: float | None = key(
        quantity("s", least=0), None, "Of a transfer, beside those of others; instead of the storage's."
    )
    shared_by: int | str | None = key(
        count_or(ALL), None, "Replicas that share one, its capacity and bandwidth; or all. Instead of the storage's."
    )

    @property
    def figures(self) -> Storage:
        """What it is made of."""
        base = UNKNOWN if self.storage is None else load_storage(self.storage)
        return base.instead(self.bandwidth, self.latency, self.capacity, self.shared_by)

    def __str__(self) -> str:
        """As YAML says it, for tables."""
        said = {name: value for name, value in vars(self).items() if value is not None}
        if self.storage is not None and len(said) == 1:
            return self.storage
        return f"{{{', '.join(f'{name}: {value}' for name, value in said.items())}}}"


def _check_tier(tier: OffloadTier, place: Place) -> None:
    if tier.storage is None and tier.bandwidth is None:
        raise place.error("needs a storage of the catalog, or a bandwidth")


_tier = section(OffloadTier, _check_tier)


def _tiers(value: Any, place: Place) -> tuple[OffloadTier, ...]:
    if not isinstance(value, list | tuple):
        raise place.error(
            f"expected a list of tiers such as [nvme, {{storage: rack-pool, shared_by: all}}], got {shown(value)}"
        )
    sections = (entry if isinstance(entry, Mapping) else {"storage": entry} for entry in value)
    return tuple(_tier(entry, place.item(index)) for index, entry in enumerate(sections))


def _tiers_schema() -> Schema:
    return {"type": "array", "items": {"anyOf": [schema_of(_storage), schema_of(_tier)]}}


offload_tiers_reader = Reader(_tiers, _tiers_schema)
