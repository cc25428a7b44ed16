"""Which replica a request goes to. Replicas are seen as of the arrival: an iteration under way has done nothing yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from evaluator.reference.load import LOADS
from evaluator.reference.replica import Replica
from evaluator.reference.request import Request
from evaluator.routing import Choice, router_of, stream

Choose = Callable[[Request, float], Replica]
"""By the request and the time of its arrival."""


def chooser(choice: Choice, replicas: Sequence[Replica], seed: int = 0, station: int = 0) -> Choose:
    """The router of a pool, which may have replicas of different hardware. ``seed``, ``station``: of its draws."""
    router = router_of(choice)
    if router.independent is not None:
        in_turn = router.independent.in_turn(choice, len(replicas), stream(seed, station))
        return lambda request, now: replicas[in_turn(request.prompt_tokens)]
    assert router.counts is not None
    load = LOADS[router.counts]
    return lambda request, now: min(replicas, key=lambda replica: load(replica, now))
