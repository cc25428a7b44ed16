"""What serving runs say beyond isolated kernels, carried over from an engine whose servers were measured to another.

A kernel in a server is not as fast as alone: caches are warm or not, launches overlap. The fits to serving runs of vLLM
say by which factor each figure differs. Engines are compared alike only if the kernels of both are changed by these.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from evaluator.catalog.calibration import HOST, OPTIONAL_CLASSES, SORT, TUNED, Calibration
from evaluator.catalog.efficiency import OperatorEfficiency

_FRACTIONS = ("flops_efficiency", "bandwidth_efficiency", "activation_efficiency", "link_efficiency")
"""Figures of which no factor makes more than 1; those of one group of devices may be more, where a switch reduces."""


def as_served(kernels: Calibration, isolated: Calibration, serving: Calibration) -> Calibration:
    """``kernels`` of one engine, each figure times what it is in ``serving`` over what it is in ``isolated``.

    The latter two are sets of another engine on the same hardware: fitted to serving runs, and to its kernels. Classes
    that it has not stay as they are, but experts of tuned shapes, which are a class of their own in some engines alone:
    they change as all experts do. Where ``kernels`` are of that engine, on a relative of the hardware, its servers join
    all-reduces as those of ``serving`` do.
    """
    of_group = ("launch_s", "ramp_s", "half_bytes") if kernels.engine == isolated.engine else ("launch_s", "ramp_s")
    classes = {}
    for name, figures in kernels.efficiencies.items():
        # Tuned experts are a class of vLLM's list alone: of an engine without it, what servers make of experts is
        # what they make of all.
        fitted = OPTIONAL_CLASSES[TUNED] if name == TUNED and TUNED not in isolated.efficiencies else name
        is_fitted = fitted in isolated.efficiencies and fitted in serving.efficiencies
        classes[name] = (
            _changed(figures, isolated.efficiencies[fitted], serving.efficiencies[fitted], of_group)
            if is_fitted
            else figures
        )
    # The rest of a set are the host's figures, which `with_host` takes as they are: a factor is of kernels alone.
    link = _times(kernels, isolated, serving, ("link_efficiency",))
    return replace(kernels, efficiencies=classes, **link)


def _changed(
    figures: OperatorEfficiency, was: OperatorEfficiency, now: OperatorEfficiency, of_group: tuple[str, ...]
) -> OperatorEfficiency:
    names = tuple(entry.name for entry in fields(figures) if entry.name != "devices")
    groups: Mapping[int, Any] = {
        # Of a group of devices only what a call takes is the server's; the bandwidth is that of the link or of its
        # switch.
        size: replace(group, **_times(group, was.devices[size], now.devices[size], of_group))
        if size in was.devices and size in now.devices
        else group
        for size, group in figures.devices.items()
    }
    # How unequal the contexts of a batch are is of servers and not of kernels: isolated calls have none of it.
    unequal = {"unequal": now.unequal if was.unequal == 0.0 else figures.unequal}
    if figures.beside_walk_s == was.beside_walk_s == 0.0:
        # Nor do isolated calls tell what the longest context costs: the engines of an architecture read it by the same
        # kernels.
        unequal |= {name: getattr(now, name) for name in ("beside_walk_s", "beside_resident", "late_beyond")}
    return replace(figures, **_times(figures, was, now, names) | unequal, devices=groups)


def _times(figures: Any, was: Any, now: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """The figures that differ between ``was`` and ``now``, as they are in ``figures`` times that factor."""
    changed = {}
    for name in names:
        before, after = getattr(was, name), getattr(now, name)
        # A figure that was 0 or infinite in isolation (nothing to launch, no limit) has no factor.
        if before != after and 0.0 < before < math.inf:
            value = getattr(figures, name) * after / before
            changed[name] = min(value, 1.0) if name in _FRACTIONS else value
    return changed


def with_host(kernels: Calibration, serving: Calibration) -> Calibration:
    """A set of kernels with the host's figures of one fitted to serving runs."""
    figures: dict[str, Any] = {name: getattr(serving, name) for name in HOST}
    sort = {SORT: serving.efficiencies[SORT]} if SORT in serving.efficiencies else {}
    classes = {**kernels.efficiencies, **sort}
    name = f"{kernels.name}, host of {serving.name}"
    rests_on = "kernels_and_host" if kernels.rests_on == "kernels" else kernels.rests_on
    return replace(kernels, name=name, efficiencies=classes, rests_on=rests_on, **figures)
