"""A sweep over a Dask cluster: the workers of one machine, or of whatever a scheduler has.

A worker gets the scenario once, when it comes, and then for each chunk the configurations and the shapes of the group's
compiled programs: so it compiles the programs that one process would, and finds the same numbers bit for bit. A chunk
whose worker dies is computed by another one; the rows of a chunk are taken from one answer alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from io import BytesIO
from itertools import islice
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np

from evaluator.catalog.state import catalog_here, code_here
from evaluator.errors import InputError
from evaluator.execution.workers import Question, answer_of, plan_of_task, processors, question_of, task_of
from evaluator.plan import Configuration, Plan
from evaluator.simulation.summaries import Values
from evaluator.version import __version__

if TYPE_CHECKING:
    from distributed import Client


LOCAL = "dask"
RETRIES = 2
"""How often a chunk is tried again that failed."""
DEATHS = 10
"""How many workers may die over one chunk before it is given up: of one that takes too much memory all do."""
CONNECT_S = 20
AHEAD = 4
"""Chunks asked for per thread of the cluster, so that none waits for the next."""
LEAST_AHEAD = 32  # so that an adaptive cluster sees that there is more to do than its workers can


@contextmanager
def connected(cluster: str | Client | None) -> Iterator[Client | None]:
    """A client of a cluster, for as long as a sweep takes; None without a cluster.

    ``dask``: a cluster of processes on this machine, as many as processors, which come as there is work for them.
    Another text is the address of a scheduler, which adapts its workers itself. A client is the user's own.
    Errors: InputError without Dask, and where there is no scheduler.
    """
    if cluster is None or not isinstance(cluster, str):
        yield cluster
        return
    if find_spec("distributed") is None:
        raise InputError("--cluster needs Dask: pip install 'evaluator[cluster]'")
    import dask
    from distributed import Client, LocalCluster
    from distributed.comm import resolve_address

    with ExitStack() as stack:
        stack.enter_context(dask.config.set({"distributed.scheduler.allowed-failures": DEATHS}))
        if cluster == LOCAL:
            stack.enter_context(dask.config.set(_worker_settings()))
            threads = {"n_workers": 1, "threads_per_worker": 1, "processes": True}
            local = stack.enter_context(LocalCluster(**threads, dashboard_address=None, silence_logs="ERROR"))
            # One worker is there from the start, the others come with work: a short sweep does not wait until all
            # have started.
            local.adapt(minimum=1, maximum=processors())
            yield stack.enter_context(Client(local))
            return
        try:
            resolve_address(cluster)  # a client of what is no address fails once more when it is collected
            client = Client(cluster, timeout=CONNECT_S)
        except (OSError, ValueError, TimeoutError) as error:
            raise InputError(
                f"--cluster {cluster}: there is no Dask scheduler ({error}); 'dask' starts one on this machine"
            ) from None
        yield stack.enter_context(client)


def _worker_settings() -> dict[str, Any]:
    """Dask's settings for the workers of this machine."""
    import dask

    # By default malloc of a worker gives all that comes free back to the system, so that the pages of every array of a
    # chunk are made anew: that took as much processor time as half of the sweep. The profiler looks at a worker a
    # hundred times a second.
    environment = "distributed.nanny.pre-spawn-environ"
    kept = {name: value for name, value in dask.config.get(environment, {}).items() if not name.startswith("MALLOC_")}
    return {environment: kept, "distributed.worker.profile.enabled": False}


def computed_on(
    client: Client, whole: Plan, chunks: list[list[Configuration]], levels: np.ndarray, left: list[int]
) -> Iterator[tuple[int, Values]]:
    """Statistics of the chunks that are ``left``, as they come from the cluster, with the number of the chunk.

    Errors: InputError as of the chunk, and where a worker has another package or another catalog than this process.
    """
    from distributed import as_completed

    # Pickled once: every worker gets the same bytes, those that come later as well.
    task = _Task(uuid4().hex, task_of(whole, levels))
    plugin = _plugin(task)
    client.register_plugin(plugin, name=plugin.name)
    remaining = iter(left)

    def submit(index: int) -> Any:
        question = question_of(whole, chunks[index])
        # ``pure=False``: chunks are asked for anew in each sweep. By default Dask would take the answer of an equal
        # call that is still known to the scheduler.
        return client.submit(_compute, task.key, index, question, pure=False, retries=RETRIES)

    try:
        ahead = max(LEAST_AHEAD, AHEAD * sum(client.nthreads().values()))
        running = as_completed([submit(index) for index in islice(remaining, ahead)])
        for future in running:
            answer = future.result()
            if isinstance(answer, InputError):
                raise answer
            yield answer
            # The scheduler keeps a result for as long as a future holds it: a sweep's rows would all lie there as well.
            future.release()
            following = next(remaining, None)
            if following is not None:
                running.add(submit(following))
    finally:
        client.unregister_worker_plugin(plugin.name)


@dataclass(frozen=True)
class _Task:
    """What all chunks of a sweep have in common, as it is sent to a worker."""

    key: str
    content: bytes = field(repr=False)
    version: str = __version__
    code: str = field(default_factory=code_here)
    catalog: str = field(default_factory=catalog_here)


_TASKS: dict[str, tuple[Plan, np.ndarray] | InputError] = {}
"""On a worker: the sweeps that it works for."""


def _plugin(task: _Task) -> Any:
    from distributed import WorkerPlugin

    class Sweep(WorkerPlugin):
        """Plans the sweep on every worker, those that come later included."""

        name = f"evaluator-{task.key}"

        def setup(self, worker: Any) -> None:
            begin(task)

        def teardown(self, worker: Any) -> None:
            end(task)

    return Sweep()


def begin(task: _Task) -> None:
    """On a worker: know a sweep."""
    # A worker of other sources would compute other numbers without a word. The reason is kept as the answer to every
    # chunk: what ``setup`` raises on a worker that comes later is only a line of its log.
    unlike = _unlike(task)
    if unlike:
        _TASKS[task.key] = InputError(f"a worker of the cluster {unlike}")
        return
    _TASKS[task.key] = plan_of_task(BytesIO(task.content))


def _unlike(task: _Task) -> str:
    """What of this worker would make other numbers than the process that sweeps; nothing where it is like it."""
    if task.version != __version__:
        return f"has evaluator {__version__}, the sweep is of {task.version}; install the same"
    if task.code != code_here():
        return f"has other sources of evaluator {__version__} than the sweep; install the same"
    if task.catalog != catalog_here():
        return (
            "finds other models, devices or calibrations than the sweep; start it in a folder with the same, or name "
            "theirs in EVALUATOR_PATH"
        )
    return ""


def end(task: _Task) -> None:
    """On a worker: forget a sweep."""
    _TASKS.pop(task.key, None)


def _compute(key: str, index: int, question: Question) -> tuple[int, Values] | InputError:
    """On a worker: the statistics of one chunk. Errors of the input are answers, since trying again would not help."""
    task = _TASKS[key]
    if isinstance(task, InputError):
        return task
    try:
        return index, answer_of(*task, question)
    except InputError as error:
        return error
