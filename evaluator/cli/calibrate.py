"""``evaluator calibrate``: measurement tables in, a calibration set out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evaluator.cli.options import QuietOption, check_output

SET_SUFFIXES = (".yaml",)
PICTURE_SUFFIXES = (".png", ".pdf", ".svg")


def calibrate(
    data: Annotated[
        list[Path],
        typer.Argument(
            metavar="DATA...",
            help="Tables of measurements (.csv or .parquet): our columns, or those of aiconfigurator, Vidur, InferSim, "
            "Splitwise or LLMServingSim. All of them are fitted together.",
        ),
    ],
    hardware: Annotated[
        str, typer.Option(help="The hardware that the set is for: a name of the catalog, or FILE.yaml.")
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Write the set here (.yaml); its name is the file's.")],
    start: Annotated[
        str, typer.Option(help="The set to start from, and to stay at where the data are silent.")
    ] = "datasheet",
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw predicted against measured (.png, .pdf or .svg).")
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Fit efficiencies to measurements and report the error on rows kept aside."""
    check_output(out, "--out", SET_SUFFIXES)
    check_output(plot, "--plot", PICTURE_SUFFIXES)
    from evaluator.catalog import load_calibration, load_hardware

    load_calibration(start, load_hardware(hardware).name)  # before minutes of reading

    from evaluator.calibrate import calibrate as run_calibrate
    from evaluator.calibrate.document import document, written
    from evaluator.calibrate.errors import error_table

    fitted = run_calibrate(data, hardware, out.stem, start=start)
    out.write_text(written(document(fitted)))
    typer.echo(error_table(fitted.judged))
    silent = [
        each.name for each, known in zip(fitted.result.parameters, fitted.result.identified, strict=True) if not known
    ]
    if silent:
        typer.echo(f"not identified by these data, held at {start}: {', '.join(silent)}")
    if plot is not None:
        from evaluator.calibrate.picture import draw

        draw(fitted, plot)
    if not quiet:
        used = ", ".join(f"{count:,} {why}" for why, count in fitted.left_out.items())
        typer.echo(f"left out: {used or 'nothing'}", err=True)
        typer.echo(f"wrote {out}" + (f" and {plot}" if plot is not None else ""), err=True)
