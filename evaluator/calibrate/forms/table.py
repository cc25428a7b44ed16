"""A table: the mean of the measurements at every combination of the quantities that it has axes of."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy.optimize import isotonic_regression

from evaluator.calibrate.forms.rows import IterationRows
from evaluator.catalog.iterations import AXES, MeasuredPhase
from evaluator.errors import InputError


def fit(phase: str, rows: IterationRows, axes: Sequence[str] | None = None) -> tuple[MeasuredPhase, dict[str, Any]]:
    """Knots at the measured values. ``axes``: quantities that time depends on (default: all that vary).

    The longest contexts may be missing, for want of KV: there the line through the last two measured goes on, so that
    the cells at the end of the KV have corners; the range of ``decode_context`` tells how far the measurements go.
    InputError where another combination of knots was not measured. Seconds that fall along an axis, by noise, are
    levelled (isotonic regression), so that more work takes no less time.
    """
    points = _points(phase, rows, axes)
    knots = [np.unique(values[np.isfinite(values)]) if np.isfinite(values).any() else np.zeros(1) for values in points]
    total, count = np.zeros((2, *map(len, knots)))
    for row, point in enumerate(zip(*points, strict=True)):
        cell = tuple(
            slice(None) if np.isnan(value) else int(np.searchsorted(known, value))
            for known, value in zip(knots, point, strict=True)
        )
        total[cell] += rows.time_s[row]
        count[cell] += 1
    with np.errstate(invalid="ignore"):
        seconds = np.apply_along_axis(_extended, -1, total / count, knots[-1])
    if np.isnan(seconds).any():
        raise InputError(_missing(phase, knots, np.isnan(seconds)))
    seconds = _rising(seconds)
    note: dict[str, Any] = {"extended": int((count == 0).sum())}
    note["knots"] = {name: len(known) for name, known in zip(AXES[phase], knots, strict=True) if len(known) > 1}
    ranges = rows.ranges(phase)
    found = MeasuredPhase(
        ranges, knots=tuple(tuple(k.tolist()) for k in knots), seconds=tuple(seconds.ravel().tolist())
    )
    return found, note


def _extended(seconds: np.ndarray, context: np.ndarray) -> np.ndarray:
    """Seconds along the context with what is missing at its end, NaN, on the line through the last two."""
    there = np.flatnonzero(~np.isnan(seconds))
    if len(there) < 2 or len(there) != there[-1] + 1:
        return seconds
    one, last = there[-2], there[-1]
    slope = max((seconds[last] - seconds[one]) / (context[last] - context[one]), 0.0)
    return np.where(np.isnan(seconds), seconds[last] + slope * (context - context[last]), seconds)


def _points(phase: str, rows: IterationRows, axes: Sequence[str] | None) -> list[np.ndarray]:
    """Where each row is on each axis, (row,) by quantity: 0 on what is no axis, NaN for the context of no decodes."""
    found = rows.quantities(phase)
    found["context"] = np.where(found["decodes"] > 0, found["context"], np.nan)
    return [values if axes is None or name in axes else np.zeros_like(values) for name, values in found.items()]


def _missing(phase: str, knots: Sequence[np.ndarray], missing: np.ndarray) -> str:
    names = AXES[phase]
    first = np.argwhere(missing)[0]
    shown = ", ".join(
        f"{name} {known[at]:g}" for name, known, at in zip(names, knots, first, strict=True) if len(known) > 1
    )
    used = [name for name, known in zip(names, knots, strict=True) if len(known) > 1]
    return (
        f"a table of {phase} iterations over {' x '.join(used)} needs every combination of the measured values; "
        f"{missing.sum()} of {missing.size} are missing (such as {shown}); measure them, or name the quantities "
        f"that time shall depend on, such as --axes {used[0]}"
    )


def _rising(seconds: np.ndarray) -> np.ndarray:
    """The nearest grid that falls along no axis, by projections in turn, and exactly so by a last sweep upwards."""
    for _ in range(100):
        if all((np.diff(seconds, axis=axis) >= 0).all() for axis in range(seconds.ndim)):
            return seconds
        for axis in range(seconds.ndim):
            seconds = np.apply_along_axis(lambda line: isotonic_regression(line).x, axis, seconds)
    for axis in range(seconds.ndim):
        seconds = np.maximum.accumulate(seconds, axis=axis)
    return seconds


def splits(
    phase: str, rows: IterationRows, axes: Sequence[str] | None = None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Every knot between two others aside, on every axis in turn: its rows are predicted from the knots around it."""
    for values in _points(phase, rows, axes):
        for knot in itertools.islice(np.unique(values[np.isfinite(values)]), 1, None):
            if knot < np.nanmax(values):
                yield np.flatnonzero(values != knot), np.flatnonzero(values == knot)
