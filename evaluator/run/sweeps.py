"""All configurations of a scenario: the whole sweep, or one shard of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from evaluator.errors import InputError
from evaluator.execution.cluster import connected
from evaluator.plan.simulators import AUTO
from evaluator.progress import ProgressReport, followed
from evaluator.replica import chosen_inputs
from evaluator.results.chunks import Checkpoint
from evaluator.results.fallback_report import FallbackReport
from evaluator.results.files import check_output, clear_parts, write
from evaluator.results.lock import exclusive, lock_of
from evaluator.results.shards import Shard, ShardState, Store, common_of, is_gathered
from evaluator.run.request import AnyScenario, check_simulator, loaded
from evaluator.run.rows import RunContext, SweepTask, dataset_of
from evaluator.scenario import size

if TYPE_CHECKING:
    import xarray as xr
    from distributed import Client


def sweep(
    scenario: AnyScenario,
    *,
    out: str | Path | None = None,
    progress: ProgressReport | bool | None = None,
    fresh: bool = False,
    simulator: str = AUTO,
    sensitivity: bool | Sequence[str] = False,
    by_seed: bool = False,
    cluster: str | Client | None = None,
) -> xr.Dataset:
    """Simulate every configuration of ``scenario`` and return the labelled dataset; written to ``out`` where given.

    Finished chunks lie beside ``out`` (NAME.chunks) until the sweep is whole; the same sweep goes on with those of an
    interrupted run, unless it is to start ``fresh``. A configuration that cannot run is a row with its reason in
    ``status``. ``simulator`` iteration is the vectorised one, which leaves what it lacks to the reference (as the
    column ``engine`` says, row by row); auto leaves it runs so short, too, that a program would take longer to compile;
    token is the reference for all; request is BestServe's approximation, which says of what it cannot run so in
    ``status``.

    ``sensitivity`` adds the elasticities of the metrics to these inputs (True: all INPUTS of
    ``evaluator.metrics.variables``), from two more runs for each of them on the same requests. ``by_seed`` adds what
    each seed says (``ttft_s_by_seed`` and the like) along a dimension ``seed``.

    ``progress`` as of ``evaluator.progress.followed``: a notebook shows a bar unless it is False. ``cluster`` spreads
    the chunks over a Dask cluster: ``dask`` starts one on this machine, otherwise the address of a scheduler, or a
    client. Errors: InputError for unusable input, and where another process writes ``out``.
    """
    check_simulator(simulator)
    task = SweepTask(loaded(scenario), simulator, chosen_inputs(sensitivity), by_seed)
    with ExitStack() as stack:
        target = None if out is None else check_output(out)
        checkpoint = None if target is None else stack.enter_context(_kept_beside(target, task, fresh))
        # The progress counts configurations, but its rate is of requests: configurations of short and long runs
        # differ too much for a rate of theirs to tell when the sweep ends.
        total = size(task.scenario)
        watched = stack.enter_context(followed(progress, total, requests_per_unit=task.requests))
        if checkpoint is not None and watched is not None and checkpoint.others():
            watched.note(
                f"{checkpoint.folder.parent} keeps chunks of other scenarios or versions; remove it, if not wanted"
            )
        dataset, _ = dataset_of(task, None, RunContext(checkpoint, watched, stack.enter_context(connected(cluster))))
        if target is not None and checkpoint is not None:
            _write(dataset, target, checkpoint)
    return dataset


@contextmanager
def _kept_beside(target: Path, task: SweepTask, fresh: bool) -> Iterator[Checkpoint]:
    """The finished chunks of an output, which in here is this process's alone; none of them where it is ``fresh``."""
    checkpoint = Checkpoint.beside(target, task.fingerprint)
    # Before anything is read or removed of what lies beside the output: another process may be writing it.
    with exclusive(lock_of(target), target):
        # Under the lock only: the parts of a writer that is alive are not left-overs.
        clear_parts(target)
        if fresh:
            checkpoint.remove()
        yield checkpoint


def _write(dataset: xr.Dataset, target: Path, checkpoint: Checkpoint) -> None:
    try:
        write(dataset, target)
    except InputError as error:
        raise InputError(f"{error}; all finished chunks are kept in {checkpoint.folder}, and taken up again") from error
    # Last: a run that is killed while the result is written finds its chunks again.
    checkpoint.remove()


def sweep_shard(
    scenario: AnyScenario,
    shard: Shard,
    out: str | Path,
    *,
    progress: ProgressReport | bool | None = None,
    fresh: bool = False,
    simulator: str = AUTO,
    sensitivity: bool | Sequence[str] = False,
    by_seed: bool = False,
    cluster: str | Client | None = None,
    command: str = "",
) -> ShardState:
    """Simulate one of several shards of a sweep, to be put together by ``gather(out)`` when all are there.

    ``out`` is a Zarr store; arguments are as those of ``sweep``. ``command`` is what computes a shard, with ``PLACE``
    of ``results.shards`` for its number. A shard that is there already is not computed, neither before the shards are
    gathered nor after, unless ``fresh``. Errors: InputError as of ``sweep``.
    """
    check_simulator(simulator)
    task = SweepTask(loaded(scenario), simulator, chosen_inputs(sensitivity), by_seed)
    target = check_output(out)
    if target.suffix != ".zarr":
        raise InputError(f"{target}: shards are put together as Zarr; choose an --out that ends in .zarr")
    if not fresh and is_gathered(target, task.fingerprint):
        return ShardState.GATHERED
    store = Store(Checkpoint.beside(target, task.fingerprint, shard.count).folder, size(task.scenario), shard.count)
    # In the folder of the store: `gather` removes it with all that shards left there.
    checkpoint = Checkpoint(store.folder).of(f"shard-{shard.number:05d}")
    with ExitStack() as stack:
        # Of the shard, not of the output: shards of one sweep are written at the same time.
        stack.enter_context(exclusive(store.lock(shard), Path(f"shard {shard} of {target}")))
        if fresh:
            store.forget(shard)
            checkpoint.remove()
        # Asked under the lock: whoever was writing it is done, or this process would not hold it.
        if store.is_written(shard):
            return ShardState.WRITTEN
        rows = shard.rows(store.total)
        if not rows:
            # A shard without rows says that it is written, or ``gather`` would wait for it.
            store.write(shard, None, {}, FallbackReport(simulator))
            return ShardState.COMPUTED
        # A cluster is started only here, where there is something to compute.
        watched = stack.enter_context(followed(progress, len(rows), requests_per_unit=task.requests))
        context = RunContext(checkpoint, watched, stack.enter_context(connected(cluster)))
        dataset, report = dataset_of(task, np.arange(rows.start, rows.stop, dtype=np.int64), context)
        store.write(shard, dataset, common_of(dataset, task.fingerprint, command), report)
        checkpoint.remove()
    return ShardState.COMPUTED
