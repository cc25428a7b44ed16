"""What a router knows of the replicas' prefix caches: all as of now, what events told it by now, or what it sent.

Each kind says of a request how many tokens every replica is thought to have, and how many blocks it is thought to know.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from evaluator.reference.block_pool import PrefixNames
from evaluator.reference.prefix_cache import PrefixCache
from evaluator.reference.replica import Replica
from evaluator.reference.request import Request
from evaluator.routing import PrefixApproximate, PrefixAware


@dataclass
class RouterMemory:
    """What a router remembers while the replicas that serve come and go."""

    of_replica: dict[Replica, Any] = field(default_factory=dict)
    names: PrefixNames = field(default_factory=PrefixNames)

    def keep(self, serving: Sequence[Replica]) -> list[Any]:
        """Only what is known of these; returns what was known of others.

        Who does not serve any more never comes back, as what is repaired is another replica: its cache would be kept
        to the end of the run.
        """
        return [self.of_replica.pop(replica) for replica in self.of_replica.keys() - set(serving)]


class SentBlocks:
    """Blocks that a replica was sent: the latest ``most`` of them, each for ``ttl_s``.

    An LRU by sending, as llm-d's ``indexer``: who looks whether a block is there does not keep it
    (``matchLongestPrefix`` reads the table of servers by block, not the LRU of a server).
    """

    def __init__(self, most: float = math.inf, ttl_s: float = math.inf) -> None:
        self._most, self._ttl_s = most, ttl_s
        self._sent_s: OrderedDict[Hashable, float] = OrderedDict()  # when each was sent last, the longest ago first

    def add(self, names: Iterable[Hashable], now: float) -> None:
        """Note blocks that are sent now; beyond the most the oldest are forgotten (llm-d ``indexer.Add``)."""
        for name in names:
            self._sent_s[name] = now
            self._sent_s.move_to_end(name)
            if len(self._sent_s) > self._most:
                self._sent_s.popitem(last=False)

    def has(self, name: Hashable, now: float) -> bool:
        """Whether it was sent, and is not forgotten."""
        sent_s = self._sent_s.get(name)
        return sent_s is not None and now < sent_s + self._ttl_s

    def known(self, now: float) -> int:
        """How many there are; those whose time is over are forgotten."""
        # Dynamo ``PruneManager.pop_expired``: a block goes at the time at which it expires, not behind it.
        while self._sent_s and now >= next(iter(self._sent_s.values())) + self._ttl_s:
            self._sent_s.popitem(last=False)
        return len(self._sent_s)


class PrefixKnowledge(Protocol):
    """What a router asks."""

    def known_tokens(self, request: Request, now: float) -> tuple[list[int], list[int]]:
        """For each replica the tokens of a prompt, and the blocks of any, that it is thought to have."""

    def sent(self, request: Request, to: int, now: float) -> None:
        """The request that was asked for last goes to the replica of this number."""


class ExactKnowledge:
    """The caches themselves, as of now."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = replicas

    def known_tokens(self, request: Request, now: float) -> tuple[list[int], list[int]]:
        for replica in self._replicas:
            # A router that asks what is cached must see the blocks that iterations of a leap have filled by now.
            replica.catch_up(now)
        caches = [replica.queues.kv for replica in self._replicas]
        return [cache.lookup(request) for cache in caches], [cache.known for cache in caches]

    def sent(self, request: Request, to: int, now: float) -> None:
        pass


class LateCache:
    """The cache of one replica as events told it: those of up to ``delay_s`` ago.

    ``predicted_ttl_s``: prompts that were sent there count, too, for so long (llm-d ``speculativeIndexing``).
    """

    def __init__(self, replica: Replica, delay_s: float, predicted_ttl_s: float | None = None) -> None:
        cache = replica.queues.kv
        assert isinstance(cache, PrefixCache), "the plan refuses other caches under this router"
        self._replica, self._pool, self._delay_s = replica, cache.pool, delay_s
        self._block = replica.limits.block_tokens
        self._events: deque[tuple[float, Hashable, bool]] = deque()  # when, of what, whether it came
        self._known: dict[Hashable, int] = {}  # by name how many blocks hold it, as several may
        self._blocks = 0
        self._predicted = None if predicted_ttl_s is None else SentBlocks(ttl_s=predicted_ttl_s)
        self._pool.hears = self._hear

    def leave(self) -> None:
        """The replica has gone, or drains: nobody listens to its events any more."""
        self._pool.hears = None

    def _hear(self, name: Hashable, came: bool) -> None:
        # A replica accounts for its KV up to the time of a change before it changes, also within a leap, of whose
        # iterations it may hear later, but in their order.
        self._events.append((self._replica.kv_since_s, name, came))

    def tokens(self, request: Request, now: float) -> int:
        """Leading tokens of a prompt that the router thinks are there: whole blocks, as ``PrefixCache.lookup``."""
        self._catch_up(now)
        whole, predicted = 0, self._predicted
        for name in self._pool.first_names(request, (request.target - 1) // self._block):
            if name not in self._known and not (predicted and predicted.has(name, now)):
                break
            whole += 1
        return whole * self._block

    def known(self, now: float) -> int:
        """Blocks that the router knows of."""
        self._catch_up(now)
        return self._blocks + (self._predicted.known(now) if self._predicted else 0)

    def sent(self, request: Request, now: float) -> None:
        """A request goes there now."""
        if self._predicted:
            # What a request does not say of itself, nobody else can find.
            blocks = min(request.prompt_tokens // self._block, len(request.content))
            self._predicted.add(self._pool.first_names(request, blocks), now)

    def _catch_up(self, now: float) -> None:
        self._replica.catch_up(now)
        while self._events and self._events[0][0] + self._delay_s <= now:
            _, name, came = self._events.popleft()
            more = 1 if came else -1
            self._blocks += more
            self._known[name] = self._known.get(name, 0) + more
            if not self._known[name]:
                del self._known[name]


class LateKnowledge:
    """Every replica's cache as its events told it."""

    def __init__(self, choice: PrefixAware, replicas: Sequence[Replica], memory: RouterMemory) -> None:
        for cache in memory.keep(replicas):
            cache.leave()
        for replica in replicas:
            if replica not in memory.of_replica:  # each cache tells one listener
                memory.of_replica[replica] = LateCache(replica, choice.events_delay_s, choice.predicted_ttl_s)
        self._caches: list[LateCache] = [memory.of_replica[replica] for replica in replicas]

    def known_tokens(self, request: Request, now: float) -> tuple[list[int], list[int]]:
        return [cache.tokens(request, now) for cache in self._caches], [cache.known(now) for cache in self._caches]

    def sent(self, request: Request, to: int, now: float) -> None:
        self._caches[to].sent(request, now)


class SentKnowledge:
    """What the router itself has sent to each replica; no replica is asked."""

    def __init__(self, choice: PrefixApproximate, replicas: Sequence[Replica], memory: RouterMemory) -> None:
        ttl_s = math.inf if choice.ttl_s is None else choice.ttl_s
        memory.keep(replicas)
        for replica in replicas:
            # llm-d ``makeserver``: as many as the server reports that it has (``autoTune``), where nothing is said.
            most = replica.queues.kv.capacity if choice.memory_blocks is None else choice.memory_blocks
            memory.of_replica.setdefault(replica, SentBlocks(most, ttl_s))
        self._memories: list[SentBlocks] = [memory.of_replica[replica] for replica in replicas]
        self._block = replicas[0].limits.block_tokens  # the same of all: the plan refuses others under this router
        self._names = memory.names
        self._asked: list[Hashable] = []  # of the request that was asked for last, which is then sent

    def known_tokens(self, request: Request, now: float) -> tuple[list[int], list[int]]:
        blocks = [0] * len(self._memories)
        # llm-d ``matchLongestPrefix``: up to the first block that no server has, every server counts those that it has.
        # Where its LRU has lost the first blocks of a prompt, which are the oldest, the later ones count all the same.
        # Whole blocks of the prompt, those that it shares with nobody among them: they take room, too.
        self._asked = list(self._names.first(request, request.prompt_tokens // self._block))
        for name in self._asked:
            having = [number for number, memory in enumerate(self._memories) if memory.has(name, now)]
            if not having:
                break
            for number in having:
                blocks[number] += 1
        return [count * self._block for count in blocks], [memory.known(now) for memory in self._memories]

    def sent(self, request: Request, to: int, now: float) -> None:
        self._memories[to].add(self._asked, now)


def knowledge_of(choice: Any, replicas: Sequence[Replica], memory: RouterMemory) -> PrefixKnowledge:
    """What a router by prefixes knows of its replicas; ``memory``: what it knew of them before, which is added to."""
    if isinstance(choice, PrefixApproximate):
        return SentKnowledge(choice, replicas, memory)
    if isinstance(choice, PrefixAware) and not choice.exact:
        return LateKnowledge(choice, replicas, memory)
    return ExactKnowledge(replicas)
