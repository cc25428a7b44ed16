"""Runs of designs at rates of a search's choice, and what is kept of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from evaluator.execution.schedule import statistics_of
from evaluator.metrics import OK, Bounds, bounds_of
from evaluator.metrics.latency import statistic_of
from evaluator.plan import Configuration, Plan, plan
from evaluator.traffic.arrivals import at_rate

Values = dict[str, np.ndarray]


@dataclass(frozen=True)
class Objectives:
    """The objectives of designs over the quantiles that are reported. Arrays are (row, objective)."""

    bounds: tuple[Bounds, ...]
    levels: np.ndarray
    class_names: tuple[str, ...]

    @staticmethod
    def of(whole: Plan, configurations: Sequence[Configuration], levels: np.ndarray) -> Objectives:
        """The objectives of one configuration for each design."""
        bounds = bounds_of([configuration.objectives for configuration in configurations])
        return Objectives(bounds, levels, whole.class_names)

    def ratios(self, values: Values, designs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Each latency as a part of its bound, above 1 where it misses it, and the standard error of that.

        ``values`` have a row for each of ``designs``; NaN where a design has no such objective.
        """
        ratios = [self._ratio(values, bound, designs) for bound in self.bounds]
        return np.stack([ratio for ratio, _ in ratios], axis=-1), np.stack([error for _, error in ratios], axis=-1)

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
        return f"{bound.name} is {_time(ratios[worst] * limit)}, and the bound is {_time(limit)}"


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

    A configuration does so where it runs, meets its objectives, and is not saturated: a queue that grows all along
    would miss any objective in a longer run.
    """
    values = (
        statistics_of(whole, configurations, levels)
        if rates_rps is None
        else _at_rates(whole, configurations, rates_rps, levels)
    )
    return values, values["slo_met"] & ~values["saturated"] & (values["status"] == OK)


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
