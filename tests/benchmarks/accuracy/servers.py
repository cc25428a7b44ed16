"""Servers of vLLM 0.15 under open load (``vllm_serving_*``), as the sets that are shipped predict them.

These sets were fitted to the same runs: ``calibration/errors/serving.yaml`` has the errors of runs kept aside.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pandas as pd

from evaluator.catalog import load_model
from evaluator.compare import compare_experiments
from evaluator.experiments import read_experiments
from evaluator.experiments.names import model_name
from tests.benchmarks.accuracy.slices import judged, kind_of

METRICS = ("ttft_mean", "ttft_p99", "itl_mean", "e2e_mean", "e2e_p99")
LOADS = (0.0, 16.0, 48.0, float("inf"))


def rows(data: Path) -> Iterator[pd.DataFrame]:
    """The errors of every stage of a run."""
    experiments = read_experiments(data / "vllm_serving_specs.json", data / "vllm_serving_actuals.csv")
    table = compare_experiments(experiments, seeds=(0,))
    table = table[table["metric"].isin(METRICS) & (table["status"] == "ok") & table["measured"].notna()]
    # Where stages were measured, the row that pools them tells nothing more.
    staged = table.groupby("exp_id")["stage_index"].transform("max") >= 0
    table = table[(table["stage_index"] >= 0) | ~staged]
    loads = pd.cut(table["concurrency"], LOADS, labels=["0 to 16", "16 to 48", "48 and more"]).astype(str)
    for metric, part in table.groupby("metric"):
        at = [f"{gpu}, {load} at a time" for gpu, load in zip(part["hardware"], loads[part.index], strict=True)]
        drawn = {"at": part["concurrency"], "kind": part["model"].map(_kind)}
        yield judged("servers, as fitted", at, str(metric), part["predicted"], part["measured"], **drawn)


@cache
def _kind(published: str) -> str:
    return kind_of(load_model(model_name(published)))
