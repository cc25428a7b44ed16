"""The two runs: a sweep over all configurations of a scenario, and one configuration with every request."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from evaluator.dataset import (
    attributes,
    check_output,
    combine,
    fingerprint_of,
    read_chunks,
    requests_table,
    to_dataset,
    write,
    write_chunk,
)
from evaluator.device import configure
from evaluator.errors import InputError
from evaluator.metrics import OK, bounds_of, measure, quantile_levels
from evaluator.plan import Group, Plan, plan
from evaluator.plan.plan import Member
from evaluator.scenario import Scenario, expand, load_scenario
from evaluator.selection import select as select_configuration

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

REQUESTS_PER_CHUNK = 128_000  # bounds memory (some 100 bytes a request), and how much an interrupted run loses
CONFIGS_PER_CHUNK = 512


class ProgressReport(Protocol):
    """What a long run tells of itself."""

    def keep(self, units: int) -> None: ...
    def advance(self, units: int = 1) -> None: ...


@dataclass(frozen=True)
class Simulation:
    """One configuration: ``requests`` has a row per request and seed, ``summary`` is a dataset of one configuration."""

    requests: pd.DataFrame
    summary: xr.Dataset


@dataclass(frozen=True)
class _Chunk:
    group: Group
    members: list[Member]


def sweep(
    scenario: Scenario | str | Path | Mapping,
    *,
    out: str | Path | None = None,
    progress: ProgressReport | None = None,
    resume: bool = False,
    engine: str = "iteration",
) -> xr.Dataset:
    """Simulate every configuration of ``scenario`` and return the labelled dataset; written to ``out`` where given.

    Finished chunks lie beside ``out`` (NAME.chunks) until the sweep is whole; ``resume`` takes them up again. A
    configuration that cannot run is a row with its reason in ``status``. Errors: InputError for unusable input.
    """
    if engine != "iteration":
        raise InputError(f"engine {engine!r} is not there yet; use iteration")
    scenario = _loaded(scenario)
    target = None if out is None else check_output(out)
    folder = None if target is None else target.with_name(f"{target.stem}.chunks")
    configure()
    whole = plan(scenario)
    levels = _levels(whole)
    chunks = list(_chunks(whole))
    fingerprint = fingerprint_of(scenario.text, repr(scenario), _trace_stamp(scenario))
    done = _finished(folder, fingerprint, resume, chunks)
    if progress is not None and done:
        progress.keep(sum(len(values["config"]) for values in done.values()))
    for index, values in _computed(whole, chunks, levels, set(done)):
        done[index] = values
        if folder is not None:
            write_chunk(folder, index, values, fingerprint)
        if progress is not None:
            progress.advance(len(values["config"]))
    dataset = to_dataset(combine(done.values()), levels, whole.grid.axes, _attributes(scenario))
    if target is not None:
        write(dataset, target)
        shutil.rmtree(folder, ignore_errors=True)  # type: ignore[arg-type]
    return dataset


def simulate(
    scenario: Scenario | str | Path | Mapping,
    *,
    select: Mapping[str, str] | None = None,
    progress: ProgressReport | None = None,
) -> Simulation:
    """Simulate one configuration of ``scenario``, chosen by ``select`` where it sweeps, and report every request.

    Errors: InputError where the selection does not leave exactly one configuration, or where it cannot run.
    """
    from evaluator.simulation import simulate_chunk

    scenario = _loaded(scenario)
    configure()
    grid = expand(scenario)
    steps = select_configuration(grid.axes, select or {})
    config = int(np.ravel_multi_index(steps, grid.shape)) if grid.shape else 0
    whole = plan(scenario, np.array([config]))
    if whole.members[0].status != OK:
        raise InputError(f"{scenario.path or scenario.name}: {whole.members[0].status}")
    outcomes = simulate_chunk(whole, whole.groups[0], whole.members)
    levels = _levels(whole)
    values = measure(outcomes, levels) | _known(whole.members, outcomes.devices)
    summary = to_dataset(values, levels, whole.grid.axes, _attributes(scenario))
    table = requests_table(outcomes, [config], whole.seeds)
    if progress is not None:
        progress.advance(len(table))
    return Simulation(table, summary)


def _known(members: list[Member], devices: np.ndarray) -> dict[str, np.ndarray]:
    """What is known of every row, also of those that cannot run, and memory where there is a replica."""
    replicas = [member.design.replica for member in members]
    return {
        "config": np.array([member.config for member in members], dtype=np.int64),
        "devices": devices,
        "weights_bytes": np.array([np.nan if replica is None else replica.weight_bytes for replica in replicas]),
        "kv_capacity_tokens": np.array([np.nan if one is None else one.kv.capacity_tokens for one in replicas]),
    }


def _loaded(scenario: Scenario | str | Path | Mapping) -> Scenario:
    return scenario if isinstance(scenario, Scenario) else load_scenario(scenario)


def _levels(whole: Plan) -> np.ndarray:
    slos = {id(point[2]): point[2] for point in whole.grid.points}.values()
    return quantile_levels(bounds_of(list(slos)))


def _attributes(scenario: Scenario) -> dict[str, str]:
    return attributes(
        scenario.name, scenario.text, scenario.workload.seeds, scenario.deployment.calibration, scenario.slo
    )


def _trace_stamp(scenario: Scenario) -> str:
    """Size and time of the trace files: chunks of an edited trace must not be taken up again."""
    files = (scenario.workload.arrivals.file, scenario.workload.lengths.file)
    stats = [Path(file).stat() for file in files if file is not None]
    return str([(stat.st_size, stat.st_mtime_ns) for stat in stats])


def _chunks(whole: Plan) -> Iterator[_Chunk]:
    """Members of each group in pieces of bounded memory, in an order that does not depend on the machine."""
    for group in whole.groups:
        size = REQUESTS_PER_CHUNK // (group.requests * len(whole.seeds))
        size = max(1, min(size, CONFIGS_PER_CHUNK))
        for start in range(0, len(group.members), size):
            yield _Chunk(group, group.members[start : start + size])


def _finished(folder: Path | None, fingerprint: str, resume: bool, chunks: list[_Chunk]) -> dict[int, dict]:
    if folder is None:
        return {}
    if not resume:
        shutil.rmtree(folder, ignore_errors=True)
        return {}
    kept = read_chunks(folder, fingerprint)
    return {index: values for index, values in kept.items() if index < len(chunks)}


def _computed(
    whole: Plan, chunks: list[_Chunk], levels: np.ndarray, done: set[int]
) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """Results of the chunks that are not done, as they finish; a thread for each processor, XLA runs outside Python."""
    from evaluator.simulation import simulate_chunk

    def compute(index: int) -> tuple[int, dict[str, np.ndarray]]:
        chunk = chunks[index]
        outcomes = simulate_chunk(whole, chunk.group, chunk.members)
        return index, measure(outcomes, levels) | _known(chunk.members, outcomes.devices)

    workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    left = iter([index for index in range(len(chunks)) if index not in done])
    with ThreadPoolExecutor(workers) as pool:
        running: set[Future] = set()
        try:
            while True:
                for index in left:
                    running.add(pool.submit(compute, index))
                    if len(running) > 2 * workers:
                        break
                if not running:
                    return
                finished, running = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    yield future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
