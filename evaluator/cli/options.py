"""Arguments that several commands share, and checks that must come before hours of work."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Annotated

import typer

from evaluator.cli.notes import waiting_for
from evaluator.errors import InputError, InputWarning

if TYPE_CHECKING:
    from evaluator.scenario import Scenario

ScenarioArgument = Annotated[
    str, typer.Argument(metavar="SCENARIO", help="A scenario file, or the name of one of the catalog.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change the scenario, such as deployment.tensor_parallel=8 or 'workload.seeds=[0, 1]'. May be repeated. "
        "'sweep={KEY: VALUES}' is merged with the axes of the file; sweep.KEY=null takes an axis away, sweep=null all.",
    ),
]
OutOption = Annotated[Path | None, typer.Option(metavar="FILE.nc", help="Write the dataset here (netCDF-4, or .zarr).")]
PlotOption = Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw the result (png, svg or pdf).")]
TopOption = Annotated[int, typer.Option(min=0, metavar="N", help="Rows of the ranked table; 0: no table.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no notes on stderr.")]
WeightsOption = Annotated[str, typer.Option(metavar="DTYPE", help="dtype of the weights.")]
AttentionWeightsOption = Annotated[
    str | None, typer.Option(metavar="DTYPE", help="dtype of attention's weights, where it is another one.")
]
KvOption = Annotated[str, typer.Option(metavar="DTYPE", help="dtype of the KV cache.")]

SimulatorOption = Annotated[
    str,
    typer.Option(
        metavar="auto|iteration|request|token",
        help="iteration: vectorised, and token by token only what it lacks. auto: the same, but token by token where "
        "that takes less than compiling would. token: everything token by token. "
        "request: BestServe's approximation of whole requests.",
    ),
]

# As ``plan.simulators.SIMULATORS``, which costs an import of NumPy that ``--help`` does without.
SIMULATORS = ("auto", "iteration", "request", "token")
PICTURE_SUFFIXES = (".png", ".svg", ".pdf")


def read_scenario(name: str, overrides: Sequence[str] | None, quiet: bool = False) -> Scenario:
    """The scenario of a file, or of the catalog where ``name`` looks like no file."""
    from evaluator.catalog.store import find
    from evaluator.scenario import load_scenario

    path = Path(name)
    # A file in the current directory goes before a scenario of the catalog; a name with a slash or a suffix is always
    # a file.
    if not path.exists() and path.name == name and not path.suffix:
        path = find("scenarios", name)
    if not path.is_file():
        raise InputError(f"there is no scenario file {name}; `evaluator catalog scenarios` lists the ones by name")
    # Recorded and said in our own form: Python's would show a line of this package's source.
    with waiting_for(f"reading {name}", quiet), warnings.catch_warnings(record=True) as recorded:
        warnings.simplefilter("always", InputWarning)
        try:
            return load_scenario(path, tuple(overrides or ()))
        finally:  # a warning may be the reason of an error
            for warning in () if quiet else recorded:
                typer.echo(f"note: {warning.message}", err=True)


def check_simulator(simulator: str) -> None:
    """InputError where there is no simulator of that name."""
    if simulator not in SIMULATORS:
        raise InputError(f"--simulator {simulator}: is not a simulator; allowed: {', '.join(SIMULATORS)}")


def check_output(path: Path | None, option: str, suffixes: Sequence[str]) -> None:
    """InputError where ``path`` has another suffix, or its folder can neither be made nor written."""
    if path is None:
        return
    # The suffix is the form that is written, so that an unknown one cannot be guessed; it is refused before
    # hours of work.
    if path.suffix not in suffixes:
        raise InputError(f"{option} {path}: the name must end in {' or '.join(suffixes)}")
    check_folder(path, option)
    if path.is_dir():
        raise InputError(f"{option} {path}: is a folder")


def check_folder(path: Path, option: str) -> None:
    """Make the folder of ``path``; InputError where it cannot be made or written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{option} {path}: the folder cannot be made ({error.strerror})") from None
    try:  # permissions do not tell of all: in /proc nobody can make a file
        with TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise InputError(f"{option} {path}: the folder cannot be written ({error.strerror})") from None


def check_dataset(path: Path | None) -> None:
    """InputError where a dataset could not be written to ``path``."""
    if path is not None:
        from evaluator.results.files import check_output as check_suffix

        check_suffix(path)
        check_folder(path, "--out")


def check_plot(path: Path | None) -> None:
    """InputError where no picture could be drawn to ``path``."""
    from importlib.util import find_spec

    check_output(path, "--plot", PICTURE_SUFFIXES)
    # Looked for and not imported: that takes a second, which belongs after the sweep.
    if path is not None and find_spec("matplotlib") is None:
        raise InputError("--plot needs matplotlib: pip install matplotlib")
