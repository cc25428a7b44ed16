"""``evaluator report``: the result of a sweep or a search as one page for a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evaluator.cli.options import QuietOption, check_output


def report(
    result: Annotated[
        Path, typer.Argument(metavar="RESULT.nc", help="What `evaluator sweep --out` or `optimize --out` wrote.")
    ],
    out: Annotated[Path, typer.Option(metavar="FILE.html", help="Write the page here.")],
    quiet: QuietOption = False,
) -> None:
    """Write a result as one page that opens without a network."""
    from evaluator.report.page import SUFFIXES, write_page
    from evaluator.report.page.page import check_plotly, check_result
    from evaluator.results import read

    check_output(out, "--out", SUFFIXES)
    # Before the result is read: a large one takes longer than to say what is to be installed.
    check_plotly("--out")
    dataset = read(result)
    check_result(dataset, result)
    write_page(dataset, out)
    if not quiet:
        size = out.stat().st_size / 1e6
        typer.echo(f"wrote {out}: {dataset.sizes['config']:,} designs, {size:.1f} MB; open it in a browser", err=True)
