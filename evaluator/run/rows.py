"""The rows of a sweep: chunk after chunk, each configuration in as long a run as it needs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from evaluator.execution.lengthen import longer_plans, undecided
from evaluator.plan import Plan, plan
from evaluator.progress import ProgressReport
from evaluator.results.chances import with_chances
from evaluator.results.chunks import Checkpoint, combine, write_chunk
from evaluator.results.dataset import to_dataset
from evaluator.results.fallback_report import FallbackReport
from evaluator.results.fingerprint import fingerprint_of
from evaluator.results.texts import shared
from evaluator.run.plan_figures import attributes_of, known_of, levels_of, notes_of
from evaluator.scenario import Scenario

if TYPE_CHECKING:
    import xarray as xr
    from distributed import Client


@dataclass(frozen=True)
class SweepTask:
    """What a sweep computes."""

    scenario: Scenario
    simulator: str
    inputs: tuple[str, ...]
    by_seed: bool

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint_of(self.scenario, self.simulator, *self.inputs, f"{self.by_seed}")

    @property
    def requests(self) -> int:
        """Requests of a configuration, over all seeds."""
        return self.scenario.workload.requests * len(self.scenario.workload.seeds)


@dataclass(frozen=True)
class RunContext:
    """Where a sweep keeps finished chunks and reports progress, and the cluster that computes it; None: without."""

    checkpoint: Checkpoint | None
    progress: ProgressReport | None
    client: Client | None


def dataset_of(task: SweepTask, configs: np.ndarray | None, context: RunContext) -> tuple[xr.Dataset, Plan]:
    """The labelled rows of a task, of all its configurations or of ``configs``, and their plan."""
    first = plan(task.scenario, configs, task.simulator, task.inputs, task.by_seed)
    whole, levels, rows = _lengthened(first, context)
    # Of the first plan, which has all configurations; those of longer runs have only what was undecided.
    attrs = attributes_of(task.scenario) | FallbackReport.of(whole).note | notes_of(whole)
    # Numbers of the whole product of the axes, which do not depend on what conditions leave out.
    rows["config"] = whole.grid.numbers(rows["config"])
    seeds = whole.seeds if task.by_seed else ()
    labels = whole.inputs, seeds, whole.stage_names, whole.class_names, whole.pool_names, whole.objective_names
    return with_chances(to_dataset(rows, levels, whole.grid.axes, attrs, *labels)), whole


def _lengthened(first: Plan, context: RunContext) -> tuple[Plan, np.ndarray, dict[str, np.ndarray]]:
    """The plan with all configurations, the quantiles, and the rows; each of the longest run that it needed."""
    levels, expected = levels_of(first), len(first.configurations)
    whole, rows = first, combine(_statistics(first, levels, context))
    decided: list[dict[str, np.ndarray]] = []

    def left() -> np.ndarray:
        return undecided(whole, rows, levels)

    for longer in longer_plans(first, left):
        # Rows that a longer run replaces are taken out of what is decided.
        again = np.isin(rows["config"], [configuration.config for configuration in longer.configurations])
        decided.append({name: values[~again] for name, values in rows.items()})
        expected += len(longer.configurations)
        if context.progress is not None:
            context.progress.expect(expected)
        part = (
            None
            if context.checkpoint is None
            else context.checkpoint.of(f"requests-{longer.scenario.workload.requests}")
        )
        # Chunks of a longer run lie in a folder of their own: they have the same numbers as those of the short one.
        whole, rows = longer, combine(_statistics(longer, levels, replace(context, checkpoint=part)))
    return first, levels, combine([*decided, rows])


def _statistics(whole: Plan, levels: np.ndarray, context: RunContext) -> list[dict[str, np.ndarray]]:
    """The rows of all chunks: those kept from an interrupted run, and the others, kept as they come."""
    # Inside: it loads the simulators, and JAX with them, which a scenario that is refused should not wait for.
    from evaluator.execution.schedule import chunks_of, computed

    chunks, checkpoint, progress = list(chunks_of(whole)), context.checkpoint, context.progress
    # Chunks are told by the rows that they have, in their order: what an earlier run wrote under another cut is not
    # taken.
    rows = [np.array([configuration.config for configuration in chunk], dtype=np.int64) for chunk in chunks]
    done = {} if checkpoint is None else checkpoint.finished(rows)
    if progress is not None and done:
        units = sum(len(values["config"]) for values in done.values())
        progress.keep(units)
        progress.note(f"going on with {units:,} configurations that an interrupted run finished; --fresh starts anew")
    for index, statistics in computed(whole, chunks, levels, set(done), context.client):
        values = statistics | known_of(chunks[index])
        if checkpoint is not None:
            write_chunk(checkpoint.folder, index, values)
        # Texts as shared objects: NumPy gives every row the room of the longest status otherwise.
        done[index] = shared(values)
        if progress is not None:
            progress.advance(len(values["config"]))
    if len(done) != len(chunks):
        # A chunk that a worker lost would be rows that are missing without a word.
        raise AssertionError(f"{len(chunks) - len(done)} of {len(chunks)} chunks were not computed")
    return [done[index] for index in sorted(done)]
