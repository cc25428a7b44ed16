"""A measured run request by request: the same requests through a scenario's deployment, and the errors."""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from evaluator.errors import InputError
from evaluator.experiments.requests import METRICS, read_requests
from evaluator.scenario import Arrivals, Lengths, Scenario, Sessions

if TYPE_CHECKING:
    import pandas as pd

STATISTICS = ("mean", "p50", "p90", "p99")


def compare_requests(path: str | Path, scenario: Scenario) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Measured requests through the deployment of ``scenario``, whose own workload is put aside but for its users.

    In a closed loop a request is sent when the answer to another has come: then it is the users that send the measured
    requests, in their order, and not the measured times, at which a faster prediction would never have sent them.
    The first table has a row per request with predicted and measured times, the second one per metric and statistic
    with the signed error. Errors: InputError where the deployment cannot run the requests.
    """
    from evaluator.run import simulate

    measured = read_requests(path)
    # As a trace, which the loader reads and checks as it does any other; errors name the user's file.
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.csv"
        _write_trace(trace, measured)
        try:
            predicted = simulate(_with_trace(scenario, trace, len(measured))).requests
        except InputError as error:
            raise InputError(str(error).replace(str(trace), str(path))) from None
    table = measured.copy()
    for metric in METRICS:
        if f"{metric}_s" in measured:
            values = predicted[f"{metric}_s"].to_numpy()
            table[f"predicted_{metric}_s"] = values
            # A measured time of 0 has no relative error; it shows as inf or NaN.
            with np.errstate(divide="ignore", invalid="ignore"):
                table[f"{metric}_error_pct"] = 100 * (values / measured[f"{metric}_s"] - 1)
    return table, _statistics(table)


def _write_trace(path: Path, requests: pd.DataFrame) -> None:
    columns = ["arrival_s", "prompt_tokens", "output_tokens", "cached_tokens"]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(requests[columns].itertuples(index=False, name=None))


def _with_trace(scenario: Scenario, trace: Path, count: int) -> Scenario:
    if scenario.sweep:
        raise InputError(f"{scenario.path or scenario.name}: a comparison takes one deployment, without a sweep")
    arrivals = scenario.workload.arrivals
    closed = arrivals.process == "closed_loop"
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
    )
    return replace(scenario, workload=workload)


def _statistics(table: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    rows: list[Mapping] = []
    for metric in METRICS:
        if f"{metric}_s" not in table:
            continue
        # Both or neither: statistics over different requests would not be of one thing.
        both = table[[f"predicted_{metric}_s", f"{metric}_s"]].dropna().to_numpy()
        if not len(both):
            continue
        for statistic in STATISTICS:
            predicted, measured = _statistic(both, statistic)
            rows.append({"metric": metric, "statistic": statistic, "predicted_s": predicted, "measured_s": measured,
                         "error_pct": _percent(predicted - measured, measured), "requests": len(both)})  # fmt: skip
        # Request by request, beside the errors of the statistics: two runs may agree in the mean and in nothing else.
        apart, mean = float(np.abs(both[:, 0] - both[:, 1]).mean()), float(both[:, 1].mean())
        rows.append({"metric": metric, "statistic": "mean absolute difference", "predicted_s": apart,
                     "measured_s": mean, "error_pct": _percent(apart, mean), "requests": len(both)})  # fmt: skip
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
