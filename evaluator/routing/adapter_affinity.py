"""Requests that name a LoRA adapter to a replica that has it, unless its queue is the longer one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evaluator.keys import choice, key, number
from evaluator.routing.record import Router
from evaluator.routing.scores import highest, queue_scores

REQUESTS, PLACES = "requests", "places"


@dataclass(frozen=True)
class AdapterAffinity:
    """The sum of two scores of llm-d's scheduler decides, ``lora-affinity-scorer`` and ``queue-scorer``.

    A replica has 1 where the adapter is active, 0.8 where there is a place for one more, 0.6 where a request for it
    waits and 0 else; and from 1 where the fewest requests wait to 0 where the most do, times ``queue_weight``. Of
    several with the highest sum the one with the fewest requests is taken (llm-d takes any).

    Active is an adapter of a request that runs: all that llm-d hears of (vLLM's metric ``vllm:lora_requests_info``).
    With ``sees: places`` it is one that the device holds, whether anybody uses it or not.
    """

    queue_weight: float = key(
        number(least=0),
        1.0,  # llm-d ``DefaultScorerWeight``, of every scorer without a weight of its own
        "Weight of the score for the shorter queue; that of the adapter's score is 1.",
    )
    sees: str = key(
        choice(REQUESTS, PLACES), REQUESTS, "Adapters that the router knows of: of running requests, or in places."
    )

    @property
    def router(self) -> str:
        return ADAPTER_AFFINITY.name

    def __str__(self) -> str:
        return f"{self.router} by {self.sees}, queue {self.queue_weight:g}"

    def affinity(self, adapter: int, active: set[int], waiting: set[int], places: int) -> float:
        """llm-d ``LoraAffinityScorer.Score`` of one replica, with so many places for adapters."""
        if adapter in active:
            return 1.0
        if len(active | waiting) < places:
            return 0.8
        return 0.6 if adapter in waiting else 0.0

    def choose(self, affinity: Sequence[float], waiting: Sequence[int], requests: Sequence[int]) -> int:
        """The number of a replica. By replica: the score of the adapter, who waits, and all requests there."""
        columns = zip(affinity, queue_scores(waiting), strict=True)
        return highest([held + self.queue_weight * short for held, short in columns], requests)


ADAPTER_AFFINITY = Router(
    "adapter_affinity",
    "A replica that has the LoRA adapter which a request names, or room for it, unless its queue is long.",
    by_adapter=True,
    keys=AdapterAffinity,
)
