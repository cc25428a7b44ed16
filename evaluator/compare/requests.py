"""A measured run request by request: the same requests through a scenario's deployment, and the errors."""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from evaluator.compare.run import COLUMNS, EXPECTED, OK, expected_pct, of_deployment
from evaluator.errors import InputError
from evaluator.experiments.requests import METRICS, read_requests
from evaluator.scenario import Arrivals, Lengths, Scenario, Sessions

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

STATISTICS = ("mean", "p50", "p90", "p99")
APART = "mean absolute difference"
"""Request by request, beside the errors of the statistics: two runs may agree in the mean and in nothing else."""


def compare_requests(path: str | Path, scenario: Scenario) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Measured requests through the deployment of ``scenario``, whose own workload is put aside but for its users.

    In a closed loop a request is sent when the answer to another has come: then it is the users that send the measured
    requests, in their order, and not the measured times, at which a faster prediction would never have sent them.
    The first table has a row per request with predicted and measured times, the second one per metric and statistic
    with the signed error and the expected one (of a mean, ``expected_error_pct``). Errors: InputError where the
    deployment cannot run the requests.
    """
    from evaluator.run import simulate

    measured = read_requests(path)
    _state_priorities(measured, scenario, path)
    # As a trace, which the loader reads and checks as it does any other; errors name the user's file.
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.csv"
        _write_trace(trace, measured)
        try:
            simulation = simulate(_with_trace(scenario, trace, len(measured)))
        except InputError as error:
            raise InputError(str(error).replace(str(trace), str(path))) from None
    predicted, summary = simulation.requests, simulation.summary.isel(config=0)
    table = measured.copy()
    for metric in METRICS:
        if f"{metric}_s" in measured:
            values = predicted[f"{metric}_s"].to_numpy()
            table[f"predicted_{metric}_s"] = values
            # A measured time of 0 has no relative error; it shows as inf or NaN.
            with np.errstate(divide="ignore", invalid="ignore"):
                table[f"{metric}_error_pct"] = 100 * (values / measured[f"{metric}_s"] - 1)
    statistics = _statistics(table, summary)
    # By Little's law, of what was predicted: requests over the time from the first to the last of them.
    begun, e2e = (predicted[name].to_numpy(np.float64) for name in ("arrival_s", "e2e_s"))
    statistics.attrs = {
        "concurrency": float(e2e.sum() / ((begun + e2e).max() - begun.min())),
        **{name: str(summary[name].item()) for name in ("calibration_set", "provenance")},
    }
    return table, statistics


def as_run(statistics: pd.DataFrame, label: str, scenario: Scenario) -> pd.DataFrame:
    """The statistics of one run, in milliseconds, as the rows of a comparison of several (``compare.results``)."""
    import pandas as pd

    rows = statistics[statistics["statistic"] != APART]
    common = {
        "exp_id": label,
        "experiment_name": "requests",
        **of_deployment(scenario.deployment),
        "workload": "requests",
        "stage_index": 0,
        "concurrency": statistics.attrs["concurrency"],
        "unit": "ms",
        "calibration": statistics.attrs["calibration_set"],
        "provenance": statistics.attrs["provenance"],
        "status": OK,
        "notes": "",
    }
    table = pd.DataFrame(
        [
            common
            | {
                "metric": f"{row.metric}_{row.statistic}",
                "predicted": 1e3 * row.predicted_s,
                "measured": 1e3 * row.measured_s,
                "error_pct": row.error_pct,
                EXPECTED: row.expected_error_pct,
            }
            for row in rows.itertuples()
        ]
    )
    return table.reindex(columns=[*COLUMNS, EXPECTED, "engine"])


def _state_priorities(measured: pd.DataFrame, scenario: Scenario, path: str | Path) -> None:
    """Gives each request the priority of its class. Errors: InputError where the table does not say which it is of."""
    priorities = {name: entry.priority or 0 for name, entry in scenario.workload.classes.items()}
    if "priority" in measured or not any(priorities.values()):
        return
    if "class" not in measured:
        raise InputError(
            f"{path}: has no column class, by which requests have the priorities of workload.classes; add it, or a "
            "column priority, or leave out the priorities"
        )
    measured["priority"] = measured["class"].map(priorities).fillna(0).astype(int)


def _write_trace(path: Path, requests: pd.DataFrame) -> None:
    columns = ["arrival_s", "prompt_tokens", "output_tokens", "cached_tokens"]
    columns += [name for name in ("class", "priority") if name in requests]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(requests[columns].itertuples(index=False, name=None))


def _with_trace(scenario: Scenario, trace: Path, count: int) -> Scenario:
    if scenario.sweep:
        raise InputError(f"{scenario.path or scenario.name}: a comparison takes one deployment, without a sweep")
    arrivals = scenario.workload.arrivals
    closed = arrivals.process == "closed_loop"
    if closed and scenario.workload.draws_turns:
        raise InputError(
            f"{scenario.path or scenario.name}: workload.sessions: a table of requests does not say which of them a "
            "user sends after which, and after how long; leave out turns and think_s"
        )
    workload = replace(
        scenario.workload,
        arrivals=arrivals if closed else Arrivals("trace", file=str(trace)),
        lengths=Lengths("trace", file=str(trace)),
        # Every measured request counts: a generator's own warm-up is not in its results.
        requests=count,
        warmup_requests=0,
        cooldown_requests=0,
        find_warmup=False,
        # One: nothing is drawn where times and lengths are those of a file.
        seeds=(0,),
        cached_tokens=0,
        sessions=Sessions(),
        models={},
        # Which request is of which class, and how long it is, the table says.
        classes={},
    )
    return replace(scenario, workload=workload)


def _statistics(table: pd.DataFrame, summary: xr.Dataset) -> pd.DataFrame:
    import pandas as pd

    rows: list[Mapping] = []
    for metric in METRICS:
        if f"{metric}_s" not in table:
            continue
        # Both or neither: statistics over different requests would not be of one thing.
        both = table[[f"predicted_{metric}_s", f"{metric}_s"]].dropna().to_numpy()
        if not len(both):
            continue
        # The error that a dataset states is of means; quantiles are told beside the same, which nobody measured.
        expected = expected_pct(summary, f"{metric}_s")
        for statistic in STATISTICS:
            predicted, measured = _statistic(both, statistic)
            rows.append({"metric": metric, "statistic": statistic, "predicted_s": predicted, "measured_s": measured,
                         "error_pct": _percent(predicted - measured, measured), EXPECTED: expected,
                         "requests": len(both)})  # fmt: skip
        apart, mean = float(np.abs(both[:, 0] - both[:, 1]).mean()), float(both[:, 1].mean())
        rows.append({"metric": metric, "statistic": APART, "predicted_s": apart, "measured_s": mean,
                     "error_pct": _percent(apart, mean), EXPECTED: float("nan"),
                     "requests": len(both)})  # fmt: skip
    if not rows:
        raise InputError("no request has both a predicted and a measured time")
    return pd.DataFrame(rows)


def _percent(part: float, whole: float) -> float:
    return 100 * part / whole if whole else float("nan")


def _statistic(values: np.ndarray, name: str) -> tuple[float, float]:
    if name == "mean":
        return float(values[:, 0].mean()), float(values[:, 1].mean())
    predicted, measured = np.quantile(values, float(name.removeprefix("p")) / 100, axis=0)
    return float(predicted), float(measured)
