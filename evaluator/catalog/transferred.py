"""From hardware with measurements to hardware without: the median of the sets, figure by figure.

Efficiencies are fractions of data-sheet peaks, so that the median over devices is a guess for one more; times
(launches) and sizes are taken as they are. Counts of a device (tiles in a wave) do not transfer: waves are not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING

import numpy as np

from evaluator.catalog.efficiency import GroupEfficiency, OperatorEfficiency

if TYPE_CHECKING:
    from evaluator.catalog.calibration import Calibration


def transferred(sets: Sequence[Calibration], name: str = "transferred") -> Calibration:
    """The median of these sets, figure by figure, for any hardware; all-reduces of a size that most sets have."""
    classes = {op_class for each in sets for op_class in each.efficiencies}
    return replace(
        sets[0],
        name=name,
        hardware="any",
        provenance="extrapolated",
        efficiencies={
            op_class: _median([each.efficiencies[op_class] for each in sets if op_class in each.efficiencies])
            for op_class in sorted(classes)
        },
        fit={},
    )


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
