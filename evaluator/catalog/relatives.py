"""The nearest relative of a device whose kernels were measured and whose servers were not.

What a server makes of kernels (caches that are warm, launches that overlap, the host) is taken from the device of the
same architecture that is nearest in its data sheet and has a set for serving: an engine runs the same kernels on both,
so that a GB200 and a B200 are compared by what differs between them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

from evaluator.catalog.calibration import Calibration, named_set
from evaluator.catalog.engines import DEFAULT_ENGINE
from evaluator.catalog.fields import catalog_folders
from evaluator.catalog.hardware import Hardware, load_hardware
from evaluator.catalog.served import as_served, with_host
from evaluator.catalog.store import has, names
from evaluator.records import Same

Figures = TypeVar("Figures")

_SERVING = f"-{DEFAULT_ENGINE}.serving"


def served_by_relative(kernels: Calibration, hardware: str) -> Calibration | None:
    """A set of a device's kernels with what servers make of those of its nearest relative; None where it has none."""
    relative = relative_of(hardware)
    if relative is None:
        return None
    isolated = named_set(f"{relative}-{DEFAULT_ENGINE}", relative)
    return _served_as(Same(kernels), Same(isolated), Same(named_set(f"{relative}{_SERVING}", relative)))


@lru_cache(maxsize=64)
def _served_as(of: Same[Calibration], as_isolated: Same[Calibration], as_serving: Same[Calibration]) -> Calibration:
    """The set made once for the same files: a sweep over devices asks each time, and caches of rates go by identity."""
    kernels, isolated, serving = of.of, as_isolated.of, as_serving.of
    served = with_host(as_served(kernels, isolated, serving), serving)
    # The errors to expect are those of the device's own kernels under servers of others, also of a relative that lends
    # its host alone: less is known of servers then, and nothing is surer for it.
    of_engine = kernels.engine in (DEFAULT_ENGINE, "any")
    rests_on = "other_devices" if kernels.rests_on == "kernels" and of_engine else served.rests_on
    # The release of those servers, of which predictions of another are less sure.
    release = serving.serving_release if of_engine else served.serving_release
    name = f"{kernels.name}, served as {serving.name}"
    return replace(served, name=name, rests_on=rests_on, serving_release=release)


def served_as_default(kernels: Calibration, hardware: str) -> Calibration:
    """A set of kernels with what serving runs of the default engine say, on this hardware or at least of its host."""
    of_default = f"{hardware}-{DEFAULT_ENGINE}"
    if not has("calibrations", f"{of_default}.serving"):
        served = served_by_relative(kernels, hardware)
        if served is not None:
            return replace(served, provenance="extrapolated")
    if has("calibrations", of_default) and has("calibrations", f"{of_default}.serving"):
        serving = named_set(f"{of_default}.serving", hardware)
        served = with_host(as_served(kernels, named_set(of_default, hardware), serving), serving)
        return replace(served, name=f"{kernels.name}, served as {serving.name}", provenance="extrapolated")
    if has("calibrations", f"{DEFAULT_ENGINE}.serving"):
        serving = named_set(f"{DEFAULT_ENGINE}.serving", hardware)
        return replace(with_host(kernels, serving), provenance="extrapolated")
    return kernels


def relative_of(hardware: str) -> str | None:
    """The device as which one of the catalog without a set for serving is served; None where there is none."""
    return _relative_of(hardware, catalog_folders())


@lru_cache(maxsize=256)
def _relative_of(hardware: str, folders: tuple[str, str, int]) -> str | None:
    if not has("hardware", hardware):
        return None
    served = [name.removesuffix(_SERVING) for name in names("calibrations") if name.endswith(_SERVING)]
    # Without its kernels alone it is not known which part of a set for serving is the server's.
    served = [name for name in served if has("hardware", name) and has("calibrations", f"{name}-{DEFAULT_ENGINE}")]
    return nearest_alike(load_hardware(hardware), served)


def nearest_figures(device: Hardware, known: Mapping[str, Figures]) -> Figures | None:
    """What a file says of a device, else of the nearest one of its architecture; None where it knows neither."""
    nearest = device.name if device.name in known else nearest_alike(device, tuple(known))
    return None if nearest is None else known[nearest]


def nearest_alike(device: Hardware, others: Sequence[str]) -> str | None:
    """The one of other devices (names of the catalog) of this architecture with the nearest data sheet; None: none."""
    if not device.architecture:
        return None
    alike = _alike(device.maker, device.architecture, tuple(others), catalog_folders())
    nearby = [other for other in alike if other.name != device.name]
    return min(nearby, key=lambda other: _distance(device, other)).name if nearby else None


@lru_cache(maxsize=64)
def _alike(
    maker: str, architecture: str, given: tuple[str, ...], folders: tuple[str, str, int]
) -> tuple[Hardware, ...]:
    """Those of the devices that are of this maker and architecture; once for all devices that a sweep describes."""
    devices = (load_hardware(name) for name in given)
    return tuple(other for other in devices if (other.maker, other.architecture) == (maker, architecture))


def _distance(device: Hardware, other: Hardware) -> float:
    """How far two data sheets are apart, as logarithms: in the peak in 16 bits and in the memory's bandwidth."""
    bandwidths = abs(math.log(device.memory_bandwidth / other.memory_bandwidth))
    peaks = _peak_16_bits(device), _peak_16_bits(other)
    # A device that computes nothing in 16 bits is compared by its memory alone.
    return bandwidths + (abs(math.log(peaks[0] / peaks[1])) if peaks[0] and peaks[1] else 0.0)


def _peak_16_bits(device: Hardware) -> float | None:
    return device.peak_flops.get("bf16") or device.peak_flops.get("fp16")
