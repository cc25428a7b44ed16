"""Servers of vLLM 0.15 by what was kept aside when the predicting set was fitted.

The rows are those of ``calibration/errors/serving.csv``, which ``make errors`` makes: nothing is fitted or predicted
here, so that a slice changes where that table does. Kernels of devices left out: ``calibration/errors/kernels.yaml``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from evaluator.accuracy.cases import LOAD_NAMES, load_group
from evaluator.catalog.store import find
from evaluator.compare.expected import read_rows
from tests.benchmarks.accuracy.servers import METRICS
from tests.benchmarks.accuracy.slices import judged

PARTITIONS = {
    "runs": "every fourth experiment left out",
    "other_layouts": "layout left out",
    "other_models": "model left out",
    "other_devices": "GPU left out, its kernels known",
    "kernels_and_host": "GPU left out, its kernels known, the others' host alone",
    "transferred": "GPU left out, its kernels too",
    "sheet_and_runs": "GPU left out, by its data sheet",
    "kernels": "no servers, kernels alone",
    "datasheet": "no servers, data sheet alone",
}
"""What was kept aside, by case (``evaluator.accuracy.CASES``)."""
SOURCE = "vllm_serving"


def rows(_data: Path) -> Iterator[pd.DataFrame]:
    """The errors of every stage of an experiment, by partition and load."""
    table = read_rows(find("errors", "serving").with_suffix(".csv"))
    table = table[table["case"].isin(list(PARTITIONS)) & table["source"].str.startswith(SOURCE)]
    load = [f"{LOAD_NAMES[load_group(at)]} at a time" if np.isfinite(at) else "" for at in table["concurrency"]]
    part = [f"{PARTITIONS[case]}, {at}" for case, at in zip(table["case"], load, strict=True)]
    for metric in (name for name in METRICS if name in table):
        # Rows have measured over predicted; slices predicted over measured.
        yield judged("servers, held out", part, metric, 1.0 / (1.0 + table[metric]), pd.Series(1.0, table.index))
