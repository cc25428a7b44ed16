"""One configuration of a scenario, with every request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluator.errors import InputError
from evaluator.metrics import OK, summarise
from evaluator.plan import Plan, plan
from evaluator.plan.simulators import AUTO, REQUEST, TOKEN
from evaluator.progress import ProgressReport
from evaluator.results.chances import with_chances
from evaluator.results.dataset import to_dataset
from evaluator.results.files import replacing
from evaluator.results.iterations import IterationLog
from evaluator.results.over_time import LATENCIES, over_time
from evaluator.results.requests import requests_table
from evaluator.results.schema import objectives_of
from evaluator.results.selection import select as select_configuration
from evaluator.run.plan_figures import attributes_of, known_of, levels_of
from evaluator.run.request import AnyScenario, check_simulator, loaded

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from evaluator.metrics import Outcomes
    from evaluator.reference import Iteration
    from evaluator.scenario import Scenario


@dataclass(frozen=True)
class Simulation:
    """One configuration: ``requests`` has a row per request and seed, ``summary`` is a dataset of one configuration."""

    requests: pd.DataFrame
    summary: xr.Dataset
    iterations: pd.DataFrame | None = None  # a row per iteration, where they were asked for
    alive: tuple[np.ndarray, ...] = ()  # of each seed, of a fleet: from when until when every replica was there
    alive_of_pools: Mapping[str, tuple[np.ndarray, ...]] = field(default_factory=dict)  # the same, of each of several
    up: tuple[np.ndarray, ...] = ()  # the same of the times in which replicas that fail and come back serve

    def over_time(self, every: float | str) -> xr.Dataset:
        """The run in windows of ``every`` (seconds, or text such as ``"10min"``): arrivals, completions, requests in
        the system, latencies at the quantiles of ``summary``, and with objectives the share of requests within their
        bounds, whatever quantile they are of; along ``time``, and with classes along ``class``, see
        ``results.over_time``.
        """
        bounds: dict[str, dict[str, float]] = {}
        for objective in objectives_of(self.summary):
            if (name := f"{objective['metric']}_s") in LATENCIES:
                bounds.setdefault(objective.get("class", ""), {})[name] = objective["bound_s"]
        of_all = bounds.pop("", {})
        levels = self.summary["quantile"].values.tolist()
        alive, of_pools = self.alive, self.alive_of_pools
        return over_time(self.requests, every, levels, of_all, bounds, alive, of_pools, self.up)


def simulate(
    scenario: AnyScenario,
    *,
    select: Mapping[str, str] | None = None,
    progress: ProgressReport | None = None,
    simulator: str = AUTO,
    trace: str | Path | None = None,
    iterations: bool = False,
) -> Simulation:
    """Simulate one configuration of ``scenario``, chosen by ``select`` where it sweeps, and report every request.

    ``trace`` is a file for a Chrome trace of the first seed, which takes the reference: it tells of its iterations. So
    do ``iterations``: what each batch of each replica did, under all seeds, as ``results.iterations`` has it.
    Errors: InputError where the selection does not leave exactly one configuration, or where it cannot run.
    """
    from evaluator.simulation import simulate_configurations

    check_simulator(simulator)
    watched = trace is not None or iterations
    if watched and simulator == REQUEST:
        asked = "iterations are what" if trace is None else "a trace tells of iterations, which"
        raise InputError(f"{asked} simulator request does not compute; use simulator token")
    scenario = loaded(scenario)
    whole = _chosen(scenario, select or {}, TOKEN if watched else simulator)
    rows = IterationLog() if iterations else None
    if watched:
        outcomes = _watched(whole, None if trace is None else Path(trace), rows)
    else:
        outcomes = simulate_configurations(whole, whole.configurations)
    if outcomes.status[0] != OK:  # known only after the run: it left the range of a fitted cost
        raise InputError(f"{scenario.path or scenario.name}: {outcomes.status[0]}")
    levels = levels_of(whole)
    values = summarise(outcomes, levels) | known_of(whole.configurations)
    values["config"] = whole.grid.numbers(values["config"])
    summary = to_dataset(
        values,
        levels,
        whole.grid.axes,
        attributes_of(scenario),
        stages=whole.labels.stage_names,
        classes=whole.labels.class_names,
        pools=whole.labels.pool_names,
        objectives=whole.labels.objective_names,
    )
    summary = with_chances(summary)
    models = whole.configurations[0].workload.model_names
    table = requests_table(outcomes, values["config"].tolist(), whole.seeds, models)
    if progress is not None:
        progress.advance(len(table))
    return Simulation(table, summary, None if rows is None else rows.table(), **_presence(outcomes))


def _presence(outcomes: Outcomes) -> dict[str, Any]:
    """When replicas were there and served, as the fields ``alive``, ``alive_of_pools`` and ``up`` of a simulation."""
    of_pools = _alive(outcomes)
    failing = [use.up[0] for use in outcomes.stations if use.up is not None]  # one pool at the most
    return {
        "alive": tuple(np.concatenate(spans) for spans in zip(*of_pools.values(), strict=True)),
        "alive_of_pools": of_pools if len(of_pools) > 1 else {},
        "up": tuple(spans for of_seeds in failing for spans in of_seeds if spans is not None),
    }


def _alive(outcomes: Outcomes) -> dict[str, tuple[np.ndarray, ...]]:
    """By pool and seed, from when until when every replica was there, (replica, 2); empty where all always are."""
    if all(use.alive is None for use in outcomes.stations):
        return {}
    begin_s = outcomes.times.arrival_s[0].min(axis=-1)
    whole = np.stack([begin_s, begin_s + outcomes.makespan_s[0]], axis=-1)
    alive: dict[str, tuple[np.ndarray, ...]] = {}
    for use in outcomes.stations:
        if use.alive is not None:
            alive[use.name] = tuple(spans for spans in use.alive[0] if spans is not None)
        elif use.name in outcomes.pool_names:  # static beside one that scales
            alive[use.name] = tuple(np.repeat(span[None], int(use.replicas[0]), axis=0) for span in whole)
    return alive


def _chosen(scenario: Scenario, select: Mapping[str, str], simulator: str) -> Plan:
    """The plan of the one configuration that ``select`` leaves; InputError where it cannot run."""
    # A plan of no rows costs nothing; its grid finds the configuration.
    everything = plan(scenario, np.array([], dtype=np.int64), simulator)
    config = everything.grid.config(select_configuration(everything.grid.axes, select))
    # A single configuration, however many the scenario sweeps over: that is what its requests are weighed by.
    requests = everything.runs * scenario.workload.requests
    whole = replace(everything, requests=requests, able=requests).of(np.array([config]))
    if whole.configurations[0].status != OK:
        raise InputError(f"{scenario.path or scenario.name}: {whole.configurations[0].status}")
    return whole


def _watched(whole: Plan, path: Path | None, rows: IterationLog | None) -> Outcomes:
    """The only configuration of a plan on the reference: a trace of its first seed is written, rows are added."""
    from evaluator.simulation import chain_result
    from evaluator.simulation.outcomes import outcomes_of
    from evaluator.simulation.trace import PerfettoTrace, write_trace
    from evaluator.stations.lane_jobs import LaneJobs

    trace = PerfettoTrace()
    stations = whole.configurations[0].stations
    replicas = [station.deployment.ranks for station in stations]
    count = whole.configurations[0].workload.requests

    def observe(lane: LaneJobs, iteration: Iteration) -> None:
        # Where replicas depend on one another one run of the reference has them all and says of each iteration whose
        # it is; else the lane is the replica.
        replica = iteration.replica if lane.replica < 0 else lane.replica
        if rows is not None:
            pool = stations[lane.station]
            columns = {"seed": whole.seeds[lane.seed], "pool": pool.name, "replica": replica}
            # Later visits of a request have ids behind those of all requests.
            rows.add(iteration, lambda number: lane.id_of(number) % count, 1 + pool.drafts, **columns)
        if path is not None and lane.seed == 0:
            trace.add(sum(replicas[: lane.station]) + replica, iteration)  # pool after pool

    chain = chain_result(whole, whole.configurations, observe)
    outcomes = outcomes_of(whole.configurations, chain, *whole.labels.of_outcomes)
    if path is None:
        return outcomes
    pools = [(station.name, station.deployment.ranks) for station in stations]
    with replacing(path) as part, part.open("w", encoding="utf-8") as file:
        write_trace(trace.events(outcomes, pools, chain.station_visits), file)
    return outcomes
