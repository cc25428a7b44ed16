"""The ranked table that a sweep ends with, as text for a terminal."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from evaluator.metrics.outcomes import OK
from evaluator.metrics.reasons import reasons
from evaluator.report.accuracy import expected_errors, mixtures
from evaluator.report.labels import SHORT, laid_out, pool_of, short_layout
from evaluator.report.places import ahead_of_first, chance_in_words, how_sure, in_words
from evaluator.report.ranking import held_up, is_constant, ranking, too_short
from evaluator.report.table.columns import KEPT, WIDTH, Column, lines_of
from evaluator.report.table.latencies import latency_at, latency_columns
from evaluator.results.schema import objectives_of, quantities
from evaluator.units import counted, readable

if TYPE_CHECKING:
    import xarray as xr

REASONS = 3
_SHORT = SHORT | {
    "rate_rps": "rate",
    "max_num_batched_tokens": "batch tokens",
    "max_num_seqs": "max seqs",
    "memory_fraction": "memory",
}


def ranked_table(ds: xr.Dataset, top: int = 10, width: int = WIDTH) -> str:
    """The best ``top`` configurations, then how many there were, how many can run, and why the others cannot.

    ``width`` is that of the terminal, in characters: names are shortened and measures left out until a row fits.
    """
    feasible = np.flatnonzero(ds["status"].values == OK)
    lines = []
    if feasible.size:
        order, rule = ranking(ds, feasible)
        best = order[:top]
        shown = f"Best {best.size:,} of {feasible.size:,} feasible configurations" if feasible.size > 1 else "Result"
        # The errors are those of what is shown, the mixtures of all that was ranked: a design may have lost to one
        # with other figures.
        lines += [f"{shown}, {rule}" if feasible.size > 1 else shown, *constants(ds), *mixtures(ds, feasible)]
        lines += [*expected_errors(ds, best), *changes(ds, best), ""]
        lines += [*lines_of(_columns(ds, best), width), "", *stage_lines(ds, int(best[0]), width)]
        lines += class_lines(ds, int(best[0]), width)
    return "\n".join(lines + _summary(ds, feasible))


def _columns(ds: xr.Dataset, rows: np.ndarray) -> list[Column]:
    columns = [Column("#", "", tuple(str(index + 1) for index in range(rows.size)), KEPT)]
    columns += swept_columns(ds, rows)
    columns += latency_columns(ds, rows, cells, KEPT, 65)
    # By rank: what designs of different sizes are compared by stays, and totals go first.
    for name, head, unit, rank in (
        ("session_s_mean", "session", "mean, s", 85),
        ("usd_per_mtok", "USD", "per Mtok", 80),
        ("tok_per_s_per_gpu", "per GPU", "tok/s", KEPT),
        ("output_tok_per_s", "output", "tok/s", 20),
    ):
        if name in ds and np.isfinite(ds[name].values[rows]).any():
            columns.append(Column(head, unit, cells(ds[name].values[rows]), rank))
    for name, head, unit, rank in (("utilisation", "busy", "", 30), ("slo_attainment", "in SLO", "", 70)):
        if name in ds and np.isfinite(ds[name].values[rows]).any():
            columns.append(Column(head, unit, percents(ds[name].values[rows]), rank))
    for name in ("refused", "lost"):
        if f"{name}_share" in ds and (ds[f"{name}_share"].values[rows] > 0).any():
            columns.append(Column(name, "", percents(ds[f"{name}_share"].values[rows]), 75))
    if objectives_of(ds):
        columns.append(Column("SLO", "met", verdicts(ds, rows), 60))
    # A column only where it tells something: that some design is saturated, or that some run is not steady.
    for name, head, unit, tells in (("saturated", "satu-", "rated", True), ("steady", "steady", "", False)):
        if name in ds and (ds[name].values[rows].astype(bool) == tells).any():
            columns.append(Column(head, unit, _yes(ds[name].values[rows]), 50))
    return columns


def stage_lines(ds: xr.Dataset, row: int, width: int) -> list[str]:
    """The mean waits and services of the best design, which is at ``row``, by stage; nothing without a pipeline."""
    # Stages of all designs share the dimension: those that this design has not are NaN.
    passed = np.isfinite(ds["stage_service_s_mean"].values[row]) if "stage" in ds.dims else np.zeros(0, dtype=bool)
    if not passed.any():
        return []
    columns = [Column("stage of #1", "", tuple(map(str, ds["stage"].values[passed])), KEPT, text=True)]
    for head, name in (("wait", "stage_wait_s_mean"), ("service", "stage_service_s_mean")):
        columns.append(Column(head, "mean, ms", cells(1e3 * ds[name].values[row, passed]), KEPT))
    for head, name in (("requests", "stage_share"), ("busy", "stage_utilisation")):
        if name in ds:
            columns.append(Column(head, "", percents(ds[name].values[row, passed]), KEPT))
    return [*lines_of(columns, width), ""]


def class_lines(ds: xr.Dataset, row: int, width: int) -> list[str]:
    """The latencies and objectives of the best design, which is at ``row``, by class; nothing without classes."""
    # Classes of all designs share the dimension, and requests of some may not be among those of this one.
    names = ds["class"].values[ds["class_share"].values[row] > 0].tolist() if "class" in ds.dims else []
    if not names:
        return []
    columns = [Column("class of #1", "", tuple(names), KEPT, text=True)]
    of_design = ds.sel({"class": names}).isel(config=row)
    columns.append(Column("requests", "", percents(of_design["class_share"].values), KEPT))
    for head, metric in (("TTFT", "ttft"), ("TPOT", "tpot"), ("E2E", "e2e")):
        # The statistic that the first objective on it names, so that a bound can be compared with what stands here.
        bounds = [bound for bound in objectives_of(ds) if bound["metric"] == metric and bound.get("class")]
        statistic = str(bounds[0]["statistic"]) if bounds else "p90"
        values = np.array([latency_at(ds, metric, statistic, name)[row] for name in names])
        columns.append(Column(f"{head} {statistic}", "ms", cells(1e3 * values), KEPT))
    columns.append(Column("output", "tok/s", cells(of_design["class_output_tok_per_s"].values), 20))
    attainment = of_design["class_slo_attainment"].values
    if np.isfinite(attainment).any():
        columns.append(Column("in SLO", "", percents(attainment), 70))
        with_own = {bound.get("class") for bound in objectives_of(ds)}
        met = zip(names, _yes(of_design["class_slo_met"].values), strict=True)
        columns.append(Column("SLO", "met", tuple(yes if name in with_own else "-" for name, yes in met), 60))
    return [*lines_of(columns, width), ""]


def changes(ds: xr.Dataset, rows: np.ndarray, by: str | None = None) -> list[str]:
    """Which of the designs at ``rows``, the best first, change places within the errors; nothing of one alone, or of a
    result without chances, as those of a version before. ``by`` as of ``ahead_of_first``."""
    told = in_words(ahead_of_first(ds, rows, by)) if "slo_chance" in ds else ""
    return [told] if told else []


def verdicts(ds: xr.Dataset, rows: np.ndarray) -> tuple[str, ...]:
    """Whether the SLO is met and with what chance: ``yes 64%``."""
    met = _yes(ds["slo_met"].values[rows])
    if "slo_chance" not in ds:
        return met
    chances = [chance_in_words(chance) for chance in ds["slo_chance"].values[rows]]
    width = max(map(len, chances))
    return tuple(f"{yes:<3} {chance:>{width}}" for yes, chance in zip(met, chances, strict=True))


def _yes(flags: np.ndarray) -> tuple[str, ...]:
    return tuple("yes" if flag else "no" for flag in flags)


def cells(values: np.ndarray) -> tuple[str, ...]:
    """One number of digits for the whole column, that of its largest entry."""
    finite = np.abs(values[np.isfinite(values)])
    largest = finite.max() if finite.size else 0.0
    # The bounds are those at which a number of fewer digits rounds up to the next power of ten: 9.995 is shown as
    # 10.0.
    digits = 0 if largest >= 99.95 else 1 if largest >= 9.995 else 2 if largest >= 0.995 else 3
    return tuple(f"{value:,.{digits}f}" if np.isfinite(value) else "-" for value in values)


def percents(values: np.ndarray) -> tuple[str, ...]:
    """Whole percents, rounded down to below 100 so that a miss stays visible."""
    return tuple(
        f"{min(100 * v, 99.9) if v < 1 else 100:.{1 if 0.99 < v < 1 else 0}f}%" if np.isfinite(v) else "-"
        for v in values
    )


def constants(ds: xr.Dataset) -> list[str]:
    """What is the same in every row goes into one line instead of a column."""
    same = [f"{name}={_shown(ds[name])}" for name in quantities(ds) if is_constant(ds, name)]
    return [f"all with {', '.join(same)}"] if same else []


def _shown(quantity: xr.DataArray) -> str:
    """The first value, in a unit to read where it is of bytes or FLOPs."""
    value, unit = quantity.values[0], str(quantity.attrs["units"])
    if quantity.dtype.kind not in "iuf":
        return str(value)
    readable_unit, scale = readable(unit, abs(value))
    return str(value) if readable_unit == unit else f"{value / scale:.6g}{readable_unit}"


def _head(name: str) -> str:
    """A short heading for a swept quantity, that of a pool with the pool's name: ``decode dp``."""
    key = next((long for long in _SHORT if name == long or name.endswith(f"_{long}")), None)
    return name.replace("_", " ") if key is None else f"{name.removesuffix(key).replace('_', ' ')}{_SHORT[key]}"


def swept_columns(ds: xr.Dataset, rows: np.ndarray, without: Collection[str] = ()) -> list[Column]:
    """A column for each swept quantity that is not the same in every row, and not among ``without``; one for those that
    lay out a pool together."""
    columns = []
    varying = [name for name in quantities(ds) if name not in without and not is_constant(ds, name)]
    layouts = laid_out(varying)
    for name in varying:
        pool = pool_of(name)
        # The whole layout stands where its first quantity would.
        if pool in layouts:
            if name == layouts[pool][0]:
                cells = tuple(short_layout(ds, layouts[pool], int(row)) for row in rows)
                columns.append(Column(f"{pool} layout".strip(), "", cells, KEPT, text=True))
            continue
        values, head = ds[name].values[rows], _head(name)
        unit = str(ds[name].attrs["units"])
        if values.dtype.kind in "iuf":
            # One unit for the column, that of its largest entry: rows in different units could not be
            # compared at a glance.
            unit, scale = readable(unit, max(values, key=lambda value: -1.0 if np.isnan(value) else abs(value)))
            cells = tuple("-" if np.isnan(value) else f"{value / scale:.6g}" for value in values)
            columns.append(Column(head, "" if unit in ("1", "token") else unit, cells, KEPT))
        else:
            columns.append(Column(head, "", tuple(map(str, values)), KEPT, text=True))
    return columns


def _summary(ds: xr.Dataset, feasible: np.ndarray) -> list[str]:
    total = ds.sizes["config"]
    parts = [f"{feasible.size:,} feasible"]
    if objectives_of(ds):
        parts.append(f"{int(ds['slo_met'].values.sum()):,} meet the SLO{how_sure(ds)}")
    parts += [f"{int(ds['saturated'].values.sum()):,} saturated", f"{total - feasible.size:,} infeasible"]
    lines = [f"{counted(total, 'configuration')}: {', '.join(parts)}."]
    if not feasible.size:
        lines[0] += " Nothing can run as it stands:"
    if short := int(too_short(ds).sum()):
        lines.append(f"  {short:,} x not steady: the run is too short for its statistics; use requests: auto, or more")
    if held := int(held_up(ds).sum()):
        lines.append(
            f"  {held:,} x tokens wait for API servers, which are busy all the time; use more deployment.api_servers"
        )
    return lines + most_frequent(reasons(ds["status"].values))


def most_frequent(reasons: list[tuple[str, int]], most: int = REASONS, variable: str = "status") -> list[str]:
    """The most frequent reasons with their counts, and how many others there are in a variable."""
    lines = [f"  {count:,} x {reason}" for reason, count in reasons[:most]]
    if len(reasons) > most:
        others = sum(count for _, count in reasons[most:])
        lines.append(f"  {others:,} x {len(reasons) - most} other reasons ({variable})")
    return lines
