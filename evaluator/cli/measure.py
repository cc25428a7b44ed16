"""``evaluator measure``: the operators on this machine's device, timed into a table."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evaluator.cli.options import QuietOption, check_output
from evaluator.cli.output import tell
from evaluator.cli.signals import interrupted
from evaluator.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evaluator.measure import Device, MeasuredRows
    from evaluator.measure.points import MeasuredCall
    from evaluator.measure.run import MeasureOutcome

# Narrow and wide matrices, and experts: between them the shapes cover what a fit interpolates in.
MODELS = ("qwen3-0.6b", "llama-3.1-8b", "qwen3-30b-a3b")
SPLITS = (1, 2, 4, 8)


TableFileOption = Annotated[
    Path, typer.Option(metavar="FILE.csv", help="Write the table here, a row as soon as it is known.")
]
DescribeOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.yaml",
        help="Write a description of this device here, from what was measured. Without this: beside the table, "
        "where the catalog does not know the device.",
    ),
]
OperatorsOption = Annotated[
    str | None, typer.Option(metavar="CLASS,...", help="Operator classes to measure; without this: all.")
]
ModelOption = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help=f"A model whose shapes to take; may be repeated. Default: {' '.join(MODELS)}.",
    ),
]
TpOption = Annotated[
    list[int] | None,
    typer.Option("--tp", min=1, metavar="N", help="The shapes of one of N devices; may be repeated. Default: 1 2 4 8."),
]
DtypeOption = Annotated[
    str | None, typer.Option(metavar="DTYPE", help="bf16, fp16 or fp32; without this bf16, on a CPU fp32.")
]
SecondsOption = Annotated[float, typer.Option(min=0.0, metavar="S", help="Stop after so long; --resume goes on.")]
QuickOption = Annotated[bool, typer.Option("--quick", help="Fewer sizes, shorter samples.")]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Go on with the table: measure what it lacks.")]


def measure(
    out: TableFileOption,
    describe: DescribeOption = None,
    operators: OperatorsOption = None,
    models: ModelOption = None,
    splits: TpOption = None,
    dtype: DtypeOption = None,
    seconds: SecondsOption = 600.0,
    quick: QuickOption = False,
    resume: ResumeOption = False,
    quiet: QuietOption = False,
) -> None:
    """Time the operators of models on this machine's device, for calibrate."""
    check_output(out, "--out", (".csv",))
    check_output(describe, "--describe", (".yaml",))
    from evaluator.catalog import load_model
    from evaluator.measure import FULL, QUICK, MeasuredRows, find_device, points

    loaded = [load_model(name) for name in models or MODELS]
    device = find_device()
    # In an order of which any beginning has some of each class (`points`): --seconds ends it anywhere.
    calls = points(
        operators.split(",") if operators else None, loaded, splits or SPLITS, _dtype(dtype, device), device.count,
        QUICK if quick else FULL,
    )  # fmt: skip
    # A device that the catalog does not know needs a description to be calibrated for; it goes beside the table.
    describe = describe or (None if device.catalog_name else out.with_suffix(".yaml"))
    # Made before anything is timed: a table that cannot be written is told now, and not after ten minutes.
    rows = MeasuredRows(out, device.name, describe.stem if describe else str(device.catalog_name), resume=resume)
    if describe is not None and describe.exists() and not resume:
        raise InputError(f"{describe}: is there already, and would be overwritten; name another one by --describe")
    # Told before the description is made, which needs rows of several classes and may refuse.
    _report(_run(calls, device, rows, seconds, quick, quiet), rows, device)
    if describe is not None:
        from evaluator.measure import description

        describe.write_text(description(rows.frame(), device, describe.stem))
    if not quiet:
        hardware = describe or device.catalog_name
        typer.echo(f"wrote {out}" + (f" and {describe}" if describe else ""), err=True)
        typer.echo(f"next: evaluator calibrate {out} --hardware {hardware} --out {out.stem}-jax.yaml", err=True)


def _dtype(chosen: str | None, device: Device) -> str:
    """The dtype to measure in: CPUs widen 16 bits, one number after another."""
    from evaluator.measure import DTYPES

    if chosen is not None and chosen not in DTYPES:
        raise InputError(f"--dtype {chosen}: cannot be measured; allowed: {', '.join(DTYPES)}")
    return chosen or ("fp32" if device.platform == "cpu" else "bf16")


def _run(
    calls: Sequence[MeasuredCall], device: Device, rows: MeasuredRows, seconds: float, quick: bool, quiet: bool
) -> MeasureOutcome:
    from evaluator.measure import HASTY, THOROUGH
    from evaluator.measure import measure as run_measure
    from evaluator.progress import Progress

    what_is_kept, effort = "what was measured is kept, go on with --resume", HASTY if quick else THOROUGH
    with interrupted(what_is_kept), nullcontext() if quiet else Progress(len(calls), "calls") as progress:
        return run_measure(calls, device, rows, effort=effort, seconds=seconds, progress=progress)


def _report(outcome: MeasureOutcome, rows: MeasuredRows, device: Device) -> None:
    """What was measured of which class, on what, and what was not, and why. InputError where nothing was."""
    left = ", ".join(f"{count:,} {why}" for why, count in outcome.left.items())
    if not outcome.measured + outcome.kept:
        raise InputError(f"{rows.path}: nothing was measured ({left})")
    frame = rows.frame()
    # Told with the table: a fit cannot be better than the repetitions agree.
    noise = (frame["spread_s"] / frame["time_s"]).median()
    tell(
        f"{device.name} ({device.platform}, {device.count} of it), JAX {device.jax_version}",
        device=device,
        measured=frame,
        host=outcome.host,
        left=outcome.left,
    )
    for name, part in frame.groupby("op_class"):
        shortest, longest = part["time_s"].min() * 1e6, part["time_s"].max() * 1e6
        typer.echo(f"{name:20s} {len(part):6,} rows   {shortest:,.3g} to {longest:,.3g} us")
    typer.echo(f"spread of repetitions: {noise:.1%} in the median")
    host = outcome.host
    typer.echo(
        f"host: {host.program_s * 1e6:.3g} us to start a program, {host.round_trip_s * 1e6:.3g} us until an empty one "
        f"is back; taken off: {host.link_s * 1e6:.2g} us a call for what ties it to the next"
    )
    if left:
        typer.echo(f"left out: {left}")
