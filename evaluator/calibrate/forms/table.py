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
    # NaN stands for the context of no decodes, which is no place on that axis.
    knots = [np.unique(values[np.isfinite(values)]) if np.isfinite(values).any() else np.zeros(1) for values in points]
    total, count = np.zeros((2, *map(len, knots)))
    for row, point in enumerate(zip(*points, strict=True)):
        cell = tuple(
            # An iteration without decodes has no context: its time is that of all contexts.
            slice(None) if np.isnan(value) else int(np.searchsorted(values_of_axis, value))
            for values_of_axis, value in zip(knots, point, strict=True)
        )
        total[cell] += rows.time_s[row]
        count[cell] += 1
    # 0 / 0 at combinations that were not measured, which are filled up or refused below.
    with np.errstate(invalid="ignore"):
        seconds = np.apply_along_axis(_extended, -1, total / count, knots[-1])
    if np.isnan(seconds).any():
        raise InputError(_missing(phase, knots, np.isnan(seconds)))
    seconds = _rising(seconds)
    note: dict[str, Any] = {"extended": int((count == 0).sum())}
    note["knots"] = {
        name: len(values_of_axis)
        for name, values_of_axis in zip(AXES[phase], knots, strict=True)
        if len(values_of_axis) > 1
    }
    ranges = rows.ranges(phase)
    phase_fit = MeasuredPhase(
        ranges, knots=tuple(tuple(k.tolist()) for k in knots), seconds=tuple(seconds.ravel().tolist())
    )
    return phase_fit, note


def _extended(seconds: np.ndarray, context: np.ndarray) -> np.ndarray:
    """Seconds along the context with what is missing at its end, NaN, on the line through the last two."""
    measured = np.flatnonzero(~np.isnan(seconds))
    # Only a gap at the end may be filled: in the middle it is a measurement that is missing.
    if len(measured) < 2 or len(measured) != measured[-1] + 1:
        return seconds
    before, last = measured[-2], measured[-1]
    # max: noise that lets the last two fall must not promise times below 0 further on.
    slope = max((seconds[last] - seconds[before]) / (context[last] - context[before]), 0.0)
    return np.where(np.isnan(seconds), seconds[last] + slope * (context - context[last]), seconds)


def _points(phase: str, rows: IterationRows, axes: Sequence[str] | None) -> list[np.ndarray]:
    """Where each row is on each axis, (row,) by quantity: 0 on what is no axis, NaN for the context of no decodes."""
    values_of = rows.quantities(phase)
    values_of["context"] = np.where(values_of["decodes"] > 0, values_of["context"], np.nan)
    return [values if axes is None or name in axes else np.zeros_like(values) for name, values in values_of.items()]


def _missing(phase: str, knots: Sequence[np.ndarray], missing: np.ndarray) -> str:
    names = AXES[phase]
    first = np.argwhere(missing)[0]
    shown = ", ".join(
        f"{name} {values_of_axis[index]:g}"
        for name, values_of_axis, index in zip(names, knots, first, strict=True)
        if len(values_of_axis) > 1
    )
    used = [name for name, values_of_axis in zip(names, knots, strict=True) if len(values_of_axis) > 1]
    return (
        f"a table of {phase} iterations over {' x '.join(used)} needs every combination of the measured values; "
        f"{missing.sum()} of {missing.size} are missing (such as {shown}); measure them, or name the quantities "
        f"that time shall depend on, such as --axes {used[0]}"
    )


def _rising(seconds: np.ndarray) -> np.ndarray:
    """The nearest grid that falls along no axis, by projections in turn, and exactly so by a last sweep upwards."""
    # Each projection is the nearest for its own axis and may break the order along another: they take turns until all
    # of them hold.
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
        # The first knot is left out by islice, and the last below: both would be extrapolated.
        for knot in itertools.islice(np.unique(values[np.isfinite(values)]), 1, None):
            if knot < np.nanmax(values):
                yield np.flatnonzero(values != knot), np.flatnonzero(values == knot)
