"""What an accelerator (or CPU) is to the cost model: peaks, memory, links, power, each with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """One level of the interconnect, from nearest to farthest.

    ``bandwidth`` is byte/s per device in one direction, ``latency_s`` of one message,
    ``devices`` how many devices this level joins (None: any number). A ``mesh`` joins every pair by a wire of its own:
    of a device's bandwidth, a group of n among ``devices`` can use (n - 1) / (devices - 1). A switch gives all to any.
    """

    name: str
    bandwidth: float
    latency_s: float
    devices: int | None
    mesh: bool = False


@dataclass(frozen=True)
class Hardware:
    """One device as its data sheet states it. ``peak_flops`` is dense FLOP/s by dtype (bf16, fp8, ...).

    ``cores`` are those of a CPU, which scans an index of vectors on each of them; None: not a CPU, or not known.
    """

    name: str
    kind: str  # gpu | tpu | npu | cpu
    peak_flops: Mapping[str, float]
    memory_bytes: float
    memory_bandwidth: float
    links: tuple[Link, ...]
    power_w: float | None  # None: not known, as of what a user measured
    idle_power_w: float | None
    usd_per_hour: float | None
    sources: Mapping[str, str]  # figure -> where it is from
    cores: int | None = None
    maker: str = ""  # who makes it; empty: not said
    architecture: str = ""  # that its processors share with other devices; empty: not said
    hypothetical: bool = False  # its figures are those of a scenario, so that nothing can have been measured on it
    called: str = ""  # by the scenario that describes it as like the one of this ``name``

    @property
    def title(self) -> str:
        """What results and messages call it; its calibration sets are found by ``name``."""
        return self.called or self.name
