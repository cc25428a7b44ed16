"""The ranked table that a sweep ends with, as text for a terminal."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from evaluator.metrics.outcomes import OK
from evaluator.results.dataset import axes_of, objectives_of

if TYPE_CHECKING:
    import xarray as xr

WIDTH = 100
TEXT_WIDTH = 8  # text is not shortened below this
KEPT = 90  # columns of this rank and above are never left out
REASONS = 3
_GAP = "  "
_SHORT = {
    "tensor_parallel": "tp",
    "pipeline_parallel": "pp",
    "expert_parallel": "ep",
    "rate_rps": "rate",
    "max_num_batched_tokens": "batch tokens",
    "max_num_seqs": "max seqs",
    "memory_fraction": "memory",
}
# (words in the reason, what to do), the first that fits; a reason that states its remedy is left as it is.
_REMEDIES = (
    (r"; (remedy:|(use|raise|lower|choose|take|try|reduce|add)\b)", ""),
    (r"weight|memory|fit|kv", "more devices per replica, a lower precision, or hardware with more memory"),
    (r"divi|head", "a parallelism that divides the model's heads and experts"),
    (r"long|limit|position|context", "shorter prompts, or a model and KV cache that hold them"),
)


@dataclass(frozen=True)
class Column:
    """``head`` and ``unit`` stand above the cells; a column of lower ``rank`` goes first when the table is too wide."""

    head: str
    unit: str
    cells: tuple[str, ...]
    rank: int
    text: bool = False

    @property
    def width(self) -> int:
        """Characters of the widest cell or heading."""
        return max(map(len, (self.head, self.unit, *self.cells)))


def ranked_table(ds: xr.Dataset, top: int = 10, width: int = WIDTH) -> str:
    """The best ``top`` configurations, then how many there were, how many can run, and why the others cannot."""
    feasible = np.flatnonzero(ds["status"].values == OK)
    lines = []
    if feasible.size:
        order, rule = ranking(ds, feasible)
        best = order[:top]
        shown = f"Best {best.size:,} of {feasible.size:,} feasible configurations" if feasible.size > 1 else "Result"
        lines += [f"{shown}, {rule}" if feasible.size > 1 else shown, *_constant(ds), ""]
        lines += [*lines_of(_columns(ds, best), width), ""]
    return "\n".join(lines + _summary(ds, feasible))


# ---- ranking --------------------------------------------------------------------------------------------------------


def ranking(ds: xr.Dataset, feasible: np.ndarray) -> tuple[np.ndarray, str]:
    """Feasible rows, best first, and the rule in words."""
    objective, words = _objective(ds, feasible)
    keys = [objective, ds["saturated"].values[feasible].astype(float)]
    met = ds["slo_met"].values[feasible]
    if met.any():
        keys.append(-met.astype(float))
        words = f"those that meet the SLO first, then by {words}"
    elif objectives_of(ds):
        keys.insert(1, -np.nan_to_num(ds["slo_attainment"].values[feasible]))
        words = f"none meets the SLO: by SLO attainment, then by {words}"
    else:
        words = f"not saturated first, then by {words}"
    return feasible[np.lexsort(keys)], words


def _objective(ds: xr.Dataset, feasible: np.ndarray) -> tuple[np.ndarray, str]:
    """What is minimised, and its name."""
    for name, sign, words in (
        ("usd_per_mtok", 1.0, "cost per million output tokens"),
        ("tok_per_s_per_gpu", -1.0, "output tokens/s per GPU"),
    ):
        if name in ds and np.isfinite(values := ds[name].values[feasible]).any():
            return np.where(np.isnan(values), np.inf, sign * values), words
    return _at(ds, "ttft_s", 0.9)[feasible], "TTFT p90"


def _at(ds: xr.Dataset, name: str, level: float) -> np.ndarray:
    """A latency at the reported quantile nearest to ``level``, (config,)."""
    return ds[name].values[:, int(np.argmin(np.abs(ds["quantile"].values - level)))]


# ---- columns --------------------------------------------------------------------------------------------------------


def _cells(values: np.ndarray) -> tuple[str, ...]:
    """One number of digits for the whole column, that of its largest entry."""
    finite = np.abs(values[np.isfinite(values)])
    largest = finite.max() if finite.size else 0.0
    digits = 0 if largest >= 99.95 else 1 if largest >= 9.995 else 2 if largest >= 0.995 else 3
    return tuple(f"{value:,.{digits}f}" if np.isfinite(value) else "-" for value in values)


def _percent(values: np.ndarray) -> tuple[str, ...]:
    """Whole percents, rounded down to below 100 so that a miss stays visible."""
    return tuple(
        f"{min(100 * v, 99.9) if v < 1 else 100:.{1 if 0.99 < v < 1 else 0}f}%" if np.isfinite(v) else "-"
        for v in values
    )


def _columns(ds: xr.Dataset, rows: np.ndarray) -> list[Column]:
    columns = [Column("#", "", tuple(str(place + 1) for place in range(rows.size)), KEPT)]
    columns += _swept(ds, rows)
    columns.append(Column("TTFT p90", "ms", _cells(1e3 * _at(ds, "ttft_s", 0.9)[rows]), KEPT))
    columns.append(Column("TPOT p90", "ms", _cells(1e3 * _at(ds, "tpot_s", 0.9)[rows]), KEPT))
    for name, head, unit, rank in (
        ("usd_per_mtok", "USD", "per Mtok", 80),
        ("tok_per_s_per_gpu", "per GPU", "tok/s", KEPT),
        ("output_tok_per_s", "output", "tok/s", 20),
    ):
        if name in ds and np.isfinite(ds[name].values[rows]).any():
            columns.append(Column(head, unit, _cells(ds[name].values[rows]), rank))
    for name, head, unit, rank in (("utilisation", "busy", "", 30), ("slo_attainment", "in SLO", "", 70)):
        if name in ds and np.isfinite(ds[name].values[rows]).any():
            columns.append(Column(head, unit, _percent(ds[name].values[rows]), rank))
    if objectives_of(ds):
        columns.append(Column("SLO", "met", _yes(ds["slo_met"].values[rows]), 60))
    if ds["saturated"].values[rows].any():
        columns.append(Column("satu-", "rated", _yes(ds["saturated"].values[rows]), 50))
    return columns


def _yes(flags: np.ndarray) -> tuple[str, ...]:
    return tuple("yes" if flag else "no" for flag in flags)


def quantities(ds: xr.Dataset) -> list[str]:
    """The swept coordinates; the label of a zip or of a design is left out: the quantities behind it are there."""
    names = [name for axis in axes_of(ds) for name in axis]
    labels = [axis[0] for axis in axes_of(ds) if len(axis) > 1 and _is_label(ds[axis[0]])]
    return [name for name in names if name not in labels]


def _is_label(coordinate: xr.DataArray) -> bool:
    """Whether a coordinate names steps that set several keys, instead of being the value of a key (``a.b``)."""
    return "=" in str(coordinate.values[0]) or "." not in coordinate.attrs.get("description", ".")


def is_constant(ds: xr.Dataset, name: str) -> bool:
    """Whether a coordinate is the same in every row."""
    values = ds[name].values
    return bool((values == values[0]).all())


def _constant(ds: xr.Dataset) -> list[str]:
    """What is the same in every row goes into one line instead of a column."""
    same = [name for name in quantities(ds) if is_constant(ds, name)]
    return [f"all with {', '.join(f'{name}={ds[name].values[0]}' for name in same)}"] if same else []


def _swept(ds: xr.Dataset, rows: np.ndarray) -> list[Column]:
    columns = []
    for name in quantities(ds):
        if is_constant(ds, name):
            continue
        values, head = ds[name].values[rows], _SHORT.get(name, name.replace("_", " "))
        unit = str(ds[name].attrs["units"])
        if values.dtype.kind in "iuf":
            cells = tuple("-" if np.isnan(value) else f"{value:.6g}" for value in values)
            columns.append(Column(head, "" if unit in ("1", "token") else unit, cells, KEPT))
        else:
            columns.append(Column(head, "", tuple(map(str, values)), KEPT, text=True))
    return columns


# ---- layout ---------------------------------------------------------------------------------------------------------


def lines_of(columns: list[Column], width: int) -> list[str]:
    """Heading in two lines and the cells. Too wide: text is shortened, then measures are left out, and named below."""
    columns, dropped = list(columns), []
    while _width(columns) > width:
        longest = max((c for c in columns if c.text and c.width > TEXT_WIDTH), key=lambda c: c.width, default=None)
        weakest = min(columns, key=lambda column: column.rank)
        if weakest.rank < KEPT:
            columns.remove(weakest)
            dropped.append(weakest.head)
        elif longest:
            columns[columns.index(longest)] = _shortened(longest, longest.width - 1)
        else:  # which design a row is matters more than the width
            break
    heads = [_line(columns, [c.head for c in columns]), _line(columns, [c.unit for c in columns])]
    body = [_line(columns, list(cells)) for cells in zip(*(c.cells for c in columns), strict=True)]
    note = [f"(not shown for want of room: {', '.join(dropped)})"] if dropped else []
    return [*heads, "-" * len(max(heads + body, key=len)), *body, *note]


def _width(columns: Sequence[Column]) -> int:
    return sum(column.width for column in columns) + len(_GAP) * (len(columns) - 1)


def _shortened(column: Column, width: int) -> Column:
    def cut(text: str) -> str:
        return text if len(text) <= width else f"{text[: width - 1]}…"

    return Column(cut(column.head), column.unit, tuple(map(cut, column.cells)), column.rank, text=True)


def _line(columns: Sequence[Column], texts: Sequence[str]) -> str:
    aligned = [t.ljust(c.width) if c.text else t.rjust(c.width) for c, t in zip(columns, texts, strict=True)]
    return _GAP.join(aligned).rstrip()


# ---- summary --------------------------------------------------------------------------------------------------------


def _summary(ds: xr.Dataset, feasible: np.ndarray) -> list[str]:
    total = ds.sizes["config"]
    parts = [f"{feasible.size:,} feasible"]
    if objectives_of(ds):
        parts.append(f"{int(ds['slo_met'].values.sum()):,} meet the SLO")
    parts += [f"{int(ds['saturated'].values.sum()):,} saturated", f"{total - feasible.size:,} infeasible"]
    lines = [f"{total:,} configuration{'s' if total != 1 else ''}: {', '.join(parts)}."]
    if not feasible.size:
        lines[0] += " Nothing can run as it stands:"
    found = reasons(ds["status"].values)
    lines += [f"  {count:,} x {reason}" for reason, count in found[:REASONS]]
    if len(found) > REASONS:
        lines.append(
            f"  {sum(count for _, count in found[REASONS:]):,} x {len(found) - REASONS} other reasons (status)"
        )
    return lines


def reasons(statuses: np.ndarray) -> list[tuple[str, int]]:
    """Reasons that differ only in their figures counted together, the most frequent first, each with an example."""
    texts, counts = np.unique(statuses[statuses != OK], return_counts=True)
    kinds: Counter[str] = Counter()
    examples: dict[str, list[str]] = {}
    for text, count in zip(map(str, texts), counts.tolist(), strict=True):
        kind = re.sub(r"\d[\d.,]*", "#", text)
        kinds[kind] += count
        examples.setdefault(kind, []).append(text)
    result = []
    for kind, count in kinds.most_common():
        text = examples[kind][0].removeprefix("infeasible: ")
        remedy = next((remedy for words, remedy in _REMEDIES if re.search(words, text, re.IGNORECASE)), "")
        several = "e.g. " if len(examples[kind]) > 1 else ""
        result.append((f"{several}{text}{f' (try {remedy})' if remedy else ''}", count))
    return result
