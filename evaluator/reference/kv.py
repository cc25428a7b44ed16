"""The KV cache as a number of units: who holds how many. Which block is whose matters only to the prefix cache."""

from __future__ import annotations

from typing import Protocol

from evaluator.reference.limits import Limits
from evaluator.reference.request import Request


class Kv(Protocol):
    """What the scheduler asks of a KV cache."""

    @property
    def capacity(self) -> int:
        """Units in all."""

    @property
    def free(self) -> int:
        """Units that nobody uses."""

    @property
    def known(self) -> int:
        """Units that others may share, because it is known what they hold, whether somebody uses them or not."""

    def units(self, tokens: int) -> int:
        """Units that a sequence of so many tokens occupies."""

    def lookup(self, request: Request) -> int:
        """Leading tokens of a request that is not admitted whose KV is in the prefix cache."""

    def admit(self, request: Request, units: int, hit_tokens: int, keep_free: int, fits: int = 0) -> bool:
        """Give a request its units, those of ``hit_tokens`` shared; False, and nothing done, if too few are free.

        ``keep_free`` units must be left free then, and there must be room for ``fits`` units, whatever it takes now.
        """

    def extend(self, request: Request, units: int) -> bool:
        """Give it as many as make it ``units``; False, and nothing done, if too few are free."""

    def shrink(self, request: Request, units: int) -> None:
        """Take back what it has beyond ``units``."""

    def register(self, request: Request, tokens: int) -> None:
        """A request's first ``tokens`` are computed (or are in this iteration): others may share its whole blocks."""

    def release(self, request: Request) -> None:
        """Take all units back."""


class CountedKv:
    """Units are counted, nothing is shared."""

    known = 0

    def __init__(self, limits: Limits) -> None:
        self.capacity = self.free = limits.kv_units
        self._block = limits.block_tokens
        self._units_of_blocks = limits.units_of_blocks

    def units(self, tokens: int) -> int:
        """Whole blocks of them, or what ``limits.units_of_blocks`` makes of these."""
        blocks = -(-tokens // self._block)
        return self._units_of_blocks(blocks) if self._units_of_blocks else blocks

    def lookup(self, request: Request) -> int:
        """None, as nothing is shared."""
        return 0

    def admit(self, request: Request, units: int, hit_tokens: int, keep_free: int, fits: int = 0) -> bool:
        """Give a request its units, if ``keep_free`` stay free and there is room for ``fits``; whether that was so."""
        more = max(max(units, fits) - request.units, 0)  # none where room was reserved
        # A request whose room was reserved before takes nothing more, so that no watermark is asked of it.
        return (not more or more + keep_free <= self.free) and self.extend(request, units)

    def extend(self, request: Request, units: int) -> bool:
        """Give it as many as make it ``units``; False, and nothing done, if too few are free."""
        more = max(units - request.units, 0)
        if more > self.free:
            return False
        self.free -= more
        request.units += more
        return True

    def shrink(self, request: Request, units: int) -> None:
        """Take back what it has beyond ``units``."""
        less = max(request.units - units, 0)
        self.free += less
        request.units -= less

    def register(self, request: Request, tokens: int) -> None:
        """Do nothing: what is computed is shared with nobody."""

    def release(self, request: Request) -> None:
        """Take back all that it has."""
        self.free += request.units
        request.units = 0
