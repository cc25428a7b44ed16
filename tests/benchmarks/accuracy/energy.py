"""Power and energy, by measured and by predicted times.

* ML.ENERGY's batches on H100 (``mlenergy_h100_chat.csv``, as ``closed_batches`` has them): watts of a device by
  measured times, which is the error of the law of power alone, and joules per token by predicted times, which is what a
  sweep gives. The law was fitted to these watts; a third metric has them by laws fitted without the model.
* Splitwise's runs on A100 (``splitwise_perf_model.csv``): the part of the TDP by measured times, to which that law was
  fitted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from evaluator.metrics.power import A100, H100
from tests.benchmarks import power
from tests.benchmarks.accuracy import closed_batches
from tests.benchmarks.accuracy.slices import judged

FILE = closed_batches.FILE
A100_BATCHES = (0, 1, 2, 4, 8, 16)


def rows(data: Path) -> Iterator[pd.DataFrame]:
    """The errors of the power and the energy of every batch."""
    runs = power.h100_runs(data)
    table = pd.read_csv(data / FILE).loc[runs.index]
    batches = pd.cut(runs["batch"], closed_batches.BATCHES).map(closed_batches.shown)
    part = [f"h100-sxm, {precision}, {at}" for precision, at in zip(_precisions(table), batches, strict=True)]
    measured = runs["part"]
    yield judged("energy", part, "watts", power.part_of_tdp(H100, runs), measured)
    yield judged("energy", part, "watts, law fitted without the model", power.left_out(runs), measured)
    # At other times the same work is another MFU and MBU.
    longer = pd.Series([closed_batches.predicted(row)["mean_ms"] for _, row in table.iterrows()], table.index)
    longer *= 1e-3 * table["output_throughput_tokens_per_sec"] / table["avg_batch_size"]
    at_predicted = runs.assign(mfu=runs["mfu"] / longer, mbu=runs["mbu"] / longer)
    yield judged("energy", part, "joule_per_tok", power.part_of_tdp(H100, at_predicted) * longer, measured)
    yield _splitwise(data)


def _precisions(table: pd.DataFrame) -> pd.Series:
    return table["weight_precision"].map({"bfloat16": "bf16", "fp8": "fp8"})


def _splitwise(data: Path) -> pd.DataFrame:
    runs = power.a100_runs(data)
    at = pd.cut(runs["batch"], A100_BATCHES).map(closed_batches.shown)
    part = [f"a100-sxm, {model}, {batch}" for model, batch in zip(runs["model"], at, strict=True)]
    return judged("energy", part, "watts", power.part_of_tdp(A100, runs), runs["part"])
