"""Which replica a request goes to. Replicas are seen as of the arrival: an iteration under way has done nothing yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # which loads the pool that routes by these
    from evaluator.reference.replica import Replica

Choose = Callable[[float], "Replica"]  # by the time of the arrival


def random(replicas: Sequence[Replica], seed: int) -> Choose:
    """Any replica, with equal probability."""
    generator = np.random.default_rng(seed)
    return lambda now: replicas[int(generator.integers(len(replicas)))]


def round_robin(replicas: Sequence[Replica], seed: int) -> Choose:
    """In turn, the first replica first."""
    turns: Iterator[Replica] = cycle(replicas)
    return lambda now: next(turns)


def least_outstanding(replicas: Sequence[Replica], seed: int) -> Choose:
    """The fewest requests that were sent there and have not finished; the first of them."""
    return lambda now: min(replicas, key=lambda replica: replica.outstanding)


def least_work(replicas: Sequence[Replica], seed: int) -> Choose:
    """The fewest tokens still to compute and to generate, output lengths being known; the first of them."""
    return lambda now: min(replicas, key=lambda replica: replica.work_at(now))


ROUTERS: dict[str, Callable[[Sequence[Replica], int], Choose]] = {
    "random": random,
    "round_robin": round_robin,
    "least_outstanding": least_outstanding,
    "least_work": least_work,
}
