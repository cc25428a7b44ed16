"""``evaluator compare``: predictions against measured serving results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evaluator.cli.options import QuietOption, SetOption, check_output, read_scenario
from evaluator.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

GATE_FAILED = 3
TABLE_SUFFIXES = (".csv",)


def compare(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="SPECS.json ACTUALS.csv | REQUESTS.csv", help="Experiments and what was measured of "
                       "them; or, with --scenario, the requests of one run."),
    ],
    scenario: Annotated[
        str | None, typer.Option(metavar="SCENARIO", help="The deployment that served REQUESTS.csv.")
    ] = None,
    calibration: Annotated[
        str,
        typer.Option(metavar="NAME", help="A calibration set (with --fit: to start from); GPU in its name stands for "
                     "the GPU's own. auto: the best there is for each GPU."),
    ] = "auto",
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Save prediction, measurement and error, row by row (.csv).")
    ] = None,
    fail_above: Annotated[
        float | None,
        typer.Option(metavar="PCT", min=0.0, help="Leave with exit code 3 if the mean absolute error of the mean TTFT, "
                     "ITL, TPOT or E2E is larger, in percent."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Random arrivals per experiment.")] = 3,
    fit: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Fit calibration sets to the experiments, write them here, and compare "
                     "every experiment with a set that has not seen it."),
    ] = None,
    changes: SetOption = None,
    quiet: QuietOption = False,
) -> None:  # fmt: skip
    """Compare predictions with measured serving results: error by metric, model, GPU and load."""
    check_output(out, "--out", TABLE_SUFFIXES)
    if scenario is not None:
        if len(files) != 1 or fit is not None:
            raise InputError("with --scenario, compare takes one file of requests and no --fit")
        table, errors = _requests(files[0], scenario, calibration, changes)
    else:
        if len(files) != 2 or changes:
            raise InputError("compare takes SPECS.json ACTUALS.csv, or REQUESTS.csv --scenario SCENARIO [--set ...]")
        table, errors = _experiments(files[0], files[1], calibration, seeds, fit, quiet)
    if out is not None:
        from evaluator.dataset import write_requests

        write_requests(table, out)
        if not quiet:
            typer.echo(f"wrote {len(table):,} rows to {out}", err=True)
    _gate(errors, fail_above)


def _experiments(
    specs: Path, actuals: Path, calibration: str, seeds: int, fit: Path | None, quiet: bool
) -> tuple[pd.DataFrame, dict[str, float]]:
    from evaluator.compare import compare_experiments, described, headline, read_experiments

    experiments = read_experiments(specs, actuals)
    if not quiet:
        typer.echo(f"{len(experiments)} experiments, {seeds} seeds each", err=True)
    if fit is None:
        table = compare_experiments(experiments, calibration, range(seeds))
    else:
        table = _fitted(experiments, calibration, seeds, fit, quiet)
    typer.echo(described(table))
    return table, headline(table)


def _fitted(experiments: list, calibration: str, seeds: int, folder: Path, quiet: bool) -> pd.DataFrame:
    import pandas as pd

    from evaluator.compare.campaign import fit_all, told, write_all

    base = "datasheet" if calibration == "auto" else calibration
    sets = fit_all(experiments, base, range(seeds))
    for one, path in zip(sets, write_all(sets, folder), strict=True):
        typer.echo(told(one) + "\n")
        if not quiet:
            typer.echo(f"wrote {path}", err=True)
    aside = [one.unseen for one in sets if one.hardware != "any" and len(one.unseen)]
    typer.echo("Experiments kept aside:")
    return pd.concat(aside, ignore_index=True) if aside else sets[0].seen


def _requests(
    requests: Path, scenario: str, calibration: str, changes: list[str] | None
) -> tuple[pd.DataFrame, dict[str, float]]:
    from evaluator.compare import compare_requests

    named = [] if calibration == "auto" else [f"deployment.calibration={calibration}"]
    loaded = read_scenario(scenario, [*named, *(changes or ())])
    table, statistics = compare_requests(requests, loaded)
    set_ = loaded.deployment.calibration
    typer.echo(f"{len(table)} requests, calibration {set_}")
    typer.echo(statistics.to_string(index=False, float_format=lambda value: f"{value:.4g}"))
    means = statistics[statistics["statistic"] == "mean"]
    return table, {row.metric: abs(row.error_pct) for row in means.itertuples()}


def _gate(errors: dict[str, float], limit: float | None) -> None:
    """Leaves with exit code 3 where an error is above the limit, or where there was nothing to compare."""
    if limit is None:
        return
    above = {name: value for name, value in errors.items() if not value <= limit}
    if above or not errors:
        listed = ", ".join(f"{name} {value:.1f} %" for name, value in above.items()) or "nothing could be compared"
        typer.echo(f"above {limit:g} %: {listed}", err=True)
        raise typer.Exit(GATE_FAILED)
