"""What an accelerator (or CPU) is to the cost model: peaks, memory, links, power; and its YAML, with the source of
each figure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from evaluator.catalog.fields import Fields, load_called
from evaluator.catalog.store import suggestion
from evaluator.errors import InputError

KINDS = ("gpu", "tpu", "npu", "cpu")
PEAK_DTYPES = ("fp32", "tf32", "bf16", "fp16", "fp8", "int8", "fp4", "mxfp8")
PLAUSIBLE = {
    "byte": (1e6, 1e18, "80GB"),
    "byte/s": (1e6, 1e18, "3.35TB/s"),
    "FLOP/s": (1e6, 1e21, "989TFLOP/s"),
    "s": (0.0, 10.0, "5us"),
    "W": (1e-3, 1e6, "700W"),
    "USD/h": (0.0, 1e5, "2.5USD/h"),
}
"""Between which bounds a figure in some unit lies, many times beyond any device, and how one is written."""


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
    ``host_speed`` is of a CPU, too: of one of its threads, relative to the hosts of calibration sets.
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
    host_speed: float | None = None
    called: str = ""  # by the scenario that describes it as like the one of this ``name``

    @property
    def title(self) -> str:
        """What results and messages call it; its calibration sets are found by ``name``."""
        return self.called or self.name


def load_hardware(name: str) -> Hardware:
    """The hardware ``name`` of the catalog, as its maker or driver calls it, or of a path to a YAML.

    Raises InputError where it is unusable.
    """
    # Imported here: it reads entries by this function.
    from evaluator.catalog.devices import entry_called

    return load_called("hardware", name, read_hardware, entry_called)


def read_hardware(document: Any, where: str, expected_name: str | None = None) -> Hardware:
    """Hardware from the content of its YAML; ``where`` is the file's name in messages."""
    given = Fields(document, where)
    name = given.named(expected_name)
    given.text("note", None)
    hardware = Hardware(
        name=name,
        kind=given.choice("kind", KINDS),
        peak_flops=_peaks(given.inner("peak_flops")),
        memory_bytes=figure(given, "memory_bytes", "byte"),
        memory_bandwidth=figure(given, "memory_bandwidth", "byte/s"),
        links=_links(given),
        power_w=_optional(given, "power_w", "W"),
        idle_power_w=_optional(given, "idle_power_w", "W"),
        usd_per_hour=_optional(given, "usd_per_hour", "USD/h"),
        sources=_sources(given.inner("sources")),
        cores=given.integer("cores", None),
        host_speed=given.number("host_speed", None, low=0.01, high=100.0),
        maker=given.text("maker", ""),
        architecture=given.text("architecture", ""),
    )
    given.finish()
    _check_sources(hardware, given.place("sources"))
    return hardware


def _peaks(given: Fields) -> dict[str, float]:
    peaks = {dtype: figure(given, dtype, "FLOP/s") for dtype in PEAK_DTYPES if given.raw(dtype, None) is not None}
    given.finish()
    if not peaks:
        raise InputError(f"{given.where}: needs at least one of {', '.join(PEAK_DTYPES)}")
    return peaks


def _optional(given: Fields, key: str, unit: str) -> float | None:
    return None if given.raw(key, None) is None else figure(given, key, unit)


def figure(given: Fields, key: str, unit: str) -> float:
    """A figure of a device in SI. Errors: InputError for one that no device can have, since its unit was forgotten."""
    # A latency that is not known and a device that costs nothing may be 0; a peak of 0 would be divided by.
    value = given.quantity(key, unit, zero=unit in ("s", "USD/h"))
    # 80 without a unit is 80 bytes: accepted, it would be a device on which nothing fits, with a message about the
    # model.
    least, most, example = PLAUSIBLE[unit]
    if not least <= value <= most:
        raise InputError(f"{given.place(key)}: {value:g} {unit} is no figure of a device; write its unit, as {example}")
    return value


def _links(given: Fields) -> tuple[Link, ...]:
    """The links; ``null`` is none, a device that works alone."""
    if given.raw("links") is None:
        return ()
    links = []
    for index, entry in enumerate(given.sequence("links")):
        inner = Fields(entry, f"{given.place('links')}[{index}]")
        links.append(
            Link(
                name=inner.text("name"),
                bandwidth=figure(inner, "bandwidth", "byte/s"),
                latency_s=figure(inner, "latency_s", "s"),
                devices=inner.integer("devices", None, minimum=2),
                mesh=_is_mesh(inner),
            )
        )
        inner.finish()
    _check_links(links, given.place("links"))
    return tuple(links)


def _is_mesh(link: Fields) -> bool:
    topology = link.text("topology", "switch")
    if topology not in ("switch", "mesh"):
        raise InputError(f"{link.place('topology')}: {topology!r} is not one of switch, mesh")
    if topology == "mesh" and link.raw("devices", None) is None:
        raise InputError(f"{link.place('topology')}: a mesh joins a number of devices; say how many in devices")
    return topology == "mesh"


def _check_links(links: list[Link], where: str) -> None:
    if len({link.name for link in links}) != len(links):
        raise InputError(f"{where}: two links have the same name")
    for near, far in pairwise(links):
        # Collectives go level by level, the nearest first (``cost.collectives``): a level that joined no more would
        # have nothing to do.
        if near.devices is None or (far.devices is not None and far.devices <= near.devices):
            raise InputError(f"{where}: '{far.name}' must join more devices than '{near.name}' (nearest link first)")


def _sources(given: Fields) -> dict[str, str]:
    return {key: given.text(key) for key in given.values}


def _check_sources(hardware: Hardware, where: str) -> None:
    """Every figure needs a source: its own, or one of what it is part of (``links.nvlink`` covers two figures)."""
    figures = _figures(hardware)
    for figure in figures:
        parts = figure.split(".")
        if not any(".".join(parts[:size]) in hardware.sources for size in range(1, len(parts) + 1)):
            raise InputError(f"{where}: no source for '{figure}'")
    names = {".".join(figure.split(".")[:size]) for figure in figures for size in range(1, figure.count(".") + 2)}
    for key in hardware.sources:
        if key not in names:
            raise InputError(f"{where}: '{key}' is no figure of this file{suggestion(key, sorted(names))}")


def _figures(hardware: Hardware) -> list[str]:
    optional: Mapping[str, float | None] = {
        "power_w": hardware.power_w,
        "idle_power_w": hardware.idle_power_w,
        "usd_per_hour": hardware.usd_per_hour,
        "cores": hardware.cores,
        "host_speed": hardware.host_speed,
    }
    return [
        *(f"peak_flops.{dtype}" for dtype in hardware.peak_flops),
        "memory_bytes",
        "memory_bandwidth",
        *(f"links.{link.name}.{figure}" for link in hardware.links for figure in ("bandwidth", "latency_s")),
        *(key for key, value in optional.items() if value is not None),
    ]
