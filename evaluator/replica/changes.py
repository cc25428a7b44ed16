"""One input of the cost at a multiple of its value: of a device, its links or its host. Sensitivities ask for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from difflib import get_close_matches
from typing import Any, NamedTuple

from evaluator.catalog.calibration import Calibration, is_collective
from evaluator.catalog.hardware import Hardware
from evaluator.cost.feed_forward_apart import Apart
from evaluator.errors import InputError
from evaluator.metrics.variables import INPUTS


class Change(NamedTuple):
    """An input at ``factor`` times its value."""

    input: str
    factor: float


def chosen_inputs(wanted: bool | Sequence[str]) -> tuple[str, ...]:
    """Names of inputs in the order of INPUTS: all for True, none for False. InputError for a name that is none."""
    if isinstance(wanted, bool):
        return tuple(INPUTS) if wanted else ()
    # A single name is a text, which is a sequence of letters, too.
    names = (wanted,) if isinstance(wanted, str) else tuple(wanted)
    for name in names:
        if name not in INPUTS:
            close = get_close_matches(str(name), INPUTS, n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise InputError(f"sensitivity: there is no input {name!r}; {hint}the inputs are {', '.join(INPUTS)}")
    return tuple(name for name in INPUTS if name in names)


def changed_calibration(calibration: Calibration, change: Change) -> Calibration:
    """The set with one input changed; itself where that is none of its own."""
    factor = change.factor
    match change.input:
        # Figures of the device (``changed_hardware``).
        case "memory_bandwidth" | "flops" | "link_bandwidth":
            pass
        # What a message takes beside its bytes stands in three places: the fixed times of collectives and the
        # messages of an eager set are of the calibration, the latency of a link is of the device.
        case "link_latency":
            calibration = _eager_longer(_classes_longer(calibration, factor, collectives=True), factor, ("message_s",))
        case "kernel_overhead":
            calibration = _classes_longer(calibration, factor, collectives=False)
        case "host_overhead":
            calibration = _eager_longer(_longer(calibration, factor), factor, EAGER_HOST)
            for part in ("launches", "api_server_times"):
                if (figures := getattr(calibration, part)) is not None:
                    calibration = replace(calibration, **{part: _longer(figures, factor)})
        case _:
            raise ValueError(f"no input {change.input!r}")
    return calibration


def changed_hardware(hardware: Hardware, change: Change) -> Hardware:
    """The device with one input changed; itself where that is none of its own. Memory, power and price stay."""
    factor = change.factor
    match change.input:
        case "memory_bandwidth":
            return replace(hardware, memory_bandwidth=hardware.memory_bandwidth * factor)
        case "flops":
            peaks = {dtype: peak * factor for dtype, peak in hardware.peak_flops.items()}
            # All dtypes together: the input is the speed of the device's arithmetic, not one of its units.
            return replace(hardware, peak_flops=peaks)
        case "link_bandwidth":
            links = tuple(replace(link, bandwidth=link.bandwidth * factor) for link in hardware.links)
            return replace(hardware, links=links)
        case "link_latency":
            return replace(hardware, links=tuple(_longer(link, factor) for link in hardware.links))
    return hardware


def changed_apart(apart: Apart | None, change: Change | None) -> Apart | None:
    """Feed-forwards apart with an input of their link changed, which is that of the scenario and no part of a device;
    itself where that is none of its own."""
    if apart is None or change is None:
        return apart
    match change.input:
        case "link_bandwidth":
            return replace(apart, bandwidth=apart.bandwidth * change.factor)
        case "link_latency":
            return _longer(apart, change.factor)
    return apart


def _classes_longer(calibration: Calibration, factor: float, collectives: bool) -> Calibration:
    """The fixed times of collectives, or of all other classes of operators, times ``factor``."""
    efficiencies = dict(calibration.efficiencies)
    for name, figures in efficiencies.items():
        # Collectives and other classes are two inputs: latency of links, and overhead of kernels.
        if is_collective(name) == collectives:
            groups = {size: _longer(group, factor) for size, group in figures.devices.items()}
            efficiencies[name] = replace(_longer(figures, factor), devices=groups)
    return replace(calibration, efficiencies=efficiencies)


EAGER_HOST = ("norm_s", "attention_s", "feed_forward_s")


def _eager_longer(calibration: Calibration, factor: float, names: Sequence[str]) -> Calibration:
    """These times of an eager set times ``factor``; other sets as they are."""
    if calibration.eager is None:
        return calibration
    times = {name: getattr(calibration.eager, name) * factor for name in names}
    return replace(calibration, eager=replace(calibration.eager, **times))


def _longer(figures: Any, factor: float) -> Any:
    """A dataclass with its times, the fields whose names end in their unit ``_s``, times ``factor``."""
    # By the unit in the name, so that a time added to a set later is a part of the input without being listed
    # here.
    times = [figure.name for figure in fields(figures) if figure.name.endswith("_s")]
    return replace(figures, **{name: getattr(figures, name) * factor for name in times})
