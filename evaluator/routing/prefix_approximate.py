"""By prefixes, where no replica reports its cache: the router remembers which blocks it has sent where."""

from __future__ import annotations

from dataclasses import dataclass

from evaluator.keys import count, key, quantity
from evaluator.routing.prefix_aware import PrefixRule
from evaluator.routing.record import Router


@dataclass(frozen=True)
class PrefixApproximate(PrefixRule):
    """By the whole blocks of the prompts that were sent to a replica, which may have been evicted there since.

    It remembers ``memory_blocks`` of each replica and forgets those first that were sent there longest ago, as llm-d's
    approximate prefix cache does (``lruCapacityPerServer``; it takes the number of blocks that a server reports where
    one does, as here, and 31,250 else), or forgets them ``ttl_s`` after they were last sent, as Dynamo without KV
    events does (``--router-ttl-secs``, 120 s). Answers, which nobody sends, are remembered with the next prompt.
    """

    memory_blocks: int | None = key(
        count(), None, "Blocks of each replica that the router remembers; as many as its cache has where absent."
    )
    ttl_s: float | None = key(
        quantity("s", above=0), None, "It forgets a block so long after it was last sent there; never where absent."
    )

    @property
    def router(self) -> str:
        return PREFIX_APPROXIMATE.name

    @property
    def exact(self) -> bool:
        """Never: what it remembers may have been evicted."""
        return False

    def __str__(self) -> str:
        blocks = f", {self.memory_blocks} blocks" if self.memory_blocks is not None else ""
        ttl = f", for {self.ttl_s:g} s" if self.ttl_s is not None else ""
        return f"{self.router} {self.rule}{blocks}{ttl}"


PREFIX_APPROXIMATE = Router(
    "prefix_approximate",
    "The replica that was sent most of the prompt before, unless loads are too uneven.",
    by_prefix=True,
    keys=PrefixApproximate,
)
