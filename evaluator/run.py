"""The two runs: a sweep over all configurations of a scenario, and one configuration with every request."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from evaluator.device import configure
from evaluator.errors import InputError
from evaluator.execution.lengthen import lengths, of_length, undecided
from evaluator.metrics import OK, bounds_of, quantile_levels, summarise
from evaluator.plan import Member, Plan, StationPlan, plan
from evaluator.plan.engines import ENGINES, REQUEST, TOKEN
from evaluator.plan.request_level import ERROR_NOTE
from evaluator.progress import ProgressReport, followed
from evaluator.replica import chosen_inputs
from evaluator.results.chunks import combine, fingerprint_of, read_chunks, write_chunk
from evaluator.results.dataset import to_dataset
from evaluator.results.files import check_output, replacing, write
from evaluator.results.requests import requests_table
from evaluator.results.schema import attributes
from evaluator.results.selection import select as select_configuration
from evaluator.scenario import Scenario, load_scenario
from evaluator.scenario.grid import size
from evaluator.scenario.workload import model_names

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from evaluator.execution.schedule import Chunk
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
    resume: bool = False,
    engine: str = "iteration",
    sensitivity: bool | Sequence[str] = False,
    by_seed: bool = False,
) -> xr.Dataset:
    """Simulate every configuration of ``scenario`` and return the labelled dataset; written to ``out`` where given.

    Finished chunks lie beside ``out`` (NAME.chunks) until the sweep is whole; ``resume`` takes them up again. A
    configuration that cannot run is a row with its reason in ``status``. ``engine`` iteration is the vectorised one,
    which leaves what it lacks to the reference (as ``engine`` says, row by row); token is the reference for all;
    request is BestServe's approximation, which says of what it cannot run so in ``status``.

    ``sensitivity`` adds the elasticities of the metrics to these inputs (True: all INPUTS of
    ``evaluator.metrics.variables``), from two more runs for each of them on the same requests. ``by_seed`` adds what
    each seed says (``ttft_s_by_seed`` and the like) along a dimension ``seed``.

    ``progress`` as of ``evaluator.progress.followed``: a notebook shows a bar unless it is False.
    Errors: InputError for unusable input.
    """
    check_engine(engine)
    scenario = loaded(scenario)
    target = None if out is None else check_output(out)
    inputs = chosen_inputs(sensitivity)
    fingerprint = fingerprint_of(scenario.text, repr(scenario), _trace_stamp(scenario), engine, *inputs, f"{by_seed}")
    kept = None if target is None else _Kept(target.with_name(f"{target.stem}.chunks"), fingerprint, resume)
    requests = scenario.workload.requests * len(scenario.workload.seeds)
    with followed(progress, size(scenario), requests_per_unit=requests) as watched:
        whole, levels, found = _lengthened(plan(scenario, None, engine, inputs, by_seed), kept, watched)
    attrs = attributes_of(scenario) | engine_note(whole)
    found["config"] = whole.grid.numbers(found["config"])
    seeds = whole.seeds if by_seed else ()
    dataset = to_dataset(found, levels, whole.grid.axes, attrs, whole.inputs, seeds, whole.stage_names)
    if target is not None and kept is not None:
        write(dataset, target)
        shutil.rmtree(kept.folder, ignore_errors=True)
    return dataset


def _lengthened(
    first: Plan, kept: _Kept | None, progress: ProgressReport | None
) -> tuple[Plan, np.ndarray, dict[str, np.ndarray]]:
    """The plan with all configurations, the quantiles, and the rows; each of the longest run that it needed."""
    scenario = first.scenario
    levels, expected = levels_of(first), len(first.members)
    whole, left = first, np.zeros(0, dtype=np.int64)
    pieces: list[dict[str, np.ndarray]] = []
    for number, requests in enumerate(lengths(scenario)):
        if number:
            whole = plan(of_length(scenario, requests), left, first.engine, first.inputs, first.by_seed)
            expected += len(left)
            if progress is not None:
                progress.expect(expected)
        configure_for(whole)
        found = combine(_statistics(whole, levels, kept if not number or kept is None else kept.of(requests), progress))
        left = undecided(whole, found, levels)
        if not left.size or requests == lengths(scenario)[-1]:
            return first, levels, combine([*pieces, found])
        decided = ~np.isin(found["config"], left)
        pieces.append({name: values[decided] for name, values in found.items()})
    raise AssertionError("the last length ends the loop")


@dataclass(frozen=True)
class _Kept:
    """The finished chunks of a sweep that is not whole yet."""

    folder: Path
    fingerprint: str
    resume: bool

    def of(self, requests: int) -> _Kept:
        """Those of runs that were made longer."""
        return replace(self, folder=self.folder / f"requests-{requests}")

    def finished(self, chunks: list[Chunk]) -> dict[int, dict]:
        """Those that need not be computed, by number; without ``resume`` none, and what was there is put away."""
        if not self.resume:
            shutil.rmtree(self.folder, ignore_errors=True)
            return {}
        found = read_chunks(self.folder, self.fingerprint)
        return {index: values for index, values in found.items() if index < len(chunks)}


def _statistics(
    whole: Plan, levels: np.ndarray, kept: _Kept | None, progress: ProgressReport | None
) -> list[dict[str, np.ndarray]]:
    """The rows of all chunks: those kept from an interrupted run, and the others, kept as they come."""
    from evaluator.execution.schedule import chunks_of, computed

    chunks = list(chunks_of(whole))
    done = {} if kept is None else kept.finished(chunks)
    if progress is not None and done:
        progress.keep(sum(len(values["config"]) for values in done.values()))
    for index, found in computed(whole, chunks, levels, set(done)):
        values = done[index] = found | known_of(chunks[index].members)
        if kept is not None:
            write_chunk(kept.folder, index, values, kept.fingerprint)
        if progress is not None:
            progress.advance(len(values["config"]))
    return list(done.values())


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


def engine_note(whole: Plan) -> dict[str, str]:
    """What is to be said of the engine, as an attribute: what the vectorised one had to leave to the reference, or how
    far an approximation is off; nothing where all is exact and vectorised.
    """
    if whole.engine == REQUEST:
        return {"engine_note": ERROR_NOTE}
    left = [member for member in whole.members if member.status == OK and member.engine == TOKEN]
    if not left or whole.engine == TOKEN:
        return {}
    reasons = Counter(reason for member in left for reason in member.lacking)
    names = ", ".join(name for name, _ in reasons.most_common())
    of = f"{len(left):,} of {len(whole.members):,} configurations were computed token by token: {names}"
    return {"engine_note": of}


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


def _trace_stamp(scenario: Scenario) -> str:
    """Size and time of the trace files: chunks of an edited trace must not be taken up again."""
    workload = scenario.workload
    lengths = [
        workload.lengths,
        *(one.lengths for one in (*workload.models.values(), *workload.pipelines.values()) if one.lengths),
    ]
    files = (workload.arrivals.file, *(one.file for one in lengths))
    stats = [Path(file).stat() for file in files if file is not None]
    return str([(stat.st_size, stat.st_mtime_ns) for stat in stats])
