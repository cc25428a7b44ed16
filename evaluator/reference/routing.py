"""Which replica a request goes to. Replicas are seen as of the arrival: an iteration under way has done nothing yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from evaluator.reference.load import LOADS
from evaluator.reference.replica import Replica
from evaluator.reference.request import Request
from evaluator.routing import Choice, PrefixAware, router_of, stream

Choose = Callable[[Request, float], Replica]
"""By the request and the time of its arrival."""


def chooser(choice: Choice, replicas: Sequence[Replica], seed: int = 0, station: int = 0) -> Choose:
    """The router of a pool, which may have replicas of different hardware. ``seed``, ``station``: of its draws."""
    router = router_of(choice)
    if router.independent is not None:
        in_turn = router.independent.in_turn(choice, len(replicas), stream(seed, station))
        return lambda request, now: replicas[in_turn(request.prompt_tokens, request.session)]
    if router.by_prefix:
        return _by_prefix(PrefixAware() if isinstance(choice, str) else choice, replicas)
    assert router.counts is not None
    load = LOADS[router.counts]
    return lambda request, now: min(replicas, key=lambda replica: load(replica, now))


def _by_prefix(choice: Any, replicas: Sequence[Replica]) -> Choose:
    """The replica whose prefix cache has most of the prompt, see ``PrefixAware``."""

    def choose(request: Request, now: float) -> Replica:
        for replica in replicas:
            # A router that asks what is cached must see the blocks that iterations of a leap have filled by now.
            replica.catch_up(now)
        shares = [replica.queues.kv.lookup(request) / request.prompt_tokens for replica in replicas]
        cached = [replica.queues.kv.known for replica in replicas]
        return replicas[choice.choose([replica.outstanding for replica in replicas], shares, cached)]

    return choose
