"""The vectorised engine against the reference, on configurations of a user's own scenario."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from evaluator.errors import InputError
from evaluator.execution.schedule import chunks_of
from evaluator.metrics import OK, Outcomes, summarise
from evaluator.metrics.service import kv_used_max, kv_used_mean
from evaluator.plan import Configuration, Plan, plan
from evaluator.plan.simulators import ITERATION, TOKEN, program
from evaluator.progress import ProgressReport
from evaluator.results.coordinates import axis_coordinates
from evaluator.run.plan_figures import levels_of
from evaluator.run.request import loaded
from evaluator.scenario import Scenario
from evaluator.simulation import simulate_configurations

TIMES = ("arrival_s", "scheduled_s", "first_token_s", "last_token_s")
SUMS = ("busy_s", "iterations", "preemptions")
TOTALS = ("busy_s", "iterations", "kv_used_mean", "kv_used_max", "preemptions")
REPLICA = "replica"
SUMMARIES = ("queue_wait_s", "ttft_s", "tpot_s", "e2e_s")
HISTOGRAM = "itl_s"
"""Kept in bins by the vectorised engine, so it is reported but not held to the tolerance."""


@dataclass(frozen=True)
class Validation:
    """``table``: a row per configuration and metric, with the configuration's values on the axes of the sweep.

    ``apart`` is the number of configurations above the tolerance.
    """

    table: pd.DataFrame
    compared: int
    able: int  # configurations to which both engines apply
    beyond: int  # that only the reference can run
    infeasible: int
    apart: int
    worst: float
    axes: tuple[str, ...]  # columns of the table

    def farthest(self) -> tuple[str, str]:
        """The configuration, by its number and its values on the axes, and the metric with the largest difference."""
        held = self.table[self.table["metric"] != HISTOGRAM]
        row = held.loc[held["largest"].idxmax()]
        values = ", ".join(f"{name} {row[name]}" for name in self.axes)
        return f"configuration {row['config']}" + (f" ({values})" if values else ""), row["metric"]

    def summary(self) -> pd.DataFrame:
        """Largest and typical (median) relative difference of every metric over the configurations."""
        by_metric = self.table.groupby("metric", sort=False)
        return pd.DataFrame({"largest": by_metric["largest"].max(), "typical": by_metric["typical"].median()})


def validate(
    scenario: Scenario | str | Path | Mapping,
    *,
    sample: int = 32,
    tolerance: float = 1e-9,
    seed: int = 0,
    progress: ProgressReport | None = None,
) -> Validation:
    """Run ``sample`` configurations on both engines and compare every request and the metrics.

    The sample is spread over policies, load and pressure on the KV cache. Differences are relative to the reference,
    those of times to the clock of the simulation, those of latencies to the mean end-to-end latency where it is larger.
    Errors: InputError where both engines apply to no configuration.
    """
    # With --simulator iteration, so that ``simulator`` of a configuration says what the vectorised engine can.
    whole = plan(loaded(scenario))
    able = [
        configuration
        for configuration in whole.configurations
        if configuration.status == OK and configuration.simulator == ITERATION
    ]
    beyond = sum(
        configuration.status == OK and configuration.simulator == TOKEN for configuration in whole.configurations
    )
    if not able:
        raise InputError(_none_able(whole))
    infeasible = sum(configuration.status != OK for configuration in whole.configurations)
    # Planned anew for the sample alone, whose shapes are then no larger than it needs.
    chosen = whole.of(np.array([configuration.config for configuration in stratified(whole, able, sample, seed)]))
    chosen = _weighed(chosen)
    if progress is not None:
        progress.expect(len(chosen.configurations))
    rows = _differences(chosen, levels_of(whole), progress)
    if not rows:
        raise InputError(
            f"{whole.scenario.path or whole.scenario.name}: no configuration that keeps to its calibration"
        )
    table = pd.DataFrame(rows)
    held = table[table["metric"] != HISTOGRAM]
    worst = held.groupby("config")["largest"].max()
    # Not "> tolerance": a difference that is NaN is one.
    apart = int((~(worst <= tolerance)).sum())
    axes = tuple(_on_axes(chosen, 0))
    return Validation(table, len(chosen.configurations), len(able), beyond, infeasible, apart, float(worst.max()), axes)


def _none_able(whole: Plan) -> str:
    first = whole.configurations[0]
    reason = first.status if first.status != OK else f"computed by the reference alone: {', '.join(first.lacking)}"
    name = whole.scenario.path or whole.scenario.name
    return f"{name}: no configuration that both engines can run; the first is {reason}"


def _weighed(chosen: Plan) -> Plan:
    """The plan with programs that are compiled no further than its requests pay back: a sample has few of them."""
    requests = chosen.runs * sum(configuration.workload.requests for configuration in chosen.configurations)
    groups = [
        replace(group, stations=tuple(replace(station, requests_of_program=requests) for station in group.stations))
        for group in chosen.groups
    ]
    return replace(chosen, groups=groups)


def _differences(chosen: Plan, levels: np.ndarray, progress: ProgressReport | None) -> list[dict]:
    """A row for each configuration and metric. None of a configuration that left the range of a fitted cost."""
    rows: list[dict] = []
    for chunk in chunks_of(chosen):
        fast = simulate_configurations(chosen, chunk)
        values = summarise(fast, levels)
        for position, configuration in enumerate(chunk):
            if fast.status[position] == OK:
                rows += _compared(chosen, configuration, fast, values, position, levels)
            if progress is not None:
                progress.advance()
    return rows


def stratified(whole: Plan, configurations: list[Configuration], count: int, seed: int) -> list[Configuration]:
    """So many of the configurations, in the order of the grid, as evenly over their strata as it goes.

    A stratum is a policy with the program that runs it, a third of the range of the load, and a third of that of the
    pressure on the KV cache.
    """
    if len(configurations) <= count:
        return configurations
    pressures = np.array([_pressures(whole, configuration) for configuration in configurations])
    # Thirds of what the scenario has, since no limits of load or KV suit all scenarios.
    thirds = [np.searchsorted(np.quantile(column, (1 / 3, 2 / 3)), column) for column in pressures.T]
    deployments = [[station.deployment for station in configuration.stations] for configuration in configurations]
    policies = [tuple((pool.batching.policy, program(pool)) for pool in pools) for pools in deployments]
    strata: dict[tuple, list[Configuration]] = {}
    shuffled = np.random.default_rng(seed).permutation(len(configurations))
    for index in shuffled:
        strata.setdefault((policies[index], *(third[index] for third in thirds)), []).append(configurations[index])
    used: Counter = Counter()  # of each policy, third of the load, and third of the pressure, how many are chosen
    chosen: list[Configuration] = []
    while len(chosen) < count:
        left = [stratum for stratum in strata if strata[stratum]]
        # The stratum next, whose policy and thirds have been chosen least: strata themselves may be more than the
        # sample.
        next_ = min(left, key=lambda stratum: sum(used[part] for part in enumerate(stratum)))
        used.update(enumerate(next_))
        chosen.append(strata[next_].pop())
    return sorted(chosen, key=lambda configuration: configuration.config)


def _pressures(whole: Plan, configuration: Configuration) -> tuple[float, float]:
    """Of the first pool, the load: computing time asked for per time and replica, at the peak.

    And KV: asked for by a full batch, of what is. Of a closed loop the users per replica are the load, far above any
    open one.
    """
    station = configuration.stations[0]
    deployment, replica = station.deployment, station.design.ready
    jobs, *_ = whole.jobs(configuration)
    # Above 1 a full batch does not fit, and requests wait for KV.
    held = station.held_units(jobs.demand).mean() * deployment.batching.max_num_seqs / replica.kv.capacity_units
    if configuration.workload.arrivals.users is not None:
        # 1e9, so that closed loops are a stratum above all open ones.
        return 1e9 * configuration.workload.arrivals.users / deployment.ranks, float(held)
    output = jobs.demand.output_tokens.sum()
    tokens = jobs.demand.compute_tokens.sum() + output
    # Peak FLOP/s for tokens and full bandwidth for weights: a bound, good enough to sort by.
    busy_s = replica.compute.token_s * tokens + replica.memory.iteration_s * output
    return float(busy_s / (max(np.ptp(jobs.ready_s), 1e-9) * deployment.ranks)), float(held)


def _compared(
    chosen: Plan,
    configuration: Configuration,
    fast: Outcomes,
    values: dict[str, np.ndarray],
    position: int,
    levels: np.ndarray,
) -> list[dict]:
    """A row for each metric of one configuration, which the vectorised engine had at a position of its chunk."""
    # One at a time, so that progress is told after each: it is the reference that takes the time.
    single = replace(chosen, simulator=TOKEN).of(np.array([configuration.config]))
    exact = simulate_configurations(single, single.configurations)
    exact_values = summarise(exact, levels)
    # Latencies near 0 would have any relative difference: they are held against the mean end-to-end time.
    latency = np.nanmax(exact_values["e2e_s_mean"])
    differences = {name: _apart(getattr(fast.times, name)[position], getattr(exact.times, name)[0]) for name in TIMES}
    mine, exact_totals = _totals(fast), _totals(exact)
    differences |= {
        name: _apart(mine[name][position], exact_totals[name][0], np.max(exact_totals[name])) for name in TOTALS
    }
    differences[REPLICA] = _apart(fast.times.replica[position], exact.times.replica[0], 1.0)
    differences |= {name: _apart(values[name][position], exact_values[name][0], latency) for name in SUMMARIES}
    if HISTOGRAM in values:  # gaps are not known where requests come to the LLM again, or stages hold some answers
        differences[HISTOGRAM] = _apart(values[HISTOGRAM][position], exact_values[HISTOGRAM][0])
    policy = ", ".join(dict.fromkeys(station.deployment.batching.policy for station in configuration.stations))
    return [
        {
            "config": configuration.config,
            "policy": policy,
            **_on_axes(chosen, configuration.config),
            "metric": name,
            "largest": float(np.max(apart, initial=0.0)),
            "typical": float(np.median(apart)) if apart.size else 0.0,
        }
        for name, apart in differences.items()
    ]


def _totals(outcomes: Outcomes) -> dict[str, np.ndarray]:
    """TOTALS (config, seed), over all stations."""
    sums = {name: outcomes.summed(name) for name in SUMS}
    return sums | {"kv_used_mean": kv_used_mean(outcomes), "kv_used_max": kv_used_max(outcomes)}


def _on_axes(chosen: Plan, config: int) -> dict[str, object]:
    """The values of a configuration on the axes of the sweep, by their short names."""
    grid = chosen.grid
    return {
        name: values[step]
        for step, coordinates in zip(grid.steps(config), axis_coordinates(grid.axes), strict=True)
        for name, (_, values) in coordinates.items()
    }


def _apart(fast: np.ndarray, exact: np.ndarray, least: float = 0.0) -> np.ndarray:
    """|fast - exact| relative to exact, or to ``least`` where that is larger; what neither knows is left out.

    Where nothing is expected, or only one is known, any difference is infinite.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.abs(fast - exact) / np.maximum(np.abs(exact), least)
    # Equal infinities and equal zeros are no difference; a number against NaN is.
    relative = np.where(fast == exact, 0.0, np.where(np.isnan(relative), np.inf, relative))
    return relative[~(np.isnan(fast) & np.isnan(exact))]
