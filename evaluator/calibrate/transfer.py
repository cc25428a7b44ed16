"""How far off the median of other devices' sets (``evaluator.catalog.transferred``) is for a device without its own.

The error to expect is that of leaving each measured device out in turn and predicting it from the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from evaluator.calibrate.devices import PROCESSORS, UNKNOWN
from evaluator.calibrate.errors import LONG_S, statistics
from evaluator.calibrate.run import judge
from evaluator.calibrate.selection import select
from evaluator.calibrate.table import Table
from evaluator.catalog import Calibration, load_hardware
from evaluator.catalog.transferred import transferred
from evaluator.cost.rates import rates


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
