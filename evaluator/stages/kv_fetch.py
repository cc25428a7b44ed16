"""The KV of contexts that were computed before, from tiers of storage: where it is found, it need not be computed.

A request asks the tiers one after the other. The first that has its context sends it, one context after the other over
the bandwidth of the tier, which all replicas that share the tier wait for; a context that no tier has is computed by
the prefill. A request queues for the prefill when its KV is there: the fetch overlaps with the service of those who
came before, and a request whose KV takes longer is overtaken. With ``prefetch`` the tiers are asked when the client
sends, beside the stages before this one, and a request goes on when it is through with both. With ``to_decode`` a
tier sends a context to the prefill and to the decode side at once, each with half of the bandwidth, and the prefill
side has only what it computed to send on; the KV takes no room on the decode side until then. In which tier a context
lies, and whose tiers are asked, is drawn by seed and request from the hit rates; it does not follow the router that
chooses a replica later.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from evaluator.catalog.storage import ALL, Storage
from evaluator.keys import (
    Place,
    count,
    count_or,
    flag,
    key,
    number,
    quantity,
    section,
)
from evaluator.stages.record import StageKind, StageRequests, Work
from evaluator.stages.steps import Delay, Served, Step
from evaluator.tiers import Popularity, TierSize, figures_of, held_shares, hit_rates, storage_name, tiers_reader

ANY = "any"


@dataclass(frozen=True)
class Tier:
    """One tier. Figures that are None are those of the ``storage``, a name of the catalog.

    ``hit`` is, of the requests that come to it, the part that finds its context there; None: it follows from the
    capacity and the popularity of the contexts. ``transfers`` run at a time, each at the whole bandwidth.
    """

    storage: str | None = key(storage_name, None, "A storage of the catalog; absent: described by the other keys.")
    hit: float | None = key(
        number(least=0, most=1), None, "Of the requests that come to it, the part that finds its context."
    )
    shared_by: int | str | None = key(
        count_or(ALL), None, "Replicas that share one, its capacity and bandwidth; or all. Instead of the storage's."
    )
    bandwidth: float | None = key(quantity("byte/s", above=0), None, "Instead of the storage's.")
    latency: float | None = key(quantity("s", least=0), None, "Of a lookup, whether it finds something or not.")
    capacity: float | None = key(quantity("byte", least=0), None, "Of KV that it keeps; instead of the storage's.")
    transfers: int | str = key(count_or(ANY), 1, "At a time, each at the whole bandwidth; any: none waits for another.")

    @property
    def figures(self) -> Storage:
        """What it is made of."""
        return figures_of(self)

    def sharing(self, replicas: int) -> int:
        """Replicas that have one such tier together, of so many in all."""
        return self.figures.sharing(replicas)


@dataclass(frozen=True)
class KvFetch:
    """Without ``tokens`` or ``share`` the contexts are the leading tokens that the workload says to be cached."""

    tiers: tuple[Tier, ...] = key(
        tiers_reader(Tier, "[hbm, {storage: nvme, shared_by: 4}]"),
        says="Asked one after the other; [] is no cache: all is computed.",
    )
    tokens: int | None = key(count(), None, "Of the context of each request, in front of its prompt.")
    share: float | None = key(number(above=0, most=1), None, "Of each prompt the leading part that is its context.")
    popularity: Popularity | None = key(
        section(Popularity),
        None,
        "Of the contexts, from which hit rates follow; all tiers keep the last (LRU).",
    )
    to_decode: bool = key(
        flag,
        False,
        "true: a decode side gets it as well, over the same bandwidth; the prefill side sends only the rest.",
    )
    prefetch: bool = key(flag, False, "true: asked for when the client sends, beside the stages before this one.")


def _check(fetch: KvFetch, place: Place) -> None:
    if fetch.tokens is not None and fetch.share is not None:
        raise place.key("share").error("excludes tokens: a context is a part of its prompt, or in front of it")
    tiers_place = place.key("tiers")
    for index, tier in enumerate(fetch.tiers):
        if fetch.popularity is None and tier.hit is None:
            raise tiers_place.item(index).error(
                "needs a hit rate, or say the popularity of the contexts beside the tiers"
            )
        if fetch.popularity is not None and tier.hit is not None:
            raise tiers_place.item(index).key("hit").error("follows from the popularity; leave one of them out")
    # ``sharing`` of a tier that all replicas share is the number that it is given: 10^9 stands for more than any pool
    # has.
    for index, (tier, following) in enumerate(pairwise(fetch.tiers)):
        if following.sharing(10**9) < tier.sharing(10**9):
            raise (
                tiers_place.item(index + 1)
                .key("shared_by")
                .error(
                    f"{following.figures.shared_by} is less than the {tier.figures.shared_by} of the tier before; "
                    "those who share a tier share the ones behind it"
                )
            )


def _note(fetch: KvFetch) -> str | None:
    """Which tiers are slower than those that are asked after them."""
    names = list(_named(fetch.tiers))
    for index, (tier, following) in enumerate(pairwise(tier.figures for tier in fetch.tiers)):
        if tier.bandwidth < following.bandwidth and tier.latency_s >= following.latency_s:
            return (
                f"{names[index]} is slower than {names[index + 1]}, which is asked after it; a context that both have "
                "comes from the slower one"
            )
    return None


def work(fetch: KvFetch, visit: StageRequests) -> Work:
    """Lookups and transfers of each request, and the tokens that it need not compute."""
    tokens = _contexts(fetch, visit)
    # Two draws of each request, taken whether it asks or not: the first finds its tier, the second its replica. So a
    # request keeps its luck when another design gives it a context.
    size, asks = visit.kv.of(tokens), tokens > 0
    draws = visit.rng().random((len(visit), 2))
    mean = float(size[asks].mean()) if asks.any() else 0.0
    rates = _rates(fetch, visit.replicas, mean)
    # Inverse transform over the tiers: of two designs that differ in a hit rate, a request finds its context in the
    # one with the higher rate in the same tier or an earlier one, so that they are compared on the same luck.
    tier_found = np.searchsorted(np.cumsum(held_shares(np.array(rates)))[:-1], draws[:, 0], side="right")
    is_found = asks & (tier_found < len(fetch.tiers))
    replica = (draws[:, 1] * visit.replicas).astype(np.int64)
    tiers_looked_up = np.where(asks, np.minimum(tier_found + 1, len(fetch.tiers)), 0)
    lookups_s = np.cumsum([0.0, *(tier.figures.latency_s for tier in fetch.tiers)])
    # All lookups first, as one delay: they wait for nobody, and the transfer starts when the last one has found
    # something.
    steps: list[Step] = [Delay(lookups_s[tiers_looked_up], "lookup", np.where(asks, 0, -1))]
    for index, (name, tier) in enumerate(_named(fetch.tiers).items()):
        # To both sides at once each gets half of the bandwidth, which takes as long as twice the bytes.
        sent = np.where(is_found & (tier_found == index), size * (2.0 if fetch.to_decode else 1.0), 0.0)
        # A queue of transfers behind a lookup of known length: each tier is a step of its own, and a request passes
        # all but one of them by, since results name the seconds by tier (``kv_fetch.nvme``).
        steps.append(_transfer(name, tier, sent, replica, visit.replicas))
    added = np.zeros_like(tokens) if fetch.tokens is None else tokens
    # A context in front of the prompt is followed by what the workload says to be cached of it; a
    # context that is part of the prompt takes the place of that. What is not found is computed
    # whole.
    cached = np.where(is_found, tokens + (0 if fetch.tokens is None else visit.cached_tokens), 0)
    return Work(tuple(steps), added, cached, _problem(fetch.tiers, mean), fetch.prefetch, fetch.to_decode)


def _contexts(fetch: KvFetch, visit: StageRequests) -> NDArray[np.int64]:
    """Tokens of the context of each request; where it is a part of the prompt one token at least is computed."""
    if fetch.tokens is not None:
        return np.full(len(visit), fetch.tokens)
    if fetch.share is not None:
        # The last prompt token is always computed: its logits give the first token (vLLM keeps `num_tokens - 1` as
        # the longest hit for that reason).
        return np.minimum((fetch.share * visit.prompt_tokens).astype(np.int64), visit.prompt_tokens - 1)
    return visit.cached_tokens


def _problem(tiers: tuple[Tier, ...], context_bytes: float) -> str | None:
    """Why no tier could keep any context of this size; None where one can, or there is none."""
    largest = max((tier.figures.capacity_bytes for tier in tiers), default=math.inf)
    if context_bytes <= largest:
        return None
    return (
        f"the KV of a context, {context_bytes / 1e9:.3g} GB, is larger than every tier; give one of them more than the "
        f"{largest / 1e9:.3g} GB of the largest, or say tiers: [] for no cache"
    )


def _rates(fetch: KvFetch, replicas: int, context_bytes: float) -> tuple[float, ...]:
    """Hit rates of the tiers, given or derived; where contexts differ in size their mean counts."""
    if fetch.popularity is None or context_bytes == 0.0:
        return tuple(tier.hit or 0.0 for tier in fetch.tiers)
    sizes = []
    for tier in fetch.tiers:
        # An LRU keeps whole contexts, hence the floor; a tier without a stated capacity (inf) stays unbounded.
        fitting = tier.figures.capacity_bytes / context_bytes
        sizes.append(TierSize(math.floor(fitting) if math.isfinite(fitting) else fitting, tier.sharing(replicas)))
    return hit_rates(fetch.popularity, tuple(sizes), replicas)


def _named(tiers: tuple[Tier, ...]) -> dict[str, Tier]:
    """The tiers by the names of their storage, with their numbers where these are not enough."""
    named = [tier.storage or "tier" for tier in tiers]
    alone = [name != "tier" and named.count(name) == 1 for name in named]
    return {
        name if once else f"{name}_{number}": tier
        for number, (name, once, tier) in enumerate(zip(named, alone, tiers, strict=True), start=1)
    }


def _transfer(name: str, tier: Tier, size: NDArray[np.float64], replica: NDArray[np.int64], replicas: int) -> Step:
    """Of ``size`` bytes of each context that lies in this tier; 0 of the requests that pass it by."""
    seconds = size / tier.figures.bandwidth
    if isinstance(tier.transfers, str):
        return Delay(seconds, name, np.where(size > 0.0, 0, -1))
    # Replica // sharing is the number of the physical tier: with 8 replicas and a store for each 4 of them there are
    # two queues, each with its own bandwidth.
    return Served(seconds, tier.transfers, np.where(size > 0.0, replica // tier.sharing(replicas), -1), name)


KV_FETCH = StageKind(
    "kv_fetch", KvFetch, work, "The KV of a context, from the tier of storage that keeps it.", check=_check, note=_note
)
