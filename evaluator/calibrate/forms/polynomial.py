"""A polynomial by least squares of errors relative to what is expected, no term below 0: more work takes no less."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy.optimize import nnls

from evaluator.calibrate.forms.rows import IterationRows
from evaluator.catalog.iterations import TERMS, MeasuredPhase
from evaluator.cost.polynomial import regressors

FOLDS = 5
_TURNS = 5  # the weights are those of the second turn within a percent, also of rows that deviate by 30 %
DISTINCT = 1e-6
"""A term of which no larger part is left when the terms before it are taken out of it is not told apart from them."""


def fit(phase: str, rows: IterationRows, axes: Sequence[str] | None = None) -> tuple[MeasuredPhase, dict[str, Any]]:
    """Minimises sum ((predicted - measured) / expected)^2 with coefficients of at least 0 (Lawson and Hanson's NNLS).

    What is expected of a row is the fit itself, found in turns from the measured times: the quasi-likelihood of a
    deviation proportional to the mean (Wedderburn 1974). Divided by the measured times alone, the error of a row that
    was slow by chance would count for less than that of a fast one: recorded on a busy server (deviations of 30 %) the
    fit was 9 % below the mean.
    Terms that the rows do not tell apart from those before them stay 0 and are named. Standard errors are those of the
    terms above 0 (heteroscedasticity-consistent, White 1980), as if the others had not been there.
    """
    columns = np.stack([np.broadcast_to(x, rows.time_s.shape) for x in regressors(phase, rows.batch)], axis=1)
    distinct = _told_apart(columns / rows.time_s[:, None])
    coefficients = np.zeros(len(TERMS[phase]))
    expected = rows.time_s
    for _ in range(_TURNS):
        relative = columns / expected[:, None]
        # Columns of one norm: NNLS stops by tolerances that a column in seconds per token^2 would fall below.
        scale = np.linalg.norm(relative[:, distinct], axis=0)
        scaled, _ = nnls(relative[:, distinct] / scale, rows.time_s / expected)
        coefficients[distinct] = scaled / scale
        # Where nothing is predicted, as of a phase whose terms are all 0 there, the row keeps its weight.
        predicted = columns @ coefficients
        expected = np.where(predicted > 0, predicted, expected)
    names = np.array(TERMS[phase])
    free = coefficients > 0
    errors = dict(
        zip(names[free].tolist(), _errors(columns[:, free] / expected[:, None], rows.time_s / expected), strict=True)
    )
    note = {"standard_errors": errors, "not_told_apart": names[~distinct].tolist()}
    return MeasuredPhase(rows.ranges(phase), coefficients=tuple(coefficients.tolist())), note


def _told_apart(columns: np.ndarray) -> np.ndarray:
    """Which columns are not combinations of those before them, (term,) of bool."""
    distinct = np.zeros(columns.shape[1], dtype=bool)
    for term, column in enumerate(columns.T):
        size, before = np.linalg.norm(column), columns[:, distinct]
        # What is left of a column when those before are taken out of it by least squares.
        rest = column - before @ np.linalg.lstsq(before, column, rcond=None)[0] if distinct.any() else column
        distinct[term] = size > 0 and np.linalg.norm(rest) > DISTINCT * size
    return distinct


def _errors(columns: np.ndarray, measured: np.ndarray) -> list[float]:
    """Standard errors of the coefficients of least squares of ``measured`` (row,) on the columns."""
    bread = np.linalg.pinv(columns.T @ columns)
    scores = columns * (measured - columns @ (bread @ (columns.T @ measured)))[:, None]
    return np.sqrt(np.diag(bread @ (scores.T @ scores) @ bread)).tolist()


def splits(
    phase: str, rows: IterationRows, axes: Sequence[str] | None = None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Every fifth shape aside, in the order of their times; the same shapes are seen or aside together."""
    # Repetitions of a shape are one: seen in the fit and aside they would tell of noise alone.
    shapes, shape = np.unique(np.stack([np.asarray(values) for values in rows.batch]), axis=1, return_inverse=True)
    longest = np.zeros(shapes.shape[1])
    np.maximum.at(longest, shape.ravel(), rows.time_s)
    # argsort twice is the rank; every fifth by time, so that each fold has short and long iterations.
    fold = (np.argsort(np.argsort(longest)) % FOLDS)[shape.ravel()]
    for number in range(min(FOLDS, shapes.shape[1])):
        yield np.flatnonzero(fold != number), np.flatnonzero(fold == number)
