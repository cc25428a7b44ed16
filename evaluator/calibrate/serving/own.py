"""The user's own server as a set: what serving adds to a set of kernels, fitted to a few runs of a load generator.

Gauss-Newton on the logarithms of predicted over measured TTFT and TPOT, through the same simulation as ``compare``,
with a robust loss and priors: the base set's own figures, as wide as the fits of the shipped serving sets take them.
What the runs leave open stays there. Each load is left out in turn, which says how far the set is off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from evaluator.accuracy.basis import served_design
from evaluator.accuracy.cases import band
from evaluator.calibrate.serving.fit import NOISE
from evaluator.calibrate.serving.own_runs import OwnRun
from evaluator.calibrate.serving.parameters import OWN_PARAMETERS, RunParameter, active, adjusted, as_vllm
from evaluator.calibrate.serving.write import document_of
from evaluator.catalog import load_calibration
from evaluator.catalog.calibration import SORT, Calibration
from evaluator.catalog.engines import DEFAULT_ENGINE
from evaluator.catalog.own_server import SAME_LOAD, OwnServer, ServedLoad
from evaluator.compare.results import predicted, simulated
from evaluator.errors import InputError
from evaluator.replica import ReplicaBuild

if TYPE_CHECKING:
    import pandas as pd

    from evaluator.progress import ProgressReport

_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # ten times faster where PyYAML was built with libyaml
_STEP = 0.1  # of the finite differences, in deviations of the prior, as in ``fit``
_STEPS = 6  # of Gauss-Newton with the same derivatives; three or four are enough where the runs are of the scenario
_REFRESHED, _NEAR = 3, 0.5  # how often derivatives are taken anew, while the fit moves by more deviations than this
_TELLING = 0.1  # deviations of the noise by one of a parameter's prior: less tells next to nothing of it
_FARTHEST = 2.0  # deviations of the prior in one step: beyond, a linear model says nothing
_DONE = 0.05  # deviations, below which a step changes no figure that anybody reads
_SCALE = 2.0  # deviations of the noise up to which the loss is quadratic, as in ``fit``
HELD = 0.9
"""Share of the prior in a parameter's variance from which on the runs say nothing of it: it is held there."""
ALIKE = 0.7
"""Correlation from which on two parameters are not told apart: half of the variance of either (0.7 squared) is then the
other's."""


HOST_TIMES = ("step_overhead_s", "sequence_overhead_s")
"""Parameters whose prior is normal, around the base set's time and as wide as the data sheet's: 1 ms an iteration,
where the serving sets have 0.04 ms. The logarithm of so little has no slope by which a slow host could be seen."""


@dataclass(frozen=True)
class OwnParameter:
    """``base`` and ``value``; ``error``: relative standard error; ``prior_share``: what the prior decides of it.

    ``held``: at the base set's value, as the runs say nothing of it.
    """

    name: str
    meaning: str
    base: float
    value: float
    error: float
    prior_share: float
    held: bool


@dataclass(frozen=True)
class OwnFigure:
    """A measured figure (seconds or 1/s) and its predictions: by the base set, as fitted, fitted without its load."""

    run: str
    load: str
    concurrency: float
    metric: str
    measured: float
    base: float
    fitted: float
    held_out: float


@dataclass(frozen=True)
class OwnErrors:
    """Mean absolute errors of a metric, in %: of the base set, as fitted, and of loads left out."""

    metric: str
    points: int
    base_pct: float
    fitted_pct: float
    held_out_pct: float


@dataclass(frozen=True)
class OwnFit:
    """The fitted set with all that is told of it. ``told_directions``: combinations of parameters of which the runs say
    more than the priors; ``alike``: pairs that they do not tell apart, with their correlation. ``spread``: how many
    times the noise of replicates the residuals are."""

    base: Calibration
    begin: Calibration  # the base set with the priors of what it says nothing of
    calibration: Calibration
    own: OwnServer
    parameters: tuple[OwnParameter, ...]
    alike: tuple[tuple[str, str, float], ...]
    told_directions: int
    figures: tuple[OwnFigure, ...]
    loads: tuple[str, ...]
    spread: float
    simulations: int

    @property
    def values(self) -> dict[str, float]:
        """The fitted values by name, without parameters that are held at their prior."""
        return {parameter.name: parameter.value for parameter in self.parameters if not parameter.held}


class _OwnProblem:
    """Log ratios of the runs over the noise, of parameters in deviations of their priors."""

    def __init__(
        self, runs: Sequence[OwnRun], built: ReplicaBuild, folder: Path, progress: ProgressReport | None
    ) -> None:
        self.runs, self.base, self.folder, self.progress = runs, built.calibration, folder, progress
        self.hardware = built.hardware.name
        self.begin = _served(self.base, built.spec.engine)
        self.parameters = _free(self.begin, built)
        self.centre = np.array([centre_of(parameter, self.begin) for parameter in self.parameters])
        self.sigma = np.array([parameter.sigma for parameter in self.parameters])
        # A data sheet, or sets of other devices, know less than kernels of this one: twice as wide, as in ``fit``.
        self.sigma *= 1.0 if self.base.provenance == "calibrated" else 2.0
        sheet = load_calibration("datasheet", "any")
        self.linear = np.array([parameter.name in HOST_TIMES for parameter in self.parameters])
        self.sigma[self.linear] = [
            getattr(sheet, parameter.name) for parameter in self.parameters if parameter.name in HOST_TIMES
        ]
        self.simulations = 0
        # Simulations are kept by run and set: the fit and the fits without a load ask for the same ones again.
        self._files: dict[bytes, str] = {}
        self._predicted: dict[tuple[int, str], dict[str, float]] = {}
        self._loads: dict[int, ServedLoad] = {}

    def values(self, deviations: np.ndarray) -> dict[str, float]:
        values = np.where(
            self.linear,
            # A normal prior around almost nothing reaches below zero, where no host is.
            np.maximum(0.0, self.centre + self.sigma * deviations),
            self.centre * np.exp(np.where(self.linear, 0.0, self.sigma) * deviations),
        )
        return {parameter.name: float(value) for parameter, value in zip(self.parameters, values, strict=True)}

    def calibration(self, deviations: np.ndarray) -> Calibration:
        """The set with those parameters put in that differ from the prior."""
        values = self.values(deviations).items()
        moved = {name: value for (name, value), by in zip(values, deviations, strict=True) if by}
        return adjusted(self.begin, moved, OWN_PARAMETERS)

    def predicted(self, number: int, deviations: np.ndarray | None) -> dict[str, float]:
        """The figures of a run as ``compare`` has them, by the set of these deviations (None: the base set itself)."""
        name = "auto" if deviations is None else self._file(deviations)
        if (number, name) not in self._predicted:
            run = self.runs[number]
            scenario = run.scenario
            if deviations is not None:
                scenario = replace(scenario, deployment=replace(scenario.deployment, calibration=name))
            try:
                simulation = simulated(run.measured, scenario, self.folder)
            except InputError as error:
                raise InputError(f"{run.measured.label}: cannot be predicted: {error}") from None
            values = predicted(simulation, (50,))
            # Answers of one token have no time between tokens, whatever a file says.
            if absent := [metric for metric in run.figures if not values.get(metric, 0.0) > 0.0]:
                raise InputError(
                    f"{run.measured.label}: has a {absent[0]}, which the load in it does not have; see whether its "
                    "lengths are those that were sent"
                )
            self._predicted[number, name] = values
            self._loads[number] = _load(simulation.requests)
            self.simulations += 1
            if self.progress is not None:
                self.progress.advance()
        return self._predicted[number, name]

    def load(self, number: int) -> ServedLoad:
        """The load of a run, as its latest simulation had it."""
        return self._loads[number]

    def _file(self, deviations: np.ndarray) -> str:
        """A file of the set: deployments name their set, so that every simulation reads one as a user's will."""
        key = deviations.tobytes()
        if key not in self._files:
            path = self.folder / f"set-{len(self._files)}.yaml"
            set_ = replace(
                # Neither the errors of the base set's fit nor its server: this set has none yet, and rows would state
                # another's.
                self.calibration(deviations),
                name=path.stem,
                hardware=self.hardware,
                fit={},
                own_server=None,
            )
            document = document_of(set_) | {"sources": dict(set_.sources)}
            path.write_text(yaml.dump(document, Dumper=_DUMPER), encoding="utf-8")
            self._files[key] = str(path)
        return self._files[key]

    def residuals(self, numbers: Sequence[int], deviations: np.ndarray) -> np.ndarray:
        rows = []
        for number in numbers:
            values = self.predicted(number, deviations)
            for metric, measured in self.runs[number].figures.items():
                rows.append(math.log(values[metric] / measured) / noise_of(metric))
        return np.array(rows)

    def jacobian(self, numbers: Sequence[int], deviations: np.ndarray, of: np.ndarray) -> np.ndarray:
        """The derivatives by the parameters that ``of`` selects."""
        here = self.residuals(numbers, deviations)
        steps = _STEP * np.eye(len(deviations))[of]
        return np.stack([(self.residuals(numbers, deviations + step) - here) / _STEP for step in steps], axis=1)

    def rows_of(self, numbers: Sequence[int]) -> np.ndarray:
        """Which residuals are of these runs, as a mask over those of all."""
        return np.concatenate([np.full(len(run.figures), number in numbers) for number, run in enumerate(self.runs)])


def fit_own(
    runs: Sequence[OwnRun], built: ReplicaBuild, name: str, folder: Path, progress: ProgressReport | None = None
) -> OwnFit:
    """The set ``name`` of the server that measured these runs; ``built`` is a replica of it, with the base set.

    ``folder`` is for files of the fit. Errors: InputError where a run cannot be predicted, or the base set has no
    efficiencies.
    """
    if built.calibration.form != "roofline":
        raise InputError(
            f"calibration {built.calibration.name} has the form {built.calibration.form}: it has no efficiencies to "
            "fit; use one of the form roofline, such as auto"
        )
    problem = _OwnProblem(runs, built, folder, progress)
    every = range(len(runs))
    base = [problem.predicted(number, None) for number in every]
    deviations, jacobian = _first_fit(problem)
    covariance, spread = _covariance(problem.residuals(every, deviations), jacobian)
    # In deviations of the prior, whose variance is 1: the variance that is left is the share.
    prior_share = np.minimum(1.0, np.diag(covariance))
    free = prior_share <= HELD
    # What the runs do not tell goes back to the prior, and what they tell is found again beside it.
    deviations = _solve(problem, every, np.where(free, deviations, 0.0), free, jacobian)
    fitted = [problem.predicted(number, deviations) for number in every]
    loads = [problem.load(number) for number in every]
    held_out = _left_out(problem, deviations, free, jacobian)
    figures = tuple(
        OwnFigure(run.measured.label, run.load, load.concurrency, metric, measured, *(by[metric] for by in predictions))
        for run, load, *predictions in zip(runs, loads, base, fitted, held_out, strict=True)
        for metric, measured in run.judged.items()
        if metric in predictions[1]
    )
    server = OwnServer(
        tuple(served_design(built).items()), tuple(loads), _errors(figures), _spacing(runs, loads), _otherwise(built),
        release=runs[0].scenario.deployment.engine_version,
    )  # fmt: skip
    set_ = replace(
        problem.calibration(deviations), name=name, hardware=built.hardware.name, provenance="calibrated",
        engine=built.spec.engine, own_server=server, fit={},
    )  # fmt: skip
    parameters = _parameters(problem, deviations, prior_share, free)
    # What the runs add to the priors' identity: an eigenvalue above 1 is a direction of which they say more than the
    # prior.
    information = np.linalg.eigvalsh(np.linalg.inv(covariance) - np.eye(len(free)))
    alike, directions = _alike(covariance, free, parameters), int((information > 1.0).sum())
    return OwnFit(
        problem.base, problem.begin, set_, server, parameters, alike, directions, figures,
        tuple(dict.fromkeys(run.load for run in runs)), spread, problem.simulations,
    )  # fmt: skip


def _left_out(
    problem: _OwnProblem, deviations: np.ndarray, free: np.ndarray, jacobian: np.ndarray
) -> list[dict[str, float]]:
    """The figures of every run as a fit predicts them that has not seen any run of its load."""
    runs, figures = problem.runs, dict[int, dict[str, float]]()
    for load in dict.fromkeys(run.load for run in runs):
        aside = [number for number, run in enumerate(runs) if run.load == load]
        others = [number for number in range(len(runs)) if number not in aside]
        # The derivatives of all runs serve: they change little from a fit to the next, and the solution does not depend
        # on them but on the residuals.
        of_others = _solve(problem, others, deviations, free, jacobian[problem.rows_of(others)])
        figures |= {number: problem.predicted(number, of_others) for number in aside}
    return [figures[number] for number in range(len(runs))]


def _parameters(
    problem: _OwnProblem, deviations: np.ndarray, prior_share: np.ndarray, free: np.ndarray
) -> tuple[OwnParameter, ...]:
    values = problem.values(deviations)
    # Relative, also of times whose deviation is in seconds.
    figure = np.where(problem.linear, np.maximum(list(values.values()), 1e-12), 1.0)
    deviation = problem.sigma * np.sqrt(prior_share) / figure
    return tuple(
        OwnParameter(
            parameter.name, parameter.meaning, float(problem.centre[number]), values[parameter.name],
            float(deviation[number]), float(prior_share[number]), not free[number],
        )
        for number, parameter in enumerate(problem.parameters)
    )  # fmt: skip


def expected_simulations(runs: int, loads: int) -> int:
    """About how many simulations a fit takes, for the progress bar: some steps with all derivatives, and the loads."""
    return runs * (1 + 4 * len(OWN_PARAMETERS) + 3 * loads)


def noise_of(metric: str) -> float:
    """What replicates of a run differ by, relative (``fit.NOISE``); all but TTFT follows from times of iterations."""
    return NOISE["ttft_mean"] if metric.startswith("ttft") else NOISE["itl_mean"]


def centre_of(parameter: RunParameter, base: Calibration) -> float:
    """Where its prior is: at what the set has."""
    if parameter.name == "sort_start_s":
        return base.of(SORT).launch_s
    # Factors are of what the set has, and begin at 1.
    return float(getattr(base, parameter.name, parameter.start))


def _served(base: Calibration, engine: str) -> Calibration:
    """The base set with what a server has beside kernels: where it says nothing, as the serving sets' fits begin."""
    # A set of kernels alone has no time of a frontend; every set that saw a server has.
    alone = not base.frontend_s
    if alone and engine == DEFAULT_ENGINE:
        base = as_vllm(base)
    absent = {
        parameter.name: parameter.start
        for parameter in OWN_PARAMETERS
        # The host's times beside kernels that were measured alone are a data sheet's.
        if hasattr(base, parameter.name) and (alone or not getattr(base, parameter.name))
    }
    return adjusted(base, absent, OWN_PARAMETERS)


def _free(base: Calibration, built: ReplicaBuild) -> list[RunParameter]:
    """The parameters that the times of this server may depend on."""
    without = {"warm_up_s"}  # of single runs from a cold start; generators warm up, and simulations leave it out
    without |= set() if built.model.has_experts else {"expert_bandwidth", "expert_skew"}
    # Without the class an engine takes no time to sample; a start would invent one.
    sorts = built.model.nucleus_sampling and SORT in base.efficiencies
    without |= set() if sorts else {"sort_start_s", "sort_bandwidth"}
    listed = active(base, built.spec.parallel.devices, OWN_PARAMETERS)
    return [parameter for parameter in listed if parameter.name not in without]


def _otherwise(built: ReplicaBuild) -> str:
    """What other designs rest on: the case of the base set, which knows nothing of this server."""
    # A set that was fitted to a server before must not lend that server's errors to other designs, either.
    before = built.calibration.own_server
    return built.calibration.rests_on if before is None else before.otherwise


def _load(requests: pd.DataFrame) -> ServedLoad:
    begun, e2e = requests["arrival_s"].to_numpy(), requests["e2e_s"].to_numpy()
    span = float((begun + e2e).max() - begun.min())
    means = (float(requests[name].mean()) for name in ("prompt_tokens", "output_tokens"))
    # As many digits as the set's file keeps.
    return ServedLoad(*(float(f"{value:.6g}") for value in (float(e2e.sum()) / span, *means)))


def _first_fit(problem: _OwnProblem) -> tuple[np.ndarray, np.ndarray]:
    """The deviations that fit all runs, and the derivatives near there."""
    every, deviations = range(len(problem.runs)), np.zeros(len(problem.parameters))
    jacobian = problem.jacobian(every, deviations, np.ones(len(deviations), dtype=bool))
    # Most simulations are for derivatives: those of parameters that change nothing here are not taken again.
    telling = np.abs(jacobian).max(axis=0) > _TELLING
    for _ in range(_REFRESHED if telling.any() else 0):
        before, deviations = deviations, _solve(problem, every, deviations, telling, jacobian)
        if np.abs(deviations - before).max() < _NEAR:
            break
        jacobian[:, telling] = problem.jacobian(every, deviations, telling)
    return deviations, jacobian


def _solve(
    problem: _OwnProblem, numbers: Sequence[int], deviations: np.ndarray, free: np.ndarray, jacobian: np.ndarray
) -> np.ndarray:
    """The deviations with the least loss of these runs and the priors, from ``at``; only those that are ``free`` move.

    ``jacobian``: of these runs, taken near there; it is the same throughout, for it changes little in a few deviations.
    """

    def loss(residuals: np.ndarray, deviations: np.ndarray) -> float:
        # Soft l1: quadratic up to ``_SCALE`` deviations of the noise, linear beyond.
        robust = 2.0 * _SCALE**2 * (np.sqrt(1.0 + (residuals / _SCALE) ** 2) - 1.0)
        return float(robust.sum() + (deviations**2).sum())

    residuals = problem.residuals(numbers, deviations)
    rows = jacobian[:, free]
    for _ in range(_STEPS):
        weight = _weights(residuals)[:, None]
        # Gauss-Newton with weights (iteratively reweighted least squares); the priors are unit rows, hence `+ at` and
        # `+ eye`.
        gradient = rows.T @ (weight[:, 0] * residuals) + deviations[free]
        step = np.zeros(len(deviations))
        step[free] = -np.linalg.solve(rows.T @ (weight * rows) + np.eye(int(free.sum())), gradient)
        step *= min(1.0, _FARTHEST / max(np.abs(step).max(initial=0.0), 1e-12))
        before = loss(residuals, deviations)
        # Halved until it helps: near a kink of the simulation, as where a batch fits or not, a whole one may not.
        for _ in range(4):
            tried = problem.residuals(numbers, deviations + step)
            if loss(tried, deviations + step) <= before:
                break
            step /= 2.0
        else:
            # Four halvings without a gain: the residuals are as low as this linear model can make them.
            return deviations
        deviations, residuals = deviations + step, tried
        if np.abs(step).max(initial=0.0) < _DONE:
            break
    return deviations


def _weights(residuals: np.ndarray) -> np.ndarray:
    """Weights of the squared residuals under which these have the gradient of the soft l1 loss here."""
    return 1.0 / np.sqrt(1.0 + (residuals / _SCALE) ** 2)


def _covariance(residuals: np.ndarray, jacobian: np.ndarray) -> tuple[np.ndarray, float]:
    """The covariance of the deviations, priors included; and how many times the noise the residuals are, at least 1.

    Residuals larger than the noise widen the noise, and not the priors: these say what servers differ by, whatever the
    runs of one of them are like.
    """
    weight = _weights(residuals)[:, None]
    information = jacobian.T @ (weight * jacobian)
    identity = np.eye(len(information))
    # Parameters that the runs decide use up as many residuals.
    used = float(np.trace(np.linalg.solve(information + identity, information)))
    spare = max(1.0, len(residuals) - used)
    spread = max(1.0, math.sqrt(float((weight[:, 0] * residuals**2).sum()) / spare))
    return np.linalg.inv(information / spread**2 + identity), spread


def _alike(
    covariance: np.ndarray, free: np.ndarray, parameters: Sequence[OwnParameter]
) -> tuple[tuple[str, str, float], ...]:
    deviation = np.sqrt(np.diag(covariance))
    correlation = covariance / np.outer(deviation, deviation)
    pairs = [
        (parameters[first].name, parameters[second].name, float(correlation[first, second]))
        for first in range(len(free))
        for second in range(first + 1, len(free))
        if free[first] and free[second] and abs(correlation[first, second]) >= ALIKE
    ]
    return tuple(sorted(pairs, key=lambda pair: -abs(pair[2])))


def _spacing(runs: Sequence[OwnRun], loads: Sequence[ServedLoad]) -> float:
    """How far the loads that were left out were from the next one, the median."""
    distances = [
        load.distance([other for other, of_other in zip(loads, runs, strict=True) if of_other.load != run.load])
        for load, run in zip(loads, runs, strict=True)
    ]
    return float(f"{max(float(np.median(distances)), math.log(SAME_LOAD)):.6g}")


def _errors(figures: Sequence[OwnFigure]) -> tuple[tuple[str, float], ...]:
    """The expected errors of TTFT, ITL and E2E: those of loads left out, and no less than what replicates differ by.

    Where an E2E was not measured the throughput of a closed loop says it, and where no time between tokens was the E2E,
    which mostly consists of it.
    """

    def known(*metrics: str) -> float | None:
        for metric in metrics:
            errors = [figure.measured / figure.held_out - 1.0 for figure in figures if figure.metric == metric]
            if len(errors) > 1:  # of one value alone nothing can be said about the next one
                return max(band(np.array(errors)), noise_of(metric))
        return None

    throughputs = ("output_tok_per_s", "throughput_rps", "total_tok_per_s")
    e2e = ("e2e_mean", "e2e_p50", *throughputs)
    gaps = ("tpot_mean", "itl_mean", "tpot_p50")
    errors = {"ttft": known("ttft_mean", "ttft_p50"), "itl": known(*gaps, *e2e), "e2e": known(*e2e, *gaps)}
    return tuple((name, round(error, 4)) for name, error in errors.items() if error is not None)


def summary(figures: Sequence[OwnFigure]) -> list[OwnErrors]:
    """The errors by metric."""
    rows = []
    for metric in dict.fromkeys(figure.metric for figure in figures):
        of_metric = [figure for figure in figures if figure.metric == metric]
        base, fitted, held_out = (
            100.0 * float(np.mean([abs(getattr(figure, by) / figure.measured - 1.0) for figure in of_metric]))
            for by in ("base", "fitted", "held_out")
        )
        rows.append(OwnErrors(metric, len(of_metric), base, fitted, held_out))
    return rows
