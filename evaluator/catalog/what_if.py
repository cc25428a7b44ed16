"""Devices and models that are in no file: one of the catalog with other figures, or a device described on the spot.

    hardware: {like: h100-sxm, memory_bandwidth: 4.8TB/s, peak_flops: {times: 1.5}, links: {nvlink: {devices: 72}}}
    model: {like: llama-3.1-8b, layers: 40}

A figure is given anew, or as ``{times: 1.3}`` of what it was. What is not given stays. A device keeps the efficiencies
that were measured on the one it is like, since a sweep over its figures would otherwise mix sets; what these say of a
device that nobody measured is extrapolated.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from evaluator.catalog.fields import Fields, catalog_folders
from evaluator.catalog.hardware import PEAK_DTYPES, Hardware, Link, figure, load_hardware, read_hardware
from evaluator.catalog.model import (
    FeedForward,
    LatentAttention,
    LayerKind,
    Mixer,
    Model,
    MoeFeedForward,
    SoftmaxAttention,
)
from evaluator.catalog.read_model import load_model
from evaluator.errors import InputError
from evaluator.records import with_fields
from evaluator.units import parse_quantity

DEVICE_FIGURES = {
    "memory_bytes": "byte",
    "memory_bandwidth": "byte/s",
    "power_w": "W",
    "idle_power_w": "W",
    "usd_per_hour": "USD/h",
}
"""Figures of a device that are one number, with their units."""
_NOT_TIMED = {"power_w", "idle_power_w", "usd_per_hour"}
"""Figures that no measured time depends on: a device with another price is still the one that was measured."""
LINK_FIGURES = {"bandwidth": "byte/s", "latency_s": "s"}
HERE = "@"
"""The place of a description in messages: where it stands is for the scenario to say."""
MOST_TIMES = 1e6
"""The most that a figure may be changed by, as a factor: more is no device, and overflows."""
MODEL_FIGURES = ("layers", "heads", "kv_heads", "experts", "experts_per_token", "max_positions")
_SAID_BY_WORKLOAD = {"nucleus_sampling": "top_p: 0.95}, or {greedy: true", "penalties": "penalties: true"}
"""What requests ask of the sampler, by what stood for it here, and what to say in its place."""


_SORTED = json.JSONEncoder(sort_keys=True)


@dataclass(frozen=True)
class WhatIf:
    """A description in the place of a name: ``text`` is its JSON, so that equal ones are equal and can be kept."""

    text: str

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> WhatIf:
        """From the mapping that a scenario has; quantities with units become SI.

        Errors: InputError, at ``HERE``, for a quantity that is none.
        """
        # In SI and with sorted keys: "4.8TB/s" and 4.8e12 are one device, and one entry of every cache.
        return cls(_SORTED.encode(in_si(document, ())))

    @property
    def parameters(self) -> dict[str, Any]:
        """The mapping again."""
        return json.loads(self.text)

    def __str__(self) -> str:
        shown = [f"{key} {json.dumps(value)}" for key, value in self.parameters.items() if key != "like"]
        return ", ".join([f"like {self.parameters['like']}"] * ("like" in self.parameters) + shown).replace('"', "")


def in_si(value: Any, path: tuple[str, ...]) -> Any:
    """A part of a description with its quantities as numbers; ``path`` are the keys down to it.

    Errors: InputError, at ``HERE``, for a quantity that is none.
    """
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise InputError(f"{'.'.join((HERE, *path))}: a key must be a name, got {key!r}")
        return {key: in_si(entry, (*path, key)) for key, entry in value.items()}
    if isinstance(value, list):
        return [in_si(entry, path) for entry in value]
    units = {**DEVICE_FIGURES, **LINK_FIGURES}
    unit = "FLOP/s" if "peak_flops" in path else units.get(path[-1])
    return parse_quantity(value, unit, ".".join((HERE, *path))) if isinstance(value, str) and unit else value


MOST_DEVICES = 1 << 17
"""Devices that are kept: as many as a large sweep has, which asks for one after the other, several times."""
_DEVICES: dict[tuple[str, str, int], dict[WhatIf, Hardware]] = {}


def device(described: WhatIf) -> Hardware:
    """The device of a description. Errors: those of ``read_device``, at ``HERE``."""
    made = _made_devices()
    hardware = made.get(described)
    if hardware is None:
        hardware = read_device(described.parameters, HERE)
        _keep(made, described, hardware)
    return hardware


def devices_with(described: WhatIf, several: Iterable[Mapping[str, float]]) -> Iterator[WhatIf]:
    """The description with other ``DEVICE_FIGURES``, one after the other, which are known to be plausible."""
    parameters, base, made = described.parameters, device(described), _made_devices()
    for figures in several:
        other = WhatIf(_SORTED.encode({**parameters, **figures}))
        _keep(made, other, with_fields(base, **figures))
        yield other


def _made_devices() -> dict[WhatIf, Hardware]:
    # Of the files of the catalog as they are: what a device is like may have changed with its file, or with the folders
    # in which it is looked for.
    folders = catalog_folders()
    made = _DEVICES.get(folders)
    if made is None:
        made = {}
        _DEVICES.clear()
        _DEVICES[folders] = made
    return made


def _keep(made: dict[WhatIf, Hardware], described: WhatIf, hardware: Hardware) -> None:
    if len(made) >= MOST_DEVICES:
        made.clear()
    made[described] = hardware


def changed_model(described: WhatIf) -> Model:
    """The model of a description. Errors: those of ``read_changed_model``, at ``HERE``."""
    return _changed_model(described, catalog_folders())


@lru_cache(maxsize=4096)
def _changed_model(described: WhatIf, folders: tuple[str, str, int]) -> Model:
    return read_changed_model(described.parameters, HERE)


def device_named(of: str | WhatIf) -> Hardware:
    """The device of a name of the catalog, or of a description. Errors: InputError as of either."""
    return device(of) if isinstance(of, WhatIf) else load_hardware(of)


def model_named(of: str | WhatIf) -> Model:
    """The model of a name of the catalog, or of a description. Errors: InputError as of either."""
    return changed_model(of) if isinstance(of, WhatIf) else load_model(of)


def read_device(document: Mapping[str, Any], where: str) -> Hardware:
    """A device from ``{like: NAME, ...}``, or from all that a hardware file has but its sources.

    Errors: InputError, at ``where``, for unknown figures, absurd ones, and a multiple of one that is not known.
    """
    if "like" not in document:
        return _described(document, where)
    given = Fields(document, where)
    base = load_hardware(given.text("like"))
    figures: dict[str, Any] = {
        name: _figure(given, name, unit, getattr(base, name)) for name, unit in DEVICE_FIGURES.items()
    }
    for name, read in (("peak_flops", _peaks), ("links", _links)):
        inner = given.inner(name, {})
        figures[name] = read(inner, base) if inner.values else getattr(base, name)
    figures["cores"] = given.integer("cores", base.cores)
    called = given.title("name", "")  # ``name`` stays that of the one it is like, by which its sets are found
    given.finish()
    # Only figures that times depend on make the device an unmeasured one; another price does not.
    return replace(base, hypothetical=not document.keys() <= {"like", "name", *_NOT_TIMED}, called=called, **figures)


def _described(document: Mapping[str, Any], where: str) -> Hardware:
    if "sources" in document:
        raise InputError(f"{where}.sources: a device described in a scenario has none; leave them out")
    figures = ("peak_flops", "memory_bytes", "memory_bandwidth", "links", "power_w", "idle_power_w", "usd_per_hour",
               "cores")  # fmt: skip
    given_figures = {name: "the scenario" for name in figures if document.get(name) is not None}
    links = document.get("links")
    named = [str(link.get("name")) for link in links if isinstance(link, Mapping)] if isinstance(links, list) else []
    sources = {name: text for name, text in given_figures.items() if name != "links"}
    sources |= {f"links.{name}": "the scenario" for name in named}
    # `read_hardware` wants a source of every figure. Here that is the scenario itself; so its checks hold for both.
    whole = {"name": "the device described", "kind": "gpu", "links": None, **document, "sources": sources}
    try:
        return replace(read_hardware(whole, where), hypothetical=True)
    except InputError as error:
        raise InputError(f"{error}; or say which device of the catalog it is like: {{like: h100-sxm, ...}}") from None


def _figure(given: Fields, name: str, unit: str, before: float | None) -> float | None:
    """A figure given anew, as a multiple of the known one, or not at all."""
    raw = given.raw(name, None)
    # Not given, or null: both keep what the device has.
    if raw is None:
        return before
    if not isinstance(raw, Mapping):
        return figure(given, name, unit)
    inner = Fields(raw, given.place(name))
    times = _plausible(inner, inner.number("times"))
    inner.finish()
    if before is None:
        raise InputError(f"{inner.place('times')}: there is no {name} to multiply; give a figure")
    return before * times


def _plausible(given: Fields, times: float) -> float:
    """The multiple of a section, which is 0 or more."""
    if times == 0.0:
        raise InputError(f"{given.place('times')}: must be above 0")
    # An overflow further on would be a device with infinite bandwidth, and steps of no time.
    if times > MOST_TIMES:
        raise InputError(f"{given.place('times')}: must be at most {MOST_TIMES:g}, got {times:g}")
    return times


def _peaks(given: Fields, base: Hardware) -> dict[str, float]:
    """Peaks by dtype, given anew or multiplied; ``times`` multiplies those that are not named."""
    times = _plausible(given, given.number("times", 1.0))
    peaks = {dtype: peak * times for dtype, peak in base.peak_flops.items()}
    for dtype in PEAK_DTYPES:
        peak = _figure(given, dtype, "FLOP/s", base.peak_flops.get(dtype))
        if given.raw(dtype, None) is not None and peak is not None:
            peaks[dtype] = peak
    given.finish()
    return peaks


def _links(given: Fields, base: Hardware) -> tuple[Link, ...]:
    """Links by name, or the same factor for a figure of all of them."""
    # Of 1.0, so that {times: 2} is the factor itself, which each link is then multiplied by.
    every = {name: _figure(given, name, unit, 1.0) for name, unit in LINK_FIGURES.items()}
    for name in LINK_FIGURES:
        if isinstance(given.raw(name, None), int | float | str):
            raise InputError(f"{given.place(name)}: expected {{times: 2}} for all links, or links: {{NAME: ...}}")
    links = tuple(_link(given, link, every) for link in base.links)
    given.finish()
    return links


def _link(given: Fields, link: Link, every: Mapping[str, float | None]) -> Link:
    section = given.inner(link.name, {})
    figures: dict[str, Any] = {
        name: _figure(section, name, unit, getattr(link, name) * (every[name] or 1.0))
        for name, unit in LINK_FIGURES.items()
    }
    devices = section.integer("devices", link.devices, minimum=2)
    section.finish()
    return replace(link, devices=devices, **figures)


def read_changed_model(document: Mapping[str, Any], where: str) -> Model:
    """A model from ``{like: NAME, ...}``: other numbers of layers, heads or experts, where its shapes allow them.

    ``layers`` keeps the mixture of kinds of layers. ``heads`` and ``kv_heads`` keep the size of a head and the hidden
    size. Errors: InputError, at ``where``, for what the model has not, or what does not divide.
    """
    # JSON of a sweep may hold 40.0 for 40: axes that are spaced or sampled are floats.
    whole = {key: int(n) if isinstance(n, float) and n.is_integer() else n for key, n in document.items()}
    given = Fields(whole, where)
    base = load_model(given.text("like"))
    changed_model = base
    counts = {name: given.integer(name, None) for name in MODEL_FIGURES}
    for name, workload_key in _SAID_BY_WORKLOAD.items():
        if given.raw(name, None) is not None:
            raise InputError(
                f"{given.place(name)}: what requests ask of the sampler is the workload's to say: "
                f"workload.sampling: {{{workload_key}}}"
            )
    own_name = given.title("name", "")
    given.finish()
    if counts["layers"] is not None:
        changed_model = _with_layers(changed_model, counts["layers"], given.place("layers"))
    if counts["max_positions"] is not None:
        changed_model = replace(changed_model, max_positions=counts["max_positions"])
    for name in ("heads", "kv_heads", "experts", "experts_per_token"):
        if counts[name] is not None:
            changed_model = _with_parts(changed_model, name, counts[name], given.place(name))
    # After all changes: heads and kv_heads may each be wrong alone and right together.
    _check_shapes(changed_model, where)
    changed = {name: count for name, count in counts.items() if count is not None}
    named = ", ".join(f"{name} {value}" for name, value in changed.items())
    name = f"{base.name} with {named}" if named else base.name
    name = own_name if own_name and named else name
    return replace(changed_model, name=name, published_parameters=None if changed else base.published_parameters)


def _with_layers(model: Model, count: int, where: str) -> Model:
    total = sum(kind.count for kind in model.layers)
    # A hybrid of 3 linear layers to 1 of attention keeps that ratio or is another model; shared sets of weights
    # (Zamba) have no rule for more layers.
    if any(kind.count * count % total or kind.weight_sets for kind in model.layers):
        raise InputError(
            f"{where}: {count} layers do not keep the mixture of {model.name}'s {total} "
            f"({' + '.join(str(kind.count) for kind in model.layers)}); use a number that does, such as {2 * total}"
        )
    kinds = tuple(replace(kind, count=kind.count * count // total) for kind in model.layers)
    return replace(model, layers=kinds)


def _with_parts(model: Model, name: str, count: int, where: str) -> Model:
    """Every layer that has ``name`` with ``count`` of them."""
    had = {getattr(part, name) for kind in model.layers for part in _parts(kind) if hasattr(part, name)}
    if not had:
        raise InputError(f"{where}: {model.name} has no {name}; leave it out")
    if len(had) > 1:
        raise InputError(f"{where}: the layers of {model.name} differ in {name} ({sorted(had)}); write a model file")

    def changed(part: Any) -> Any:
        return replace(part, **{name: count}) if hasattr(part, name) else part

    kinds = (replace(kind, mixer=changed(kind.mixer), feed_forward=changed(kind.feed_forward)) for kind in model.layers)
    return replace(model, layers=tuple(kinds))


def _parts(kind: LayerKind) -> tuple[Mixer | FeedForward, ...]:
    """What of a layer has heads or experts that can be changed."""
    parts = (kind.mixer, kind.feed_forward)
    return tuple(part for part in parts if isinstance(part, SoftmaxAttention | LatentAttention | MoeFeedForward))


def _check_shapes(model: Model, where: str) -> None:
    for kind in model.layers:
        for part in _parts(kind):
            if isinstance(part, SoftmaxAttention) and part.heads % part.kv_heads:
                raise InputError(
                    f"{where}: {part.heads} heads do not divide into groups for {part.kv_heads} KV heads; "
                    "use a multiple of kv_heads"
                )
            if isinstance(part, MoeFeedForward) and part.experts_per_token > part.experts:
                raise InputError(
                    f"{where}: {part.experts_per_token} experts_per_token exceed the {part.experts} experts"
                )
