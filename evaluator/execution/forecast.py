"""What a sweep would take, before anything of it runs: designs, requests, compilations, time, memory, size. No JAX."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from evaluator.execution.schedule import processes, requests_per_chunk, shared_out
from evaluator.execution.workers import processors
from evaluator.metrics import OK, bounds_of, quantile_levels
from evaluator.metrics.reasons import reasons_of
from evaluator.metrics.variables import VARIABLES
from evaluator.plan import Group, Plan, plan
from evaluator.plan.simulators import ITERATION, REQUEST, TOKEN
from evaluator.replica import chosen_inputs
from evaluator.scenario import Scenario, expand, size
from evaluator.scenario.grid import Grid, Point
from evaluator.units import counted

MOST_EXAMINED = 20_000
"""Designs that are checked one by one; of a larger sweep as many, spread evenly over it, stand for all."""
MOST_DRAWN = 100_000
"""Requests that are drawn to check a design; of longer runs the first stand for all."""

RATES = {
    "fcfs_reserved": 1.0e6, "preemptive": 0.4e6, "joint": 0.3e6, "prefix caches": 5e4, "request level": 2e4,
    "token by token": 8e3,
}  # fmt: skip
"""Requests per second and core, measured on two cores of a server (tests/benchmarks), with all that a sweep adds."""
COMPILATION_S = {"fcfs_reserved": 2.5, "preemptive": 5.5, "joint": 8.0, "prefix caches": 10.0}
START_S, BYTES_AT_START = 1.5, 0.35e9  # to load JAX
BYTES_PER_WORKER = 0.28e9  # of a process that computes beside this one, without its grid and its chunk
BYTES_PER_POINT, BYTES_PER_DEPLOYMENT = 0.1e3, 2.2e3  # of the grid, which each of these has whole
DESIGN_S, BYTES_PER_DESIGN = 30e-6, 1.4e3  # to check one; the objects of its point, its plan and its row
BYTES_PER_REQUEST = 200.0  # of the chunks in memory
FILE_BYTES = 75e3  # of a file without designs
TEXT_BYTES = 400.0  # of a design: its status, engine, provenance and what it rests on; names among its coordinates


@dataclass(frozen=True)
class Forecast:
    """``reasons``: why how many designs cannot run, each kind of reason by an example.

    All but ``designs`` are estimates where not all were ``examined``;
    ``seconds``, ``peak_bytes`` and ``output_bytes`` are estimates from the rates of this file in any case.
    """

    designs: int
    examined: int
    feasible: int
    reasons: dict[str, int]
    groups: int
    compilations: int
    requests: int  # of all designs, seeds and variations of inputs
    by_token: int  # of the feasible designs, those that only the reference can run
    seconds: float
    cores: int
    peak_bytes: float
    output_bytes: float

    def __str__(self) -> str:
        about = "" if self.examined == self.designs else f" (estimated from {self.examined:,} of them)"
        infeasible = self.designs - self.feasible
        lines = [f"designs          {self.designs:,}: {self.feasible:,} feasible, {infeasible:,} not{about}"]
        lines += [f"                 {count:,} {reason}" for reason, count in self.reasons.items()]
        left = f"; {counted(self.by_token, 'design')} token by token, which takes longest" if self.by_token else ""
        lines += [
            f"groups           {self.groups:,} of one structure, {counted(self.compilations, 'compilation')}",
            f"requests         {self.requests:,}{left}",
            f"time             about {_duration(self.seconds)} on {counted(self.cores, 'core')} (estimate)",
            f"peak memory      about {_size(self.peak_bytes)} (estimate)",
            f"output           about {_size(self.output_bytes)} (estimate)",
        ]
        return "\n".join(lines)


def forecast(
    scenario: Scenario,
    simulator: str = ITERATION,
    sensitivity: bool = False,
    by_seed: bool = False,
    rows: range | None = None,
) -> Forecast:
    """What ``sweep`` with these arguments would take on this machine's processors, without accelerators or a cluster;
    nothing is simulated. Errors: InputError as of a sweep.

    ``rows`` are those of a shard, by their numbers in the sweep; None: all.
    """
    # Only a whole sweep may be thinned by its axes: the rows of a shard are numbers in the full product.
    points = size(scenario)
    rows, whole_sweep = (range(points), True) if rows is None else (rows, False)
    designs = len(rows)
    scenario, chosen = _examined(scenario, rows, whole_sweep)
    # Requests are drawn to check lengths; beyond ``MOST_DRAWN`` the first of them stand for all.
    short = _shortened(scenario)
    whole = plan(short, chosen, simulator, chosen_inputs(sensitivity), by_seed)
    lengths = _lengths(whole, whole.grid.points if short is scenario else expand(scenario).points)
    able = [configuration.status == OK for configuration in whole.configurations]
    examined, feasible = len(able), sum(able)
    scale = designs / max(examined, 1)  # a shard may have no rows
    reasons = _reasons([configuration.status for configuration in whole.configurations])
    work = _work(whole, lengths)
    requests = {kind: scale * count for kind, count in work.requests.items()}
    compiled = work.compiled
    cores = processors()
    run_s = sum(requests[kind] / rate for kind, rate in RATES.items()) / cores
    # Threads compile side by side, but no more of them than there are programs.
    compile_s = sum(COMPILATION_S[kind] for kind in compiled) / min(cores, max(len(compiled), 1))
    in_all = sum(requests.values())
    # A chunk holds one configuration at least, however long its run is; there are as many chunks in memory as cores.
    longest = max((length for length, _ in lengths.values()), default=0) * whole.runs
    return Forecast(
        designs=designs,
        examined=examined,
        feasible=round(feasible * scale),
        reasons={reason: round(count * scale) for reason, count in reasons.items()},
        groups=work.programs,
        compilations=len(compiled),
        requests=round(in_all),
        by_token=round(work.by_token * scale),
        seconds=START_S * bool(feasible) + compile_s + run_s + DESIGN_S * designs,
        cores=cores,
        peak_bytes=BYTES_AT_START
        + _bytes_of_workers(requests, whole.grid, points)
        + BYTES_PER_DESIGN * designs
        + BYTES_PER_REQUEST * cores * min(max(longest, requests_per_chunk(round(in_all))), in_all),
        output_bytes=FILE_BYTES + designs * _row_bytes(whole),
    )


def _bytes_of_workers(requests: Mapping[str, float], grid: Grid, points: int) -> float:
    """Of all processes that run the compiled engine beside this one, without their chunks."""
    compiled = sum(requests[kind] for kind in COMPILATION_S)
    if ITERATION not in shared_out(sum(requests.values()) - compiled, compiled):
        return 0.0
    # Points share their deployments, but for those of a sweep over many devices or models.
    apart = len({id(deployment) for _, deployment, _ in grid.points}) / len(grid.points)
    return (processes() - 1) * (BYTES_PER_WORKER + points * (BYTES_PER_POINT + apart * BYTES_PER_DEPLOYMENT))


class _Work(NamedTuple):
    """What the examined designs take: their requests by RATES, programs, the kind of each that is compiled, and the
    designs that are simulated token by token."""

    requests: dict[str, float]
    programs: int
    compiled: list[str]
    by_token: int


def _work(whole: Plan, lengths: Mapping[int, tuple[int, tuple[int, int]]]) -> _Work:
    requests = dict.fromkeys(RATES, 0.0)
    compiled: list[str] = []
    programs = by_token = 0
    for group in whole.groups:
        kind = _kind(group)
        running = [configuration for configuration in group.configurations if configuration.status == OK]
        # Of one group, runs of different lengths have arrays of different sizes: each is a program of its own.
        shapes = {lengths[configuration.config] for configuration in running}
        programs += len(shapes)
        compiled += [kind] * len(shapes) if kind in COMPILATION_S else []
        by_token += len(running) if kind == "token by token" else 0
        requests[kind] += whole.runs * sum(lengths[configuration.config][0] for configuration in running)
    return _Work(requests, programs, compiled, by_token)


def _examined(scenario: Scenario, rows: range, by_axes: bool) -> tuple[Scenario, np.ndarray]:
    """The scenario, maybe with fewer steps of its axes, and the rows of it, (design,), that tell of all ``rows``."""
    if by_axes and len(rows) > MOST_EXAMINED:
        scenario = _thinned(scenario)
        rows = range(size(scenario))
    if len(rows) <= MOST_EXAMINED:
        return scenario, np.arange(rows.start, rows.stop, dtype=np.int64)
    # Conditions may leave more than that also of thinned axes: then points are taken out by their number.
    return scenario, np.unique(np.linspace(rows.start, rows.stop - 1, MOST_EXAMINED).astype(np.int64))


def _kind(group: Group) -> str:
    """What computes a group: the slowest program of its stations, the request-level engine, or the reference."""
    if group.simulator != ITERATION:
        return {REQUEST: "request level", TOKEN: "token by token"}[group.simulator]
    # The order of the questions is that of the rates, slowest first: a chain of stations is as slow as its slowest
    # program.
    if any(station.key.cached for station in group.stations):
        return "prefix caches"
    if any(station.key.replicas > 1 for station in group.stations):
        return "joint"
    return "preemptive" if any(station.key.preemptive for station in group.stations) else "fcfs_reserved"


def _thinned(scenario: Scenario) -> Scenario:
    """The scenario with axes of at most MOST_EXAMINED steps, spread evenly, so that no more are read.

    With conditions it is as it was: which points they leave depends on every step.
    """
    if scenario.where:
        return scenario
    axes = []
    for axis in scenario.sweep:
        count = len(axis.changes)
        if count > MOST_EXAMINED:
            steps = np.unique(np.linspace(0, count - 1, MOST_EXAMINED).astype(np.int64)).tolist()
            axis = replace(
                axis,
                values=tuple(axis.values[step] for step in steps),
                changes=tuple(axis.changes[step] for step in steps),
            )
        axes.append(axis)
    return replace(scenario, sweep=tuple(axes))


def _shortened(scenario: Scenario) -> Scenario:
    """The scenario with runs that are quick to draw, whatever they are: their number is no matter of feasibility."""
    if scenario.workload.requests <= MOST_DRAWN and not any(
        _LENGTH in change for a in scenario.sweep for change in a.changes
    ):
        return scenario
    workload = _limited({key: getattr(scenario.workload, key) for key in _MOST})
    axes = tuple(
        replace(axis, changes=tuple(_limited(change, "workload.") for change in axis.changes))
        for axis in scenario.sweep
    )
    return replace(scenario, workload=replace(scenario.workload, **workload), sweep=axes)


_LENGTH = "workload.requests"
_MOST = {"requests": MOST_DRAWN, "warmup_requests": MOST_DRAWN // 2, "cooldown_requests": MOST_DRAWN // 4}


def _limited(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    most = {f"{prefix}{key}": limit for key, limit in _MOST.items()}
    return {key: min(value, most[key]) if key in most else value for key, value in values.items()}


def _lengths(whole: Plan, points: Sequence[Point]) -> dict[int, tuple[int, tuple[int, int]]]:
    """Requests, and how many are cut at either end, of every examined design as they are, by its number."""
    workloads = ((configuration.config, points[configuration.config][0]) for configuration in whole.configurations)
    return {config: (workload.requests, workload.ends) for config, workload in workloads}


def _reasons(statuses: list[str]) -> dict[str, int]:
    """Why how many designs cannot run, as the ranked table counts it, without what to do about it."""
    reasons = reasons_of(np.array([status.partition("; ")[0] for status in statuses], dtype=np.str_))
    return {reason.example: reason.count for reason in reasons}


def _row_bytes(whole: Plan) -> float:
    """Bytes of a design in the dataset, which is not compressed."""
    sizes = {
        "config": 1,
        "input": len(whole.inputs),
        "quantile": len(quantile_levels(bounds_of(whole.labels.objectives))),
        "seed": len(whole.seeds) if whole.by_seed else 0,
        "stage": len(whole.labels.stage_names),
        "class": len(whole.labels.class_names),
        "pool": len(whole.labels.pool_names),
        "objective": len(whole.labels.objective_names),
    }
    numbers = 0
    for name, variable in VARIABLES.items():
        # Of the variables with a dimension of quantiles those have it that have a mean beside them.
        by_quantile = f"{re.split('_stderr|_elasticity|_by_seed', name)[0]}_mean" in VARIABLES
        dims = [dim for dim in variable.dims if dim != "quantile" or by_quantile]
        numbers += math.prod(sizes[dim] for dim in dims)
    return 8 * (numbers + len(whole.grid.axes)) + TEXT_BYTES


def _duration(seconds: float) -> str:
    for unit, length in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:.2g} {unit}" if seconds < 100 * length else f"{seconds / length:,.0f} {unit}"
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"


def _size(size: float) -> str:
    for unit, length in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= length or unit == "kB":
            return f"{size / length:.2g} {unit}" if size < 100 * length else f"{size / length:,.0f} {unit}"
    raise AssertionError("kB takes what is left")
