"""A pool in which a request is several sequences, and from which it goes on with the last of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evaluator.reference.request import Request
from evaluator.reference.stations.phase import PhaseStation


class ParallelSequences:
    """``sequences`` are the indices of a request's parts at the ``phase``, by the index of the request."""

    batches = True

    def __init__(self, phase: PhaseStation, sequences: Mapping[int, Sequence[int]]) -> None:
        self.phase = phase
        self.sequences = sequences
        self._owner: dict[int, Request] = {}
        self._left: dict[int, int] = {}  # parts that are not done, by the index of the request

    @property
    def next_s(self) -> float:
        """When the phase of its sequences does something next."""
        return self.phase.next_s

    def finish(self, now: float) -> list[Request]:
        leaving = []
        for part in self.phase.finish(now):
            request = self._owner.pop(part.index)
            self._left[request.index] -= 1
            if self._left[request.index] == 0:
                leaving.append(request)
        return leaving

    def submit(self, request: Request, now: float) -> None:
        parts = self.sequences[request.index]
        self._left[request.index] = len(parts)
        for index in parts:
            self._owner[index] = request
            self.phase.submit(self.phase.parts[index], now)

    def launch(self, now: float) -> None:
        self.phase.launch(now)
