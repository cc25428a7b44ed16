"""Which replica of several pools side by side a request goes to, one request after the other: see
``routing.phases``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evaluator.reference.replica import Replica
from evaluator.reference.request import Request
from evaluator.reference.routing import Choose, chooser
from evaluator.routing import Choice, name_of, router_of
from evaluator.routing.phases import PhaseReplicas, Weights, drawn_by


class PhaseRouter:
    """Chooses among the replicas that have a request's model and, if that matters, are of its group.

    ``models`` are the numbers of the models that requests ask for, by their index. ``draws`` gives a number for each
    request, by its index, whichever comes first.
    """

    def __init__(
        self,
        side: PhaseReplicas,
        choice: Choice,
        replicas: Sequence[Replica],
        models: Sequence[int],
        draws: np.random.Generator,
    ) -> None:
        self._side = side
        self._choice = choice
        self._replicas = replicas
        self._models = models
        self._drawn = draws.random(len(models)) if name_of(choice) == "random" else None
        self._choosers: dict[tuple[int, int | None], Choose] = {}

    def __call__(self, request: Request, now: float, group: int | None = None) -> Replica:
        kind = self._models[request.index], group
        if kind not in self._choosers:
            self._choosers[kind] = self._chooser(*kind)
        return self._choosers[kind](request, now)

    def _chooser(self, model: int, group: int | None) -> Choose:
        numbers = self._side.able(model, group)
        able, weights = [self._replicas[number] for number in numbers], self._side.weights(numbers)
        if router_of(self._choice).independent is None:
            return chooser(self._choice, able)
        if self._drawn is None:
            return _in_turn(able, weights)
        drawn = self._drawn
        return lambda request, now: able[int(drawn_by(weights, drawn[request.index]))]


def _in_turn(able: Sequence[Replica], weights: Weights) -> Choose:
    """``routing.phases.turns``, turn by turn."""
    taken = [0] * len(able)

    def choose(request: Request, now: float) -> Replica:
        # Stride scheduling: see ``routing.phases.turns``, which does the same for all requests at once.
        due = [(count + 0.5) / weight for count, weight in zip(taken, weights, strict=True)]
        which = due.index(min(due))
        taken[which] += 1
        return able[which]

    return choose
