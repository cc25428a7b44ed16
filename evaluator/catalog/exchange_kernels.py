"""Kernels of libraries that exchange tokens among experts, as YAML: models/exchanges/NAME.yaml.

DeepEP's are the same in every engine that calls them, so that their figures are of a device and not of an engine's
calibration set. What a file does not know of a device is as on the nearest one of its architecture.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from evaluator.catalog.calibration import Calibration, read_group
from evaluator.catalog.efficiency import GroupEfficiency, OperatorEfficiency
from evaluator.catalog.fields import Fields, devices_of, load_if_any
from evaluator.catalog.hardware import Hardware
from evaluator.catalog.relatives import nearest_figures
from evaluator.errors import InputError

SIDES = ("dispatch", "combine")
"""The two messages around routed experts: the collectives of these names."""

Groups = tuple[tuple[int, GroupEfficiency], ...]


class ExchangeFigures(NamedTuple):
    """What both messages take on a device, by how many of a node's devices take part: fractions are of its links."""

    dispatch: Groups
    combine: Groups


def exchange_figures(kernels: str, hardware: Hardware) -> ExchangeFigures | None:
    """The figures of these kernels on a device, or on the nearest one of its architecture that was measured; None where
    there is none, and for an exchange that has no file (that of NCCL). InputError for a file that is not as it should
    be."""
    return nearest_figures(hardware, _by_device(kernels))


def exchange_devices(kernels: str) -> tuple[str, ...]:
    """The devices, names of the catalog, on which these kernels were measured."""
    return tuple(_by_device(kernels))


def _by_device(kernels: str) -> Mapping[str, ExchangeFigures]:
    return load_if_any("exchanges", kernels, _read, {})


def with_exchange(calibration: Calibration, figures: ExchangeFigures) -> Calibration:
    """The set with these figures; one that states its own keeps them."""
    known = {
        side: _of_set(groups, calibration.link_efficiency) for side, groups in zip(SIDES, figures, strict=True)
    }  # fmt: skip
    return replace(calibration, efficiencies={**known, **calibration.efficiencies})


def _of_set(groups: Groups, link_efficiency: float) -> OperatorEfficiency:
    # A set's fractions are of what its links reach, those of a file of what the links have.
    devices = {
        size: replace(
            group,
            bandwidth_efficiency=group.bandwidth_efficiency / link_efficiency,
            far_efficiency=group.far_efficiency / link_efficiency,
        )
        for size, group in groups
    }
    # Groups of other sizes have the rates of the largest that was measured, without its ramp.
    largest = devices[max(devices)]
    return OperatorEfficiency(1.0, largest.bandwidth_efficiency, 0.0, largest.launch_s, devices=devices)


def _read(document: Any, where: str, expected_name: str) -> Mapping[str, ExchangeFigures]:
    given = Fields(document, where)
    given.named(expected_name)
    given.text("note", None)
    given.sources(("devices", "across_nodes"))
    far = given.inner("across_nodes")
    across = {side: far.number(side, low=1e-6, high=1.0) for side in SIDES}
    far.finish()
    listed = given.inner("devices")
    given.finish()
    return {device: _device(section, across) for device, section in devices_of(listed)}


def _device(given: Fields, across: Mapping[str, float]) -> ExchangeFigures:
    sides = []
    for side in SIDES:
        sizes = given.inner(side)
        if not sizes.values:
            raise InputError(
                f"{given.place(side)}: expected figures by number of devices, such as 8: {{launch_s: ...}}"
            )
        groups = {size: read_group(sizes, size) for size in sizes.values}
        sides.append(tuple((size, replace(group, far_efficiency=across[side])) for size, group in groups.items()))
    given.finish()
    return ExchangeFigures(*sides)
