"""Tiers that keep the contexts asked for last, request by request: the oracle of the approximation in ``tiers.lru``."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class Lru:
    """Keeps so many contexts, whole ones; the one that was asked for longest ago makes room."""

    def __init__(self, contexts: int) -> None:
        self._contexts = contexts
        self._kept: OrderedDict[int, None] = OrderedDict()

    def ask(self, context: int) -> bool:
        """Whether it is there. It is kept from now on, if anything is."""
        hit = context in self._kept
        if hit:
            self._kept.move_to_end(context)
        elif self._contexts > 0:
            if len(self._kept) == self._contexts:
                self._kept.popitem(last=False)
            self._kept[context] = None
        return hit


def find_contexts(requests: Iterable[tuple[int, int]], tiers: Sequence[tuple[int, int]], replicas: int) -> list[int]:
    """The tier in which every request finds its context, or the number of tiers where none has it.

    ``requests`` are (context, replica), in order. ``tiers`` are (contexts that fit, replicas that share one such tier):
    replicas 0 ... n - 1 share the first, and so on. A request asks its own tiers from the first on until one has the
    context; all that were asked keep it then.
    """
    caches = [[Lru(fitting) for _ in range(0, replicas, sharing)] for fitting, sharing in tiers]
    tier_of_request = []
    for context, replica in requests:
        tier = 0
        for group, (_, sharing) in zip(caches, tiers, strict=True):
            if group[replica // sharing].ask(context):
                break
            tier += 1
        tier_of_request.append(tier)
    return tier_of_request
