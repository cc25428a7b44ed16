"""The sheet that pictures are drawn on: size, headings, footnotes, legends, and the file in the end."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluator.errors import InputError
from evaluator.metrics.outcomes import OK
from evaluator.report.accuracy import expected_errors
from evaluator.report.labels import axis_title, text, title
from evaluator.report.picture.layout import Layout
from evaluator.report.picture.style import GREY, HEADING, SETTINGS, SMALL, TITLE
from evaluator.results.files import replacing

if TYPE_CHECKING:
    import xarray as xr

DPI = 150
SUFFIXES = (".png", ".pdf", ".svg")


def save(path: str | Path, draw: Callable[[], Any]) -> Path:
    """Write the figure that ``draw`` makes, in the style of all pictures; an old file is replaced when all is drawn.

    Errors: InputError for another suffix than SUFFIXES, where matplotlib is missing, and where the file cannot be
    written.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise InputError(f"{path}: unknown kind of picture {path.suffix!r}; use {', '.join(SUFFIXES)}")
    if find_spec("matplotlib") is None:
        raise InputError(f"{path}: pictures need matplotlib; install it with: pip install matplotlib")
    import matplotlib

    # A notebook's own style stays as it was.
    with matplotlib.rc_context(SETTINGS):
        figure = draw()
        with replacing(path) as part:
            figure.savefig(part, dpi=DPI, format=path.suffix[1:], facecolor="white")
    return path


def canvas(width: float, height: float) -> Any:
    """An empty figure, in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    # Not by pyplot, which keeps every figure alive and asks for a display.
    FigureCanvasAgg(figure)
    return figure


def headings(figure: Any, ds: xr.Dataset, subtitle: str, notes: Sequence[str]) -> None:
    """Title and subtitle above, notes below, at fixed distances from the edges in inches; legends are added after it.

    The sheet grows below by what the notes take beyond the lines for which every picture has room.
    """
    width, _ = figure.get_size_inches()
    lines = textwrap.wrap(".  ".join(notes), max(40, int(15.5 * (width - 0.5))))  # characters of 7.5 points per inch
    _grow_below(figure, NOTE_LINE * max(0, len(lines) - NOTE_LINES))
    left = title_lines(figure, ds.attrs.get("title", "sweep"), subtitle)
    bottom = 0.12 / figure.get_size_inches()[1]
    figure.text(left, bottom, "\n".join(lines), fontsize=SMALL, color=GREY, va="bottom")


NOTE_LINES, NOTE_LINE = 3, 0.13
"""Lines of notes for which every picture has room below its axes, and inches of one more."""


def _grow_below(figure: Any, inches: float) -> None:
    """A sheet that is taller at its foot; panels and headings stay as large and as far from its head as they were."""
    width, height = figure.get_size_inches()
    pars, tall = figure.subplotpars, height + inches
    figure.set_size_inches(width, tall)
    figure.subplots_adjust(bottom=(pars.bottom * height + inches) / tall, top=(pars.top * height + inches) / tall)
    for label in figure.texts:
        above = inches if label.get_position()[1] > 0.5 else 0.0  # notes stay at the foot
        label.set_y((label.get_position()[1] * height + above) / tall)


def title_lines(figure: Any, heading: str, subtitle: str) -> float:
    """Title and subtitle above a figure; where they begin, which notes below may begin at, too."""
    width, height = figure.get_size_inches()
    # In inches of the sheet: fractions would move the heading with the size of a figure.
    left = 0.25 / width
    figure.text(left, 1 - 0.30 / height, heading, fontsize=TITLE, fontweight="bold", va="center")
    figure.text(left, 1 - 0.58 / height, subtitle, fontsize=HEADING, color=GREY, va="center")
    return left


def footnotes(ds: xr.Dataset, layout: Layout) -> list[str]:
    """What a reader of any picture has to know: which designs are not shown, seeds, and the calibration set."""
    notes = [f"Shown: {'; '.join(layout.notes)}"] if layout.notes else []
    infeasible = int((ds["status"].values != OK).sum())
    if infeasible:
        notes.append(f"{infeasible:,} of {ds.sizes['config']:,} configurations are infeasible and absent")
    if ds["saturated"].values[layout.rows].any():
        notes.append("Hollow: saturated (the queue grows without bound)")
    seeds = ds.attrs.get("seeds", "").count(",") + 1
    notes.append(f"Mean over {seeds} seeds" if seeds > 1 else "One seed")
    return [*notes, *calibration(ds, layout.rows)]


def calibration(ds: xr.Dataset, rows: np.ndarray) -> list[str]:
    """The calibration set that was asked for, and how far off what is shown is expected to be."""
    notes = [f"Calibration: {ds.attrs.get('calibration', 'unknown')}"]
    # Two bases at the most, for which a caption has room, and those of servers that keep up: the range over all designs
    # told nothing.
    expected = "; ".join(expected_errors(ds, rows, most=2, grown=False))
    return [*notes, expected[0].upper() + expected[1:]] if expected else notes


def legend(figure: Any, groups: Sequence[tuple[str | None, Sequence[Any], Sequence[Any]]], right: float) -> None:
    """One legend per axis below each other, right of the panels; ``groups`` hold axis, levels and their handles.

    The sheet grows below by what they take beyond the room above its notes.
    """
    width, height = figure.get_size_inches()
    letters = int(((1 - right) * width - MARK) / LETTER)
    legends = [
        (name, [_wrapped(text(level), letters) for level in levels], handles)
        for name, levels, handles in groups
        if name is not None
    ]
    notes = [label.get_text().count("\n") + 1 for label in figure.texts if label.get_position()[1] < 0.5]
    room = height - LEGEND_TOP - NOTE_LINE * max(notes, default=0) - 0.12
    _grow_below(figure, max(0.0, sum(_inches(labels) for _, labels, _ in legends) - room))
    height = figure.get_size_inches()[1]
    top = 1 - LEGEND_TOP / height
    for name, labels, handles in legends:
        figure.legend(
            handles,
            labels,
            title=title(name),
            title_fontproperties={"weight": "bold"},
            loc="upper left",
            bbox_to_anchor=(right, top),
            alignment="left",
            frameon=False,
            handlelength=2.6,
            borderaxespad=0.0,
        )
        top -= _inches(labels) / height


def _inches(labels: Sequence[str]) -> float:
    """Inches of a legend's title and lines: matplotlib knows the height of a legend only after it was drawn."""
    return 0.5 + 0.21 * sum(1 + label.count("\n") for label in labels)


LEGEND_TOP = 0.85
"""Inches from the head of a sheet to its legends."""
MARK, LETTER = 0.65, 0.085
"""Inches of a legend's mark with the space around it, and of a letter of its labels."""


def _wrapped(label: str, letters: int) -> str:
    """A label of several figures, as of a layout or a hypothetical device, on lines of so many letters.

    It breaks at spaces and behind , and =, and nowhere else: a name without these is left whole.
    """
    lines = [""]
    for part in re.split(r"(?<=[,= ])", label):
        if lines[-1] and len(lines[-1] + part.rstrip()) > letters:
            lines.append(part)
        else:
            lines[-1] += part
    return "\n".join(line.rstrip() for line in lines)


def x_axis(grid: Any, ds: xr.Dataset, layout: Layout) -> None:
    """Scale and name of the axis that all panels share."""
    name = str(layout.x)
    values = np.unique(ds[name].values[layout.rows])
    for axes in grid.flat:
        # Over less than one and a half decades a linear axis shows the knee of a load better.
        if values[0] > 0 and values.size > 2 and values[-1] / values[0] >= 30:
            axes.set_xscale("log")
        axes.set_xlabel(axis_title(ds, name))
