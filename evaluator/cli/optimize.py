"""``evaluator optimize``: what each design of a scenario can serve, or what it takes to serve a rate."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated

import typer

from evaluator.cli.notes import ranked, say_notes, say_written
from evaluator.cli.options import (
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

    from evaluator.scenario import Scenario

# As ``report.search.RANKS``, said again since that module brings NumPy and xarray into ``--help``; a test holds the
# two together.
RANKS = ("goodput", "gpu", "usd", "joule")


def optimize(
    scenario: ScenarioArgument,
    out: OutOption = None,
    plot: PlotOption = None,
    changes: SetOption = None,
    rate: Annotated[
        float | None,
        typer.Option(metavar="RPS", help="Find the fewest replicas that serve this rate, instead of the highest rate."),
    ] = None,
    bracket: Annotated[float, typer.Option(metavar="PART", help="Relative width of the goodput's bracket.")] = 0.02,
    rank_by: Annotated[
        str, typer.Option(metavar="|".join(RANKS), help="Goodput, or goodput per GPU, per dollar; tokens per joule.")
    ] = "goodput",
    top: TopOption = 10,
    simulator: SimulatorOption = "iteration",
    quiet: QuietOption = False,
) -> None:
    """Find the highest rate at which each design meets the objectives: table, dataset, picture."""
    check_simulator(simulator)
    if rank_by not in RANKS:
        raise InputError(f"--rank-by {rank_by}: is no rule; allowed: {', '.join(RANKS)}")
    check_dataset(out)
    check_plot(plot)
    dataset = _run(read_scenario(scenario, changes, quiet), rate, bracket, out, simulator, rank_by, quiet)
    if not quiet:
        say_notes(dataset)
    from evaluator import report

    if top:
        width = get_terminal_size((100, 24)).columns
        tell(lambda: report.search_table(dataset, top, rank_by, width), **ranked(dataset, top))
    if plot is not None:
        report.plot_search(dataset, plot)
    if not quiet:
        say_written([path for path in (out, plot) if path is not None])


def _run(
    scenario: Scenario, rate: float | None, bracket: float, out: Path | None, simulator: str, rank_by: str, quiet: bool
) -> xarray.Dataset:
    from evaluator.progress import Progress
    from evaluator.search import optimize as search

    requests = scenario.workload.requests * len(scenario.workload.seeds)
    # A bracket that is not closed is no goodput: only whole searches are written.
    what_is_kept = "nothing is kept of a search that is not over"
    with interrupted(what_is_kept), nullcontext() if quiet else Progress(0, "trials", requests) as progress:
        return search(
            scenario, rate_rps=rate, bracket=bracket, out=out, simulator=simulator, progress=progress, rank_by=rank_by
        )
