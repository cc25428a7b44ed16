"""A comparison as one page for a browser: the picture, the errors by slice, and every figure; no scripts."""

from __future__ import annotations

import base64
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from evaluator.errors import InputError
from evaluator.report.page.sections import escaped
from evaluator.report.page.sections import table as html_table
from evaluator.report.picture.comparison import plot_comparison
from evaluator.results.files import replacing
from evaluator.units import in_four_digits

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = (".html", ".htm")
MOST_ROWS = 5000
"""Figures on a page; a browser is slow with more of them, and the CSV has all."""
_COLUMNS = {"exp_id": "run", "model": "model", "hardware": "device", "engine": "engine", "tensor_parallel": "TP",
            "workload": "load", "concurrency": "in the system", "metric": "metric", "unit": "unit",
            "predicted": "predicted", "measured": "measured", "error_pct": "error %",
            "expected_error_pct": "expected ± %", "calibration": "calibration", "status": "status",
            "notes": "notes"}  # fmt: skip
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>Predicted against measured – Evaluator</title>
<style>
{style}
figure img {{ max-width: 100%; height: auto; }}
pre {{ overflow-x: auto; }}
</style>
</head>
<body>
<header><div class="bar"><h1>Predicted against measured</h1></div></header>
<main>
<section><h2>Errors</h2><figure><img alt="{alt}" src="data:image/svg+xml;base64,{picture}"></figure>
<pre>{report}</pre></section>
<section><h2>Every figure</h2>{cut}<div class="scroll">{rows}</div></section>
</main>
</body>
</html>
"""


def write_comparison(rows: pd.DataFrame, report: str, path: str | Path) -> Path:
    """Write a comparison, with its ``report`` as the command prints it, as one HTML file that needs no network.

    Errors: InputError for another suffix, where nothing was compared, and where the file cannot be written.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise InputError(f"{path}: a page is written as {' or '.join(SUFFIXES)}, not {path.suffix or 'nothing'}")
    with TemporaryDirectory() as folder:
        # As SVG, which is sharp at any size, and within an `img`, in which no script of an SVG runs.
        picture = plot_comparison(rows, Path(folder) / "errors.svg").read_bytes()
    columns = [name for name in _COLUMNS if name in rows]
    shown = rows[columns].head(MOST_ROWS)
    # NaN: what a run does not have.
    cells = [
        ["" if value != value else in_four_digits(value) for value in row] for row in shown.itertuples(index=False)
    ]
    cut = f"<p class='note'>The first {MOST_ROWS:,} of {len(rows):,}; the CSV has all.</p>"
    text = _PAGE.format(
        style=(files("evaluator.report.page") / "files" / "style.css").read_text(encoding="utf-8"),
        alt="Signed errors of each metric over the load, and how many figures were within their expected error",
        picture=base64.b64encode(picture).decode("ascii"),
        report=escaped(report),
        cut=cut if len(rows) > MOST_ROWS else "",
        rows=html_table([_COLUMNS[name] for name in columns], cells),
    )
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")
    return path
