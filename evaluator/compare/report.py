"""The errors of a comparison as text: by metric, model, GPU and load, with the worst experiments by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

from evaluator.compare.run import OK
from evaluator.experiments.experiment import POOLED
from evaluator.units import counted

HEADLINE = ("ttft_mean", "itl_mean", "tpot_mean", "e2e_mean")
"""The metrics that are judged; every other one is reported beside them."""
LOADS = ((0.0, 16.0), (16.0, 48.0), (48.0, float("inf")))
"""Bands of mean concurrency."""
WORST = 5


def usable(table: pd.DataFrame) -> pd.DataFrame:
    """Rows with an error; of an experiment with one stage, whose pooled row repeats it, just the one."""
    rows = table[(table["status"] == OK) & table["error_pct"].notna()]
    return rows.assign(load=[load_band(value) for value in rows["concurrency"]])


def pooled(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per experiment and metric: all requests together."""
    # A run with a single stage has no pooled rows: its stage is all of it.
    several = set(rows.loc[rows["stage_index"] == POOLED, "exp_id"])
    return rows[(rows["stage_index"] == POOLED) | ~rows["exp_id"].isin(several)]


def by_stage(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of single stages, and of experiments that have no others."""
    single = set(rows.loc[rows["stage_index"] != POOLED, "exp_id"])
    return rows[(rows["stage_index"] != POOLED) | ~rows["exp_id"].isin(single)]


def summarise(rows: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Mean absolute, median absolute, signed mean and worst error in percent, by the columns ``by``."""
    rows = rows.assign(absolute=rows["error_pct"].abs())
    grouped = rows.groupby(list(by), sort=False)
    table = grouped.agg(
        n=("error_pct", "size"),
        mean_abs=("absolute", "mean"),
        median_abs=("absolute", "median"),
        signed_mean=("error_pct", "mean"),
        worst=("absolute", "max"),
    )
    return table.reset_index()


def headline(table: pd.DataFrame, how: str = "mean") -> dict[str, float]:
    """Mean (or median) absolute error in percent of each judged metric over the experiments, all requests pooled."""
    rows = pooled(usable(table))
    errors = {metric: rows.loc[rows["metric"] == metric, "error_pct"].abs().agg(how) for metric in HEADLINE}
    # NaN of a metric that no experiment has: it is unequal to itself.
    return {metric: float(value) for metric, value in errors.items() if value == value}


def described(table: pd.DataFrame) -> str:
    """The whole report of a comparison."""
    rows = usable(table)
    failed = table[~table["status"].isin((OK, "not measured"))].drop_duplicates("exp_id")
    parts = [f"{rows['exp_id'].nunique()} experiments compared, {len(failed)} could not run"]
    parts += [f"  {row.exp_id}: {row.model} on {row.gpu}: {row.status}" for row in failed.itertuples()]
    parts += _remarks(table)
    if len(rows):
        means = rows[rows["metric"].isin(HEADLINE)]
        parts += ["", "by metric, all requests of an experiment pooled (errors in %)"]
        parts.append(_text(summarise(pooled(rows), ["metric"])))
        parts += ["", "by metric, stage by stage", _text(summarise(by_stage(rows), ["metric"]))]
        for column in ("hardware", "model", "load"):
            parts += ["", f"means by {column}, stage by stage", _text(_wide(by_stage(means), column))]
        parts += ["", f"the {WORST} worst, stage by stage", _text(_worst(by_stage(means)))]
        pairs = rows[["calibration", "provenance"]].drop_duplicates().itertuples(index=False, name=None)
        sets = ", ".join(f"{name} ({how})" for name, how in pairs)
        parts += ["", f"calibration: {sets}"]
    return "\n".join(parts)


def _remarks(table: pd.DataFrame) -> list[str]:
    """Experiments without measurements, and what was not heeded, each with its number of experiments."""
    by_experiment = table.groupby("exp_id", sort=False)
    none = [str(key) for key, part in by_experiment if (part["status"] == "not measured").all()]
    notes = Counter(
        # Once for an experiment, which has its notes in each of its rows.
        note
        for _, part in by_experiment
        for note in dict.fromkeys("; ".join(part["notes"]).split("; "))
        if note
    )
    counted_notes = ", ".join(f"{note} ({counted(count, 'experiment')})" for note, count in notes.most_common())
    return [f"without measurements: {', '.join(none)}"] * bool(none) + [f"notes: {counted_notes}"] * bool(counted_notes)


def load_band(concurrency: float) -> str:
    """The band of LOADS that a mean number of requests in the system lies in."""
    low, high = next(band for band in LOADS if concurrency < band[1])
    return f"{low:.0f} to {high:.0f}" if high != float("inf") else f"{low:.0f} and more"


def _wide(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """One line per value of ``column``: mean absolute and signed error of each metric."""
    table = summarise(rows, [column, "metric"])
    lines = []
    for value in dict.fromkeys(table[column]):
        line = {column: value}
        for entry in table[table[column] == value].itertuples():
            name = entry.metric.removesuffix("_mean")
            line |= {"n": entry.n, f"{name}": entry.mean_abs, f"{name} signed": entry.signed_mean}
        lines.append(line)
    import pandas as pd

    return pd.DataFrame(lines)


def _worst(rows: pd.DataFrame) -> pd.DataFrame:
    # A stable sort, so that equal errors come in the order of the experiments.
    order = rows["error_pct"].abs().sort_values(ascending=False, kind="stable").index[:WORST]
    columns = ["exp_id", "model", "hardware", "stage_index", "metric", "predicted", "measured", "error_pct"]
    return rows.loc[order, columns]


def _text(table: pd.DataFrame) -> str:
    return table.to_string(index=False, float_format=lambda value: f"{value:.1f}", na_rep="-")
