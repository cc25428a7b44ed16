"""A sweep in chunks, on all processors: threads for the compiled engine, processes for those in plain Python."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from evaluator.execution.cluster import computed_on
from evaluator.execution.workers import WorkerPool
from evaluator.plan import Configuration, Group, Plan
from evaluator.plan.simulators import PLAIN
from evaluator.simulation.summaries import summaries

if TYPE_CHECKING:
    from distributed import Client

REQUESTS_PER_CHUNK = 128_000  # bounds memory (some 100 bytes a request), and how much an interrupted run loses
TOKEN_REQUESTS_PER_CHUNK = 4_000  # about half a second of the reference, so that there is progress to be seen
CONFIGS_PER_CHUNK = 512

Values = dict[str, np.ndarray]


@dataclass(frozen=True)
class ConfigurationChunk:
    """Some members of a group, or variants of them, simulated together."""

    group: Group
    configurations: list[Configuration]


def chunks_of(whole: Plan) -> Iterator[ConfigurationChunk]:
    """Members of each group in pieces of bounded memory, in an order that does not depend on the machine."""
    for group in whole.groups:
        yield from pieces(whole, group, group.configurations)


def pieces(whole: Plan, group: Group, configurations: list[Configuration]) -> Iterator[ConfigurationChunk]:
    """Members of a group, or variants of them, in pieces of bounded memory."""
    most = TOKEN_REQUESTS_PER_CHUNK if group.simulator in PLAIN else REQUESTS_PER_CHUNK
    size = max(1, min(most // (group.requests * whole.runs), CONFIGS_PER_CHUNK))
    for start in range(0, len(configurations), size):
        yield ConfigurationChunk(group, configurations[start : start + size])


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
    pool_of_workers = WorkerPool(whole, levels) if _are_many(whole, [chunks[index] for index in left]) else None

    def compute(index: int) -> tuple[int, Values]:
        chunk = chunks[index]
        if pool_of_workers is not None and chunk.group.simulator in PLAIN:
            return index, pool_of_workers.compute(
                [(configuration.config, configuration.changes) for configuration in chunk.configurations]
            )
        return index, summaries(whole, chunk.group, chunk.configurations, levels)

    workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    remaining = iter(left)
    with ThreadPoolExecutor(workers) as pool:
        running: set[Future] = set()
        try:
            while True:
                for index in remaining:
                    running.add(pool.submit(compute, index))
                    if len(running) > 2 * workers:
                        break
                if not running:
                    return
                finished, running = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    yield future.result()
        finally:
            if pool_of_workers is not None:
                pool_of_workers.close()
            pool.shutdown(wait=True, cancel_futures=True)


def _are_many(whole: Plan, chunks: list[ConfigurationChunk]) -> bool:
    """More requests for plain Python than a process takes to start, and nothing that only this process knows."""
    stages = whole.scenario.deployment.pipeline.values()
    if any(type(stage.parameters).__module__ == "__main__" for stage in stages):
        return False  # a stage of the script that runs: another process could not import it
    mine = [len(chunk.configurations) * chunk.group.requests for chunk in chunks if chunk.group.simulator in PLAIN]
    return sum(mine) * whole.runs > TOKEN_REQUESTS_PER_CHUNK
