"""The weighted scores of llm-d's scheduler, of which the replica with the highest sum is taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evaluator.keys import Reader, key, number, schema_of, section


def queue_scores(waiting: Sequence[int]) -> list[float]:
    """llm-d ``QueueScorer.Score``: from 1 where the fewest requests wait to 0 where the most do; 1 for all alike."""
    most, least = max(waiting), min(waiting)
    return [(most - length) / (most - least) if most > least else 1.0 for length in waiting]


ALIKE = 1e-9
"""Scores that differ by less, relatively, are alike: the last bits of a sum depend on how it is added up."""


def highest(scores: Sequence[float], requests: Sequence[int]) -> int:
    """The number of the replica with the highest score; of several that with the fewest requests (llm-d: any)."""
    least = (1.0 - ALIKE) * max(scores)
    return min((n for n, score in enumerate(scores) if score >= least), key=lambda number: requests[number])


@dataclass(frozen=True)
class PrefixScores:
    """Of each replica the share of the prompt's blocks that it has, how short its queue is, and how much KV is free.

    Weights are those of llm-d's default profile (``prefix-cache-scorer`` 3, ``queue-scorer`` 2,
    ``kv-cache-utilization-scorer`` 2: default-plugins.yaml of the Gateway API Inference Extension's chart).
    """

    prefix: float = key(number(least=0), 3.0, "Weight of the share of a prompt's whole blocks that a replica has.")
    queue: float = key(number(least=0), 2.0, "Weight of the shorter queue: 1 for the shortest, 0 for the longest.")
    kv: float = key(number(least=0), 2.0, "Weight of the share of the KV cache that no request uses.")

    def __str__(self) -> str:
        return f"{self.prefix:g}:{self.queue:g}:{self.kv:g}"

    def choose(
        self, share: Sequence[float], waiting: Sequence[int], kv_used: Sequence[float], requests: Sequence[int]
    ) -> int:
        """The number of a replica. By replica: share of the blocks, who waits, share of the KV, all requests there."""
        columns = zip(share, queue_scores(waiting), kv_used, strict=True)
        return highest([self.prefix * has + self.queue * short + self.kv * (1 - used) for has, short, used in columns],
                       requests)  # fmt: skip


_section = section(PrefixScores)
scores_reader = Reader(_section.read, lambda: schema_of(_section))
"""Reads ``scores``: its weights, or {} for llm-d's."""
