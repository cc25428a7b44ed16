"""A batch under way, which may stand for several alike one after the other, and what an observer is told of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from evaluator.cost.iteration import BatchStatistics
from evaluator.reference.batch import Batch
from evaluator.reference.host_cache import HostCopy
from evaluator.reference.request import Request


@dataclass(slots=True, eq=False)
class RunningBatch:
    """A batch between its scheduling and its end; or, leaping, ``iterations`` alike one after the other.

    The first of them takes ``first_s``, each next one ``slope_s`` more than the one before.
    """

    batch: Batch
    sums: BatchStatistics
    start_s: float
    end_s: float
    iterations: int = 1
    first_s: float = 0.0
    slope_s: float = 0.0
    experts_touched: float = 0.0  # fraction of them, by each iteration
    grown: int = 1  # iterations for which KV was taken
    grown_units: list[int] = field(default_factory=list)  # KV units in use in each of them after the first
    preempted: Sequence[Request] = ()
    newcomers: Sequence[Request] = ()  # admitted into this batch with nothing to compute before they decode
    cached: Sequence[tuple[int, int]] = ()  # admitted into this batch: (request, tokens found in the prefix cache)
    planned_units: int = 0  # KV units in use once the batch is planned
    tokens: dict[Request, int] = field(default_factory=dict)  # where layers have KV groups: of each request
    busy: bool = True  # it has requests; False: of a rank that waits for others
    decodes: tuple[int, ...] = ()  # who decodes, for an observer
    completed: tuple[int, ...] = ()  # whose prompt is complete, for an observer
    finished: Sequence[Request] = ()  # who will leave with it, where that is known when it is planned
    ended: Sequence[HostCopy] = ()  # between the device and the host: the scheduler is told of them at its end
    waits: bool = False  # nothing runs: the end of a transfer, or an arrival, ends it
    loaded: Sequence[tuple[int, int]] = ()  # begun with this batch: (request, tokens that it loads from the host)
    host_blocks: int = 0  # that the host has, or will have, once the batch is planned

    def repeat(self, iterations: float, slope_s: float) -> None:
        """Become a leap over so many iterations, of which this one is the first."""
        self.first_s, self.slope_s = self.end_s - self.start_s, slope_s
        self.iterations = int(iterations)
        if self.iterations > 1:
            self.end_s = self.end_of(self.iterations)

    def end_of(self, iterations: int) -> float:
        """When so many of the iterations are done."""
        # first + (first + slope) + ... : the arithmetic series of iterations that each take ``slope_s`` longer than
        # the one before.
        return self.start_s + iterations * self.first_s + 0.5 * self.slope_s * iterations * (iterations - 1)

    def iterations_until(self, time_s: float) -> int:
        """The first of the iterations, counted from 1, that does not end before a time within the running batch."""
        # The root of slope/2 n^2 + b n = wait, in the form that does not cancel where the slope is small, and is
        # defined where it is 0. Rounding may make it off by an iteration, which the two loops below mend: the
        # vectorised engine and this must agree on the iteration that an arrival meets.
        b = self.first_s - 0.5 * self.slope_s
        wait = max(time_s - self.start_s, 0.0)
        count = math.ceil(2.0 * wait / (b + math.sqrt(b * b + 2.0 * self.slope_s * wait)))
        count = min(max(count, 1), self.iterations)
        while count < self.iterations and self.end_of(count) < time_s:
            count += 1
        while count > 1 and self.end_of(count - 1) >= time_s:
            count -= 1
        return count


class Iteration(NamedTuple):
    """One iteration, or ``iterations`` alike, as observers get it: its times, and the requests in it by their index."""

    replica: int
    start_s: float
    end_s: float
    iterations: int
    decodes: tuple[int, ...]  # a request as often as it has branches that decode
    chunks: tuple[tuple[int, int], ...]  # (request, tokens)
    preempted: tuple[int, ...]  # since the batch before was sent, in this order
    kv_units: int  # in use at its end, before any request leaves
    waiting: int
    completed: tuple[int, ...] = ()  # requests that got a token because a chunk was the last of their prompt
    first_s: float = 0.0  # of the iterations of a leap the first, each next one ``slope_s`` longer
    slope_s: float = 0.0
    cached: tuple[tuple[int, int], ...] = ()  # (request, tokens found in the prefix cache) of those admitted
    planned_units: int = 0  # KV units in use once it was planned
    loaded: tuple[tuple[int, int], ...] = ()  # (request, tokens) of those that load from the host from now on
    host_blocks: int = 0  # that the host has, or will have, once it was planned
    grown_units: tuple[int, ...] = ()  # the same of each later one of a leap, where KV is taken on the way
