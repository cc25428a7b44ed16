"""The replica whose prefix cache has most of the prompt, unless that leaves the load too uneven."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evaluator.keys import count, key, number
from evaluator.routing.record import Router


@dataclass(frozen=True)
class PrefixAware:
    """The policy ``cache_aware`` of the routers of SGLang and vLLM, whose defaults these are, with exact knowledge.

    A request goes to the replica whose prefix cache has the longest prefix of its prompt, if that is at least
    ``threshold`` of the prompt; of several to the one with the fewest requests. Else it goes to the replica with the
    fewest requests, of several to the one whose cache knows the fewest blocks. Where one replica has more than
    ``imbalance`` requests more than another, and more than ``imbalance_ratio`` times as many, prefixes do not count.

    Those routers guess what a cache has from what they sent; here it is what it has as of the arrival, as where
    replicas report it (llm-d, SGLang with KV events). The prompt of a request that waits there is not yet in it.
    """

    threshold: float = key(number(least=0, most=1), 0.3, "Least part of a prompt in a cache for which it goes there.")
    imbalance: int = key(count(least=0), 64, "So many requests more than on another replica are too uneven a load,")
    imbalance_ratio: float = key(number(least=1), 1.5, "if they are also more than so many times as many.")

    @property
    def router(self) -> str:
        return PREFIX_AWARE.name

    def __str__(self) -> str:
        return f"{self.router} from {self.threshold:g} of a prompt, imbalance {self.imbalance}"

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


PREFIX_AWARE = Router(
    "prefix_aware",
    "The replica with most of the prompt in its prefix cache, unless loads are too uneven.",
    by_prefix=True,
    keys=PrefixAware,
)
