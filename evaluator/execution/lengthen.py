"""Runs that go on until they mean something: ``workload.requests: auto``.

A sweep starts short. The configurations whose run was too short to be steady, whose objectives lie within the error of
their statistics, or whose mean latency is not known to 5 %, are run again with four times the requests, up to the most
that the scenario allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from evaluator.metrics.latency import statistic_of
from evaluator.metrics.outcomes import OK, bounds_of
from evaluator.plan import Plan, plan
from evaluator.scenario import Auto, Scenario

# Errors fall with the square root of the requests, so that each step halves them.
FACTOR = 4
DECIDED = 2.0
"""Standard errors between a statistic and its bound."""
PRECISE = 0.05
"""Relative standard error of the mean of e2e_s: near the limit of a design it says first that a run is short."""


def run_lengths(scenario: Scenario, most: int = 0) -> list[int]:
    """The numbers of requests to try, ascending: one, unless the scenario leaves it open.

    ``most``: up to so many also where the scenario states one number.
    """
    first = scenario.workload.requests
    # An axis over the number of requests says it for every point: there is nothing left to choose.
    if any("workload.requests" in axis.keys_set for axis in scenario.sweep):
        return [first]
    most = first.most if isinstance(first, Auto) else most
    counts = [int(first)]
    while counts[-1] < most:
        counts.append(min(counts[-1] * FACTOR, most))
    return counts


def longer_plans(first: Plan, undecided: Callable[[], np.ndarray], most: int = 0) -> Iterator[Plan]:
    """Plans of ever longer runs of what is ``undecided``: the numbers of those configurations of the plan before.

    The caller has run ``first``, and runs each plan before it takes the next; that of the last length ends the loop.
    ``most`` as of ``run_lengths``.
    """
    for requests in run_lengths(first.scenario, most)[1:]:
        left = undecided()
        if not left.size:
            return
        yield plan(of_length(first.scenario, requests), left, first.simulator, first.inputs, first.by_seed)


def of_length(scenario: Scenario, requests: int) -> Scenario:
    """The scenario with so many requests, and as large a part of them cut at either end."""
    workload = scenario.workload
    # In proportion, so that a scenario that cuts a tenth at either end cuts a tenth of every run.
    warmup, cooldown = (end * requests // workload.requests for end in workload.ends)
    longer = replace(workload, requests=requests, warmup_requests=warmup, cooldown_requests=cooldown)
    return replace(scenario, workload=longer)


def undecided(whole: Plan, values: Mapping[str, np.ndarray], levels: np.ndarray) -> np.ndarray:
    """Which rows of ``values`` a longer run could change: their numbers of configurations.

    Decided is a row that cannot run, one that is saturated and misses its objectives, and one that is steady, is known
    to 5 % and whose objectives all hold or miss by more than two standard errors.
    """
    configurations = {configuration.config: configuration for configuration in whole.configurations}
    rows = [configurations[int(config)] for config in values["config"]]
    clear, bounded, missed = (np.full(len(rows), flag) for flag in (True, False, False))
    for bound in bounds_of([configuration.objectives for configuration in rows]):
        value, error = statistic_of(values, bound, levels, whole.labels.class_names)
        apart = np.abs(value - bound.bound_s)
        bounded |= ~np.isnan(bound.bound_s)
        missed |= value > bound.bound_s
        # Without a standard error (one seed, too few batches) the distance says nothing: then it counts as within the
        # error.
        clear &= np.isnan(bound.bound_s) | np.isnan(apart) | (apart > DECIDED * np.nan_to_num(error, nan=np.inf))
    # Not ``<=``: a mean that is not known (NaN) does not ask for a longer run by itself.
    precise = ~(values["e2e_s_mean_stderr"] > PRECISE * values["e2e_s_mean"])
    # A longer run of an overloaded design has longer waits: its objectives stay missed, and without objectives its
    # latencies mean nothing in any run.
    lost = values["saturated"] & (missed | ~bounded)
    decided = (values["status"] != OK) | lost | (values["steady"] & clear & precise)
    return values["config"][~decided]
