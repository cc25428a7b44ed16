"""Serving-level calibration: a few physical parameters of one GPU and engine, fitted through the engine itself.

Least squares on the logarithms of predicted over measured mean ITL, E2E and TTFT of every stage, with a robust loss and
log-normal priors. The derivatives are finite differences through the engine under common random numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from evaluator.calibrate.serving.parameters import active, adjusted
from evaluator.catalog.calibration import Calibration
from evaluator.compare.run import predictions, simulate_server
from evaluator.compare.servers import server
from evaluator.errors import InputError
from evaluator.experiments.experiment import POOLED, Experiment, MeasuredMetrics
from evaluator.experiments.names import hardware_name
from evaluator.experiments.traffic import requests

NOISE = {"itl_mean": 0.02, "e2e_mean": 0.02, "ttft_mean": 0.07}
"""What replicates of one run differ by, relative: the weight of a residual is one over it."""
_STEP = 0.1  # of the finite differences, in deviations of the prior: large beside how arrivals fall between iterations


@dataclass(frozen=True)
class FitResult:
    """``values`` by parameter, ``errors`` their relative standard errors, ``prior_share`` how much of each the prior
    decides (1: the data say nothing)."""

    values: Mapping[str, float]
    errors: Mapping[str, float] = field(default_factory=dict)
    prior_share: Mapping[str, float] = field(default_factory=dict)
    experiments: tuple[str, ...] = ()


class _Problem:
    """Residuals of experiments under their GPUs' base sets, with parameters in common; requests are drawn once."""

    def __init__(
        self, experiments: Sequence[Experiment], bases: Mapping[str, Calibration], centre: Mapping[str, float]
    ) -> None:
        self.bases = bases
        self.loads = [
            (experiment, hardware_name(experiment.gpu), requests(experiment, 0)) for experiment in experiments
        ]
        ranks = max(experiment.tensor_parallel for experiment in experiments)
        # By name: a parameter that any GPU's set has is fitted once, for all of them.
        free = {p.name: p for _, hardware, _ in self.loads for p in active(bases[hardware], ranks)}
        self.free = list(free.values())
        self.start = np.array([np.log(centre.get(p.name, p.start)) for p in self.free])
        # A data sheet knows less than kernels: its priors are twice as wide.
        measured_kernels = all(bases[hardware].provenance == "calibrated" for _, hardware, _ in self.loads)
        self.sigma = np.array([p.sigma for p in self.free]) * (1.0 if measured_kernels else 2.0)

    def values(self, theta: np.ndarray) -> dict[str, float]:
        # All parameters are positive, and are fitted by their logarithms.
        return {p.name: float(np.exp(coordinate)) for p, coordinate in zip(self.free, theta, strict=True)}

    def residuals(self, theta: np.ndarray) -> np.ndarray:
        """Log ratios over the noise; an experiment's stages share its weight."""
        values = self.values(theta)
        sets = {hardware: adjusted(base, values) for hardware, base in self.bases.items()}
        ratios: list[float] = []
        # The same requests under every set of values: common random numbers, without which differences are noise.
        for experiment, hardware, load in self.loads:
            # One seed: its arrivals are those of every evaluation, and the errors of a set are told over several
            # afterwards.
            (times,) = simulate_server(server(experiment, sets[hardware]), [load])
            rows = _judged(experiment)
            for row, metric, measured in rows:
                ratio = predictions(times, row.stage, row.counted_tokens)[metric] / measured
                # An experiment of several stages has as many rows more, of one server and one workload: it would count
                # as several.
                weight = (len(NOISE) / len(rows)) ** 0.5 / NOISE[metric]
                # A request that is never served has no time; 10 standard errors say that this is far off without
                # ending the fit.
                ratios.append(weight * float(np.log(ratio)) if np.isfinite(ratio) else 10.0)
        return np.array(ratios)

    def priors(self, theta: np.ndarray) -> np.ndarray:
        return (theta - self.start) / self.sigma

    def together(self, theta: np.ndarray) -> np.ndarray:
        """What is made least in squares: residuals, of which large ones count for less, and priors."""
        return np.concatenate([_robust(self.residuals(theta)), self.priors(theta)])

    def jacobian(self, theta: np.ndarray) -> np.ndarray:
        here = self.together(theta)
        # One step per parameter, a tenth of its prior's deviation: smaller ones drown in which iteration an arrival
        # falls.
        steps = _STEP * np.diag(self.sigma)
        return np.stack([(self.together(theta + step) - here) / step.sum() for step in steps], axis=1)


def fit_serving(
    experiments: Sequence[Experiment],
    bases: Mapping[str, Calibration],
    centre: Mapping[str, float] | None = None,
    start: Mapping[str, float] | None = None,
    evaluations: int = 10,
) -> FitResult:
    """Fit one set of parameter values to experiments, each under the base set of its GPU (``bases``, by hardware).

    ``centre`` moves the priors (to the values of all GPUs together, for one of them), ``start`` is where the search
    begins.
    """
    from scipy.optimize import least_squares

    for base in bases.values():
        if base.form != "roofline":
            raise InputError(
                f"calibration {base.name} has the form {base.form}: it has no efficiencies to fit; use one of the form "
                "roofline, such as datasheet"
            )
    problem = _Problem(experiments, bases, centre or {})
    given = start or {}
    begin = np.array(
        [
            np.log(given.get(p.name, np.exp(coordinate)))
            for p, coordinate in zip(problem.free, problem.start, strict=True)
        ]
    )
    data = len(problem.residuals(begin))
    # Few evaluations: one with its derivatives simulates all experiments once for every parameter.
    solution = least_squares(problem.together, begin, jac=problem.jacobian, max_nfev=evaluations, xtol=1e-3, ftol=1e-3)
    # Of data and priors together, so that a parameter that the data leave open has its prior's deviation.
    covariance = np.linalg.inv(solution.jac.T @ solution.jac)
    # Residuals larger than the noise that was assumed widen all errors alike.
    spread = max(1.0, float(np.mean(solution.fun[:data] ** 2))) ** 0.5
    deviation = np.sqrt(np.diag(covariance))
    names = [p.name for p in problem.free]
    return FitResult(
        values=problem.values(solution.x),
        errors=dict(zip(names, (spread * deviation).tolist(), strict=True)),
        # The share of the variance that the prior alone would leave.
        prior_share=dict(zip(names, np.minimum(1.0, (deviation / problem.sigma) ** 2).tolist(), strict=True)),
        experiments=tuple(experiment.id for experiment in experiments),
    )


def runnable(experiments: Sequence[Experiment], base: str | Calibration = "datasheet") -> list[Experiment]:
    """The experiments that have measurements and that the engine can run."""
    able = []
    # An experiment that the engine cannot run tells nothing; ``compare`` says why.
    for experiment in experiments:
        try:
            server(experiment, base)
        except InputError:
            continue
        if _judged(experiment):
            able.append(experiment)
    return able


def _judged(experiment: Experiment) -> list[tuple[MeasuredMetrics, str, float]]:
    """(row, metric, measured): of every stage, or pooled where stages were not measured one by one."""
    stages = [stage for stage in experiment.stages if stage != POOLED and experiment.row(stage)] or [POOLED]
    rows = [row for stage in stages if (row := experiment.row(stage))]
    return [(row, metric, row.values[metric]) for row in rows for metric in NOISE if row.values.get(metric)]


def _robust(residuals: np.ndarray, scale: float = 2.0) -> np.ndarray:
    """Signed roots of the soft l1 loss: quadratic up to ``scale`` deviations, linear beyond."""
    # Signed roots, because least_squares squares what it is given and has one loss for all rows, priors included.
    return np.sign(residuals) * scale * np.sqrt(2.0 * (np.sqrt(1.0 + (residuals / scale) ** 2) - 1.0))


def renamed(calibration: Calibration, name: str, hardware: str) -> Calibration:
    """The set under its own name: calibrated for the hardware that it names, for any other no better than a sheet."""
    provenance = "datasheet" if hardware == "any" else "calibrated"
    return replace(calibration, name=name, hardware=hardware, provenance=provenance)
