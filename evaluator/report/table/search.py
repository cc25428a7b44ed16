"""The ranked table that a search for goodput, or for the fewest replicas, ends with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from evaluator.metrics.outcomes import OK
from evaluator.metrics.reasons import reasons
from evaluator.report.accuracy import expected_errors, mixtures
from evaluator.report.places import chance_in_words, confidence_asked
from evaluator.report.ranking import is_constant
from evaluator.report.search import in_layout, question_of, ranking, serves
from evaluator.report.table.columns import KEPT, WIDTH, Column, lines_of
from evaluator.report.table.latencies import latency_columns
from evaluator.report.table.ranked import (
    cells,
    changes,
    constants,
    most_frequent,
    percents,
    stage_lines,
    swept_columns,
)
from evaluator.results.schema import quantities
from evaluator.units import counted

if TYPE_CHECKING:
    import xarray as xr

_COLUMNS = (
    ("goodput_rps_per_gpu", "per GPU", "1/s", KEPT),
    ("goodput_per_usd", "per USD", "requests", KEPT),
    ("usd_per_mtok", "USD", "per Mtok", 50),
    ("tok_per_joule", "per joule", "tokens", 48),
    ("devices", "GPUs", "", 46),
    ("usd_per_hour", "price", "USD/h", 47),
)
_LATENCIES, _OTHER_LATENCIES, _ERROR = 65, 60, 55
"""Ranks of columns where a row is too wide: what is bounded goes last, then how sure the goodput is, then the costs, of
which those of the question stay."""
_BY = {"usd": ("usd_per_mtok",), "joule": ("tok_per_joule",)}
_OF_A_RATE = ("devices", "usd_per_hour")


def search_table(ds: xr.Dataset, top: int = 10, by: str | None = None, width: int = WIDTH) -> str:
    """The best ``top`` designs by a rule of ``report.search.RANKS``, then what became of the others.

    ``by`` None: as the search ranked them.

    ``width`` is that of the terminal, in characters. Errors: InputError as of the ranking.
    """
    order, rule = ranking(ds, by)
    question = question_of(ds)
    lines = []
    if order.size:
        best = order[:top]
        lines += [_heading(best.size, order.size, rule, question), *constants(ds), *mixtures(ds, order)]
        lines += [*expected_errors(ds, best), *changes(ds, best, by), *_chances(ds, best), ""]
        lines += [
            *lines_of(_columns(ds, best, question, by or str(ds.attrs.get("ranked_by", ""))), width),
            "",
            *stage_lines(ds, int(best[0]), width),
        ]
    return "\n".join(lines + _summary(ds, question))


def _heading(shown: int, count: int, rule: str, question: dict[str, Any]) -> str:
    rate = question["rate_rps"]
    does = "meet the objectives at some rate" if rate is None else f"serve {rate:g} requests/s"
    return f"Best {shown:,} of {count:,} designs that {does}, by {rule}"


def _chances(ds: xr.Dataset, rows: np.ndarray) -> list[str]:
    """How sure the objectives are at what was found."""
    if "slo_chance" not in ds or np.isnan(ds["slo_chance"].values[rows]).all():
        return []
    chances = ds["slo_chance"].values[rows]
    low, high = (chance_in_words(chance) for chance in (np.nanmin(chances), np.nanmax(chances)))
    told = f"there the objectives hold with a chance of {low if low == high else f'{low} to {high}'}"
    asked = confidence_asked(ds)
    # The chance is of all objectives together, some of which may ask for none: those of another class or design.
    ask = "some ask" if np.isnan(ds["objective_confidence"].values).any() else "asked"
    return [f"{told}; {ask} for {asked}" if asked else f"{told}; slo.confidence asks for more"]


def _columns(ds: xr.Dataset, rows: np.ndarray, question: dict[str, Any], by: str) -> list[Column]:
    in_layouts = [name for name in quantities(ds) if in_layout(ds, name)]
    columns = [Column("#", "", tuple(str(index + 1) for index in range(rows.size)), KEPT)]
    columns += swept_columns(ds, rows, in_layouts)
    if not all(is_constant(ds, name) for name in in_layouts):
        columns.append(Column("layout", "", tuple(map(str, ds["pool_layout"].values[rows])), KEPT, text=True))
    if question["rate_rps"] is None:
        endless = np.isinf(ds["goodput_high_rps"].values[rows])  # no rate misses the objectives: it may be more
        goodput = cells(ds["goodput_rps"].values[rows])
        told_as = tuple(f"≥{cell}" if open_ else cell for cell, open_ in zip(goodput, endless, strict=True))
        columns.append(Column("goodput", "1/s", told_as, KEPT))
        # Relative, as the bracket is: a column in requests/s could not be told from the goodput beside it.
        error = ds["goodput_rps_stderr"].values[rows] / ds["goodput_rps"].values[rows]
        if np.isfinite(error).any():
            columns.append(Column("±", "", percents(error), _ERROR))
        columns.append(Column("limit", "", tuple(map(str, ds["goodput_limit"].values[rows])), 30, text=True))
    heads = _BY.get(by, ()) if question["rate_rps"] is None else _OF_A_RATE
    alike = _same(ds, "devices")  # then the goodput per GPU says what the goodput says
    for name, head, unit, rank in _COLUMNS:
        if name not in ds or not np.isfinite(ds[name].values[rows]).any():
            continue
        if alike and name in ("devices", "goodput_rps_per_gpu"):
            continue
        values = ds[name].values[rows]
        shown = tuple(f"{number:.0f}" for number in values) if name == "devices" else cells(values)
        columns.append(Column(head, unit, shown, KEPT if name in heads else rank))
    columns += latency_columns(ds, rows, cells, _LATENCIES, _OTHER_LATENCIES)
    columns.append(Column("busy", "", percents(ds["utilisation"].values[rows]), 20))
    return columns


def _same(ds: xr.Dataset, name: str) -> bool:
    """Whether all designs that serve something have the same there."""
    values = ds[name].values[serves(ds)]
    return bool((values == values[0]).all())


def _summary(ds: xr.Dataset, question: dict[str, Any]) -> list[str]:
    status, search = ds["status"].values, ds["search_status"].values
    able, good = status == OK, serves(ds)
    # Told apart from what cannot run: these would, and were not tried.
    over = np.char.startswith(status.astype(str), "over budget")
    rate = question["rate_rps"]
    parts = [f"{int(good.sum()):,} {'have a goodput' if rate is None else f'serve {rate:g} requests/s'}"]
    parts += [f"{int((able & ~good).sum()):,} do not meet the objectives"]
    parts += [f"{int(over.sum()):,} over budget", f"{int((~able & ~over).sum()):,} infeasible"]
    total = ds.sizes["config"]
    lines = [f"{counted(total, 'design')}: {', '.join(parts)}."]
    lines += most_frequent(reasons(status[~over]))
    lines += most_frequent(reasons(status[over]), most=1)
    if texts := search[able & ~good].tolist():  # why designs do not serve, all in one with the first as the example
        lines += most_frequent([(f"e.g. {texts[0]}", len(texts))], most=1, variable="search_status")
    # Goodputs that have a flaw: a run that is not steady, or no upper end.
    odd = search[good & (search != "bracketed") & (search != "met")]
    return lines + most_frequent(reasons(odd), most=2, variable="search_status")
