"""``evaluator validate``: the vectorised engine against the reference, on a user's own scenario."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evaluator.cli.failures import GATE
from evaluator.cli.options import QuietOption, ScenarioArgument, SetOption, check_output, read_scenario
from evaluator.cli.output import fail, tell

if TYPE_CHECKING:
    from evaluator.validation import Validation


def validate(
    scenario: ScenarioArgument,
    sample: Annotated[int, typer.Option(min=1, metavar="N", help="How many configurations to compare.")] = 32,
    tolerance: Annotated[float, typer.Option(min=0.0, help="Largest relative difference that passes.")] = 1e-9,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.csv", help="Write a row per configuration and metric here.")
    ] = None,
    changes: SetOption = None,
    quiet: QuietOption = False,
) -> None:
    """Run configurations on both engines and show how far they are apart; exit code 3 above the tolerance."""
    check_output(out, "--out", (".csv",))
    loaded = read_scenario(scenario, changes)

    from evaluator.progress import Progress
    from evaluator.scenario import size
    from evaluator.validation import validate as run_validation

    with nullcontext() if quiet else Progress(min(sample, size(loaded))) as progress:
        result = run_validation(loaded, sample=sample, tolerance=tolerance, progress=progress)
    tell(
        lambda: _described(result, tolerance),
        metrics=lambda: result.summary().reset_index(),
        compared=result.compared,
        beyond=result.beyond,
        infeasible=result.infeasible,
        apart=result.apart,
        worst=result.worst,
    )
    if out is not None:
        result.table.to_csv(out, index=False)
        if not quiet:
            typer.echo(f"wrote {out}", err=True)
    if result.apart:
        fail("gate", f"{result.apart:,} configurations differ by more than {tolerance:g}")
        raise typer.Exit(GATE)


def _described(result: Validation, tolerance: float) -> str:
    """Largest and typical difference by metric, and the verdict."""
    from evaluator.validation import HISTOGRAM

    summary = result.summary()
    width = max(map(len, summary.index))
    lines = [f"{'metric'.ljust(width)}   largest   typical"]
    for name, largest, typical in summary.itertuples():
        note = "   (kept in bins of 1.6 %: not held to the tolerance)" if name == HISTOGRAM else ""
        lines.append(f"{name.ljust(width)}  {largest:8.1e}  {typical:8.1e}{note}")
    beyond = f"; {result.beyond:,} more only the reference can run" if result.beyond else ""
    infeasible = f"; {result.infeasible:,} infeasible" if result.infeasible else ""
    lines.append(f"\n{result.compared:,} of {result.able:,} configurations compared{beyond}{infeasible}")
    verdict = f"{result.apart:,} of them differ by more than" if result.apart else "all agree within"
    lines.append(f"{verdict} {tolerance:g}; the largest difference is {result.worst:.1e}")
    if result.apart:
        configuration, metric = result.farthest()
        lines[-1] += f", in {metric} of {configuration}"
    return "\n".join(lines)
