"""The commands, put together."""

from __future__ import annotations

from typing import Annotated

import typer

from evaluator.cli.calibrate import calibrate
from evaluator.cli.catalog import catalog
from evaluator.cli.compare import compare
from evaluator.cli.deploy import deploy
from evaluator.cli.estimate import estimate
from evaluator.cli.failures import Commands
from evaluator.cli.gather import gather
from evaluator.cli.measure import measure
from evaluator.cli.observe import observe
from evaluator.cli.optimize import optimize
from evaluator.cli.output import Command
from evaluator.cli.report import report
from evaluator.cli.simulate import simulate
from evaluator.cli.sweep import sweep
from evaluator.cli.validate import validate
from evaluator.version import __version__

app = typer.Typer(
    cls=Commands,
    # Installing a completion writes into the user's shell files, which no command of ours should offer to do.
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    # Plain text: Rich takes its time to import, and its boxes are unreadable in the logs of a cluster.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Which LLM serving design to build or buy: thousands of designs on real traffic, on a laptop.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"evaluator {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        # Eager: `evaluator --version` names no command, which is an error before other options are looked at.
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    pass


# In the order of use, which ``--help`` keeps: a first answer, sweeps, a purchase, single runs, calibration.
for _command in (
    estimate,
    sweep,
    gather,
    optimize,
    report,
    deploy,
    simulate,
    observe,
    measure,
    calibrate,
    compare,
    validate,
):
    app.command(cls=Command)(_command)
# Last, as it is the one group: its commands list what the others take.
app.add_typer(catalog, name="catalog")
