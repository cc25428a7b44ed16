"""The fit: least squares on log ratios with a JAX Jacobian, a robust loss, and priors where the data are silent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


def fit(start: Rates, parameters: Sequence[Parameter], targets: Sequence[Target]) -> Fit:
    """Fit all parameters to all targets.

    Minimises sum rho((log predicted - log measured)^2) + sum ((z - z0) / sigma)^2 over the unbounded coordinates z, rho
    soft L1 (scipy.optimize.least_squares). Parameters that share no target are fitted apart. A parameter that the
    data do not identify, by the singular values of the Jacobian, is held at its prior and the rest is fitted again.
    """
    # JAX arrays, so that the parameters can be put into them by ``at[...].set``.
    base = jax.tree.map(jnp.asarray, start)
    inner = np.array([parameter.inner(parameter.start) for parameter in parameters])
    errors = np.full(len(parameters), np.nan)
    singular: list[np.ndarray] = []
    evaluations = 0
    # A class has no figure in common with most others: small problems, each with a Jacobian of its own.
    for which, block in _blocks(base, parameters, targets):
        solved = _fit_block(base, [parameters[index] for index in which], block)
        inner[which], errors[which] = solved.inner, solved.errors
        singular.append(solved.singular_values)
        evaluations += solved.evaluations
    new = np.asarray(values(parameters, inner))
    slopes = np.array([parameter.slope(value) for parameter, value in zip(parameters, new, strict=True)])
    slopes = np.maximum(slopes, np.finfo(float).tiny)  # an infinite error at a bound stays infinite
    rate = jax.tree.map(np.asarray, put(base, parameters, new))
    strengths = np.concatenate([*singular, []])
    return Fit(tuple(parameters), new, errors * slopes, ~np.isnan(errors), rate, strengths, evaluations)


class _Solved(NamedTuple):
    inner: np.ndarray
    errors: np.ndarray  # of the coordinates
    singular_values: np.ndarray
    evaluations: int


def _fit_block(base: Rates, parameters: Sequence[Parameter], targets: Sequence[Target]) -> _Solved:
    prior = np.array([parameter.inner(parameter.start) for parameter in parameters])
    residuals, jacobian = _residuals(base, parameters, targets)
    # At the prior, too: a parameter that the data drive to a bound moves nothing there (``_stronger``).
    before = np.asarray(jacobian(prior))
    free = np.ones(len(parameters), dtype=bool)
    inner, evaluations = prior.copy(), 0
    while free.any():
        # Fit, take away the parameter that the data say least of, fit again: dropping several at once may drop one
        # that is only weak because of another.
        solved = _solve(residuals, jacobian, prior, inner, free)
        inner[free], evaluations = solved.x, evaluations + solved.nfev
        sensitivity = np.asarray(jacobian(inner))
        weak = _weakest(_stronger(before, sensitivity), free)
        if weak is None:
            break
        free[weak], inner[weak] = False, prior[weak]
    errors, singular = np.full(len(parameters), np.nan), np.array([])
    if free.any():
        errors[free] = _standard_errors(np.asarray(residuals(inner)), sensitivity[:, free])
        singular = np.linalg.svd(sensitivity[:, free], compute_uv=False) / np.sqrt(len(sensitivity))
    return _Solved(inner, errors, singular, evaluations)


def _blocks(
    base: Rates, parameters: Sequence[Parameter], targets: Sequence[Target]
) -> list[tuple[list[int], list[Target]]]:
    """Connected components of the graph of parameters and the targets that they move; lonely ones are left out."""
    inner = np.array([parameter.inner(parameter.start) for parameter in parameters])
    moves = []
    for target in targets:
        moves.append(_moves(base, parameters, target, inner))
    blocks: list[tuple[set[int], list[Target]]] = []
    for target, row in zip(targets, moves, strict=True):
        moved, members = set(np.flatnonzero(row).tolist()), [target]
        apart = []
        # A target joins all blocks that share a parameter with it.
        for which, block in blocks:
            if which & moved:
                moved, members = moved | which, [*block, *members]
            else:
                apart.append((which, block))
        blocks = [*apart, (moved, members)]
    return [(sorted(which), block) for which, block in blocks if which]


def _moves(base: Rates, parameters: Sequence[Parameter], target: Target, inner: np.ndarray) -> np.ndarray:
    """Which parameters move any prediction of the target, (parameter,) of bool."""

    def predictions(z: Any) -> Any:
        return jnp.log(target.predict(put(base, parameters, values(parameters, z, jnp))))

    # A few rows over the whole table tell which parameters matter; the Jacobian of all would cost as much as the fit.
    few = np.unique(np.linspace(0, len(target.time_s) - 1, 200).astype(int))
    return (np.asarray(jax.jit(jax.jacfwd(predictions))(inner))[few] != 0).any(axis=0)


def _stronger(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Column by column the larger: a parameter at a bound moves nothing there, but was driven there by the data."""
    return np.where(np.linalg.norm(one, axis=0) > np.linalg.norm(other, axis=0), one, other)


def _residuals(base: Rates, parameters: Sequence[Parameter], targets: Sequence[Target]) -> tuple[Any, Any]:
    measured = [jnp.log(target.time_s) for target in targets]
    # Short rows are mostly launches, of which timers see every interruption.
    weights = [np.sqrt(np.minimum(1.0, target.time_s / SHORT_S)) for target in targets]

    def residuals(inner: Any) -> Any:
        rate = put(base, parameters, values(parameters, inner, jnp))
        parts = [
            weight * (jnp.log(target.predict(rate)) - log)
            for target, log, weight in zip(targets, measured, weights, strict=True)
        ]
        return jnp.concatenate(parts)

    # Forward mode: some ten parameters and thousands of rows.
    return jax.jit(residuals), jax.jit(jax.jacfwd(residuals))


def _solve(residuals: Any, jacobian: Any, prior: np.ndarray, start: np.ndarray, free: np.ndarray) -> Any:
    def whole(part: np.ndarray) -> np.ndarray:
        inner = prior.copy()
        inner[free] = part
        return inner

    # The prior is scaled to count as one measurement of a typical error.
    scale = LOSS_SCALE / PRIOR_SIGMA
    return least_squares(
        lambda part: np.concatenate([np.asarray(residuals(whole(part))), scale * (part - prior[free])]),
        start[free],
        lambda part: np.vstack([np.asarray(jacobian(whole(part)))[:, free], scale * np.eye(int(free.sum()))]),
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
    """Of the coordinates: robust sandwich (Huber 1967), the loss' weights and the residuals' spread row by row.

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
