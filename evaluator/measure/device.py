"""The device under measurement: what JAX says of it, which entry of the catalog it is, and the size of its cache."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from evaluator.calibrate.devices import PROCESSORS
from evaluator.catalog.devices import recognised
from evaluator.errors import InputError

LARGE_CACHE = 128e6
"""Where the cache's size is not known: no smaller than that of any device in the catalog."""

SMALL_MEMORY = 8e9
"""Where a device does not tell how much memory it has."""

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


@dataclass(frozen=True)
class Device:
    """The first of ``count`` equal devices."""

    name: str  # as the driver calls it; of a CPU, the processor
    platform: str  # cpu | gpu | tpu
    count: int
    memory_bytes: float  # that JAX may use
    cache_bytes: float
    jax_version: str

    @property
    def catalog_name(self) -> str | None:
        """The catalog's entry for it, None where there is none."""
        return recognised(self.name)


def find_device() -> Device:
    """The device that JAX computes on; InputError where there is none."""
    import jax

    try:
        devices = jax.devices()
    except RuntimeError as error:
        # A driver without a device, for instance, or one that is too old.
        raise InputError(f"JAX has no device to measure: {error}") from None
    first = devices[0]
    if first.platform == "cpu":
        name, cache = _processor(), _cpu_cache()
        memory = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    else:
        name = first.device_kind
        processor = PROCESSORS.get(recognised(name) or "")
        cache = processor.cache_bytes if processor else LARGE_CACHE
        # Some platforms tell no statistics of their memory.
        memory = float((first.memory_stats() or {}).get("bytes_limit", SMALL_MEMORY))
    return Device(name, first.platform, len(devices), memory, cache, jax.__version__)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.lower().startswith("model name")]
    return f"{names[0] if names else 'CPU'}, {os.cpu_count()} processors"


def _cpu_cache() -> float:
    """The last-level cache, as Linux states it (in KiB)."""
    sizes = [path.read_text().strip() for path in _CACHES.glob("index*/size")]
    # Linux writes "32768K"; what is written otherwise is not known here.
    cache_bytes = [1024.0 * float(size[:-1]) for size in sizes if size.endswith("K")]
    return max(cache_bytes, default=LARGE_CACHE)
