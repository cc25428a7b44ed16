"""``evaluator sweep``: every configuration of a scenario's grid."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evaluator.cli.notes import ranked, say_notes, say_written, waiting_for
from evaluator.cli.options import (
    SIMULATORS,
    OutOption,
    PlotOption,
    QuietOption,
    ScenarioArgument,
    SetOption,
    SimulatorOption,
    TopOption,
    check_dataset,
    check_plot,
    check_simulator,
    read_scenario,
)
from evaluator.cli.output import tell
from evaluator.cli.signals import interrupted
from evaluator.errors import InputError

if TYPE_CHECKING:
    import xarray

    from evaluator.execution.forecast import Forecast
    from evaluator.progress import Progress
    from evaluator.results.shards import Shard, ShardState
    from evaluator.scenario import Scenario

KEPT = "finished chunks are kept, the same command goes on with them"


ResumeOption = Annotated[
    bool | None,
    typer.Option(
        "--resume/--fresh",
        help="Go on with what an interrupted run of the same sweep to the same --out finished (the default), or "
        "start anew.",
    ),
]
ShardOption = Annotated[
    str | None,
    typer.Option(metavar="I/N", help="Run part I of N into --out NAME.zarr; `evaluator gather` joins the parts."),
]
ClusterOption = Annotated[
    str | None,
    typer.Option(metavar="dask|ADDRESS", help="Run on a Dask cluster: a new one here, or that of a scheduler."),
]
SensitivityOption = Annotated[
    bool,
    typer.Option(
        "--sensitivity",
        help="Add what 1 % more of memory bandwidth, FLOP/s, link bandwidth and latency, and of the fixed times of "
        "kernels and host changes in each metric, in %. Takes 9 times the runs, 13 on several devices.",
    ),
]
BySeedOption = Annotated[
    bool, typer.Option("--by-seed", help="Keep what each seed says in the dataset, beside the means over them.")
]
DryRunOption = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Only say how much there is to run, in all or in the --shard: designs, time, memory (estimates).",
    ),
]


def sweep(
    scenario: ScenarioArgument,
    out: OutOption = None,
    plot: PlotOption = None,
    changes: SetOption = None,
    top: TopOption = 10,
    resume: ResumeOption = None,
    shard: ShardOption = None,
    cluster: ClusterOption = None,
    simulator: SimulatorOption = "auto",
    sensitivity: SensitivityOption = False,
    by_seed: BySeedOption = False,
    dry_run: DryRunOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run all configurations of a scenario: table, dataset, picture."""
    check_simulator(simulator)
    check_dataset(out)
    check_plot(plot)
    if resume and out is None:
        raise InputError("--resume needs --out: the finished chunks lie beside it")
    part = check_shard(shard, out, plot)
    loaded = read_scenario(scenario, changes, quiet)
    # After all checks of what the run would be given, so that a dry run refuses what the run refuses.
    if dry_run:
        with waiting_for("examining designs", quiet):
            foretold = _foretold(loaded, part, simulator, sensitivity, by_seed)
        tell(str(foretold), forecast=foretold)
        return
    # What the command of another shard must say, too; --fresh is not among it, for each shard says it for itself.
    options_of_all = {"simulator": simulator, "sensitivity": sensitivity, "by_seed": by_seed, "cluster": cluster}
    # --resume is the default: only a sweep that says --fresh starts anew, and one that says neither goes on.
    options = {"fresh": resume is False, **options_of_all}
    if part is not None and out is not None:
        command = _command(scenario, changes, options_of_all, out)
        _run_shard(loaded, part, out, command, options, quiet)
        return
    dataset = _run(loaded, out, options, quiet)
    if top:
        _tables(dataset, top)
    written = [*([] if out is None else [out]), *([] if plot is None else _pictures(dataset, plot))]
    if not quiet:
        say_notes(dataset)
        say_written(written)
    # After the files are written: the dataset has the reason of every row, also where none can run.
    _check_any_runs(dataset, scenario)


def _check_any_runs(dataset: xarray.Dataset, scenario: str) -> None:
    reasons = dataset["status"].values
    if not (reasons == "ok").any():
        first = reasons[0] if len(set(reasons.tolist())) == 1 else f"the first is {reasons[0]}"
        raise InputError(f"{scenario}: none of {reasons.size:,} configurations can run: {first}")


def _foretold(scenario: Scenario, part: Shard | None, simulator: str, sensitivity: bool, by_seed: bool) -> Forecast:
    from evaluator.execution.forecast import forecast
    from evaluator.scenario import size

    rows = None if part is None else part.rows(size(scenario))
    return forecast(scenario, simulator, sensitivity, by_seed, rows)


def _tables(dataset: xarray.Dataset, top: int) -> None:
    from evaluator.report import ranked_table

    width = get_terminal_size((100, 24)).columns
    tell(lambda: ranked_table(dataset, top, width=width), **ranked(dataset, top))
    if _has_elasticities(dataset):
        from evaluator.report.table.sensitivity import ROWS, elasticity_table

        # Text alone: with ``--json`` the elasticities are variables of the designs that the first table tells.
        tell(lambda: f"\n{elasticity_table(dataset, min(top, ROWS), width)}")


def _pictures(dataset: xarray.Dataset, path: Path) -> list[Path]:
    from evaluator import report

    report.plot(dataset, path)
    if not _has_elasticities(dataset) or not report.rows_with_elasticities(dataset).size:
        return [path]
    return [path, report.plot_sensitivity(dataset, path.with_stem(f"{path.stem}-sensitivity"))]


def _has_elasticities(dataset: xarray.Dataset) -> bool:
    return "input" in dataset.coords and bool((dataset["status"].values == "ok").any())


def _run(scenario: Scenario, out: Path | None, options: dict[str, Any], quiet: bool) -> xarray.Dataset:
    from evaluator.run import sweep as run_sweep
    from evaluator.scenario import size

    what_is_kept = KEPT if out else "nothing is kept without --out"
    with _reported(scenario, size(scenario), what_is_kept, quiet) as progress:
        return run_sweep(scenario, out=out, progress=progress, **options)


def _run_shard(scenario: Scenario, shard: Shard, out: Path, command: str, options: dict[str, Any], quiet: bool) -> None:
    from evaluator.run import sweep_shard
    from evaluator.scenario import size

    # Progress counts the rows of the shard, though the whole grid is read to know them.
    rows = shard.rows(size(scenario))
    with _reported(scenario, len(rows), KEPT, quiet) as progress:
        state = sweep_shard(scenario, shard, out, progress=progress, command=command, **options)
    if not quiet:
        typer.echo(_done(shard, out, len(rows), state), err=True)


def _done(shard: Shard, out: Path, rows: int, state: ShardState) -> str:
    """What became of a shard, and what is to be done next."""
    from evaluator.results.shards import ShardState

    if state is ShardState.GATHERED:
        return f"{out}: is there already and whole, with shard {shard}; --fresh computes it anew"
    done = f"wrote {rows:,} designs" if state is ShardState.COMPUTED else "was written before; --fresh computes it anew"
    return f"shard {shard} of {out}: {done}. When all are there: evaluator gather {out}"


@contextmanager
def _reported(scenario: Scenario, total: int, what_is_kept: str, quiet: bool) -> Iterator[Progress | None]:
    """Progress of a sweep on stderr; Ctrl-C says ``what_is_kept`` of it."""
    from evaluator.progress import Progress

    requests = scenario.workload.requests * len(scenario.workload.seeds)
    with interrupted(what_is_kept), nullcontext() if quiet else Progress(total, requests_per_unit=requests) as progress:
        yield progress


def _command(scenario: str, changes: Sequence[str] | None, asked: Mapping[str, Any], out: Path) -> str:
    """What runs one shard of a sweep, with the place where its number belongs."""
    from evaluator.results.shards import PLACE

    words = ["evaluator", "sweep", scenario, *(word for change in changes or () for word in ("--set", change))]
    for name, value in asked.items():
        if value is True:
            words.append(f"--{name.replace('_', '-')}")
        # ``auto`` is the default and goes without saying; the option ``cluster`` cannot have this value.
        elif value and value != SIMULATORS[0]:
            words += [f"--{name}", str(value)]
    return f"{shlex.join(words)} --shard {PLACE} {shlex.join(['--out', str(out)])}"


def check_shard(text: str | None, out: Path | None, plot: Path | None) -> Shard | None:
    """The shard that is asked for; InputError where it is none, or where its rows have no place to go."""
    if text is None:
        return None
    from evaluator.results.shards import Shard

    shard = Shard.parse(text)
    # netCDF files have one writer; stores of Zarr take rows from several at once.
    if out is None or out.suffix != ".zarr":
        raise InputError("--shard needs --out NAME.zarr: every shard writes its rows of one Zarr store")
    if plot is not None:
        raise InputError("--plot draws whole sweeps; gather the shards, then evaluator report")
    return shard
