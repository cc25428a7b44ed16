"""``deployment.lora`` and ``workload.adapters``: LoRA adapters that an engine holds, and which requests name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from evaluator.catalog.model import ADAPTED, ALL_MODULES, Adapters
from evaluator.keys import Place, Reader, choice, count, key, number, quantity, schema_of, section

MOST_ADAPTERS = 10**6
ALONE, BINS = 6, 14
"""The ALONE most popular adapters are groups of one; the others are put into BINS groups of nearly equal popularity."""


@dataclass(frozen=True)
class Lora:
    """Places for adapters in the memory of each device, as vLLM (``LoRAConfig``) makes them when it starts.

    A batch names ``max_loras`` distinct adapters at most: a request that names another waits, and those behind it do
    not. Its adapter is loaded from host memory where no place holds it, into that of the adapter that was used longest
    ago.
    """

    max_loras: int = key(count(), says="Distinct adapters in a batch; a device has room for as many.")
    rank: int = key(count(most=4096), 16, "Of the adapters; the room is for adapters of this rank.")
    modules: str = key(
        choice(*ADAPTED), ALL_MODULES, "Which matrices have adapters: of attention, of the feed-forwards, or all."
    )
    load_bandwidth: float | None = key(
        quantity("byte/s", above=0),
        None,
        "Bytes per second at which a device loads an adapter that it does not hold; loads take no time where absent.",
    )

    def __str__(self) -> str:
        """As a row of a table has it."""
        return f"{self.max_loras} of rank {self.rank}"


@dataclass(frozen=True)
class NamedAdapters:
    """Each request (each session, with turns) names an adapter, drawn by popularity: the i-th most popular of them as
    often as 1 / i^``zipf``; 0: all alike."""

    count: int = key(count(most=MOST_ADAPTERS), says="LoRA adapters that the requests name.")
    zipf: float = key(
        number(least=0, most=10),
        0.0,
        "Exponent of their popularity: the i-th is named as often as 1 / i^zipf. 0: all alike.",
    )

    def __str__(self) -> str:
        """As a row of a table has it."""
        return f"{self.count}, zipf {self.zipf:g}"

    @property
    def chances(self) -> np.ndarray:
        """The chance that a request names each adapter, (adapter,)."""
        weights = np.arange(1.0, self.count + 1.0) ** -self.zipf
        return weights / weights.sum()

    def number_of(self, uniform: np.ndarray) -> np.ndarray:
        """The adapters, by their place in the order of popularity, that numbers drawn from 0 to 1 name."""
        ends = np.cumsum(self.chances)
        return np.minimum(np.searchsorted(ends, uniform * ends[-1], side="right"), self.count - 1)

    @property
    def popularity(self) -> tuple[tuple[float, float], ...]:
        """(adapters, chance of each), of groups of adapters: the most popular by themselves, others with those of
        nearly their popularity, all of which then have the mean of it."""
        if not self.zipf:
            return ((float(self.count), 1.0 / self.count),)
        alone = min(ALONE, self.count)
        # Edges in a geometric sequence, so that the popularity within a group varies by the same factor in each.
        edges = np.unique(np.rint(np.geomspace(alone, self.count, BINS + 1)).astype(int))
        starts = np.concatenate([np.arange(alone), edges[:-1]])
        sizes = np.diff(np.append(starts, self.count))
        sums = np.add.reduceat(self.chances, starts)
        return tuple(zip(sizes.astype(float).tolist(), (sums / sizes).tolist(), strict=True))


# Read as a whole, so that a sweep may have designs without adapters (null) beside those with them.
_lora, _named = section(Lora), section(NamedAdapters)
lora_reader = Reader(_lora.read, lambda: schema_of(_lora))
adapters_reader = Reader(_named.read, lambda: schema_of(_named))


def read_adapters(
    lora: Lora | Mapping[str, Any] | None, named: NamedAdapters | Mapping[str, Any] | None, place: Place
) -> Adapters | None:
    """Adapters, of the mappings at ``deployment.lora`` and ``workload.adapters``. Errors: InputError."""
    # All that is neither None nor a record goes to the reader, which says what it must be.
    held: Lora | None = lora if isinstance(lora, Lora | None) else lora_reader(lora, place.key("lora"))
    use: NamedAdapters | None = (
        named if isinstance(named, NamedAdapters | None) else adapters_reader(named, place.key("adapters"))
    )
    if use is not None and held is None:
        raise place.key("adapters").error("needs lora, the adapters that the engine holds, such as {max_loras: 8}")
    return adapters_of(held, use)


def adapters_of(lora: Lora | None, named: NamedAdapters | None) -> Adapters | None:
    """What a replica is built from; None without ``lora``."""
    if lora is None:
        return None
    return Adapters(lora.rank, lora.max_loras, lora.modules, () if named is None else named.popularity)
