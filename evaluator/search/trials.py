"""Runs of designs at rates of a search's choice, and what is kept of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from evaluator.execution.schedule import statistics_of
from evaluator.metrics import OK, Bounds, bounds_of
from evaluator.metrics.chance import OF_AN_OBJECTIVE, is_sure, normal_quantile, objective_chance, spread
from evaluator.metrics.headroom import headrooms
from evaluator.metrics.latency import statistic_of
from evaluator.plan import Configuration, Plan, plan
from evaluator.traffic.arrivals import at_rate

Values = dict[str, np.ndarray]
_TOLD = (*OF_AN_OBJECTIVE, "objective_headroom", "objective_confidence")


@dataclass(frozen=True)
class Objectives:
    """The objectives of designs over the quantiles that are reported. Arrays are (row, objective)."""

    bounds: tuple[Bounds, ...]
    levels: np.ndarray
    class_names: tuple[str, ...]
    names: tuple[str, ...]  # of the objectives of the plan: columns of the variables by objective

    @staticmethod
    def of(whole: Plan, configurations: Sequence[Configuration], levels: np.ndarray) -> Objectives:
        """The objectives of one configuration for each design."""
        bounds = bounds_of([configuration.objectives for configuration in configurations])
        return Objectives(bounds, levels, whole.labels.class_names, whole.labels.objective_names)

    def ratios(self, values: Values, designs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Each latency as a part of its bound, above 1 where it misses it, and the standard error of that.

        ``values`` have a row for each of ``designs``; NaN where a design has no such objective. Where a confidence is
        asked the latency is what the real one is below with that chance.
        """
        pairs = [self._ratio(values, bound, designs) for bound in self.bounds]
        ratios, errors = (np.stack(figures, axis=-1) for figures in zip(*pairs, strict=True))
        margins = self.margins(values)
        return ratios * margins, errors * margins

    def margins(self, values: Values) -> np.ndarray:
        """By what factor each latency has to be below its bound for the confidence, (row, objective); 1 without one,
        infinite where the model's error is not known."""
        told = {name: values[name][:, self.columns] for name in _TOLD}
        quantile = normal_quantile(told["objective_confidence"])
        with np.errstate(divide="ignore", invalid="ignore"):
            # What the service has to be faster by, as a part of the latency where the bound is met just.
            slower = quantile * spread(*(told[name] for name in OF_AN_OBJECTIVE)) - np.log(told["objective_headroom"])
            margin = np.exp(told["objective_growth"] * slower) / told["objective_ratio"]
        return np.where(np.isnan(quantile), 1.0, np.where(np.isnan(margin), np.inf, margin))

    @property
    def columns(self) -> list[int]:
        """Where the objectives stand among those of the plan."""
        return [self.names.index(bound.name) for bound in self.bounds]

    def _ratio(self, values: Values, bound: Bounds, designs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        value, error = statistic_of(values, bound, self.levels, self.class_names)
        limit = bound.bound_s[designs]
        return value / limit, error / limit

    def missed(self, design: int, ratios: np.ndarray) -> str:
        """The objective that a design misses by most, ``ratios`` (objective,), in words."""
        # All bounds are met by the requests that are served, so that it was the queue or those that were refused or
        # lost that ruled it out (``run``).
        if not np.nanmax(ratios, initial=0.0) > 1.0:
            return "the queue grows without bound, or too many requests are refused or lost"
        worst = int(np.nanargmax(ratios))
        bound = self.bounds[worst]
        limit = float(bound.bound_s[design])
        if np.isinf(ratios[worst]):
            return f"the expected error of {bound.name} is not known, which slo.confidence asks for; leave it out"
        asked = np.nan if bound.confidence is None else bound.confidence[design]
        sure = "" if np.isnan(asked) else f"with a chance of {asked:g} "
        within = "is" if np.isnan(asked) else "is within"
        return f"{sure}{bound.name} {within} {_time(ratios[worst] * limit)}, and the bound is {_time(limit)}"


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1.0 else f"{1e3 * seconds:.3g} ms"


@dataclass
class ReportedRuns:
    """The run of every design that is to be reported. Rows of designs that were never run are NaN, false or empty."""

    designs: int
    values: Values = field(default_factory=dict)

    def keep(self, designs: np.ndarray, values: Values, rows: np.ndarray) -> None:
        """Take the ``rows`` of ``values`` for these designs."""
        if not self.values:
            self.values = {name: _empty(self.designs, value) for name, value in values.items()}
        for name, value in values.items():
            self.values[name][designs] = value[rows]


def _empty(rows: int, like: np.ndarray) -> np.ndarray:
    if like.dtype.kind in "US":
        return np.full(rows, "", dtype=object)
    # Rows that nobody ran have no status: as text they are empty, as numbers unknown.
    shape = (rows, *like.shape[1:])
    return np.zeros(shape, dtype=bool) if like.dtype == bool else np.full(shape, np.nan)


def run(
    whole: Plan, configurations: Sequence[Configuration], rates_rps: np.ndarray | None, levels: np.ndarray
) -> tuple[Values, np.ndarray]:
    """The statistics of configurations at rates of their own, (configuration, ...), and whether each serves its rate.

    Without rates the arrivals are those of the scenario.

    A configuration does so where it runs, meets its objectives, with the chance that is asked for, and is not
    saturated: a queue that grows all along would miss any objective in a longer run.
    """
    values = (
        statistics_of(whole, configurations, levels)
        if rates_rps is None
        else _at_rates(whole, configurations, rates_rps, levels)
    )
    met = values["slo_met"] & ~values["saturated"] & (values["status"] == OK)
    confidence = values["objective_confidence"]
    # What misses by its prediction does so with any chance above a half: it needs no runs beside it.
    rows = np.flatnonzero(met & np.isfinite(confidence).any(axis=1))
    if not rows.size:
        return values, met
    if rates_rps is not None:
        _look_above(whole, [configurations[int(row)] for row in rows], rates_rps[rows], levels, values, rows)
    deviation = spread(*(values[name] for name in OF_AN_OBJECTIVE))
    return values, met & is_sure(objective_chance(values["objective_headroom"], deviation), confidence).all(axis=1)


def _look_above(
    whole: Plan,
    configurations: Sequence[Configuration],
    rates_rps: np.ndarray,
    levels: np.ndarray,
    values: Values,
    rows: np.ndarray,
) -> None:
    """Put into ``rows`` of ``values`` the headroom and growth of their objectives, by runs at higher rates.

    For each objective there is one at the rate at which the design tells what it does here with a service that is
    slower by as much as its confidence asks for; objectives of one latency share theirs.
    """
    of_service = np.log1p(values["objective_mean_error"][rows])
    slower = np.nan_to_num(normal_quantile(values["objective_confidence"][rows]) * of_service)  # (row, objective)
    runs = [({name: values[name][rows] for name in values}, np.zeros(rows.size))]
    for log_factor in np.unique(slower.T, axis=0):
        if not log_factor.any():  # of an objective without a confidence: this very run
            continue
        runs.append((_at_rates(whole, configurations, rates_rps * np.exp(log_factor), levels), log_factor))
    for place, row in enumerate(rows):
        # The rates of a design, each once: objectives may ask for the same one.
        log_rate, first = np.unique([log_factor[place] for _, log_factor in runs], return_index=True)
        ran = [runs[number][0] for number in first]
        headroom, growth = headroom_of(
            log_rate,
            np.array([of_run["objective_ratio"][place] for of_run in ran]),
            np.array([of_run["saturated"][place] for of_run in ran], dtype=bool),
        )
        values["objective_headroom"][row] = headroom[0]
        values["objective_growth"][row] = growth[0]


def headroom_of(log_rate: np.ndarray, ratio: np.ndarray, saturated: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Headroom and growth of the objectives of one design at each of some rates, (rate, objective)."""
    with np.errstate(divide="ignore"):
        log_headroom, growth = headrooms(log_rate, np.log(ratio), saturated)
    return np.exp(log_headroom), growth


def _at_rates(
    whole: Plan, configurations: Sequence[Configuration], rates_rps: np.ndarray, levels: np.ndarray
) -> Values:
    """Statistics of configurations at rates of their own, (configuration, ...).

    Where sessions have several turns, those that are under way when a run begins follow from the rate, and with them
    the requests: such configurations are planned anew at each rate, as a sweep over the rates does. One that cannot run
    the requests of a rate, as some prompt is too long, has those of the scenario's own rate.
    """
    session_turns = np.array(
        [configuration.workload.sessions.continued for configuration in configurations], dtype=bool
    )
    moved, parts = ~session_turns, []
    # One plan for each rate, whatever designs are at it: in step with one another, most are at the same few.
    for rate_rps in np.unique(rates_rps[session_turns]):
        rows = np.flatnonzero(session_turns & (rates_rps == rate_rps))
        planned = _planned_at(whole, [configurations[int(row)].config for row in rows], float(rate_rps))
        able = np.array([configuration.status == OK for configuration in planned.configurations], dtype=bool)
        parts.append((planned, [design for design in planned.configurations if design.status == OK], rows[able]))
        moved[rows[~able]] = True
    rows = np.flatnonzero(moved)
    parts.append((whole, whole.at_rates([configurations[int(row)] for row in rows], rates_rps[rows]), rows))
    ran = [(statistics_of(planned, variants, levels), rows) for planned, variants, rows in parts if rows.size]
    # The parts are in the order of their rates: back to the order in which designs were asked for.
    back = np.argsort(np.concatenate([rows for _, rows in ran]))
    return {name: np.concatenate([values[name] for values, _ in ran])[back] for name in ran[0][0]}


def _planned_at(whole: Plan, configs: Sequence[int], rate_rps: float) -> Plan:
    """The plan of some configurations with the scenario's arrivals at another rate."""
    workload = whole.scenario.workload
    arrivals = at_rate(workload.arrivals, rate_rps, workload.requests)
    scenario = replace(whole.scenario, workload=replace(workload, arrivals=arrivals))
    return plan(scenario, np.array(configs, dtype=np.int64), whole.simulator)


def unsteady(configuration: Configuration) -> str:
    """What is to be said of a run that is not steady, and to be done."""
    return (
        f"but the run of {int(configuration.workload.requests):,} requests is not steady, so that it may flatter the "
        "design; use more workload.requests, or auto"
    )
