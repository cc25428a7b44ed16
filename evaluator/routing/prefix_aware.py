"""The replica whose prefix cache has most of the prompt, unless that leaves the load too uneven.

Two routers choose so, and differ in what they know of the caches: ``prefix_aware`` what is in them, now or as of some
time ago, ``prefix_approximate`` (beside it) only what it has sent where.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evaluator.keys import count, key, number, quantity
from evaluator.routing.record import Router
from evaluator.routing.scores import PrefixScores, scores_reader


@dataclass(frozen=True)
class PrefixRule:
    """The rule of the policy ``cache_aware`` of the routers of SGLang and vLLM, whose defaults these are.

    A request goes to the replica whose prefix cache has the longest prefix of its prompt, if that is at least
    ``threshold`` of the prompt; of several to the one with the fewest requests. Else it goes to the replica with the
    fewest requests, of several to the one whose cache knows the fewest blocks. Where one replica has more than
    ``imbalance`` requests more than another, and more than ``imbalance_ratio`` times as many, prefixes do not count.
    With ``scores`` these three say nothing: the replica with the highest sum of llm-d's scores is taken.
    """

    threshold: float = key(number(least=0, most=1), 0.3, "Least part of a prompt in a cache for which it goes there.")
    imbalance: int = key(count(least=0), 64, "So many requests more than on another replica are too uneven a load,")
    imbalance_ratio: float = key(number(least=1), 1.5, "if they are also more than so many times as many.")

    scores: PrefixScores | None = key(
        scores_reader, None, "Weights of llm-d's scores, by which it goes in the place of thresholds; {} for llm-d's."
    )

    @property
    def router(self) -> str:
        """The name of the router."""
        raise NotImplementedError

    @property
    def exact(self) -> bool:
        """It knows what the caches have as of the arrival, and goes by nothing else."""
        raise NotImplementedError

    @property
    def rule(self) -> str:
        """By what it chooses, in words."""
        if self.scores is not None:
            return f"by scores {self.scores}"
        return f"from {self.threshold:g} of a prompt, imbalance {self.imbalance}"

    def choose(self, requests: Sequence[int], hit_share: Sequence[float], known_blocks: Sequence[int]) -> int:
        """The number of a replica. By replica: requests there, share of the prompt in its cache, blocks it knows."""
        most, least = max(requests), min(requests)
        # SGLang's `cache_aware` in the same words: `balance_abs_threshold` and `balance_rel_threshold`, both of which
        # must be exceeded, so that neither a small absolute nor a small relative difference turns the cache off.
        uneven = most - least > self.imbalance and most > self.imbalance_ratio * least
        longest = max(hit_share)
        replicas = range(len(requests))
        # With threshold 0 a prompt of which no cache has anything would go by prefix, to the first of the idlest.
        if longest >= self.threshold and longest > 0 and not uneven:
            return min((n for n in replicas if hit_share[n] == longest), key=lambda n: requests[n])
        # The queue decides first where the match is too short, too, and the blocks known only between equal queues,
        # lest cold prompts pile up on a busy replica because its cache is small.
        return min(replicas, key=lambda n: (requests[n], known_blocks[n]))


@dataclass(frozen=True)
class PrefixAware(PrefixRule):
    """By what the replicas' caches have: as of the arrival, or as KV events told it ``events_delay_s`` later.

    Engines publish a block when it can be found and when it is evicted (vLLM ``BlockStored``, ``BlockRemoved``), which
    the router hears of later: llm-d's precise prefix-cache scorer, Dynamo's KV router with events, SGLang's with them.
    Without a delay the prompt of a request that waits, or is being computed, is in no cache yet. With
    ``predicted_ttl_s`` it counts as cached at once where it was sent: llm-d's ``speculativeTTL`` (2 s where
    ``speculativeIndexing`` is on; off by default), Dynamo's ``--router-predicted-ttl-secs`` (off by default).
    """

    events_delay_s: float = key(
        quantity("s", least=0), 0.0, "Time from a change of a replica's cache until the router knows of it."
    )
    predicted_ttl_s: float | None = key(
        quantity("s", above=0), None, "For so long a prompt counts as cached where it was sent, whatever is known."
    )

    @property
    def router(self) -> str:
        return PREFIX_AWARE.name

    @property
    def exact(self) -> bool:
        return self.events_delay_s == 0 and self.predicted_ttl_s is None

    def __str__(self) -> str:
        late = f", {self.events_delay_s:g} s late" if self.events_delay_s else ""
        predicted = f", predicted for {self.predicted_ttl_s:g} s" if self.predicted_ttl_s is not None else ""
        return f"{self.router} {self.rule}{late}{predicted}"


PREFIX_AWARE = Router(
    "prefix_aware",
    "The replica with most of the prompt in its prefix cache, unless loads are too uneven.",
    by_prefix=True,
    keys=PrefixAware,
)
