"""From hardware with measurements to hardware without: the median of the sets, figure by figure.

Efficiencies are fractions of data-sheet peaks, so that the median over devices is a guess for one more; times
(launches) and sizes are taken as they are, and so are the host's. Counts of a device (tiles in a wave) do not transfer:
waves are not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluator.catalog.efficiency import GroupEfficiency, OperatorEfficiency
from evaluator.errors import InputError

if TYPE_CHECKING:
    from evaluator.catalog.calibration import Calibration


def transferred(sets: Sequence[Calibration], name: str = "transferred", link: Sequence[str] = ()) -> Calibration:
    """The median of these sets, figure by figure, for any hardware; all-reduces of a size that most sets have.

    ``link`` names devices that are joined as the one that the set is for: what devices send one another is the median
    of their sets alone, where there are any. InputError where there are no sets.
    """
    if not sets:
        raise InputError("transfer: there is no set of another device to take the median of")
    near = [each for each in sets if each.hardware in link] or list(sets)
    classes = sorted({op_class for each in sets for op_class in each.efficiencies})
    figures = [each.name for each in fields(sets[0]) if isinstance(getattr(sets[0], each.name), float)]
    median: dict[str, Any] = {
        each: float(np.median([getattr(one, each) for one in (near if each in _SENT else sets)])) for each in figures
    }
    devices = ", ".join(each.hardware for each in sets)
    sources = {
        figure: f"median of the sets of {', '.join(one.hardware for one in near)}"
        if figure in _SENT
        else f"median of the sets of {devices}"
        for figure in sets[0].sources
    }
    return replace(
        sets[0],
        **median,
        name=name,
        hardware="any",
        engine_version="any",
        provenance="transferred",
        rests_on="transferred",
        efficiencies={
            op_class: _median(
                [one.efficiencies[op_class] for one in (near if op_class in _SENT else sets)
                 if op_class in one.efficiencies]
            )
            for op_class in classes
        },
        sources=sources,
        fit={},
    )  # fmt: skip


_SENT = ("all_reduce", "all_to_all", "p2p", "link_efficiency")
"""Figures of what devices send one another."""


def _median(found: Sequence[OperatorEfficiency]) -> OperatorEfficiency:
    figures = {
        each.name: float(np.median([getattr(one, each.name) for one in found]))
        for each in fields(OperatorEfficiency)
        if each.name not in ("devices", "wave_share", "wave_tiles")
    }
    sizes = {size for one in found for size in one.devices}
    groups = {
        size: _median_group([one.devices[size] for one in found if size in one.devices]) for size in sorted(sizes)
    }
    return OperatorEfficiency(**figures, devices=groups)


def _median_group(found: Sequence[GroupEfficiency]) -> GroupEfficiency:
    return GroupEfficiency(
        *(float(np.median([getattr(one, each.name) for one in found])) for each in fields(GroupEfficiency))
    )
