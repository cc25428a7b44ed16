"""A sweep in chunks, on all processors: threads for the compiled engine, processes for those in plain Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import chain, groupby, islice
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from evaluator.device import accelerated, configure
from evaluator.execution.cluster import computed_on
from evaluator.execution.workers import WorkerPool, processors, variants_of
from evaluator.kv_managers import MANAGERS
from evaluator.plan import Configuration, Plan
from evaluator.plan.simulators import ITERATION, PLAIN
from evaluator.policies import POLICIES
from evaluator.routing import ROUTERS
from evaluator.simulation.summaries import Values, summaries

if TYPE_CHECKING:
    from distributed import Client

REQUESTS_PER_CHUNK = 128_000  # bounds memory (some 100 bytes a request), and how much an interrupted run loses
MANY_CHUNKS = 64
"""Of a run of more of them each is twice as large: what NumPy takes per call and not per request is a third of the
time of metrics, and as many threads as there are have enough chunks all the same."""
TOKEN_REQUESTS_PER_CHUNK = 4_000  # about half a second of the reference, so that there is progress to be seen
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

    ``configurations``, each group's one after the other; None: all of the plan. ``pieces``: of each group at least, as
    equal as can be; of trials, which no later run takes up again.
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
        if pieces > 1 and larger == 1 and group.simulator not in PLAIN:  # an accelerator takes all lanes at a time
            size = ceil(len(of_group) / max(pieces, ceil(len(of_group) / size)))
        for start in range(0, len(of_group), size):
            yield of_group[start : start + size]


def requests_per_chunk(requests_of_run: int) -> int:
    """Requests of a chunk of the compiled engine at most, by those of the whole run, all its shards included."""
    return REQUESTS_PER_CHUNK * (2 if requests_of_run > MANY_CHUNKS * REQUESTS_PER_CHUNK else 1)


def computed(
    whole: Plan, chunks: list[ConfigurationChunk], levels: np.ndarray, done: set[int], client: Client | None = None
) -> Iterator[tuple[int, Values]]:
    """Statistics of the chunks that are not done, as they finish, with the number of the chunk.

    With a ``client`` on its cluster. Else a thread for each processor: XLA runs outside Python,
    and plain Python in a process that the thread waits for, unless there is too little to do for that.
    """
    left = [index for index in range(len(chunks)) if index not in done]
    if client is not None:
        yield from computed_on(client, whole, chunks, levels, left)
        return
    if any(group.simulator == ITERATION for group in whole.groups):
        configure()  # before there are threads, each of which would do so otherwise
    pool_of_workers = WorkerPool(whole, levels) if _are_many(whole, [chunks[index] for index in left]) else None

    def compute(index: int) -> tuple[int, Values]:
        chunk = chunks[index]
        if pool_of_workers is not None and whole.group_of(chunk[0]).simulator in PLAIN:
            return index, pool_of_workers.compute(variants_of(chunk))
        return index, summaries(whole, chunk, levels)

    # Threads, also for the reference: such a thread only waits for its worker's pipe, and the chunks of both kinds
    # come back through the same queue.
    with ThreadPoolExecutor(workers := processors()) as pool:
        try:
            # A few more than there are threads, so that none waits; not all, since what is finished is kept until it is
            # asked for.
            yield from _as_finished(pool, compute, iter(_new_programs_first(whole, chunks, left)), 2 * workers + 1)
        finally:
            # First, so that threads which wait for a worker come back with an error.
            if pool_of_workers is not None:
                pool_of_workers.close()
            pool.shutdown(wait=True, cancel_futures=True)


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


def _are_many(whole: Plan, chunks: list[ConfigurationChunk]) -> bool:
    """More requests for plain Python than a process takes to start, and nothing that only this process knows."""
    stages = whole.scenario.deployment.pipeline.values()
    if any(type(stage.parameters).__module__ == "__main__" for stage in stages):
        return False  # a stage of the script that runs: another process could not import it
    if POLICIES.own or ROUTERS.own or MANAGERS.own:
        return False  # nor does it know other parts of one's own, which a scenario has by their names
    groups = [whole.group_of(chunk[0]) for chunk in chunks]
    in_plain_python = sum(
        len(chunk) * group.requests for chunk, group in zip(chunks, groups, strict=True) if group.simulator in PLAIN
    )
    return in_plain_python * whole.runs > TOKEN_REQUESTS_PER_CHUNK
