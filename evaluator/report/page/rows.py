"""Which designs a page holds: all of them, or of very many the best and a sample that keeps its charts whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from evaluator.metrics.outcomes import OK
from evaluator.report import search
from evaluator.report.axes import ShownAxis
from evaluator.report.ranking import ranking

if TYPE_CHECKING:
    import xarray as xr

MANY_LEVELS = 40  # designs.js takes axes with more in steps
MOST = 10_000
"""Designs of one page. They take about 200 bytes each in the file and stay quick in a browser."""


def ranked(ds: xr.Dataset) -> tuple[np.ndarray, str]:
    """All positions along ``config``, the best first and those that cannot run last, and the rule in words."""
    able = ds["status"].values == OK
    if not able.any():
        return np.arange(able.size), "none can run"
    if "search" not in ds.attrs:
        order, rule = ranking(ds, np.flatnonzero(able))
        return np.concatenate([order, np.flatnonzero(~able)]), rule
    order, rule = search.ranking(ds)
    # A search's ranking has only those that serve something; the page shows the others behind them, the nearest first.
    others = np.setdiff1d(np.flatnonzero(able), order)
    near = others[np.argsort(-np.nan_to_num(ds["slo_attainment"].values[others]), kind="stable")]
    rule = f"{rule}; those that do not meet the objectives last, by SLO attainment" if rule else "SLO attainment"
    return np.concatenate([order, near, np.flatnonzero(~able)]), rule


def sample(axes: Sequence[ShownAxis], order: np.ndarray, most: int = MOST) -> np.ndarray:
    """At most ``most`` places in ``order`` (positions along ``config``, best first), ascending.

    ``axes`` are those of the dataset. Where there are more designs, these are taken until the page is full: the best;
    the best of every cell of two axes, so that heat maps over any two axes show what they would with all designs; those
    that differ from the best design in at most two quantities, so that curves through it are whole; every n-th of the
    ranking.
    """
    if order.size <= most:
        return np.arange(order.size)
    taken = np.zeros(order.size, dtype=bool)
    for places in _wanted(axes, order, most):
        new = places[~taken[places]]
        # `_wanted` yields the most telling first, so that what is cut is the least.
        taken[new[: most - int(taken.sum())]] = True
    return np.flatnonzero(taken)


def _steps(axis: ShownAxis, order: np.ndarray) -> np.ndarray:
    """Which level each design has; of a number with very many levels, as a sample has, about which tenth of them."""
    count = axis.first.size
    return axis.at[order] if count <= MANY_LEVELS else axis.at[order] * 10 // count


def _wanted(axes: Sequence[ShownAxis], order: np.ndarray, most: int) -> Iterator[np.ndarray]:
    """Places in ``order``, the most wanted first."""
    codes = [_steps(axis, order) for axis in axes]
    # A fifth for the best: the table opens with them, and the front lies among them.
    yield np.arange(most // 5)
    # The best of each cell, as ``order`` is by rank and ``unique`` gives the first of each.
    for first, second in combinations(codes, 2):
        yield np.sort(np.unique(first * (int(second.max()) + 1) + second, return_index=True)[1])
    if codes:
        # ``code[0]``: ``order`` has the best design first.
        yield np.flatnonzero(np.sum([code != code[0] for code in codes], axis=0) <= 2)
    yield np.unique(np.linspace(0, order.size - 1, most).astype(int))
    # Whatever room is left goes to the best that are not taken yet.
    yield np.arange(most)
