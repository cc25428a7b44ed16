"""How many measured values are within the errors that are stated of them: by campaign, case and load.

Each value is judged twice: by the rows of the other models, as a model that nobody measured is, and by those of the
other campaigns alone, as what another author measured would be.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from evaluator.accuracy.basis import MEASURED_ELSEWHERE, design_basis, of_release
from evaluator.accuracy.cases import CASES, LOAD_NAMES, OTHER_RELEASES, SHARE, Errors, load_group, read_errors
from evaluator.compare.expected import SERVER, summary
from evaluator.replica import ReplicaSpec, build

COVERAGE = "Values within the errors stated of them, by the other models' rows and by other campaigns' alone, in %"
MEANS = ("ttft_mean", "itl_mean", "e2e_mean")
CAMPAIGNS = {"vllm_serving": "inference-sim", "mlenergy": "ML.ENERGY", "vllm_iterations": "aiconfigurator",
             "mlperf": "MLPerf"}  # fmt: skip
"""Who measured, by how the files begin; others are campaigns of their own."""


def told_by(spec: ReplicaSpec, release: str | None) -> str | None:
    """The case of which a server tells that no set was fitted to: what it had that theirs had not; else of another
    release, where they had all of it. None where it has what no case is of.

    Of several such features it tells of the last of MEASURED_ELSEWHERE alone: by which of them it is off nobody can
    say, and each has servers that have it alone.
    """
    built = build(spec)
    basis = of_release(design_basis(built), built, release)
    if basis.unmeasured:
        return None
    told = [case for case in (OTHER_RELEASES, *MEASURED_ELSEWHERE.values()) if case in basis.cases]
    return told[-1] if told else None


def table_of(rows: pd.DataFrame) -> dict[str, dict]:
    """The table of errors that these rows make, by case."""
    return {case: summary(part, "now") for case, part in rows.groupby("case", sort=False)}


def coverage(rows: pd.DataFrame) -> pd.DataFrame:
    """A line per campaign, case, load and statistic: values, servers, and of both ways to judge how many are inside
    and the median of what is stated, in %; of the first way also how many where each server has one vote."""
    rows = rows.assign(
        campaign=[_campaign(source) for source in rows["source"]],
        load=[LOAD_NAMES[load_group(at)] if np.isfinite(at) else "not known" for at in rows["concurrency"]],
        server=list(zip(*(rows[name] for name in SERVER), strict=True)),
    )
    judged = pd.concat(_judged(rows))
    grouped = judged.groupby(["campaign", "case", "load", "metric"], sort=False)
    table = pd.DataFrame(
        {
            "rows": grouped.size(),
            "servers": grouped["server"].nunique(),
            "inside_pct": 100.0 * grouped["inside"].mean(),
            # A band is said of one more server: submitters of one design are no independent values.
            "servers_inside_pct": 100.0 * grouped.apply(lambda of: of.groupby("server")["inside"].mean().mean()),
            "stated_pct": 100.0 * grouped["stated"].median(),
            "inside_by_others_pct": 100.0 * grouped["inside_by_others"].mean(),
            "stated_by_others_pct": 100.0 * grouped["stated_by_others"].median(),
        }
    )
    order = {"case": list(CASES), "load": [*LOAD_NAMES, "not known"], "metric": list(MEANS)}

    def place(names: pd.Index) -> pd.Index:
        return names.map(order[names.name].index) if names.name in order else names

    return table.sort_index(key=place).round(1)


def _judged(rows: pd.DataFrame) -> Iterator[pd.DataFrame]:
    every = table_of(rows)
    campaigns = rows["campaign"].unique()
    by_others = {name: _errors(table_of(rows[rows["campaign"] != name])) for name in campaigns}
    for (campaign, case, model), part in rows.groupby(["campaign", "case", "model"], sort=False):
        rest = rows[(rows["case"] == case) & (rows["model"] != model)]
        # Of the other cases nothing but floors is asked, which stay.
        by_models = _errors({name: of for name, of in every.items() if name != case} | table_of(rest))
        for metric in MEANS:
            known = part[part[metric].notna()]
            for errors, name in ((by_models, ""), (by_others[campaign], "_by_others")):
                stated = [errors.of((case,), metric, concurrency=_load(at)) for at in known["concurrency"]]
                known = known.assign(**{f"stated{name}": stated, f"inside{name}": known[metric].abs() <= stated})
            yield known.assign(metric=metric)


def _errors(table: dict[str, dict]) -> Errors:
    return read_errors({"share": SHARE, "cases": table}, "rows")


def _load(at: float) -> float | None:
    return at if np.isfinite(at) else None


def _campaign(source: str) -> str:
    return next((name for start, name in CAMPAIGNS.items() if source.startswith(start)), source.split(" ")[0])
