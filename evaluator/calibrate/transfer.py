"""From hardware with measurements to hardware without: the median of the sets, and how far off that would have been.

Efficiencies are fractions of data-sheet peaks, so that the median over devices is a guess for one more; times
(launches) and sizes are taken as they are. Counts of a device (tiles in a wave) do not transfer: waves are not counted.
The error to expect is that of leaving each measured device out in turn and predicting it from the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

import numpy as np
import pandas as pd

from evaluator.calibrate.devices import PROCESSORS, UNKNOWN
from evaluator.calibrate.errors import LONG_S, statistics
from evaluator.calibrate.run import judge
from evaluator.calibrate.selection import select
from evaluator.calibrate.table import Table
from evaluator.catalog import Calibration, OperatorEfficiency, load_hardware
from evaluator.catalog.calibration import GroupEfficiency
from evaluator.cost.rates import rates


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


def leave_one_out(tables: Sequence[Table], sets: Mapping[str, Calibration]) -> pd.DataFrame:
    """Errors of each hardware (the keys of ``sets``) predicted from the sets of the others; kernels above 20 us."""
    lines = []
    for left_out in sets:
        guess = transferred([each for name, each in sets.items() if name != left_out])
        device = load_hardware(left_out)
        parts, _ = select(tables, left_out, PROCESSORS.get(left_out, UNKNOWN))
        for part in parts:
            judged = judge(part, rates(device, guess), device)
            judged = judged[judged["time_s"] >= LONG_S]
            if len(judged):
                lines.append({"hardware": left_out, "class": part.label} | statistics(judged))
    return pd.DataFrame(lines)
