"""``evaluator calibrate``: measurement tables in, a calibration set out."""

from __future__ import annotations

from contextlib import nullcontext
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from evaluator.cli.options import PICTURE_SUFFIXES, QuietOption, SetOption, check_output, read_scenario
from evaluator.cli.output import tell
from evaluator.cli.signals import interrupted
from evaluator.errors import InputError

if TYPE_CHECKING:
    from evaluator.calibrate.serving.own import OwnFit
    from evaluator.calibrate.serving.own_runs import OwnRun

SET_SUFFIXES = (".yaml",)
MODELS_OWN = "checkpoint/bf16/bf16"


class Form(Enum):
    """What a set has: see ``evaluator.catalog.calibration``."""

    roofline = "roofline"
    polynomial = "polynomial"
    table = "table"


class Beyond(Enum):
    """What becomes of configurations that leave the range of the measured iterations."""

    refuse = "refuse"
    extend = "extend"


DataArgument = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="DATA...",
        help="Tables of measurements (.csv or .parquet): our columns, or those of aiconfigurator, AITER, Vidur, "
        "InferSim, Splitwise or LLMServingSim. All of them are fitted together. With --serving: results of load "
        "generators, as `evaluator compare` takes them.",
    ),
]
HardwareOption = Annotated[
    str | None, typer.Option(help="The hardware that the set is for: a name of the catalog, or FILE.yaml.")
]
SetFileOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write the set here (.yaml); its name is the file's.")
]
TransferOption = Annotated[
    bool,
    typer.Option(
        "--transfer",
        help="Of a device that nobody measured: the median of the sets of other devices, and "
        "how far such a set was off for each of them. Needs no DATA.",
    ),
]
ErrorsOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="With --transfer and DATA: measure these errors, and write them here (.yaml)."),
]
FormOption = Annotated[
    Form,
    typer.Option(
        help="What is fitted: efficiencies of a roofline, for any model; or whole iterations of the models in "
        "DATA, by a polynomial or a table to interpolate in."
    ),
]
EngineOption = Annotated[
    str | None,
    typer.Option(help="Whose kernels to fit, where DATA have those of several serving engines: vllm, trtllm, ..."),
]
StartOption = Annotated[
    str, typer.Option(help="The set to start from, and to stay at where the data are silent (roofline).")
]
AxesOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME,...",
        help="What the time depends on (table): prefill_tokens, past_tokens, decodes, context; default: all that vary.",
    ),
]
BeyondOption = Annotated[
    Beyond,
    typer.Option(help="Configurations beyond the measured iterations: refused, or extrapolated (not roofline)."),
]
PrecisionOption = Annotated[
    str,
    typer.Option(metavar="W/A/KV", help="dtypes of the measured weights, activations and KV cache (not roofline)."),
]
ErrorPlotOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Draw predicted against measured (.png, .pdf or .svg).")
]
ServingOption = Annotated[
    bool,
    typer.Option(
        "--serving",
        help="DATA are runs of your own server under several loads: fit what serving adds to the set of its "
        "scenario (docs/own-server.md).",
    ),
]
ScenarioOption = Annotated[
    str | None, typer.Option(metavar="SCENARIO", help="With --serving: the deployment that served the runs.")
]


def calibrate(
    data: DataArgument = None,
    hardware: HardwareOption = None,
    out: SetFileOption = None,
    transfer: TransferOption = False,
    errors: ErrorsOption = None,
    form: FormOption = Form.roofline,
    engine: EngineOption = None,
    start: StartOption = "datasheet",
    axes: AxesOption = None,
    beyond: BeyondOption = Beyond.refuse,
    precision: PrecisionOption = MODELS_OWN,
    plot: ErrorPlotOption = None,
    serving: ServingOption = False,
    scenario: ScenarioOption = None,
    changes: SetOption = None,
    quiet: QuietOption = False,
) -> None:
    """Fit efficiencies, whole iterations or a server to measurements and report the error on what was kept aside."""
    check_output(out, "--out", SET_SUFFIXES)
    check_output(plot, "--plot", PICTURE_SUFFIXES)
    check_output(errors, "--errors", SET_SUFFIXES)
    if serving:
        # By the names on the command line, with None where an option has its default: what was not given cannot be told
        # from its default otherwise.
        others = {"--hardware": hardware, "--transfer": transfer or None, "--errors": errors, "--axes": axes,
                  "--engine": engine, "--plot": plot, "--form": None if form is Form.roofline else form,
                  "--start": None if start == "datasheet" else start,
                  "--beyond": None if beyond is Beyond.refuse else beyond,
                  "--precision": None if precision == MODELS_OWN else precision}  # fmt: skip
        _serving(data or [], scenario, changes or [], out, others, quiet)
        return
    # `--serving` came later: the other fits take tables that name their hardware and models themselves.
    if scenario is not None or changes:
        raise InputError("--scenario and --set say which server was measured: they go with --serving")
    if transfer:
        _transfer(data or [], hardware, engine, out, errors, quiet)
        return
    if not data or hardware is None or out is None or (errors is not None and form is Form.roofline):
        raise InputError("calibrate takes DATA... --hardware NAME --out FILE.yaml; --errors with --transfer or --form")
    # An option that would do nothing is refused: who gives it expects that it changes the fit.
    if axes is not None and form is not Form.table:
        raise InputError("--axes: only a table has them (--form table)")
    if form is Form.roofline:
        fitted, text, report = _efficiencies(data, hardware, out.stem, engine, start)
    else:
        chosen = None if axes is None else tuple(name.strip() for name in axes.split(","))
        fitted, text, report = _iterations(data, hardware, out.stem, form, chosen, beyond, _dtypes(precision))
    _deliver(fitted, text, report, out, plot, errors, quiet)


def _serving(
    data: list[Path], name: str | None, changes: list[str], out: Path | None, others: dict[str, Any], quiet: bool
) -> None:
    """Fits the server of a scenario to runs of load generators, and writes its set.

    ``others``: the options of other fits, which are refused; None where one was not given.
    """
    if given := [option for option, value in others.items() if value is not None]:
        raise InputError(f"{given[0]}: is not of --serving, where the scenario says what was measured; leave it out")
    if out is None:
        raise InputError("calibrate --serving takes RESULT... --scenario SCENARIO --out FILE.yaml; --out is missing")
    for file in data:
        if not file.is_file():
            raise InputError(f"there is no file {file}")
    from evaluator.calibrate.serving.own import summary
    from evaluator.calibrate.serving.own_report import described
    from evaluator.calibrate.serving.own_runs import own_runs
    from evaluator.experiments.generators import read_all

    # All runs are read and checked before the first simulation, of which a fit takes hundreds.
    runs = own_runs(read_all(data), None if name is None else read_scenario(name, changes, quiet), changes)
    fitted = _fit_server(runs, out, quiet)
    tell(
        lambda: described(fitted),
        parameters=list(fitted.parameters),
        figures=list(fitted.figures),
        errors=summary(fitted.figures),
        expected=dict(fitted.own.errors),
        not_told_apart=fitted.alike,
        told_directions=fitted.told_directions,
        residuals_over_noise=fitted.spread,
        base=fitted.base.name,
    )
    if not quiet:
        typer.echo(f"wrote {out}; use it as deployment.calibration: {out}", err=True)


def _fit_server(runs: list[OwnRun], out: Path, quiet: bool) -> OwnFit:
    """The fit to the runs of one server, whose set is written to ``out``."""
    from tempfile import TemporaryDirectory

    from evaluator.calibrate.serving.own import expected_simulations, fit_own
    from evaluator.calibrate.serving.own_report import set_text
    from evaluator.progress import Progress
    from evaluator.replica import design
    from evaluator.results.files import replacing
    from evaluator.scenario import with_engine_defaults

    what_is_kept = "no set was written, as a fit is of all of its runs; the same command begins anew"
    total = expected_simulations(len(runs), len({run.load for run in runs}))
    with (
        interrupted(what_is_kept),
        TemporaryDirectory() as folder,
        nullcontext() if quiet else Progress(total, "simulations") as progress,
    ):
        # Of the first run: `own_runs` has refused runs of different deployments.
        deployment, workload = with_engine_defaults(runs[0].scenario.deployment), runs[0].scenario.workload
        built = design(deployment, 0, workload.sampling.asked, adapters=workload.adapters)
        fitted = fit_own(runs, built, out.stem, Path(folder), progress)
        if progress is not None:
            # The total was a guess; the bar ends at what it took.
            progress.expect(fitted.simulations)
        text = set_text(fitted)
        # Written beside its place and moved: a set that was there stays whole if this is interrupted.
        with replacing(out) as path:
            path.write_text(text, encoding="utf-8")
    return fitted


def _transfer(
    data: list[Path], hardware: str | None, engine: str | None, out: Path | None, errors: Path | None, quiet: bool
) -> None:
    """Writes the transferred set of ``hardware``, or the table of errors of such sets."""
    # One of two jobs: a set for one device, or the table of errors of such sets, which needs measurements of many.
    if (out is None) == (errors is None) or (out is None) != (hardware is None) or bool(data) != (errors is not None):
        raise InputError(
            "calibrate --transfer takes --hardware NAME --out FILE.yaml, or DATA... --errors FILE.yaml to measure how "
            "far such sets are off"
        )
    from evaluator.calibrate import transfer
    from evaluator.catalog import load_hardware
    from evaluator.catalog.engines import DEFAULT_ENGINE, serving_engine

    chosen, target = serving_engine(engine or DEFAULT_ENGINE).name, out or errors
    device = None if hardware is None else load_hardware(hardware)
    if device is None:
        table = transfer.class_errors(data, chosen)
        classes, text = table["classes"], transfer.written(table)
    else:
        classes = transfer.known_errors(chosen)
        transferred = transfer.transferred_set(device, target.stem if target else device.name, chosen, classes)
        text = transfer.set_text(transferred)
    if target is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    tell(lambda: transfer.described(classes, chosen, device), errors=classes)
    if not quiet:
        typer.echo(f"wrote {target}", err=True)


def _deliver(
    fitted: Any, text: str, report: str, out: Path, plot: Path | None, errors: Path | None, quiet: bool
) -> None:
    """Writes a set, its picture and its table of errors, and tells of them."""
    # The set first: it is what minutes of fitting were for, and stays where the table of errors then fails.
    out.write_text(text, encoding="utf-8")
    tell(report, errors=lambda: _errors(fitted.judged), left_out=fitted.left_out)
    if plot is not None:
        from evaluator.calibrate.picture import draw

        draw(fitted, plot)
    if not quiet:
        # Always told, nothing or not: rows that no figure was fitted to are the first thing to ask about an error.
        used = ", ".join(f"{count:,} {why}" for why, count in fitted.left_out.items())
        typer.echo(f"left out: {used or 'nothing'}", err=True)
        typer.echo(f"wrote {out}" + (f" and {plot}" if plot is not None else ""), err=True)
    if errors is not None:
        from evaluator.compare.expected import errors_of_iterations, write_errors

        files = ", ".join(table.name for table in fitted.tables)
        write_errors(errors, errors_of_iterations(fitted.judged, files, fitted.hardware))


def _errors(judged: Any) -> dict[str, Any]:
    from evaluator.calibrate.errors import error_summary
    from evaluator.calibrate.whole import errors_by_load

    return errors_by_load(judged) if "phase" in judged else error_summary(judged)


def _efficiencies(data: list[Path], hardware: str, name: str, engine: str | None, start: str) -> tuple[Any, str, str]:
    """The fit, its document, and what is to be told of it."""
    from evaluator.catalog import load_calibration, load_hardware

    form = load_calibration(start, load_hardware(hardware).name, foreign=True).form
    if form != "roofline":  # before minutes of reading
        raise InputError(f"--start {start}: has the form {form} and has no efficiencies to start from; use datasheet")

    from evaluator.calibrate import calibrate as run_calibrate
    from evaluator.calibrate.document import document, written
    from evaluator.calibrate.errors import error_table

    fitted = run_calibrate(data, hardware, name, engine=engine, start=start)
    report = error_table(fitted.judged)
    errors = {
        parameter.name: error for parameter, error in zip(fitted.result.parameters, fitted.result.errors, strict=True)
    }
    # NaN: the data move the residual nowhere along this parameter.
    if silent := [name for name, error in errors.items() if error != error]:
        report += f"\nnot identified by these data, held at {start}: {', '.join(silent)}"
    if unsure := [name for name, error in errors.items() if error == float("inf")]:
        report += f"\nfitted to too few rows for a standard error: {', '.join(unsure)}"
    return fitted, written(document(fitted)), report


def _iterations(
    data: list[Path], hardware: str, name: str, form: Form, axes: tuple[str, ...] | None, beyond: Beyond,
    precision: tuple[str, str, str],
) -> tuple[Any, str, str]:  # fmt: skip
    """The same of a fit to whole iterations."""
    from evaluator.calibrate.whole import document, errors_table, fit_iterations, written

    fitted = fit_iterations(data, hardware, name, form.value, axes=axes, beyond=beyond.value, precision=precision)
    return fitted, written(document(fitted)), errors_table(fitted.judged)


def _dtypes(text: str) -> tuple[str, str, str]:
    from evaluator.catalog.model import DTypeName

    # Only weights may be ``checkpoint``: activations and KV have no published dtype.
    allowed, parts = get_args(DTypeName), text.split("/")
    if len(parts) != 3 or any(part not in allowed for part in parts[1:]) or parts[0] not in ("checkpoint", *allowed):
        raise InputError(
            f"--precision {text}: expected three dtypes such as fp8/bf16/fp8; allowed: {', '.join(allowed)}"
        )
    return parts[0], parts[1], parts[2]
