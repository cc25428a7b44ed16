"""``deployment.kv.offload_tiers``: storage behind the host memory that a prefix cache spills to."""

from __future__ import annotations

from dataclasses import dataclass

from evaluator.catalog.storage import ALL, Storage
from evaluator.keys import count_or, key, quantity
from evaluator.tiers import figures_of, storage_name, tiers_reader


@dataclass(frozen=True)
class OffloadTier:
    """One tier. Figures that are None are those of the ``storage``, a name of the catalog."""

    storage: str | None = key(storage_name, None, "A storage of the catalog; absent: described by the other keys.")
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
        return figures_of(self)

    def __str__(self) -> str:
        """As YAML says it, for tables."""
        said = {name: value for name, value in vars(self).items() if value is not None}
        if self.storage is not None and len(said) == 1:
            return self.storage
        return f"{{{', '.join(f'{name}: {value}' for name, value in said.items())}}}"


offload_tiers_reader = tiers_reader(OffloadTier, "[nvme, {storage: rack-pool, shared_by: all}]")
