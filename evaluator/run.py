"""The two runs: a sweep over all configurations of a scenario, and one configuration with every request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from evaluator.device import configure
from evaluator.errors import InputError
from evaluator.execution.cluster import connected
from evaluator.execution.lengthen import lengths, of_length, undecided
from evaluator.metrics import OK, bounds_of, quantile_levels, summarise
from evaluator.plan import Member, Plan, StationPlan, plan
from evaluator.plan.engines import ENGINES, REQUEST, TOKEN
from evaluator.progress import ProgressReport, followed
from evaluator.replica import chosen_inputs
from evaluator.results.chunks import Kept, combine, write_chunk
from evaluator.results.dataset import to_dataset
from evaluator.results.engine_note import Left
from evaluator.results.files import check_output, clear_parts, replacing, write
from evaluator.results.fingerprint import fingerprint_of
from evaluator.results.lock import exclusive, lock_of
from evaluator.results.requests import requests_table
from evaluator.results.schema import attributes
from evaluator.results.selection import select as select_configuration
from evaluator.results.shards import Shard, Store, common_of
from evaluator.scenario import Scenario, load_scenario
from evaluator.scenario.grid import size
from evaluator.scenario.workload import model_names
from evaluator.stages import kind_of

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from distributed import Client

    from evaluator.metrics import Outcomes
    from evaluator.reference import Iteration
    from evaluator.typed import Scenario as ScenarioKeys

AnyScenario: TypeAlias = "Scenario | ScenarioKeys | Mapping[str, Any] | str | Path"
"""A scenario as it was loaded, as mappings (``evaluator.typed`` has their types), or the path of a file."""


@dataclass(frozen=True)
class Simulation:
    """One configuration: ``requests`` has a row per request and seed, ``summary`` is a dataset of one configuration."""

    requests: pd.DataFrame
    summary: xr.Dataset


def sweep(
    scenario: AnyScenario,
    *,
    out: str | Path | None = None,
    progress: ProgressReport | bool | None = None,
    fresh: bool = False,
    engine: str = "iteration",
    sensitivity: bool | Sequence[str] = False,
    by_seed: bool = False,
    cluster: str | Client | None = None,
) -> xr.Dataset:
    """Simulate every configuration of ``scenario`` and return the labelled dataset; written to ``out`` where given.

    Finished chunks lie beside ``out`` (NAME.chunks) until the sweep is whole; the same sweep goes on with those of an
    interrupted run, unless it is to start ``fresh``. A configuration that cannot run is a row with its reason in
    ``status``. ``engine`` iteration is the vectorised one, which leaves what it lacks to the reference (as ``engine``
    says, row by row); token is the reference for all; request is BestServe's approximation, which says of what it
    cannot run so in ``status``.

    ``sensitivity`` adds the elasticities of the metrics to these inputs (True: all INPUTS of
    ``evaluator.metrics.variables``), from two more runs for each of them on the same requests. ``by_seed`` adds what
    each seed says (``ttft_s_by_seed`` and the like) along a dimension ``seed``.

    ``progress`` as of ``evaluator.progress.followed``: a notebook shows a bar unless it is False. ``cluster`` spreads
    the chunks over a Dask cluster: ``dask`` starts one on this machine, otherwise the address of a scheduler, or a
    client. Errors: InputError for unusable input, and where another process writes ``out``.
    """
    check_engine(engine)
    task = _Task(loaded(scenario), engine, chosen_inputs(sensitivity), by_seed)
    with ExitStack() as stack:
        target = kept = None
        if out is not None:
            target = check_output(out)
            kept = Kept.beside(target, task.fingerprint)
            stack.enter_context(exclusive(lock_of(target), target))
            clear_parts(target)
            if fresh:
                kept.remove()
        total = size(task.scenario)
        watched = stack.enter_context(followed(progress, total, requests_per_unit=task.requests))
        if kept is not None and watched is not None and kept.others():
            watched.note(f"{kept.folder.parent} keeps chunks of other scenarios or versions; remove it, if not wanted")
        dataset, _ = _dataset(task, None, _Means(kept, watched, stack.enter_context(connected(cluster))))
        if target is not None and kept is not None:
            try:
                write(dataset, target)
            except InputError as error:
                raise InputError(
                    f"{error}; all finished chunks are kept in {kept.folder}, and taken up again"
                ) from error
            kept.remove()
    return dataset


def sweep_shard(
    scenario: AnyScenario,
    shard: Shard,
    out: str | Path,
    *,
    progress: ProgressReport | bool | None = None,
    fresh: bool = False,
    engine: str = "iteration",
    sensitivity: bool | Sequence[str] = False,
    by_seed: bool = False,
    cluster: str | Client | None = None,
    command: str = "",
) -> bool:
    """Simulate one of several shards of a sweep, to be put together by ``gather(out)`` when all are there.

    ``out`` is a Zarr store; arguments are as those of ``sweep``. ``command`` is what computes a shard, with ``PLACE``
    of ``results.shards`` for its number. False where the shard is there already. Errors: InputError as of ``sweep``.
    """
    check_engine(engine)
    task = _Task(loaded(scenario), engine, chosen_inputs(sensitivity), by_seed)
    target = check_output(out)
    if target.suffix != ".zarr":
        raise InputError(f"{target}: shards are put together as Zarr; choose an --out that ends in .zarr")
    store = Store(Kept.beside(target, task.fingerprint, shard.count).folder, size(task.scenario), shard.count)
    kept = Kept(store.folder).of(f"shard-{shard.number:05d}")
    with ExitStack() as stack:
        stack.enter_context(exclusive(store.lock(shard), Path(f"shard {shard} of {target}")))
        if fresh:
            store.forget(shard)
            kept.remove()
        if store.is_written(shard):
            return False
        rows = shard.rows(store.total)
        if not rows:
            store.write(shard, None, {}, Left(engine))
            return True
        watched = stack.enter_context(followed(progress, len(rows), requests_per_unit=task.requests))
        means = _Means(kept, watched, stack.enter_context(connected(cluster)))
        dataset, first = _dataset(task, np.arange(rows.start, rows.stop, dtype=np.int64), means)
        store.write(shard, dataset, common_of(dataset, command), Left.of(first))
        kept.remove()
    return True


@dataclass(frozen=True)
class _Task:
    """What a sweep computes."""

    scenario: Scenario
    engine: str
    inputs: tuple[str, ...]
    by_seed: bool

    @property
    def fingerprint(self) -> str:
        return fingerprint_of(self.scenario, self.engine, *self.inputs, f"{self.by_seed}")

    @property
    def requests(self) -> int:
        """Of a configuration."""
        return self.scenario.workload.requests * len(self.scenario.workload.seeds)


@dataclass(frozen=True)
class _Means:
    """Where a sweep keeps what is finished, whom it tells how far it is, and the cluster that computes it."""

    kept: Kept | None
    progress: ProgressReport | None
    client: Client | None


def _dataset(task: _Task, configs: np.ndarray | None, means: _Means) -> tuple[xr.Dataset, Plan]:
    """The labelled rows of a task, of all its configurations or of ``configs``, and their plan."""
    first = plan(task.scenario, configs, task.engine, task.inputs, task.by_seed)
    whole, levels, found = _lengthened(first, means)
    attrs = attributes_of(task.scenario) | Left.of(whole).note | stage_note(whole)
    found["config"] = whole.grid.numbers(found["config"])
    seeds = whole.seeds if task.by_seed else ()
    return to_dataset(found, levels, whole.grid.axes, attrs, whole.inputs, seeds, whole.stage_names), whole


def _lengthened(first: Plan, means: _Means) -> tuple[Plan, np.ndarray, dict[str, np.ndarray]]:
    """The plan with all configurations, the quantiles, and the rows; each of the longest run that it needed."""
    scenario = first.scenario
    levels, expected = levels_of(first), len(first.members)
    longest = lengths(scenario)[-1]
    whole, left = first, np.zeros(0, dtype=np.int64)
    pieces: list[dict[str, np.ndarray]] = []
    for number, requests in enumerate(lengths(scenario)):
        part = means.kept
        if number:
            whole = plan(of_length(scenario, requests), left, first.engine, first.inputs, first.by_seed)
            expected += len(left)
            part = None if part is None else part.of(f"requests-{requests}")
            if means.progress is not None:
                means.progress.expect(expected)
        if means.client is None:  # else its workers compute
            configure_for(whole)
        found = combine(_statistics(whole, levels, replace(means, kept=part)))
        if requests == longest or not (left := undecided(whole, found, levels)).size:
            return first, levels, combine([*pieces, found])
        decided = ~np.isin(found["config"], left)
        pieces.append({name: values[decided] for name, values in found.items()})
    raise AssertionError("the last length ends the loop")


def _statistics(whole: Plan, levels: np.ndarray, means: _Means) -> list[dict[str, np.ndarray]]:
    """The rows of all chunks: those kept from an interrupted run, and the others, kept as they come."""
    from evaluator.execution.schedule import chunks_of, computed

    chunks, kept, progress = list(chunks_of(whole)), means.kept, means.progress
    rows = [np.array([member.config for member in chunk.members], dtype=np.int64) for chunk in chunks]
    done = {} if kept is None else kept.finished(rows)
    if progress is not None and done:
        units = sum(len(values["config"]) for values in done.values())
        progress.keep(units)
        progress.note(f"going on with {units:,} configurations that an interrupted run finished; --fresh starts anew")
    for index, found in computed(whole, chunks, levels, set(done), means.client):
        values = done[index] = found | known_of(chunks[index].members)
        if kept is not None:
            write_chunk(kept.folder, index, values)
        if progress is not None:
            progress.advance(len(values["config"]))
    if len(done) != len(chunks):
        raise AssertionError(f"{len(chunks) - len(done)} of {len(chunks)} chunks were not computed")
    return [done[index] for index in sorted(done)]


def simulate(
    scenario: AnyScenario,
    *,
    select: Mapping[str, str] | None = None,
    progress: ProgressReport | None = None,
    engine: str = "iteration",
    trace: str | Path | None = None,
) -> Simulation:
    """Simulate one configuration of ``scenario``, chosen by ``select`` where it sweeps, and report every request.

    ``trace`` is a file for a Chrome trace of the first seed, which takes the reference: it tells of its iterations.
    Errors: InputError where the selection does not leave exactly one configuration, or where it cannot run.
    """
    from evaluator.simulation import simulate_chunk

    check_engine(engine)
    if trace is not None and engine == REQUEST:
        raise InputError("a trace tells of iterations, which engine request does not compute; use engine token")
    scenario = loaded(scenario)
    everything = plan(scenario, np.array([], dtype=np.int64), engine if trace is None else TOKEN)
    grid = everything.grid
    steps = select_configuration(grid.axes, select or {})
    config = grid.config(steps)
    whole = everything.of(np.array([config]))
    if whole.members[0].status != OK:
        raise InputError(f"{scenario.path or scenario.name}: {whole.members[0].status}")
    configure_for(whole)
    group = whole.groups[0]
    outcomes = simulate_chunk(whole, group, group.members) if trace is None else _traced(whole, Path(trace))
    if outcomes.status[0] != OK:  # known only after the run: it left the range of a fitted cost
        raise InputError(f"{scenario.path or scenario.name}: {outcomes.status[0]}")
    levels = levels_of(whole)
    values = summarise(outcomes, levels) | known_of(whole.members)
    values["config"] = grid.numbers(values["config"])
    summary = to_dataset(values, levels, whole.grid.axes, attributes_of(scenario), stages=whole.stage_names)
    models = model_names(whole.members[0].workload)
    table = requests_table(outcomes, values["config"].tolist(), whole.seeds, models)
    if progress is not None:
        progress.advance(len(table))
    return Simulation(table, summary)


def known_of(members: list[Member]) -> dict[str, np.ndarray]:
    """What is known of every row, also of those that cannot run, and memory where there is a replica.

    Of several pools it is the last, which keeps the KV of whole requests.
    """
    replicas = [member.answering[-1].design.replica for member in members]
    return {
        "config": np.array([member.config for member in members], dtype=np.int64),
        "devices": np.array([member.devices for member in members], dtype=np.int64),
        "model": _joined(members, lambda station: str(station.design.model.name)),
        "hardware": _joined(members, lambda station: str(station.design.hardware.name)),
        "requests_run": np.array([int(member.workload.requests) for member in members], dtype=np.int64),
        "weights_bytes": np.array([np.nan if replica is None else replica.weight_bytes for replica in replicas]),
        "kv_capacity_tokens": np.array([np.nan if one is None else one.kv.capacity_tokens for one in replicas]),
    }


def _joined(members: list[Member], named: Callable[[StationPlan], str]) -> np.ndarray:
    """What the pools that give the answers are called, (config,), each name once."""
    return np.array([" + ".join(dict.fromkeys(map(named, member.answering))) for member in members])


def _traced(whole: Plan, path: Path) -> Outcomes:
    """The only configuration of a plan on the reference, with a trace of its first seed."""
    from evaluator.simulation import journey
    from evaluator.simulation.outcomes import outcomes_of
    from evaluator.simulation.slots import Slot
    from evaluator.simulation.trace import Trace, write_trace

    trace = Trace()
    replicas = [station.deployment.replicas for station in whole.members[0].stations]

    def observe(slot: Slot, iteration: Iteration) -> None:
        if slot.seed == 0:
            own = iteration.replica if slot.replica < 0 else slot.replica
            trace.add(sum(replicas[: slot.station]) + own, iteration)  # pool after pool

    found = journey(whole, whole.groups[0], whole.members, observe)
    outcomes = outcomes_of(whole.members, found, whole.stage_names)
    pools = [(station.name, station.deployment.replicas) for station in whole.members[0].stations]
    with replacing(path) as part, part.open("w", encoding="utf-8") as file:
        write_trace(trace.events(outcomes, pools, found.legs), file)
    return outcomes


def check_engine(engine: str) -> None:
    """InputError where there is no such engine."""
    if engine not in ENGINES:
        raise InputError(f"there is no engine {engine!r}; use {' or '.join(ENGINES)}")


def configure_for(whole: Plan) -> None:
    """Load JAX, where an engine that is compiled has something to run."""
    if any(group.engine != TOKEN for group in whole.groups):
        configure()


def stage_note(whole: Plan) -> dict[str, str]:
    """What stages of the grid's pipelines have to say of their parameters, as an attribute; nothing where none has."""
    deployments = {id(deployment): deployment for _, deployment, _ in whole.grid.points}.values()
    notes: dict[str, None] = {}
    for deployment in deployments:
        for name, stage in deployment.pipeline.items():
            said = None if stage.of_llm else kind_of(stage.kind).note(stage.parameters)
            if said is not None:
                notes[f"pipeline.{name}: {said}"] = None
    return {"stage_note": "; ".join(notes)} if notes else {}


def loaded(scenario: AnyScenario) -> Scenario:
    """The scenario, read where it is not yet."""
    return scenario if isinstance(scenario, Scenario) else load_scenario(scenario)


def levels_of(whole: Plan) -> np.ndarray:
    """The quantiles that are reported, those of the objectives among them."""
    slos = {id(point[2]): point[2] for point in whole.grid.points}.values()
    return quantile_levels(bounds_of(list(slos)))


def attributes_of(scenario: Scenario) -> dict[str, str]:
    """What a dataset says of its scenario."""
    return attributes(
        scenario.name, scenario.text, scenario.workload.seeds, scenario.deployment.calibration, scenario.slo
    )
