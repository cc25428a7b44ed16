"""Experiments -> the engine -> predictions beside measurements, one row per experiment, stage and metric."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from evaluator.catalog.calibration import Calibration
from evaluator.catalog.choice import CHOSEN
from evaluator.catalog.store import find
from evaluator.compare.servers import Server, server
from evaluator.compare.simulate import Times, simulate_server
from evaluator.errors import InputError
from evaluator.experiments.experiment import POOLED, Experiment
from evaluator.experiments.traffic import requests

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from evaluator.scenario import Deployment

LATENCIES = ("ttft", "itl", "tpot", "e2e")
OK = "ok"


def compare_experiments(
    experiments: Sequence[Experiment],
    calibration: str | Calibration = "auto",
    seeds: Iterable[int] = (0, 1, 2),
) -> pd.DataFrame:
    """Predictions of every experiment beside its measurements.

    Columns: what was run, ``stage_index`` (-1: all stages pooled), ``metric``, ``unit`` (ms or 1/s), ``predicted``
    (mean over the seeds), ``predicted_stderr``, ``measured``, ``error_pct`` (signed), ``concurrency`` (predicted, by
    Little's law), ``calibration``, ``provenance``, ``status``, ``notes`` (what was not heeded). An experiment that
    cannot run is one row with its reason as ``status``.
    """
    import pandas as pd

    # GPU stands for each experiment's device: whether such sets exist is asked one by one.
    if isinstance(calibration, str) and calibration not in CHOSEN and "GPU" not in calibration:
        find("calibrations", calibration)  # a name that is none is the user's mistake, not an experiment's
    seeds = tuple(seeds)
    rows: list[dict] = []
    for experiment in experiments:
        try:
            ran = server(experiment, calibration)
            runs = simulate_server(ran, [requests(experiment, seed) for seed in seeds])
            rows += _rows(ran, runs)
        except InputError as error:
            rows.append(_described(experiment, None) | {"status": f"cannot run: {error}"})
        except Exception as error:  # one experiment never stops the others
            problem = f"cannot run: internal error: {type(error).__name__}: {' '.join(str(error).split())}"
            rows.append(_described(experiment, None) | {"status": problem})
    return pd.DataFrame(rows, columns=COLUMNS)


COLUMNS = (
    "exp_id", "experiment_name", "model", "gpu", "hardware", "tensor_parallel", "data_parallel", "workload",
    "stage_index", "rate_rps", "concurrency", "metric", "unit", "predicted", "predicted_stderr", "measured",
    "error_pct", "calibration", "provenance", "status", "notes",
)  # fmt: skip


EXPECTED = "expected_error_pct"
"""Column behind those of a comparison: how far off the prediction is expected to be (68 of 100 are closer); NaN of the
throughput of an open loop that keeps up, which is what was sent and no prediction."""


def expected_pct(summary: xr.Dataset, variable: str) -> float:
    """The expected error of a variable of a configuration's dataset, in percent; NaN where none is stated."""
    expected = summary.get(f"{variable}_model_error")
    # 0 is the error of a throughput that is given by the rate: no prediction, hence NaN.
    return np.nan if expected is None else 100 * float(np.mean(expected)) or np.nan


def of_deployment(deployment: Deployment) -> dict[str, object]:
    """What rows of a comparison say of the server that a scenario describes."""
    return {
        "model": str(deployment.model),
        "gpu": str(deployment.hardware),
        "hardware": str(deployment.hardware),
        "engine": f"{deployment.engine} {deployment.engine_version or ''}".strip(),
        "tensor_parallel": deployment.tensor_parallel,
        "data_parallel": deployment.data_parallel,
    }


def predictions(
    times: Times, stage: int, counted_tokens: float | None = None, percents: Iterable[float] = (50, 90, 95, 99)
) -> dict[str, float]:
    """Every metric of a stage, seconds or 1/s.

    ``itl_mean`` is (mean E2E - mean TTFT) / (mean output - 1), as the measurements have it; quantiles of ITL are those
    of the requests' own means, as ``tpot``. Both are per token that the client counts (None: all that are generated).
    """
    taken = slice(None) if stage == POOLED else times.requests.stage == stage
    ttft, e2e, output = times.ttft_s[taken], times.e2e_s[taken], times.requests.output_tokens[taken]
    arrival = times.requests.arrival_s[taken]
    longer = output > 1
    steps = output - 1.0
    # A client counts tokens of the text that it was sent, which may be fewer than the engine made.
    if counted_tokens is not None and longer.any():
        steps *= (counted_tokens - 1) / steps.mean()
    tpot = (e2e - ttft)[longer] / steps[longer] if longer.any() else np.array([np.nan])
    values_of = {"itl_mean": float((e2e.mean() - ttft.mean()) / steps.mean()) if longer.any() else np.nan}
    for name, values in (("ttft", ttft), ("itl", tpot), ("tpot", tpot), ("e2e", e2e)):
        # setdefault, because the mean ITL is over gaps, and stands already.
        values_of.setdefault(f"{name}_mean", float(values.mean()))
        for percent in percents:
            values_of[f"{name}_p{percent:g}"] = float(np.quantile(values, percent / 100))
    values_of["throughput_rps"] = len(ttft) / float((arrival + e2e).max() - arrival.min())
    return values_of


def _rows(ran: Server, runs: Sequence[Times]) -> list[dict]:
    experiment = ran.experiment
    by_index = {stage.index: stage for stage in experiment.workload.stages}
    # A rate by stage; of all together requests over the time in which they were sent.
    rates = {stage.index: stage.rate_rps for stage in by_index.values()}
    duration = sum(stage.duration_s for stage in by_index.values())
    rates[POOLED] = sum(stage.requests for stage in by_index.values()) / duration
    rows = []
    for stage in experiment.stages:
        measured = experiment.row(stage)
        measured_values: Mapping[str, float] = {} if measured is None else measured.values
        percents = {float(metric.split("_p")[1]) for metric in measured_values if "_p" in metric}
        counted = measured.counted_tokens if measured else None
        of_seeds = [predictions(times, stage, counted, percents) for times in runs]
        served = all(np.isfinite(metrics["e2e_mean"]) for metrics in of_seeds)
        # Little's law; predicted and not measured, as few files tell it. The bands of the report are by it.
        concurrency = rates[stage] * float(np.mean([metrics["e2e_mean"] for metrics in of_seeds]))
        common = _described(experiment, ran) | {
            "stage_index": stage, "rate_rps": rates[stage], "concurrency": concurrency,
        }  # fmt: skip
        rows += [
            common | _beside(metric, of_seeds, measured_values[metric], served)
            for metric in measured_values
            if metric in of_seeds[0]
        ]
        # An experiment without measurements is predicted all the same, with the three that every one would have.
        if not measured_values:
            rows += [
                common | _beside(metric, of_seeds, None, served) for metric in ("ttft_mean", "itl_mean", "e2e_mean")
            ]
    return rows


def _beside(metric: str, of_seeds: Sequence[Mapping[str, float]], measured: float | None, served: bool) -> dict:
    values = np.array([metrics[metric] for metrics in of_seeds])
    scale, unit = (1.0, "1/s") if metric == "throughput_rps" else (1e3, "ms")
    stderr = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    predicted = float(values.mean())
    row = {"metric": metric, "unit": unit, "predicted": scale * predicted, "predicted_stderr": scale * float(stderr)}
    if measured is None:
        return row | {"status": "not measured"}
    # A request that was never served has NaN times, which may not vanish in a mean.
    status = OK if served else "cannot run: some requests need more KV cache than there is"
    error_pct = 100 * (predicted / measured - 1) if measured else np.nan
    return row | {"measured": scale * measured, "error_pct": error_pct, "status": status}


def _described(experiment: Experiment, ran: Server | None) -> dict:
    described = {
        "exp_id": experiment.id,
        "experiment_name": experiment.name,
        "model": experiment.model,
        "gpu": experiment.gpu,
        "tensor_parallel": experiment.tensor_parallel,
        "data_parallel": experiment.data_parallel,
        "workload": experiment.workload.name,
        "notes": "; ".join(experiment.notes),
    }
    if ran is None:
        return described
    set_ = ran.design.calibration
    return described | {"hardware": ran.design.hardware.name, "calibration": set_.name, "provenance": set_.provenance}
