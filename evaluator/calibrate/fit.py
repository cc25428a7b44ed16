"""The fit: least squares on log ratios with a JAX Jacobian, a robust loss, and priors where the data are silent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import least_squares

from evaluator.calibrate.parameters import PRIOR_SIGMA, Parameter, put, values
from evaluator.cost.rates import Rates

LOSS_SCALE = 0.1
"""Residuals (log ratios) beyond this weigh less and less (soft L1): badly chosen kernels are not the rule."""

SHORT_S = 20e-6
"""Rows shorter than this weigh less, in proportion to their time."""

WEAKEST = 1e-3
"""A direction whose unit step (a factor of e) moves the predictions by less, root mean square, is not identified."""

ROUNDING = 1e-12
"""Directions weaker than this share of the strongest differ by rounding alone."""

DIRECTIONS = 16
"""Parameters by which a program differentiates at once."""

ROWS_PER_PARAMETER = 2
"""With fewer rows (as many degrees of freedom as parameters) there are no standard errors."""


@dataclass(frozen=True)
class Target:
    """Rows to predict: seconds as a function of the rates, and as measured."""

    label: str
    predict: Callable[[Rates], Any]
    time_s: np.ndarray


@dataclass(frozen=True)
class Fit:
    """The result. ``errors`` are standard errors of the values: NaN for what the data do not identify,
    infinite for what too few rows identify."""

    parameters: tuple[Parameter, ...]
    values: np.ndarray
    errors: np.ndarray
    identified: np.ndarray
    rates: Rates
    singular_values: np.ndarray
    evaluations: int


class Fitting:
    """Parameters and targets to be fitted to one another: to all rows or, in turn, to some of them.

    Each target is compiled once, whatever is then fitted: which parameters, and which rows.
    """

    def __init__(self, start: Rates, parameters: Sequence[Parameter], targets: Sequence[Target]) -> None:
        # JAX arrays, so that the parameters can be put into them by ``at[...].set``.
        self._base = jax.tree.map(jnp.asarray, start)
        self._parameters = tuple(parameters)
        self._prior = np.array([parameter.inner(parameter.start) for parameter in parameters])
        self._targets = {target.label: _Moved(self._base, parameters, target, self._prior) for target in targets}

    def fit(self, rows: Mapping[str, np.ndarray] | None = None) -> Fit:
        """Fit all parameters to the targets, or to ``rows`` (indices) of those that are named.

        Minimises sum rho((log predicted - log measured)^2) + sum ((z - z0) / sigma)^2 over the unbounded coordinates
        z, rho soft L1 (scipy.optimize.least_squares). Parameters that share no target are fitted apart. A parameter
        that the data do not identify, by the singular values of the Jacobian, is held at its prior and the rest is
        fitted again.
        """
        if rows is None:
            rows = {label: np.arange(len(moved.log_s)) for label, moved in self._targets.items()}
        parts = [_Part(self._targets[label], np.asarray(of_target)) for label, of_target in rows.items()]
        inner = self._prior.copy()
        errors = np.full(len(inner), np.nan)
        singular: list[np.ndarray] = []
        evaluations = 0
        # A class has no figure in common with most others: small problems, each with a Jacobian of its own.
        for which, block in _blocks(parts):
            solved = _fit_block(_Block(self._prior, which, block))
            inner[which], errors[which] = solved.inner, solved.errors
            singular.append(solved.singular_values)
            evaluations += solved.evaluations
        parameters = self._parameters
        new = np.asarray(values(parameters, inner))
        slopes = np.array([parameter.slope(value) for parameter, value in zip(parameters, new, strict=True)])
        slopes = np.maximum(slopes, np.finfo(float).tiny)  # an infinite error at a bound stays infinite
        rate = jax.tree.map(np.asarray, put(self._base, parameters, new))
        strengths = np.concatenate([*singular, []])
        return Fit(parameters, new, errors * slopes, ~np.isnan(errors), rate, strengths, evaluations)


class _Moved:
    """The logarithms of a target's predictions, and how parameters move them: one compiled program."""

    def __init__(self, base: Rates, parameters: Sequence[Parameter], target: Target, prior: np.ndarray) -> None:
        self.log_s = np.log(target.time_s)
        # Short rows are mostly launches, of which timers see every interruption.
        self.weights = np.sqrt(np.minimum(1.0, target.time_s / SHORT_S))

        def logs(inner: Any) -> Any:
            return jnp.log(target.predict(put(base, parameters, values(parameters, inner, jnp))))

        def pushed(inner: Any, directions: Any) -> Any:
            # Forward mode: some ten parameters and thousands of rows.
            along = jax.vmap(lambda direction: jax.jvp(logs, (inner,), (direction,)), out_axes=(None, -1))
            return along(directions)

        self._pushed = jax.jit(pushed)
        self._unit = np.eye(len(prior))
        self.at_prior = self.at(prior, np.arange(len(prior)))[1]

    def at(self, inner: np.ndarray, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The logarithms, (row,), and their derivatives by the coordinates ``which``, (row, which)."""
        columns = []
        # As many directions in each call, so that one program serves blocks of any number of parameters.
        for first in range(0, len(which), DIRECTIONS):
            some = which[first : first + DIRECTIONS]
            directions = np.zeros((DIRECTIONS, len(inner)))
            directions[: len(some)] = self._unit[some]
            logs, slopes = self._pushed(inner, directions)
            columns.append(np.asarray(slopes)[:, : len(some)])
        return np.asarray(logs), np.hstack(columns)


class _Part(NamedTuple):
    moved: _Moved
    rows: np.ndarray  # which of the target's


class _Block:
    """Residuals of some parts, and their derivatives by the parameters that move them."""

    def __init__(self, prior: np.ndarray, which: Sequence[int], parts: Sequence[_Part]) -> None:
        self._all, self._which, self._parts = prior.copy(), np.array(which), parts
        self.prior = prior[self._which]
        self._known: tuple[np.ndarray, tuple[np.ndarray, np.ndarray]] | None = None

    def at(self, inner: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        # The solver asks for the residuals of a point and then for their derivatives.
        if self._known is None or not np.array_equal(self._known[0], inner):
            self._all[self._which] = inner
            both = []
            for moved, rows in self._parts:
                logs, slopes = moved.at(self._all, self._which)
                weights = moved.weights[rows]
                both.append((weights * (logs - moved.log_s)[rows], weights[:, None] * slopes[rows]))
            residuals, jacobians = zip(*both, strict=True)
            self._known = inner.copy(), (np.concatenate(residuals), np.vstack(jacobians))
        return self._known[1]

    def residuals(self, inner: np.ndarray) -> np.ndarray:
        return self.at(inner)[0]

    def jacobian(self, inner: np.ndarray) -> np.ndarray:
        return self.at(inner)[1]


class _Solved(NamedTuple):
    inner: np.ndarray
    errors: np.ndarray  # of the coordinates
    singular_values: np.ndarray
    evaluations: int


def _fit_block(block: _Block) -> _Solved:
    prior = block.prior
    # At the prior, too: a parameter that the data drive to a bound moves nothing there (``_stronger``).
    before = block.jacobian(prior)
    free = np.ones(len(prior), dtype=bool)
    inner, evaluations = prior.copy(), 0
    while free.any():
        # Fit, take away the parameter that the data say least of, fit again: dropping several at once may drop one
        # that is only weak because of another.
        solved = _solve(block, inner, free)
        inner[free], evaluations = solved.x, evaluations + solved.nfev
        sensitivity = block.jacobian(inner)
        weak = _weakest(_stronger(before, sensitivity), free)
        if weak is None:
            break
        free[weak], inner[weak] = False, prior[weak]
    errors, singular = np.full(len(prior), np.nan), np.array([])
    if free.any():
        errors[free] = _standard_errors(block.residuals(inner), sensitivity[:, free])
        singular = np.linalg.svd(sensitivity[:, free], compute_uv=False) / np.sqrt(len(sensitivity))
    return _Solved(inner, errors, singular, evaluations)


def _blocks(parts: Sequence[_Part]) -> list[tuple[list[int], list[_Part]]]:
    """Connected components of the graph of parameters and the parts that they move; lonely ones are left out."""
    blocks: list[tuple[set[int], list[_Part]]] = []
    for part in parts:
        moved, members = set(np.flatnonzero(_moves(part)).tolist()), [part]
        apart = []
        # A part joins all blocks that share a parameter with it.
        for which, block in blocks:
            if which & moved:
                moved, members = moved | which, [*block, *members]
            else:
                apart.append((which, block))
        blocks = [*apart, (moved, members)]
    return [(sorted(which), block) for which, block in blocks if which]


def _moves(part: _Part) -> np.ndarray:
    """Which parameters move any prediction of the part, (parameter,) of bool."""
    # A few rows over the whole table tell which parameters matter.
    few = np.unique(np.linspace(0, len(part.rows) - 1, 200).astype(int))
    return (part.moved.at_prior[part.rows[few]] != 0).any(axis=0)


def _stronger(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Column by column the larger: a parameter at a bound moves nothing there, but was driven there by the data."""
    return np.where(np.linalg.norm(first, axis=0) > np.linalg.norm(second, axis=0), first, second)


def _solve(block: _Block, start: np.ndarray, free: np.ndarray) -> Any:
    prior = block.prior

    def whole(part: np.ndarray) -> np.ndarray:
        inner = prior.copy()
        inner[free] = part
        return inner

    # The prior is scaled to count as one measurement of a typical error.
    scale = LOSS_SCALE / PRIOR_SIGMA
    return least_squares(
        lambda part: np.concatenate([block.residuals(whole(part)), scale * (part - prior[free])]),
        start[free],
        lambda part: np.vstack([block.jacobian(whole(part))[:, free], scale * np.eye(int(free.sum()))]),
        loss="soft_l1",
        f_scale=LOSS_SCALE,
        x_scale="jac",
        max_nfev=100,
    )


def _weakest(sensitivity: np.ndarray, free: np.ndarray) -> int | None:
    """The parameter that dominates the weakest direction, where that direction is too weak; None where all are strong.

    Each column is scaled by the rows it acts on, so that a class with few rows counts as one with many. Directions that
    nothing moves, as there are wherever parameters outnumber rows, count together: which basis they have is chance.
    """
    columns = sensitivity[:, free]
    # A row counts for a parameter if it moves the row at all.
    acts = np.maximum(1, (np.abs(columns) > 1e-9).sum(axis=0))
    # Rows of zeros make the SVD return every direction, those that no row sees among them.
    unseen = np.zeros((max(0, columns.shape[1] - len(columns)), columns.shape[1]))
    _, strength, directions = np.linalg.svd(np.vstack([columns / np.sqrt(acts), unseen]), full_matrices=False)
    if not len(strength) or strength[-1] >= WEAKEST:
        return None
    # Equal up to rounding, since any basis of a null space is as good as another.
    weakest = directions[strength <= max(strength[-1], ROUNDING * strength[0])]
    return int(np.flatnonzero(free)[np.argmax(np.linalg.norm(weakest, axis=0))])


def _standard_errors(residuals: np.ndarray, sensitivity: np.ndarray) -> np.ndarray:
    """Standard errors of the coordinates by the sandwich (Huber 1967): the loss' weights and the spread of each row.

    Infinite with too few rows: parameters that meet every row leave no residuals to tell an error from.
    """
    rows, parameters = sensitivity.shape
    if rows < ROWS_PER_PARAMETER * parameters:
        return np.full(parameters, np.inf)
    # The derivative of soft L1 at each row, by which ``least_squares`` has weighed it.
    weights = 1.0 / np.sqrt(1.0 + (residuals / LOSS_SCALE) ** 2)
    bread = np.linalg.pinv((sensitivity * weights[:, None]).T @ sensitivity)
    scores = sensitivity * (weights * residuals)[:, None]
    return np.sqrt(np.diag(bread @ (scores.T @ scores) @ bread))
