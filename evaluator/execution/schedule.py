"""A sweep in chunks, on all processors: threads, and worker processes where there is enough to do for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from itertools import chain, groupby, islice, pairwise
from math import ceil
from threading import Event, Lock
from typing import TYPE_CHECKING

import numpy as np

from evaluator.device import accelerated, compilation_cache, configure
from evaluator.execution.cluster import computed_on
from evaluator.execution.workers import WorkerPool, processors
from evaluator.kv_managers import MANAGERS
from evaluator.plan import Configuration, Plan
from evaluator.plan.simulators import ITERATION, PLAIN
from evaluator.policies import POLICIES
from evaluator.routing import ROUTERS
from evaluator.simulation.summaries import Values, summaries
from evaluator.stages import KINDS

if TYPE_CHECKING:
    from distributed import Client

REQUESTS_PER_CHUNK = 128_000  # bounds memory (some 100 bytes a request), and how much an interrupted run loses
MANY_CHUNKS = 64
"""Of a run of more of them each is twice as large: what NumPy takes per call and not per request is a third of the
time of metrics, and as many threads as there are have enough chunks all the same."""
TOKEN_REQUESTS_PER_CHUNK = 4_000  # about half a second of the reference, so that there is progress to be seen
WORTH_WORKERS = 10_000_000
"""Requests of the compiled engine from which on worker processes take chunks of it: each starts for two seconds of a
processor. Threads, which wait for Python's lock, lose as much over some ten million requests."""
MOST_PROCESSES = 16
"""Of a run of the compiled engine on worker processes, each with some 0.3 GB and the whole grid; what of it is left to
the reference has no more. A cluster (``--cluster``) may have more."""
CONFIGS_PER_CHUNK = 512
ACCELERATED = 128
"""So many times as large are the chunks of an accelerator, which takes as long for a few lanes as for thousands."""

ConfigurationChunk = list[Configuration]
"""Configurations of one group, or variants of them, that are simulated together."""


def statistics_of(whole: Plan, configurations: Sequence[Configuration], levels: np.ndarray) -> Values:
    """Statistics of configurations of a plan or variants of them (``Plan.at_rates``, ``Plan.changed``), in their order.

    Each is (config,) or (config, quantile). A variant runs in the group of its configuration, with the programs
    compiled for it, beside others of any rate: a search asks for some designs at some rates with
    ``statistics_of(whole, whole.at_rates(configurations, rates_rps), levels)``.
    """
    rows: dict[int, list[int]] = {id(group): [] for group in whole.groups}
    for row, configuration in enumerate(configurations):
        rows[id(whole.group_of(configuration))].append(row)
    order = [row for of_group in rows.values() for row in of_group]
    # A round of a search has few chunks, and waits for the last of them: there is one for each processor at least.
    chunks = list(chunks_of(whole, [configurations[row] for row in order], processors()))
    by_chunk = dict(computed(whole, chunks, levels, set()))
    if not by_chunk:
        return {}
    # Chunks are of one group each, in the order of the groups: back to the order in which they were asked for.
    back, parts = np.argsort(order), [by_chunk[index] for index in range(len(by_chunk))]
    return {name: np.concatenate([part[name] for part in parts])[back] for name in parts[0]}


def chunks_of(
    whole: Plan, configurations: Iterable[Configuration] | None = None, pieces: int = 1
) -> Iterator[ConfigurationChunk]:
    """Configurations in pieces of bounded memory, in an order that depends on the machine by its accelerators alone.

    ``configurations``, each group's one after the other; None: all of the plan. Pieces of a group differ by one
    configuration at most; of the compiled engine their number is even if there are several, so that no processor waits
    for another's last one. ``pieces``: of each group at least; of trials, which no later run takes up again.
    """
    if configurations is None:
        configurations = chain.from_iterable(group.configurations for group in whole.groups)
    for _, same in groupby(configurations, key=lambda configuration: id(whole.group_of(configuration))):
        of_group = list(same)
        group = whole.group_of(of_group[0])
        # Chunks do not depend on the number of processors: a sweep that is taken up again on another machine finds
        # its own.
        most = TOKEN_REQUESTS_PER_CHUNK if group.simulator in PLAIN else requests_per_chunk(whole.requests)
        larger = 1
        if group.simulator == ITERATION and accelerated():
            most, larger = ACCELERATED * REQUESTS_PER_CHUNK, ACCELERATED
        size = max(1, min(most // (group.requests * whole.runs), larger * CONFIGS_PER_CHUNK))
        count = ceil(len(of_group) / size)
        if larger == 1 and group.simulator not in PLAIN:  # an accelerator takes all lanes at a time
            count = min(len(of_group), max(pieces, _even(count)))
        bounds = [ceil(len(of_group) * piece / count) for piece in range(count + 1)]
        for start, stop in pairwise(bounds):
            yield of_group[start:stop]


def _even(chunks: int) -> int:
    """So many chunks or one more: of an odd number the last one runs alone where there are two processors."""
    return chunks + chunks % 2 if chunks > 1 else chunks


def requests_per_chunk(requests_of_run: int) -> int:
    """Requests of a chunk of the compiled engine at most, by those of the whole run, all its shards included."""
    return REQUESTS_PER_CHUNK * (2 if requests_of_run > MANY_CHUNKS * REQUESTS_PER_CHUNK else 1)


def processes() -> int:
    """How many processes run the compiled engine where it has workers, this one included."""
    return min(processors(), MOST_PROCESSES)


def shared_out(plain: float, compiled: float) -> set[str]:
    """Simulators whose chunks are for worker processes, of a run of so many requests in plain Python and compiled ones.

    Where JAX computes on processors: on an accelerator, which nobody asks for here, the compiled engine has no workers.
    """
    if not _known_elsewhere():
        return set()
    shared = {*PLAIN} if plain > TOKEN_REQUESTS_PER_CHUNK else set()
    # Without a cache each worker would compile all programs anew.
    return shared | ({ITERATION} if compiled > WORTH_WORKERS and compilation_cache() is not None else set())


def computed(
    whole: Plan, chunks: list[ConfigurationChunk], levels: np.ndarray, done: set[int], client: Client | None = None
) -> Iterator[tuple[int, Values]]:
    """Statistics of the chunks that are not done, as they finish, with the number of the chunk.

    With a ``client`` on its cluster. Else a thread for each processor, which computes or waits for a worker process.
    """
    left = [index for index in range(len(chunks)) if index not in done]
    if client is not None:
        yield from computed_on(client, whole, chunks, levels, left)
        return
    if any(group.simulator == ITERATION for group in whole.groups):
        configure()  # before there are threads, each of which would do so otherwise
    crew = Crew(whole, [chunks[index] for index in left], levels)
    # Also the chunks of workers go through threads, which only wait for a pipe, so that all come back through the same
    # queue.
    with ThreadPoolExecutor(threads := crew.threads) as pool:
        try:
            # A few more than there are threads, so that none waits; not all, since what is finished is kept until it is
            # asked for.
            order = iter(_new_programs_first(whole, chunks, left))
            yield from _as_finished(pool, lambda index: (index, crew.compute(chunks[index])), order, 2 * threads + 1)
        finally:
            crew.close()  # first, so that threads which wait for a worker come back with an error
            pool.shutdown(wait=True, cancel_futures=True)


class Crew:
    """Who computes chunks of a plan: this process, and worker processes where there is enough to do for them."""

    def __init__(self, whole: Plan, chunks: Iterable[ConfigurationChunk], levels: np.ndarray) -> None:
        self._whole, self._levels = whole, levels
        self._ran: dict[int, Event] = {}  # by station: set once its program has run here, and is in the cache
        self._lock = Lock()  # of ``_ran``
        self._here = Lock()  # of the thread that runs the compiled engine in this process beside the workers
        requests: Counter[bool] = Counter()  # of the compiled engine or not
        for chunk in chunks:
            group = whole.group_of(chunk[0])
            requests[group.simulator == ITERATION] += len(chunk) * group.requests * whole.runs
        self._shared = shared_out(requests[False], requests[True])
        if ITERATION in self._shared and accelerated():  # which takes all lanes at a time
            self._shared.remove(ITERATION)
        self._workers = WorkerPool(whole, levels) if self._shared else None

    def close(self) -> None:
        """End the workers at once; what they compute is not wanted any more."""
        if self._workers is not None:
            self._workers.close()
        with self._lock:
            for ran in self._ran.values():
                ran.set()  # who waits for a program is told by the workers that the run is over

    @property
    def threads(self) -> int:
        """How many chunks are computed at a time."""
        return processes() if ITERATION in self._shared else processors()

    def compute(self, chunk: ConfigurationChunk) -> Values:
        """The statistics of a chunk."""
        group = self._whole.group_of(chunk[0])
        if self._workers is None or group.simulator not in self._shared:
            return summaries(self._whole, chunk, self._levels)
        if group.simulator in PLAIN:
            return self._workers.compute(chunk)
        # The first chunk of each program runs here, whoever else computes here, so that programs are compiled side by
        # side. Others with these programs wait for it: workers then find them in the cache. From then on one thread
        # computes here, since two would wait for Python's lock, and others ask workers.
        stations = {id(station) for station in group.stations}
        with self._lock:
            new = {station: Event() for station in stations - self._ran.keys()}
            self._ran |= new
        if not new:
            for station in stations:
                self._ran[station].wait()
        with ExitStack() as stack:
            for ran in new.values():
                stack.callback(ran.set)
            if self._here.acquire(blocking=False):
                stack.callback(self._here.release)
            elif not new:
                return self._workers.compute(chunk)
            return summaries(self._whole, chunk, self._levels)


def _as_finished(
    pool: ThreadPoolExecutor, compute: Callable[[int], tuple[int, Values]], indices: Iterator[int], most: int
) -> Iterator[tuple[int, Values]]:
    """What becomes of each index, as it is finished; ``most`` of them are with the pool at a time."""
    running: set[Future] = set()
    while True:
        running |= {pool.submit(compute, index) for index in islice(indices, most - len(running))}
        if not running:
            return
        finished, running = wait(running, return_when=FIRST_COMPLETED)
        for future in finished:
            yield future.result()


def _new_programs_first(whole: Plan, chunks: list[ConfigurationChunk], left: list[int]) -> list[int]:
    """Chunks in the order in which they are begun: those that need a program which none before them needs, then all
    others."""
    # Otherwise every thread takes a chunk of the first group and waits for the one that compiles its program, and the
    # next group's program is compiled only then, while the other threads wait again.
    first: list[tuple[bool, int]] = []
    begun: set[int] = set()
    for index in left:
        # By identity: a plan has one object for each program.
        stations = {id(station): station for station in whole.group_of(chunks[index][0]).stations}
        new = [station for identity, station in stations.items() if identity not in begun]
        if new:
            begun |= stations.keys()
            # Programs that take long to compile before those that do not, as they would be waited for at the end.
            first.append((not any(station.key.preemptive for station in new), index))
    of_programs = [index for _, index in sorted(first)]
    chosen = set(of_programs)
    return of_programs + [index for index in left if index not in chosen]


def _known_elsewhere() -> bool:
    """Whether another process knows all parts that a scenario may name: none that this one registered."""
    return not (POLICIES.own or ROUTERS.own or MANAGERS.own or KINDS.own)
