"""``evaluator sweep``: every configuration of a scenario's grid."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evaluator.cli.failures import Interrupted
from evaluator.cli.options import (
    EngineOption,
    QuietOption,
    ScenarioArgument,
    SetOption,
    check_engine,
    check_folder,
    check_output,
    read_scenario,
)
from evaluator.errors import InputError

if TYPE_CHECKING:
    import xarray

    from evaluator.scenario.scenario import Scenario

PICTURE_SUFFIXES = (".png", ".svg", ".pdf")


def sweep(
    scenario: ScenarioArgument,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.nc", help="Write the dataset here (netCDF-4, or .zarr).")
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw the result (png, svg or pdf).")] = None,
    changes: SetOption = None,
    top: Annotated[int, typer.Option(min=0, metavar="N", help="Rows of the ranked table; 0: no table.")] = 10,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run of the same --out.")] = False,
    engine: EngineOption = "iteration",
    sensitivity: Annotated[
        bool,
        typer.Option(
            "--sensitivity",
            help="Add what 1 % more of memory bandwidth, FLOP/s, link bandwidth and latency, and of the fixed times of "
            "kernels and host changes in each metric, in %. Takes 9 times the runs, 13 on several devices.",
        ),
    ] = False,
    by_seed: Annotated[
        bool, typer.Option("--by-seed", help="Keep what each seed says in the dataset, beside the means over them.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Only say how much there is to run: designs, requests, time, memory (estimates)."
        ),
    ] = False,
    quiet: QuietOption = False,
) -> None:
    """Run all configurations of a scenario: table, dataset, picture."""
    check_engine(engine)
    check_dataset(out)
    check_plot(plot)
    if resume and out is None:
        raise InputError("--resume needs --out: the finished chunks lie beside it")
    loaded = read_scenario(scenario, changes)
    if dry_run:
        from evaluator.execution.forecast import forecast

        typer.echo(str(forecast(loaded, engine, sensitivity)))
        return
    dataset = _run(loaded, out, quiet, resume=resume, engine=engine, sensitivity=sensitivity, by_seed=by_seed)
    if top:
        _tables(dataset, top)
    written = [*([] if out is None else [out]), *([] if plot is None else _pictures(dataset, plot))]
    if not quiet:
        for note in ("engine_note", "stage_note"):
            if note in dataset.attrs:
                typer.echo(dataset.attrs[note], err=True)
        names = " and ".join(map(str, written))
        typer.echo(f"wrote {names}" if written else "nothing saved; --out keeps the dataset", err=True)
    reasons = dataset["status"].values
    if not (reasons == "ok").any():
        first = reasons[0] if len(set(reasons.tolist())) == 1 else f"the first is {reasons[0]}"
        raise InputError(f"{scenario}: none of {reasons.size:,} configurations can run: {first}")


def _tables(dataset: xarray.Dataset, top: int) -> None:
    from evaluator.report import ranked_table

    width = get_terminal_size((100, 24)).columns
    typer.echo(ranked_table(dataset, top, width=width))
    if _has_elasticities(dataset):
        from evaluator.report.table.sensitivity import ROWS, elasticity_table

        typer.echo(f"\n{elasticity_table(dataset, min(top, ROWS), width)}")


def _pictures(dataset: xarray.Dataset, path: Path) -> list[Path]:
    from evaluator import report

    report.plot(dataset, path)
    if not _has_elasticities(dataset) or not report.rows_with_elasticities(dataset).size:
        return [path]
    return [path, report.plot_sensitivity(dataset, path.with_stem(f"{path.stem}-sensitivity"))]


def _has_elasticities(dataset: xarray.Dataset) -> bool:
    return "input" in dataset.coords and bool((dataset["status"].values == "ok").any())


def _run(scenario: Scenario, out: Path | None, quiet: bool, **asked: Any) -> xarray.Dataset:
    from evaluator.progress import Progress
    from evaluator.run import sweep as run_sweep
    from evaluator.scenario.grid import size

    total = size(scenario)
    requests = scenario.workload.requests * len(scenario.workload.seeds)
    try:
        with nullcontext() if quiet else Progress(total, requests_per_unit=requests) as progress:
            return run_sweep(scenario, out=out, progress=progress, **asked)
    except KeyboardInterrupt:
        kept = "finished chunks are kept, go on with --resume" if out else "nothing is kept without --out"
        raise Interrupted(kept) from None


def check_dataset(path: Path | None) -> None:
    """InputError where a dataset could not be written to ``path``."""
    if path is not None:
        from evaluator.results.files import check_output as check_suffix

        check_suffix(path)
        check_folder(path, "--out")


def check_plot(path: Path | None) -> None:
    """InputError where no picture could be drawn to ``path``."""
    from importlib.util import find_spec

    if check_output(path, "--plot", PICTURE_SUFFIXES) is not None and find_spec("matplotlib") is None:
        raise InputError("--plot needs matplotlib: pip install matplotlib")
