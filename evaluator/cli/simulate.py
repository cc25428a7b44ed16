"""``evaluator simulate``: one configuration, every request."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evaluator.cli.options import (
    PICTURE_SUFFIXES,
    QuietOption,
    ScenarioArgument,
    SetOption,
    SimulatorOption,
    check_output,
    check_simulator,
    read_scenario,
)
from evaluator.cli.output import tell
from evaluator.errors import InputError
from evaluator.units import in_four_digits, parse_quantity

if TYPE_CHECKING:
    import xarray

    from evaluator.run.single import Simulation

REQUESTS_SUFFIXES = (".csv", ".parquet")
WINDOWS_SUFFIXES = (".csv", ".nc")


SelectOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="Choose one configuration of a sweep, such as tp=4,hardware=l40s. A name is the end of an axis' key "
        "(tensor_parallel, or tp for short). May be repeated.",
    ),
]
RequestsOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write one row per request here (.csv or .parquet).")
]
IterationsOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write one row per engine iteration here (.csv or .parquet), computed token by token: who takes part "
        "with how many tokens, who is preempted, what is cached, KV units in use.",
    ),
]
TraceOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE.json", help="Write a trace for Perfetto here, computed token by token."),
]
OverTimeOption = Annotated[
    str | None,
    typer.Option(
        "--over-time",
        metavar="LENGTH",
        help="Tell the run in windows of this length, such as 10min, too: arrivals, completions, requests in the "
        "system, latencies.",
    ),
]
WindowsOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write the windows here instead (.csv, or .nc).")
]
WindowsPlotOption = Annotated[
    Path | None, typer.Option(metavar="FILE.png", help="Draw the windows (png, svg or pdf); needs --over-time.")
]


def simulate(
    scenario: ScenarioArgument,
    select: SelectOption = None,
    requests: RequestsOption = None,
    iterations: IterationsOption = None,
    trace: TraceOption = None,
    every: OverTimeOption = None,
    windows: WindowsOption = None,
    plot: WindowsPlotOption = None,
    changes: SetOption = None,
    simulator: SimulatorOption = "auto",
    quiet: QuietOption = False,
) -> None:
    """Run one configuration of a scenario and report its requests."""
    from evaluator.results.selection import parse_selection
    from evaluator.results.selection import select as select_one
    from evaluator.scenario import expand

    check_simulator(simulator)
    check_output(requests, "--requests", REQUESTS_SUFFIXES)
    check_output(iterations, "--iterations", REQUESTS_SUFFIXES)
    check_output(trace, "--trace", (".json",))
    check_output(windows, "--windows", WINDOWS_SUFFIXES)
    check_output(plot, "--plot", PICTURE_SUFFIXES)
    if every is None and (windows is not None or plot is not None):
        raise InputError("--windows and --plot are of a run over time: say the length of a window, --over-time 10min")
    width = None if every is None else _window_s(every)  # before anything runs
    loaded = read_scenario(scenario, changes)
    wanted = parse_selection(select or ())
    select_one(expand(loaded).axes, wanted)  # before JAX is loaded: a choice that is none should be told at once

    from evaluator.progress import Progress
    from evaluator.run import simulate as run_simulate

    rows = loaded.workload.requests * len(loaded.workload.seeds)
    with nullcontext() if quiet else Progress(rows, "requests") as progress:
        result = run_simulate(
            loaded, select=wanted, progress=progress, simulator=simulator, trace=trace,
            iterations=iterations is not None,
        )  # fmt: skip
    tell(lambda: _described(result.summary), configuration=result.summary)
    if width is not None:
        _tell_windows(result, width, loaded.name, windows, plot, quiet)
    _write(result, requests, iterations, trace, quiet)


def _window_s(every: str) -> float:
    """The length of a window: a number alone is in seconds, as in a scenario; from a shell it comes as a text."""
    bare = every.replace(".", "", 1).isdecimal()
    width = parse_quantity(float(every) if bare else every, "s", "--over-time")
    if width <= 0:
        raise InputError(f"--over-time {every}: a window must be longer than 0 s")
    return width


def _write(result: Simulation, requests: Path | None, iterations: Path | None, trace: Path | None, quiet: bool) -> None:
    """The files that are asked for; the trace was written while the run went on."""
    if trace is not None and not quiet:
        typer.echo(f"wrote {trace}; open it in https://ui.perfetto.dev or chrome://tracing", err=True)
    if iterations is not None and result.iterations is not None:
        from evaluator.results.iterations import write_iterations

        write_iterations(result.iterations, iterations)
        if not quiet:
            typer.echo(f"wrote {len(result.iterations):,} iterations to {iterations}", err=True)
    if requests is not None:
        from evaluator.results import write_requests

        write_requests(result.requests, requests)
        if not quiet:
            typer.echo(f"wrote {len(result.requests):,} requests to {requests}", err=True)


def _tell_windows(
    result: Simulation, width: float, title: str, path: Path | None, plot: Path | None, quiet: bool
) -> None:
    """The run over time: as a table, or as the files that are asked for."""
    ds = result.over_time(width)
    # A column for each quantile, as tables of designs have them.
    wide = ds.drop_dims([dim for dim in ("quantile", "class", "pool") if dim in ds.dims]).to_dataframe()
    for values, name in (pair for variable in ds.data_vars for pair in _by_label(ds[variable])):
        for number, level in enumerate(ds["quantile"].values if "quantile" in values.dims else ()):
            wide[f"{name[:-2]}_p{100 * level:g}_s"] = values.isel(quantile=number).values
        if "quantile" not in values.dims:
            wide[name] = values.values
    wide = wide.reset_index().rename(columns={"time": "begin_s"})
    text = "\n" + wide.to_string(index=False, float_format=lambda value: f"{value:.4g}", na_rep="-")
    tell(None if path is not None else text, windows=wide)
    if path is not None and path.suffix == ".csv":
        from evaluator.results import write_requests

        write_requests(wide, path)
    elif path is not None:
        from evaluator.results import write

        write(ds, path)
    written = [path] if path is not None else []
    if plot is not None:
        from evaluator.report.picture.over_time import plot_over_time

        written.append(plot_over_time(ds, plot, title))
    for file in () if quiet else written:
        typer.echo(f"wrote {file}", err=True)


def _by_label(values: xarray.DataArray) -> list[tuple[xarray.DataArray, str]]:
    """A variable over time and its name, or of each class or pool with that in its name: ``interactive_ttft_s``."""
    name = str(values.name)
    kind = next((kind for kind in ("class", "pool") if kind in values.dims), None)
    if kind is None:
        return [(values, name)]
    labels = values[kind].values.tolist()
    return [(values.sel({kind: label}), f"{label}_{name.removeprefix(f'{kind}_')}") for label in labels]


def _described(summary: xarray.Dataset) -> str:
    """One line per variable of a dataset of one configuration: value or quantiles with standard errors, unit.

    What is not known (a price, an error from one seed) is left out.
    """
    row = summary.isel(config=0)
    coordinates = [name for name in row.coords if name not in ("config", *row.dims)]
    lines = [(str(name), in_four_digits(row[name].values.item())) for name in coordinates]
    for name in map(str, row.data_vars):
        # Each stands behind the value that it is the error of.
        if name.endswith("_stderr"):
            continue
        values, errors = row[name], row.get(f"{name}_stderr")
        label = next((dim for dim in ("stage", "class", "pool", "objective") if dim in values.dims), None)
        if label is None:
            lines.append((name, _shown(values, errors)))
            continue
        for index, entry in enumerate(values[label].values.tolist()):
            its_errors = None if errors is None else errors.isel({label: index})
            lines.append((f"{name} {entry}", _shown(values.isel({label: index}), its_errors)))
    # A price that is not known, or an error from one seed.
    shown = [(name, text) for name, text in lines if not text.removeprefix("p50 ").startswith("nan")]
    width = max(len(name) for name, _ in shown)
    return "\n".join(f"{name.ljust(width)}  {text}" for name, text in shown)


def _shown(values: xarray.DataArray, errors: xarray.DataArray | None) -> str:
    """A value, or its quantiles, with their errors and unit."""
    unit = values.attrs.get("units", "1")
    after = "" if unit == "1" else f" {unit}"
    if values.ndim == 0:
        return _with_error(values.values.item(), None if errors is None else errors.values.item(), after)
    error = [None] * values.size if errors is None else errors.values.tolist()
    quantiles = zip(values["quantile"].values.tolist(), values.values.tolist(), error, strict=True)
    return "   ".join(f"p{100 * q:g} {_with_error(value, e, after)}" for q, value, e in quantiles)


def _with_error(value: object, error: float | None, unit: str) -> str:
    # NaN: one seed has no spread to tell an error from.
    has_error = error is not None and error == error
    return f"{in_four_digits(value)}{f' ± {error:.2g}' if has_error else ''}{unit}"
