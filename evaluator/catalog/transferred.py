"""From hardware with measurements to hardware without: the nearest relative's set, or the median of all.

Efficiencies are fractions of data-sheet peaks, so that the median over devices is a guess for one more; times
(launches) and sizes are taken as they are, and so are the host's. Counts of a device (tiles in a wave) do not transfer:
waves are not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any

import numpy as np

from evaluator.catalog.calibration import BLOCK_EXPERTS, MEASURED_MAKER, TRANSFERRED, Calibration, named_set
from evaluator.catalog.efficiency import GroupEfficiency, OperatorEfficiency
from evaluator.catalog.engines import DEFAULT_ENGINE
from evaluator.catalog.fields import catalog_folders
from evaluator.catalog.hardware import Hardware, load_hardware
from evaluator.catalog.relatives import nearest_alike, relative_of, served_as_default, served_by_relative
from evaluator.catalog.served import with_host
from evaluator.catalog.store import has, names
from evaluator.errors import InputError


def set_of_others(hardware: Hardware | str, engine: str, nearest: str = "") -> Calibration:
    """What the kernels of other devices for an engine, with the host of their serving runs, make of this one.

    ``hardware`` is a device, or a name that is not in the catalog. ``nearest``: of the others only this one, as
    ``nearest_measured`` has it. InputError where there are no others.
    """
    name = hardware if isinstance(hardware, str) else hardware.name
    return _set_of_others(name, nearest_link(hardware), engine, nearest, catalog_folders())


@lru_cache(maxsize=256)
def _set_of_others(hardware: str, link: str, engine: str, nearest: str, folders: tuple[str, str, int]) -> Calibration:
    """The same once for all devices of one name and link; ``folders`` says where the catalog's files are, so that
    another catalog is asked anew."""
    others = [nearest] if nearest else [name for name in measured_devices(engine) if name != hardware]
    # The same kernels run on processors of one architecture, and in servers alike; the median over several
    # architectures is of kernels alone, since what servers make of them was judged so (calibration/sets.md).
    candidates = [set_of_device(name, engine) if nearest else _with_own_host(name, engine) for name in others]
    sets = [calibration for calibration in candidates if calibration is not None]  # all: each has kernels
    # `link` among the same devices as `sets`: one of another architecture is not in the median, whatever its link.
    median_set = transferred(sets, link=joined_by(link, others))
    return replace(median_set, hardware=hardware)


def nearest_measured(device: Hardware, engine: str) -> str:
    """The measured device of the same architecture whose data sheet is nearest; empty where there is none."""
    measured = _measured if device.maker == MEASURED_MAKER else _with_kernels
    return nearest_alike(device, measured(engine, catalog_folders())) or ""


def measured_devices(engine: str) -> list[str]:
    """Devices of the catalog whose kernels of an engine were measured, for a median over architectures.

    A device that is served as its relative (``relatives``) has no part in it: with a B200, a GB200 and a GB300 the
    median would be Blackwell's, and predicts devices of other architectures no better (calibration/sets.md).
    """
    serving = f"-{DEFAULT_ENGINE}.serving"
    measured = _measured(engine, catalog_folders())
    return [name for name in measured if has("calibrations", f"{name}{serving}") or not relative_of(name)]


@lru_cache(maxsize=64)
def _measured(engine: str, folders: tuple[str, str, int]) -> tuple[str, ...]:
    """Devices whose kernels of an engine were measured, collectives included, of the maker whose servers were.

    A set with collectives of another device would count that one twice in a median, and when it is left out.
    """
    return tuple(
        name
        for name in _with_kernels(engine, folders)
        if load_hardware(name).maker == MEASURED_MAKER and _has_own_collectives(f"{name}-{engine}", name)
    )


@lru_cache(maxsize=64)
def _with_kernels(engine: str, folders: tuple[str, str, int]) -> tuple[str, ...]:
    """Devices of the catalog with a set of kernels of an engine.

    Sets of a user's own that bear no device's name are of a device that has a set, or of none that is known.
    """
    ending = f"-{engine}"
    with_sets = [name.removesuffix(ending) for name in names("calibrations") if name.endswith(ending)]
    return tuple(name for name in with_sets if has("hardware", name))


def _has_own_collectives(name: str, hardware: str) -> bool:
    calibration = named_set(name, hardware, foreign=True)
    figures = calibration.fit.get("parameters") or {}
    return (
        calibration.hardware == hardware
        and bool(calibration.efficiencies)
        and any(str(figure).startswith("all_reduce.") for figure in figures)
    )


def set_of_device(hardware: str, engine: str) -> Calibration | None:
    """The best set of a device's own measurements of an engine; None: there is none."""
    serving, kernels, host = f"{hardware}-{engine}.serving", f"{hardware}-{engine}", f"{engine}.serving"
    # The first of what is nearest to a server on this device: its own runs have kernels and host together.
    if has("calibrations", serving):
        return named_set(serving, hardware)
    if has("calibrations", kernels):
        # Kernels were timed alone. What a server makes of them is known of a relative; else its host alone is taken to
        # be alike on all devices.
        calibration = named_set(kernels, hardware)
        if engine == DEFAULT_ENGINE and (served := served_by_relative(calibration, hardware)) is not None:
            return served
        if has("calibrations", host):
            return with_host(calibration, named_set(host, hardware))
        return calibration if engine == DEFAULT_ENGINE else served_as_default(calibration, hardware)
    return None


def _with_own_host(hardware: str, engine: str) -> Calibration:
    """The kernels of a device as they were measured, with the host's times of serving runs, of its own if there are."""
    kernels = named_set(f"{hardware}-{engine}", hardware)
    for host in (f"{hardware}-{engine}", f"{hardware}-{DEFAULT_ENGINE}", DEFAULT_ENGINE):
        if has("calibrations", f"{host}.serving"):
            return with_host(kernels, named_set(f"{host}.serving", hardware))
    return kernels


def joined_by(link: str, others: Sequence[str]) -> list[str]:
    """Those of the other devices, names of the catalog, whose nearest link has this name."""
    return [name for name in others if nearest_link(name) == link]


def nearest_link(hardware: Hardware | str) -> str:
    """The name of a device's nearest link; empty where it has none, or where its name is not in the catalog."""
    if isinstance(hardware, str):
        if not has("hardware", hardware):
            return ""
        hardware = load_hardware(hardware)
    return hardware.links[0].name if hardware.links else ""


def transferred(sets: Sequence[Calibration], name: str = TRANSFERRED, link: Sequence[str] = ()) -> Calibration:
    """The median of these sets, figure by figure, for any hardware; all-reduces of every size that a set has.

    ``link`` names devices that are joined as the one that the set is for: what devices send one another is the median
    of their sets alone, where there are any. InputError where there are no sets.
    """
    if not sets:
        raise InputError("transfer: there is no set of another device to take the median of")
    # What devices send one another is a matter of the link: of those on the same kind of link, if any was measured.
    near = [calibration for calibration in sets if calibration.hardware in link] or list(sets)

    def known(figure: str) -> Sequence[Calibration]:
        return near if figure in _SENT else sets

    classes = sorted({op_class for calibration in sets for op_class in calibration.efficiencies})
    figures = [entry.name for entry in fields(sets[0]) if isinstance(getattr(sets[0], entry.name), float)]
    median: dict[str, Any] = {
        figure: float(np.median([getattr(calibration, figure) for calibration in known(figure)])) for figure in figures
    }
    return replace(
        sets[0],
        **median,
        name=name,
        hardware="any",
        engine_version="any",
        provenance=TRANSFERRED,
        rests_on=TRANSFERRED,
        efficiencies={
            op_class: _median(
                [calibration.of(op_class) for calibration in known(op_class)
                 if op_class in calibration.efficiencies or op_class == BLOCK_EXPERTS]
            )
            # Experts with block scales have kernels of their own on one device alone: on the others they are all fp8's.
            for op_class in classes
        },
        sources={
            figure: f"median of the sets of {', '.join(calibration.hardware for calibration in known(figure))}"
            for figure in sets[0].sources
        },
        fit={},
    )  # fmt: skip


_SENT = ("all_reduce", "all_to_all", "p2p", "link_efficiency")
"""Figures of what devices send one another."""


def _median(efficiencies: Sequence[OperatorEfficiency]) -> OperatorEfficiency:
    figures = {
        entry.name: float(np.median([getattr(efficiency, entry.name) for efficiency in efficiencies]))
        for entry in fields(OperatorEfficiency)
        # Tiles in a wave are counts of one device's multiprocessors: of another device they say nothing.
        if entry.name not in ("devices", "wave_share", "wave_tiles")
    }
    sizes = {size for efficiency in efficiencies for size in efficiency.devices}
    groups = {
        size: _median_group([efficiency.devices[size] for efficiency in efficiencies if size in efficiency.devices])
        for size in sorted(sizes)
    }
    return OperatorEfficiency(**figures, devices=groups)


def _median_group(groups: Sequence[GroupEfficiency]) -> GroupEfficiency:
    return GroupEfficiency(
        *(float(np.median([getattr(group, entry.name) for group in groups])) for entry in fields(GroupEfficiency))
    )
