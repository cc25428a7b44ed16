"""The picture of a sweep, chosen from its axes: curves over the load, or speed for the user against speed per GPU."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluator.errors import InputError
from evaluator.metrics.outcomes import OK
from evaluator.report.layout import CUT, Layout, Panel, choose, log_limits, ordered, panels_of, pick, text, title
from evaluator.report.table import is_constant, quantities, reasons
from evaluator.results.dataset import replacing

if TYPE_CHECKING:
    import xarray as xr

DPI = 150
SUFFIXES = (".png", ".pdf", ".svg")
BANDS = 6  # with more curves than this, error bands hide more than they tell
FRONT_LABELS = 10  # at most: labels are wide and flat, and those of nearly the same height would overlap

# Okabe and Ito (2008), colours that the colour-blind can tell apart; its yellow is too pale for lines.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#5B4A9E", "#444444")
_DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)))
_MARKERS = ("o", "s", "^")
GREY = "#6b6b6b"
_NAMES = {"rate_rps": "arrival rate (requests/s)", "users": "concurrent users"}


def plot(ds: xr.Dataset, path: str | Path) -> Path:
    """Draw a dataset to ``path`` (.png, .pdf or .svg). Errors: InputError for another suffix or without matplotlib."""
    return save(path, lambda: _draw(ds, np.flatnonzero(ds["status"].values == OK)))


def save(path: str | Path, draw: Callable[[], Any]) -> Path:
    """Write the figure that ``draw`` makes, in the style of all pictures. Errors as of ``plot``."""
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise InputError(f"{path}: unknown kind of picture {path.suffix!r}; use {', '.join(SUFFIXES)}")
    if find_spec("matplotlib") is None:
        raise InputError(f"{path}: pictures need matplotlib; install it with: pip install matplotlib")
    import matplotlib

    style: Any = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "font.family": "DejaVu Sans"}
    with matplotlib.rc_context(style):
        figure = draw()
        with replacing(path) as part:
            figure.savefig(part, dpi=DPI, format=path.suffix[1:], facecolor="white")
    return path


def _draw(ds: xr.Dataset, feasible: np.ndarray) -> Any:
    if feasible.size == 0:
        return _nothing(ds)
    if ds.sizes["config"] == 1:
        return _single(ds)
    layout = choose(ds, feasible)
    return _pareto(ds, layout) if layout.x is None else _curves(ds, layout)


# ---- pictures -------------------------------------------------------------------------------------------------------


def canvas(width: float, height: float) -> Any:
    """An empty figure, in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure


def headings(figure: Any, ds: xr.Dataset, subtitle: str, notes: Sequence[str]) -> None:
    """Title and subtitle above, notes below, at fixed distances from the edges in inches."""
    width, height = figure.get_size_inches()
    left = 0.25 / width
    figure.text(left, 1 - 0.30 / height, ds.attrs.get("title", "sweep"), fontsize=14, fontweight="bold", va="center")
    figure.text(left, 1 - 0.58 / height, subtitle, fontsize=10, color=GREY, va="center")
    lines = textwrap.fill(".  ".join(notes), max(40, int(15.5 * (width - 0.5))))  # characters of 7.5 points per inch
    figure.text(left, 0.12 / height, lines, fontsize=7.5, color=GREY, va="bottom")


def footnotes(ds: xr.Dataset, layout: Layout) -> list[str]:
    """What a reader of any picture has to know."""
    notes = [f"Shown: {'; '.join(layout.notes)}"] if layout.notes else []
    infeasible = int((ds["status"].values != OK).sum())
    if infeasible:
        notes.append(f"{infeasible:,} of {ds.sizes['config']:,} configurations are infeasible and absent")
    if ds["saturated"].values[layout.rows].any():
        notes.append("Hollow: saturated (the queue grows without bound)")
    seeds = ds.attrs.get("seeds", "").count(",") + 1
    notes.append(f"Mean over {seeds} seeds" if seeds > 1 else "One seed")
    return [*notes, f"Calibration: {ds.attrs.get('calibration', 'unknown')}"]


def _colours(ds: xr.Dataset, name: str | None, levels: Sequence[Any]) -> list[Any]:
    """Distinct colours for names; shades that follow the order for numbers."""
    if name is not None and ds[name].dtype.kind in "iuf" and len(levels) > 2:
        from matplotlib import colormaps

        return [colormaps["viridis"](0.88 * place / (len(levels) - 1)) for place in range(len(levels))]
    return list(COLOURS[: len(levels)])


def legend(figure: Any, groups: Sequence[tuple[str | None, Sequence[Any], Sequence[Any]]], right: float) -> None:
    """One legend per axis below each other, right of the panels; ``groups`` hold axis, levels and their handles."""
    height = figure.get_size_inches()[1]
    top = 1 - 0.85 / height
    for name, levels, handles in groups:
        if name is None:
            continue
        figure.legend(
            handles,
            [text(level) for level in levels],
            title=title(name),
            title_fontproperties={"weight": "bold"},
            loc="upper left",
            bbox_to_anchor=(right, top),
            alignment="left",
            frameon=False,
            handlelength=2.6,
            borderaxespad=0.0,
        )
        top -= (0.5 + 0.205 * len(levels)) / height


def _curves(ds: xr.Dataset, layout: Layout) -> Any:
    """Measures over x: a row of panels, or with facets a row for each measure and a column for each facet."""
    panels, rows = panels_of(ds, layout), layout.rows
    facets, colours, styles = (ordered(ds, name, rows) for name in (layout.facet, layout.colour, layout.style))
    shades = _colours(ds, layout.colour, colours)
    figure, grid, right = _grid(len(panels), len(facets))
    band = len(colours) * len(styles) <= BANDS
    for panel, axes_of_panel in zip(panels, grid, strict=True):
        for facet, axes in zip(facets, axes_of_panel, strict=True):
            some = pick(ds, layout.facet, facet, rows)
            for shade, colour in zip(shades, colours, strict=True):
                for place, style in enumerate(styles):
                    curve = pick(ds, layout.style, style, pick(ds, layout.colour, colour, some))
                    _curve(axes, ds, str(layout.x), panel, curve, shade, place, band)
            _finish(axes, panel, rows, ds)
        axes_of_panel[0].set_ylabel(panel.label)
        _label_bound(axes_of_panel[-1], panel)
    for facet, axes in zip(facets, grid[0], strict=True):
        if layout.facet is not None:
            axes.set_title(f"{title(layout.facet)} {text(facet)}", fontsize=10, loc="left")
    x_axis(grid if layout.facet is None else grid[-1:], ds, layout)
    swatches, handles = _swatches(shades), [_handle(place) for place in range(len(styles))]
    legend(figure, ((layout.colour, colours, swatches), (layout.style, styles, handles)), right)
    measures = ", ".join(panel.label.split(" (")[0] for panel in panels)
    cut = any(panel.bound and np.nanmax(panel.values[rows]) > CUT * panel.bound for panel in panels)
    notes = [*footnotes(ds, layout), *([f"Latencies beyond {CUT:g} times the SLO are cut off"] if cut else [])]
    headings(figure, ds, f"{measures} over the {_axis_title(ds, str(layout.x))}", notes)
    return figure


def _grid(measures: int, facets: int) -> tuple[Any, Any, float]:
    """Figure, axes [measure][facet] and where the legend starts; without facets the measures stand side by side."""
    down, across = (measures, facets) if facets > 1 else (1, measures)
    width = 3.35 + across * (3.3 if down > 1 else 3.9)
    height = 2.0 + down * (2.15 if down > 1 else 3.2)
    figure = canvas(width, height)
    share = {"sharex": True, "sharey": "row"} if down > 1 else {}
    grid = figure.subplots(down, across, squeeze=False, **share)
    right = 1 - 2.4 / width
    gaps = {"wspace": 0.08, "hspace": 0.16} if down > 1 else {"wspace": 0.46}
    figure.subplots_adjust(0.85 / width, 1.0 / height, right - 0.1 / width, 1 - 1.15 / height, **gaps)
    return figure, grid if down > 1 else grid.T, right + 0.55 / width  # the objective's label is between


def _swatches(shades: Sequence[Any]) -> list[Any]:
    from matplotlib.lines import Line2D

    return [Line2D([], [], color=shade, lw=2.2) for shade in shades]


def _handle(place: int) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color="black", lw=1.6, ls=_DASHES[place], marker=_MARKERS[place], ms=3.5, markevery=[1])


def _curve(
    axes: Any, ds: xr.Dataset, x: str, panel: Panel, rows: np.ndarray, colour: Any, place: int, band: bool
) -> None:
    """One curve: full up to the last point that is not saturated, faint and hollow beyond."""
    rows = rows[np.argsort(ds[x].values[rows], kind="stable")]
    rows = rows[np.isfinite(panel.values[rows])]
    if rows.size == 0:
        return
    over, along, values = ds["saturated"].values[rows], ds[x].values[rows], panel.values[rows]
    marker = _MARKERS[place] if rows.size <= 40 else ""
    common = {"color": colour, "marker": marker, "ms": 3.2, "ls": _DASHES[place]}
    axes.plot(along, values, lw=1.0, alpha=0.35, markerfacecolor="white", **common, zorder=2)
    good = np.where(over, np.nan, values)
    axes.plot(along, good, lw=1.7, **common, zorder=3)
    if band and panel.stderr is not None:
        error = 2.0 * panel.stderr[rows]  # no band where it is not known
        low = np.maximum(good - error, 0.2 * good) if panel.log else good - error
        axes.fill_between(along, low, good + error, color=colour, alpha=0.13, lw=0, zorder=1)


def _finish(axes: Any, panel: Panel, rows: np.ndarray, ds: xr.Dataset) -> None:
    """Scale, bound and grid of one panel. Saturated points tell how long one looked: they do not set the scale."""
    values, over = panel.values[rows], ds["saturated"].values[rows]
    finite = values[np.isfinite(values)]
    calm = values[np.isfinite(values) & ~over]
    calm = calm if calm.size else finite
    if panel.log and calm.min() > 0:
        axes.set_yscale("log")
        axes.set_ylim(*log_limits(calm, panel.bound))
        _plain_ticks(axes)
    else:
        axes.set_ylim(0.0, panel.top or 1.15 * max(calm.max(), panel.bound or 0.0, 1e-12))
    if panel.bound is not None:
        axes.axhline(panel.bound, color="black", lw=0.9, ls=(0, (4, 3)), zorder=1)
    axes.grid(True, color="#e6e6e6", lw=0.6)
    axes.set_axisbelow(True)


def _label_bound(axes: Any, panel: Panel) -> None:
    """The objective's value right of its line, outside the axes, where no curve runs."""
    if panel.bound is not None:
        where = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "annotation_clip": False}
        label = f"SLO {panel.bound:g} {panel.unit}"
        axes.annotate(label, (1, panel.bound), (4, 0), **where, fontsize=7.5, ha="left", va="center")


def _plain_ticks(axes: Any) -> None:
    """0.2, 0.5, 1, 2 instead of powers of ten; 1, 2 and 5 of every decade where there are few."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high / low < 200 else (1.0,)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _axis_title(ds: xr.Dataset, name: str) -> str:
    unit = str(ds[name].attrs.get("units", "1"))
    return _NAMES.get(name, title(name) if unit == "1" else f"{title(name)} ({unit})")


def x_axis(grid: Any, ds: xr.Dataset, layout: Layout) -> None:
    """Scale and name of the axis that all panels share."""
    name = str(layout.x)
    values = np.unique(ds[name].values[layout.rows])
    for axes in grid.flat:
        if values[0] > 0 and values.size > 2 and values[-1] / values[0] >= 30:
            axes.set_xscale("log")
        axes.set_xlabel(_axis_title(ds, name))


def front(user: np.ndarray, gpu: np.ndarray) -> np.ndarray:
    """Indices of the points that no other beats in both, from the fastest for the user down."""
    order = np.lexsort((-gpu, -user))
    best = np.maximum.accumulate(np.r_[-np.inf, gpu[order][:-1]])
    return order[gpu[order] > best]


def _pareto(ds: xr.Dataset, layout: Layout) -> Any:
    """Speed that a user sees against output per GPU, with the front of the designs that are not saturated."""
    user, gpu = ds["tok_per_s_per_user"].values, ds["tok_per_s_per_gpu"].values
    rows = layout.rows[np.isfinite(user[layout.rows]) & np.isfinite(gpu[layout.rows])]
    figure = canvas(9.5, 5.6)
    axes = figure.subplots()
    figure.subplots_adjust(0.09, 0.17, 0.76, 0.85)
    names = (layout.colour, layout.style, layout.facet)
    levels = [ordered(ds, name, rows) for name in names]
    shades = _colours(ds, layout.colour, levels[0])
    sizes = (34 if rows.size <= 500 else 8) * 2.0 ** (np.arange(len(levels[2])) - 0.5 * (len(levels[2]) - 1))
    for (shade, *place), some in _groups(ds, names, levels, rows, shades):
        over = ds["saturated"].values[some]
        common = {"s": sizes[place[1]], "marker": _MARKERS[place[0]], "rasterized": rows.size > 2000, "zorder": 3}
        axes.scatter(user[some[~over]], gpu[some[~over]], color=shade, lw=0, alpha=0.85, **common)
        axes.scatter(user[some[over]], gpu[some[over]], facecolor="none", edgecolor=shade, alpha=0.5, lw=0.8, **common)
    _front_line(axes, ds, rows)
    axes.set(xlabel="output tokens/s per user (1 / mean TPOT)", ylabel="output tokens/s per GPU")
    axes.set_xlim(0.0, 1.08 * user[rows].max(initial=0.0) or 1.0)
    axes.set_ylim(0.0, 1.15 * gpu[rows].max(initial=0.0) or 1.0)
    axes.grid(True, color="#e6e6e6", lw=0.6)
    handles = [
        [_spot(color=shade) for shade in shades],
        [_spot(marker=_MARKERS[place]) for place in range(len(levels[1]))],
        [_spot(ms=float(np.sqrt(size))) for size in sizes],
    ]
    legend(figure, list(zip(names, levels, handles, strict=True)), 0.78)
    headings(figure, ds, "Speed for the user against output per GPU; line: the front", footnotes(ds, layout))
    return figure


def _groups(
    ds: xr.Dataset, names: Sequence[str | None], levels: Sequence[list[Any]], rows: np.ndarray, shades: Sequence[Any]
) -> Iterator[tuple[tuple[Any, int, int], np.ndarray]]:
    """(colour, which marker, which size) and the rows that are drawn so; the largest first, not to hide the others."""
    places = product(*(range(len(each)) for each in levels))
    for first, second, third in sorted(places, key=lambda place: -place[2]):
        some = rows
        for name, each, place in zip(names, levels, (first, second, third), strict=True):
            some = pick(ds, name, each[place], some)
        yield (shades[first], second, third), some


def _spot(color: Any = "black", marker: str = "o", ms: float = 6.0) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color=color, ls="", marker=marker, ms=ms)


def _front_line(axes: Any, ds: xr.Dataset, rows: np.ndarray) -> None:
    """The front of the designs that are not saturated, some of them named."""
    user, gpu = ds["tok_per_s_per_user"].values, ds["tok_per_s_per_gpu"].values
    calm = rows[~ds["saturated"].values[rows]]
    if calm.size < 2:
        return
    best = calm[front(user[calm], gpu[calm])]
    axes.step(user[best], gpu[best], where="post", color="black", lw=1.0, zorder=2)
    names = [name for name in quantities(ds) if not is_constant(ds, name)][:3]
    labelled = -np.inf
    for row in best:
        if gpu[row] - labelled < gpu[rows].max() / FRONT_LABELS:
            continue
        labelled = gpu[row]
        left = user[row] > 0.5 * user[rows].max()  # keep the label inside
        where = {"xytext": (-5 if left else 5, 6), "textcoords": "offset points", "ha": "right" if left else "left"}
        axes.annotate(in_words(ds, row, names), (user[row], gpu[row]), fontsize=7.5, zorder=4, **where)


def in_words(ds: xr.Dataset, row: int, names: Sequence[str]) -> str:
    """Quantities of a row in few words."""
    return ", ".join(
        f"{title(name)} {text(ds[name].values[row])}" if ds[name].dtype.kind in "iuf" else text(ds[name].values[row])
        for name in names
    )


def _single(ds: xr.Dataset) -> Any:
    """One configuration: its latencies at every quantile, with standard errors."""
    figure = canvas(9.0, 3.8)
    grid = figure.subplots(1, 3)
    figure.subplots_adjust(0.08, 0.2, 0.98, 0.74, wspace=0.32)
    names = [f"p{100 * level:g}" for level in ds["quantile"].values]
    for axes, (name, heading, scale) in zip(
        grid, (("ttft_s", "TTFT (s)", 1.0), ("tpot_s", "TPOT (ms)", 1e3), ("e2e_s", "end to end (s)", 1.0)), strict=True
    ):
        error = ds.get(f"{name}_stderr")
        bars = None if error is None else error.values[0] * scale  # none where it is not known
        axes.bar(names, np.nan_to_num(ds[name].values[0]) * scale, 0.6, yerr=bars, color=COLOURS[0], ecolor=GREY)
        axes.set_title(heading, loc="left", fontsize=10)
        axes.grid(True, axis="y", color="#e6e6e6", lw=0.6)
        axes.set_axisbelow(True)
    layout = Layout(None, None, None, None, np.arange(1), ())
    bars_note = ["Bars: Monte-Carlo standard error", *footnotes(ds, layout)]
    headings(figure, ds, "Latency quantiles of the one configuration", bars_note)
    return figure


def _nothing(ds: xr.Dataset) -> Any:
    """No configuration can run: say so, and why."""
    figure = canvas(9.0, 2.6)
    count = ds.sizes["config"]
    lines = [textwrap.fill(f"{times:,} x {reason}", 105) for reason, times in reasons(ds["status"].values)[:4]]
    figure.text(0.028, 0.62, "\n".join(lines), fontsize=9, va="top", linespacing=1.6)
    headings(figure, ds, f"None of the {count:,} configurations can run", [])
    return figure
