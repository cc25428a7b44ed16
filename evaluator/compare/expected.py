"""Comparisons with measured serving runs -> the table of the model's errors, with the rows that it is made of."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from evaluator.accuracy.basis import design_basis, unmeasured_features
from evaluator.accuracy.cases import (
    CASES,
    ITERATIONS,
    LOAD_NAMES,
    SHARE,
    STATISTICS,
    Errors,
    band,
    bands_by_load,
    command_of,
    plain,
    read_errors,
)
from evaluator.compare.report import by_stage, usable
from evaluator.errors import InputError
from evaluator.replica import design
from evaluator.scenario import with_engine_defaults
from evaluator.yaml import load_yaml

if TYPE_CHECKING:
    import pandas as pd

    from evaluator.scenario import Deployment

ROW = ("case", "source", "run", "stage", "model", "hardware", "tensor_parallel", "concurrency")
"""What a row of errors is of; then follow those of STATISTICS, measured / predicted - 1."""
SERVER = ("source", "model", "hardware")
"""Whose rows are off alike: a campaign's loads and layouts of one model on one device."""


def errors_of(case: str, table: pd.DataFrame, source: str) -> pd.DataFrame:
    """The errors of a comparison, one row per run and stage: the columns ROW and STATISTICS.

    ``table`` is as of ``compare_experiments``, for a case of ``same_model`` with the column ``model_seen``; ``source``
    names its files. InputError where no row is left.
    """
    # Stage by stage, because pooled rows would count the same requests again.
    rows = by_stage(usable(table))
    rows = rows[rows["metric"].isin(STATISTICS)]
    if CASES[case].same_model:
        rows = rows[rows["model_seen"].astype(bool)]
    if rows.empty:
        raise InputError(f"--errors: no run was both predicted and measured that tells of the case {case}")
    rows = rows.assign(
        case=case,
        source=source,
        run=rows["exp_id"],
        stage=rows["stage_index"],
        # Relative to the prediction: that is what a user has, and around which the band is laid.
        error=rows["measured"] / rows["predicted"] - 1.0,
    )
    rows["concurrency"] = rows["concurrency"].map(plain)
    # A row per run and stage, the statistics beside one another, as the .csv keeps them.
    wide = rows.pivot_table(index=list(ROW), columns="metric", values="error", sort=False).reset_index()
    return wide.reindex(columns=[*ROW, *STATISTICS]).round(5)


def case_of(deployment: Deployment) -> str:
    """The case of which a measured run of this deployment tells. InputError where it is none, or more than that."""
    if deployment.pools:
        raise InputError("--errors: the cases are of one pool; of several none tells")
    # The longest prompt only sizes memory; it does not matter to what the prediction rests on.
    built = design(with_engine_defaults(deployment), 0)
    basis = design_basis(built)
    # Cases of other campaigns are of their closed batches and iterations: a run under open load is no such.
    unmeasured = basis.unmeasured or (basis.measured is None and unmeasured_features(built))
    if unmeasured:
        raise InputError(f"--errors: no case is of servers with {', '.join(unmeasured)}")
    if len(basis.cases) > 1:
        raise InputError(
            f"--errors: nothing can have been measured on a device of the scenario ({deployment.hardware})"
        )
    if basis.cases[0] not in CASES:
        raise InputError(f"--errors: no case is of {basis.text(Errors({}, {}))}")
    return basis.cases[0]


def errors_of_requests(
    case: str, statistics: pd.DataFrame, source: str, run: str, deployment: Deployment
) -> pd.DataFrame:
    """The same of one run that was compared request by request, from ``compare_requests``' table of statistics."""
    import pandas as pd

    errors = dict.fromkeys(STATISTICS, float("nan"))
    for row in statistics.itertuples():
        name = f"{_MEASURED_AS.get(row.metric, row.metric)}_{row.statistic}"
        if name in errors:
            errors[name] = row.measured_s / row.predicted_s - 1.0
    described = (case, source, run, 0, str(deployment.model), str(deployment.hardware), deployment.tensor_parallel)
    row = dict(zip(ROW, (*described, float("nan")), strict=True))
    return pd.DataFrame([row | errors]).round(5)


# Measured requests tell no gaps, and what the table calls ITL is computed as a TPOT is (``cases.STATISTICS``).
_MEASURED_AS = {"tpot": "itl"}


def errors_of_iterations(judged: pd.DataFrame, source: str, hardware: str) -> pd.DataFrame:
    """The same of fits to whole iterations, on shapes kept aside: prefills as TTFT, decodes as ITL.

    ``judged`` is that of ``calibrate.whole``, a row per measured iteration, of which those of one shape go together; a
    run is one fit. InputError where nothing was kept aside.
    """
    aside = judged[~judged["fitted"].astype(bool)]
    if aside.empty:
        raise InputError("--errors: no iteration was kept aside that could tell of errors")
    # Rows of one shape have one prediction: their mean is the measurement, not each repetition.
    rows = aside.groupby(["label", "phase", "predicted_s"], sort=False)["time_s"].mean().reset_index()
    error = rows["time_s"] / rows["predicted_s"] - 1.0
    named = rows["label"].str.extract(r"^(?P<model>\S+) TP (?P<tensor_parallel>\d+)")
    rows = rows.assign(case=ITERATIONS, source=f"{source} ({hardware})", stage=0, hardware=hardware, **named)
    rows["run"] = hardware + " " + rows["label"].str.removesuffix(" prefill").str.removesuffix(" decode")
    # Other phases are NaN in it: each statistic has the iterations that it is about.
    rows["ttft_mean"] = error.where(rows["phase"] == "prefill")
    rows["itl_mean"] = error.where(rows["phase"] == "decode")
    return rows.reindex(columns=[*ROW, *STATISTICS]).round(5)


def summary(rows: pd.DataFrame, derived: str) -> dict[str, Any]:
    """What the table says of one case, from its rows of errors."""
    case = str(rows["case"].iloc[0])
    document: dict[str, Any] = {
        "derived": derived,
        "command": command_of(case),
        "source": ", ".join(dict.fromkeys(rows["source"])),
        "runs": int(rows["run"].nunique()),
        "devices": sorted(set(rows["hardware"])),
    }
    servers, by_server = list(zip(*(rows[name] for name in SERVER), strict=True)), CASES[case].by_server
    for statistic in STATISTICS:
        errors = rows[statistic].dropna()
        # Of one value alone nothing can be said about the next one (``band``), nor of one server about another.
        measured = {server for server, has in zip(servers, rows[statistic].notna(), strict=True) if has}
        if len(errors) > 1 and (len(measured) > 1 or not by_server):
            document[statistic] = {
                "error": plain(band(rows[statistic].to_numpy(), servers=servers if by_server else None)),
                "median": plain(errors.abs().median()),
                "bias": plain(errors.median()),
                "values": len(errors),
            }
            at_loads = bands_by_load(
                rows[statistic].to_numpy(), rows["concurrency"].to_numpy(float), servers, by_server
            )
            by_load = {name: plain(error) for name, error in zip(LOAD_NAMES, at_loads, strict=True) if error > 0.0}
            document[statistic] |= by_load
    return document


def write_errors(path: Path, rows: pd.DataFrame) -> None:
    """Put the errors of one case from one source into the table at ``path``, beside those of others.

    The rows are kept in a file of the same name that ends in .csv.
    """
    import pandas as pd

    case, source, listed = rows["case"].iloc[0], rows["source"].iloc[0], path.with_suffix(".csv")
    content, before = _table(path), read_rows(listed) if listed.is_file() else rows.iloc[:0]
    # Deriving a case again from the same source replaces its rows; those of other sources stay.
    others = before[(before["case"] != case) | (before["source"] != source)]
    every = pd.concat([part for part in (others, rows) if len(part)], ignore_index=True)
    # In the order of CASES, so that a table that is derived anew differs by its numbers alone.
    order = {name: number for number, name in enumerate(CASES)}
    every = every.sort_values("case", key=lambda names: names.map(order), kind="stable")
    path.parent.mkdir(parents=True, exist_ok=True)
    every.to_csv(listed, index=False)
    cases = dict(content)
    cases[case] = summary(every[every["case"] == case], datetime.now(UTC).date().isoformat())
    path.write_text(text_of({name: cases[name] for name in CASES if name in cases}), encoding="utf-8")


def _table(path: Path) -> dict[str, Any]:
    """The cases of a table as they are in its file; none where there is no file. InputError where it is no table."""
    if not path.is_file():
        return {}
    content = load_yaml(path)
    # A file that is no table of errors is refused before it is written over.
    read_errors(content, path.name)
    return dict(content["cases"])


def read_rows(path: Path) -> pd.DataFrame:
    """The rows that a table was made of. InputError where the file has others."""
    import pandas as pd

    try:
        # As texts: runs are numbered in some sources, and layouts may be "any".
        rows = pd.read_csv(path, dtype={"run": str, "tensor_parallel": str})
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: no rows of errors: {error}; derive the table anew under another name") from None
    missing = [name for name in (*ROW, *STATISTICS) if name not in rows]
    if missing:
        raise InputError(f"{path}: no column {missing[0]}; derive the table anew under another name")
    return rows


def text_of(cases: dict[str, Any]) -> str:
    """The table as YAML."""
    head = (
        "# Expected errors of predictions by what they rest on, written by `evaluator compare --errors`: no figure is\n"
        "# made by hand. `error`: this share of the measured values lies within prediction x (1 +- error); `median`:\n"
        "# of the absolute errors; `bias`: the median of measured / predicted - 1; "
        f"`{LOAD_NAMES[0]}` and so on: the\n"
        "# error with so many requests at a time on a replica. Row by row: the .csv beside.\n"
    )
    content = {"share": SHARE, "cases": cases}
    return head + yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=118, allow_unicode=True)
