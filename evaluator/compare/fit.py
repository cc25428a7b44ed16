"""Serving-level calibration: a few physical parameters of one GPU and engine, fitted through the engine itself.

Least squares on the logarithms of predicted over measured mean ITL, E2E and TTFT of every stage, with a robust loss and
log-normal priors. The derivatives are finite differences through the engine under common random numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from evaluator.catalog import load_calibration
from evaluator.catalog.calibration import Calibration
from evaluator.compare.experiments import POOLED, Experiment
from evaluator.compare.parameters import active, adjusted
from evaluator.compare.run import predictions, simulate_server
from evaluator.compare.servers import server
from evaluator.compare.traffic import output_shares, requests
from evaluator.errors import InputError

NOISE = {"itl_mean": 0.02, "e2e_mean": 0.02, "ttft_mean": 0.07}
"""What replicates of one run differ by, relative: the weight of a residual is one over it."""
FOLDS = 4
_STEP = 4e-3  # of the finite differences, in the logarithm


@dataclass(frozen=True)
class FitResult:
    """``values`` by parameter, ``errors`` their relative standard errors, ``prior_share`` how much of each the prior
    decides (1: the data say nothing)."""

    calibration: Calibration
    values: Mapping[str, float]
    errors: Mapping[str, float] = field(default_factory=dict)
    prior_share: Mapping[str, float] = field(default_factory=dict)
    experiments: tuple[str, ...] = ()


class _Problem:
    """Residuals of a set of experiments of one base set; requests are drawn once."""

    def __init__(
        self, experiments: Sequence[Experiment], base: Calibration, shares: Mapping[str, float], centre: Mapping
    ) -> None:
        self.base, self.centre = base, centre
        self.free = active(base, max(each.tensor_parallel for each in experiments))
        self.loads = [(each, requests(each, 0, shares)) for each in experiments]
        self.start = np.array([np.log(centre.get(p.name, p.start)) for p in self.free])
        self.sigma = np.array([p.sigma for p in self.free])

    def values(self, theta: np.ndarray) -> dict[str, float]:
        return {p.name: float(np.exp(at)) for p, at in zip(self.free, theta, strict=True)}

    def residuals(self, theta: np.ndarray) -> np.ndarray:
        """Log ratios over the noise; an experiment's stages share its weight."""
        calibration = adjusted(self.base, self.values(theta))
        found: list[float] = []
        for experiment, load in self.loads:
            times = simulate_server(server(experiment, calibration), load)
            rows = _judged(experiment)
            for stage, metric, measured in rows:
                ratio = predictions(times, stage)[metric] / measured
                weight = (len(NOISE) / len(rows)) ** 0.5 / NOISE[metric]
                found.append(weight * float(np.log(ratio)) if np.isfinite(ratio) else 10.0)
        return np.array(found)

    def priors(self, theta: np.ndarray) -> np.ndarray:
        return (theta - self.start) / self.sigma


def fit_serving(
    experiments: Sequence[Experiment],
    base: str | Calibration = "datasheet",
    centre: Mapping[str, float] | None = None,
    start: Mapping[str, float] | None = None,
    shares: Mapping[str, float] | None = None,
    evaluations: int = 12,
) -> FitResult:
    """Fit the parameters to experiments of one GPU (or of several that are to share one set).

    ``centre`` moves the priors (a pooled fit, for a GPU with few runs), ``start`` is where the search begins.
    """
    from scipy.optimize import least_squares

    base = load_calibration(base, "any") if isinstance(base, str) else base
    if base.form != "roofline":
        raise InputError(f"calibration {base.name} is a {base.form} of whole iterations: it has no efficiencies to fit")
    shares = output_shares(experiments) if shares is None else shares
    problem = _Problem(experiments, base, shares, centre or {})
    given = start or {}
    begin = np.array([np.log(given.get(p.name, np.exp(at))) for p, at in zip(problem.free, problem.start, strict=True)])
    data = len(problem.residuals(begin))

    def together(theta: np.ndarray) -> np.ndarray:
        return np.concatenate([_robust(problem.residuals(theta)), problem.priors(theta)])

    def jacobian(theta: np.ndarray) -> np.ndarray:
        here = together(theta)
        columns = [(together(theta + _STEP * unit) - here) / _STEP for unit in np.eye(len(theta))]
        return np.stack(columns, axis=1)

    solution = least_squares(together, begin, jac=jacobian, max_nfev=evaluations, xtol=1e-4, ftol=1e-4)
    values = problem.values(solution.x)
    covariance = np.linalg.inv(solution.jac.T @ solution.jac)
    spread = max(1.0, float(np.mean(solution.fun[:data] ** 2))) ** 0.5
    deviation = np.sqrt(np.diag(covariance))
    names = [p.name for p in problem.free]
    return FitResult(
        calibration=adjusted(base, values),
        values=values,
        errors=dict(zip(names, (spread * deviation).tolist(), strict=True)),
        prior_share=dict(zip(names, np.minimum(1.0, (deviation / problem.sigma) ** 2).tolist(), strict=True)),
        experiments=tuple(each.id for each in experiments),
    )


def cross_validate(
    experiments: Sequence[Experiment],
    base: str | Calibration = "datasheet",
    centre: Mapping[str, float] | None = None,
    start: Mapping[str, float] | None = None,
    shares: Mapping[str, float] | None = None,
    folds: int = FOLDS,
) -> dict[str, FitResult]:
    """For every experiment (by id) the fit that has not seen it: experiments are dealt to the folds in turn."""
    shares = output_shares(experiments) if shares is None else shares
    ordered = sorted(experiments, key=lambda each: (each.model, each.tensor_parallel, each.id))
    folds = min(folds, len(ordered))
    if folds < 2:
        return {}
    found: dict[str, FitResult] = {}
    for fold in range(folds):
        kept = [each for at, each in enumerate(ordered) if at % folds != fold]
        fitted = fit_serving(kept, base, centre, start, shares, evaluations=6)
        found |= {each.id: fitted for at, each in enumerate(ordered) if at % folds == fold}
    return found


def runnable(experiments: Sequence[Experiment], base: str | Calibration = "datasheet") -> list[Experiment]:
    """The experiments that have measurements and that the engine can run."""
    kept = []
    for experiment in experiments:
        try:
            server(experiment, base)
        except InputError:
            continue
        if _judged(experiment):
            kept.append(experiment)
    return kept


def _judged(experiment: Experiment) -> list[tuple[int, str, float]]:
    """(stage, metric, measured): of every stage, or pooled where stages were not measured one by one."""
    stages = [stage for stage in experiment.stages if stage != POOLED and experiment.row(stage)] or [POOLED]
    found: list[tuple[int, str, float]] = []
    for stage in stages:
        row = experiment.row(stage)
        known = {} if row is None else row.values
        # Without the number of generated tokens E2E says nothing of the time of one.
        metrics = NOISE if row is not None and row.output_tokens else ("ttft_mean",)
        found += [(stage, metric, known[metric]) for metric in metrics if metric in known]
    return found


def _robust(residuals: np.ndarray, scale: float = 2.0) -> np.ndarray:
    """Signed roots of the soft l1 loss: quadratic up to ``scale`` deviations, linear beyond."""
    return np.sign(residuals) * scale * np.sqrt(2.0 * (np.sqrt(1.0 + (residuals / scale) ** 2) - 1.0))


def renamed(calibration: Calibration, name: str, hardware: str) -> Calibration:
    """The set under its own name: calibrated for the hardware that it names, for any other no better than a sheet."""
    provenance = "datasheet" if hardware == "any" else "calibrated"
    return replace(calibration, name=name, hardware=hardware, provenance=provenance)
