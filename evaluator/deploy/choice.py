"""One design of a result, by what its tables call it: a place in their ranking, or values of swept keys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

import numpy as np

from evaluator.errors import InputError
from evaluator.metrics.outcomes import OK
from evaluator.metrics.reasons import reasons
from evaluator.report import ranking as sweep_ranking
from evaluator.report import search
from evaluator.results.schema import axes_of
from evaluator.results.selection import SHORT_NAMES, parse_selection
from evaluator.units import si_number

if TYPE_CHECKING:
    import xarray as xr


def choose(ds: xr.Dataset, texts: Sequence[str], where: str) -> tuple[int, str]:
    """(the row of a design, how it was chosen): the best of those that fit, by the ranking of the result itself.

    A number is the place in that ranking, as tables and pages count; ``config=17`` is a row of the grid. Errors:
    InputError where no design fits, or where the one that does cannot run, is saturated or serves nothing.
    """
    order, rule = ranking_of(ds)
    # Users copy the place from a table, where it stands as ``#3``.
    places = [text.strip().removeprefix("#") for text in texts]
    if len(places) == 1 and places[0].isdigit():
        return _at_place(ds, order, int(places[0]), where), f"number {places[0]}, by {rule}"
    wanted = parse_selection(texts)
    fits = np.ones(ds.sizes["config"], dtype=bool)
    for name, text in wanted.items():
        fits &= _fitting(ds, name, text, where)
    if not fits.any():
        selection = ", ".join(f"{name}={text}" for name, text in wanted.items())
        raise InputError(f"--select {selection}: no design of {where} has all of it")
    # The order is of those that can run, so that the first that fits is the best of them.
    able = order[fits[order]]
    if not able.size:
        raise InputError(f"{where}: {_why_none(ds, np.flatnonzero(fits))}")
    row = int(able[0])
    # Again, though it is ranked: a saturated design can run, and is in the order.
    _check(ds, row, where)
    of = f"the best of {able.size:,} designs" if able.size > 1 else "the only design that can run"
    selected = f" with {', '.join(f'{name}={text}' for name, text in wanted.items())}" if wanted else ""
    return row, f"{of}{selected}, by {rule}" if able.size > 1 else f"{of}{selected}"


def ranking_of(ds: xr.Dataset) -> tuple[np.ndarray, str]:
    """The designs that can run, best first, by the rule of the tables of a sweep or a search, and that rule."""
    if "search" in ds.attrs:
        return search.ranking(ds)
    feasible = np.flatnonzero(ds["status"].values == OK)
    return sweep_ranking.ranking(ds, feasible) if feasible.size else (feasible, "")


def _at_place(ds: xr.Dataset, order: np.ndarray, place: int, where: str) -> int:
    if not order.size:
        raise InputError(f"{where}: {_why_none(ds, np.arange(ds.sizes['config']))}")
    if not 1 <= place <= order.size:
        raise InputError(
            f"--select {place}: {where} ranks {order.size:,} designs, from 1; a row of its grid is --select config=ROW"
        )
    row = int(order[place - 1])
    _check(ds, row, where)
    return row


def _fitting(ds: xr.Dataset, name: str, text: str, where: str) -> np.ndarray:
    """Which rows have a value at a coordinate, (config,)."""
    long = SHORT_NAMES.get(name, name).replace(".", "_")
    names = [str(coordinate) for axis in axes_of(ds) for coordinate in axis]
    names += [column for column in ("config", "model", "hardware", "pool_layout") if column in ds.variables]
    matching = [column for column in dict.fromkeys(names) if column == long or column.endswith(f"_{long}")]
    # A whole name goes before the end of another: ``model`` before ``draft_model``.
    matching = [column for column in matching if column == long] or matching
    if len(matching) != 1:
        close = get_close_matches(long, names, n=1)
        hint = f"did you mean {close[0]}? " if close and not matching else ""
        raise InputError(
            f"--select {name}: {'is several of' if matching else 'is none of'} what {where} tells designs apart by; "
            f"{hint}that is {', '.join(matching or dict.fromkeys(names)) or 'nothing'}"
        )
    # A coordinate without the dimension ``config`` holds for every row.
    values = np.broadcast_to(ds[matching[0]].values, ds.sizes["config"])
    wanted = si_number(text)
    # Before the numbers: NumPy's booleans would pass as such below, and ``true`` is no number.
    if values.dtype.kind == "b":
        return values == (text.casefold() == "true")
    if values.dtype.kind in "iuf":
        if wanted is None:
            raise InputError(f"--select {name}={text}: {matching[0]} is a number, such as {values[0]:g}")
        # 1e-9: coordinates of spaced axes are rounded, and users type what a table shows.
        fits = np.isclose(values.astype(float), wanted, rtol=1e-9, atol=0.0)
    else:
        # Names as people write them: H100-SXM is h100-sxm.
        fits = np.array([str(value).casefold() == text.casefold() for value in values])
    if not fits.any():
        texts = list(dict.fromkeys(f"{value:g}" if values.dtype.kind in "iuf" else str(value) for value in values))
        more = ", ..." if len(texts) > 8 else ""
        raise InputError(f"--select {name}={text}: not in {where}; {matching[0]} is {', '.join(texts[:8])}{more}")
    return fits


def _why_none(ds: xr.Dataset, rows: np.ndarray) -> str:
    """Why none of some designs can be deployed, with the most frequent reason."""
    status = ds["status"].values[rows].astype(str)
    # What cannot run goes before what misses its objectives: the latter is only known of designs that ran.
    broken = reasons(status[status != OK])
    if broken:
        return f"no design that was asked for can run: {broken[0][0]}"
    missed = reasons(ds["search_status"].values[rows].astype(str)) if "search_status" in ds else []
    return "no design that was asked for meets the objectives" + (f": {missed[0][0]}" if missed else "")


def _check(ds: xr.Dataset, row: int, where: str) -> None:
    if ds["status"].values[row] != OK:
        raise InputError(f"{where}: this design cannot run: {ds['status'].values[row]}")
    if "saturated" in ds and bool(ds["saturated"].values[row]):
        rate = float(ds["rate_rps"].values[row]) if "rate_rps" in ds.coords and ds["rate_rps"].ndim else math.nan
        at_rate = "" if math.isnan(rate) else f" at {rate:g} requests/s"
        raise InputError(
            f"{where}: the design that was chosen is saturated{at_rate}: its queue grows without bound, and no server "
            "can be checked against it; choose one at a lower rate, or let `evaluator optimize` find the rate"
        )
