"""Readers of ``model`` and ``hardware``: the name of an entry of the catalog, or one like it with other figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from evaluator.catalog.devices import entry_called
from evaluator.catalog.hardware import load_hardware
from evaluator.catalog.published import entry_named
from evaluator.catalog.read_model import load_model
from evaluator.catalog.store import names
from evaluator.catalog.what_if import HERE, WhatIf, changed_model, device
from evaluator.errors import InputError
from evaluator.keys.readers import (
    Place,
    Reader,
    Schema,
    count,
    known,
    number,
    quantity,
    schema_of,
    shown,
    split_path,
)


@dataclass(frozen=True)
class Figures(Reader):
    """A name, or a section of figures; ``keys`` are those that are one number, by their path below."""

    keys: Mapping[str, Reader]


def _check(described: WhatIf, kind: str) -> None:
    """InputError where there can be no such device or model. What is built here is cached for those that need it."""
    if kind == "models":
        changed_model(described)
    else:
        device(described)


def in_catalog(kind: str, load: Callable[[str], Any]) -> Reader:
    """The name of an entry of the catalog, of a ``kind`` of its files, that ``load`` accepts."""
    return known(load, lambda: names(kind))


def _by_entry(listed: Reader, entry: Callable[[str], str], pattern: str) -> Reader:
    """Names that ``listed`` accepts, each as the catalog's ``entry`` for it: what makes the same thing must say the
    same, for pools and requests are matched and results are compared by it. ``pattern``: of names as others write them.
    """

    def read(value: Any, place: Place) -> str:
        return entry(listed(value, place))

    def schema() -> Schema:
        return {"anyOf": [*schema_of(listed)["anyOf"], {"type": "string", "pattern": pattern}]}

    return Reader(read, schema)


catalog_model = _by_entry(in_catalog("models", load_model), entry_named, "/")
"""The catalog's name of a model: as it stands there, as it is published (``Qwen/Qwen3-32B``), or a file."""


_device = _by_entry(in_catalog("hardware", load_hardware), entry_called, "[A-Z]")


def _placed(message: str, place: Place) -> InputError:
    """The exception for a message of the catalog, at the key that it names."""
    if not message.startswith(HERE):
        return place.error(message)
    # The catalog does not know where in a scenario it is asked from: it marks the place with a word, which gets
    # its path here.
    key, _, rest = message.removeprefix(HERE).partition(": ")
    return (place.key(key.removeprefix(".")) if key else place).error(rest)


def _figures(kind: str, example: str, keys: dict[str, Reader]) -> Figures:
    named = catalog_model if kind == "models" else _device

    def read(value: Any, place: Place) -> Any:
        if isinstance(value, str):
            return named(value, place)
        if not isinstance(value, Mapping):
            raise place.error(f"expected a name or {example}, got {shown(value)}")
        # null takes a figure away, as everywhere: an overlay can undo what the file below it says. What is left may be
        # ``like`` alone, which is a plain name, and must be equal to one, since names are what plans are shared by.
        figures = {key: entry for key, entry in value.items() if entry is not None}
        if figures.keys() == {"like"} and isinstance(figures["like"], str):
            return named(figures["like"], place.key("like"))
        try:
            described = WhatIf.of(figures)
            _check(described, kind)
        except InputError as error:
            raise _placed(str(error), place) from None
        return described

    def schema() -> Schema:
        return {"anyOf": [*schema_of(named)["anyOf"], {"type": "object"}]}

    return Figures(read, schema, keys)


def _multiple(keys: dict[str, Reader]) -> dict[str, Reader]:
    """The keys, and ``times`` below each."""
    # A figure may be said as a multiple of what the device has: the axis of a what-if then needs no data sheet.
    return {**keys, **{f"{key}.times": number(above=0) for key in keys}}


def is_interval(path: str) -> bool:
    """Whether a figure of a device stands at a key path of which any number between two that may stand there may, too.

    Of counts that is not so.
    """
    section, *keys = split_path(path)
    # Of a long axis of such figures the extremes alone are read, for all between them may stand there, too; a device
    # cannot have 1.5 cores.
    return section == "deployment" and "hardware" in keys[:-1] and keys[-1] not in ("cores", "devices")


hardware_name = _figures(
    "hardware",
    "{like: h100-sxm, memory_bandwidth: 4.8TB/s}",
    {
        **_multiple(
            {
                "memory_bytes": quantity("byte", above=0),
                "memory_bandwidth": quantity("byte/s", above=0),
                "power_w": quantity("W", above=0),
                "idle_power_w": quantity("W", above=0),
                "usd_per_hour": quantity("USD/h", least=0),
                "peak_flops.bf16": quantity("FLOP/s", above=0),
                "peak_flops.fp8": quantity("FLOP/s", above=0),
            }
        ),
        "peak_flops.times": number(above=0),
        "cores": count(),
        "links.bandwidth.times": number(above=0),
        "links.latency_s.times": number(above=0),
    },
)
model_name = _figures(
    "models",
    "{like: llama-3.1-8b, layers: 40}",
    {
        **{name: count() for name in ("layers", "heads", "kv_heads", "experts", "experts_per_token")},
    },
)
