"""Which class each request is of, and its priority: from a stream of their own, or as a trace says it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evaluator.scenario import Workload
from evaluator.traffic.requests import class_numbers
from evaluator.traffic.sessions import Turns


@dataclass(frozen=True, eq=False)
class RequestClasses:
    """Of all requests of a table, (request,) by id."""

    number: NDArray[np.int64]  # among the names of the workload
    priority: NDArray[np.int64]  # the smaller goes first, where a scheduler goes by it

    def of(self, ids: NDArray[np.int64]) -> RequestClasses:
        """Those of some requests."""
        # Later visits of a pipeline have ids behind those of all requests.
        rows = ids % len(self.number)
        return RequestClasses(self.number[rows], self.priority[rows])


def request_classes(workload: Workload, seed: int, turns: Turns | None = None) -> RequestClasses | None:
    """The classes of all requests under a seed; None where there are none, and no trace says priorities.

    A session is of one class: whoever talks goes on as what he was.
    """
    trace, count = workload.trace, workload.requests
    names = workload.class_names
    if not names and (trace is None or trace.priority is None):
        return None
    number = class_numbers(workload, seed, count, turns)
    if trace is not None and trace.priority is not None:
        return RequestClasses(number, trace.priority[:count])
    entries = (workload.classes.get(name) for name in names)
    priorities = [0 if entry is None or entry.priority is None else entry.priority for entry in entries]
    return RequestClasses(number, np.array(priorities, dtype=np.int64)[number])
