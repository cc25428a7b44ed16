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
from evaluator.results.chunks import Checkpoint, Rows, combine, write_chunk
from evaluator.results.dataset import to_dataset
from evaluator.results.fallback_report import FallbackReport
from evaluator.results.fingerprint import fingerprint_of
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


def dataset_of(task: SweepTask, configs: np.ndarray | None, context: RunContext) -> tuple[xr.Dataset, FallbackReport]:
    """The labelled rows of a task, of all its configurations or of ``configs``, and what was left to the reference."""
    whole = plan(task.scenario, configs, task.simulator, task.inputs, task.by_seed)
    levels = levels_of(whole)
    rows = _lengthened(whole, levels, context)
    report = FallbackReport.of(whole)
    attrs = attributes_of(task.scenario) | report.note | notes_of(whole)
    # Numbers of the whole product of the axes, which do not depend on what conditions leave out.
    rows["config"] = whole.grid.numbers(rows["config"])
    seeds, axes = whole.seeds if task.by_seed else (), whole.grid.axes
    labels = (
        whole.inputs,
        seeds,
        whole.labels.stage_names,
        whole.labels.class_names,
        whole.labels.pool_names,
        whole.labels.objective_names,
    )
    del whole  # a million designs and their rows are not to be in memory beside the dataset
    return with_chances(to_dataset(rows, levels, axes, attrs, *labels)), report


def _lengthened(first: Plan, levels: np.ndarray, context: RunContext) -> dict[str, np.ndarray]:
    """The rows of a plan, each of the longest run that it needed; ``levels`` are the quantiles."""
    expected = len(first.configurations)
    whole, rows = first, _statistics(first, levels, context)
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
        whole, rows = longer, _statistics(longer, levels, replace(context, checkpoint=part))
    return combine([*decided, rows]) if decided else rows


def _statistics(whole: Plan, levels: np.ndarray, context: RunContext) -> dict[str, np.ndarray]:
    """The rows of all chunks: those kept from an interrupted run, and the others, kept as they come."""
    # Inside: it loads the simulators, and JAX with them, which a scenario that is refused should not wait for.
    from evaluator.execution.schedule import chunks_of, computed

    chunks, checkpoint, progress = list(chunks_of(whole)), context.checkpoint, context.progress
    # Chunks are told by the rows that they have, in their order: what an earlier run wrote under another cut is not
    # taken.
    configs = [np.array([configuration.config for configuration in chunk], dtype=np.int64) for chunk in chunks]
    rows, done, units = Rows(np.concatenate(configs)), set(), 0
    for index, values in () if checkpoint is None else checkpoint.finished(configs):
        rows.put(index, values)
        done.add(index)
        units += len(values["config"])
    if progress is not None and done:
        progress.keep(units)
        progress.note(f"going on with {units:,} configurations that an interrupted run finished; --fresh starts anew")
    for index, statistics in computed(whole, chunks, levels, done, context.client):
        values = statistics | known_of(chunks[index])
        if checkpoint is not None:
            write_chunk(checkpoint.folder, index, values)
        rows.put(index, values)
        if progress is not None:
            progress.advance(len(values["config"]))
    return rows.columns()
