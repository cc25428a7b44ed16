"""Storage behind host memory: disks, and stores that replicas share, as the secondary tiers of vLLM 0.28.

(``TieringOffloadingSpec``.) Whatever has come to host memory is written to all of them at once. Nothing is loaded from
them to the device: a block that a request finds there goes to host memory first, with a place of its own, and the
request waits. The scheduler hears of what has ended once in each of its steps. Each direction of a store does one
transfer after the other at its bandwidth; its latency passes beside the transfers of others.

vLLM leaves to a tier what it keeps: here the least recently used blocks go, of which it hears as host memory does
(``SecondaryTierManager.touch``), and blocks of a transfer under way stay. What a replica has written others find when
it is there.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from evaluator.reference.block_pool import PrefixNames
from evaluator.reference.request import Request

_STORING = -1


@dataclass(frozen=True)
class StoreLimits:
    """What there is of it, in blocks of the device's cache (inf: no bound), and the seconds that a transfer of one
    takes behind the latency. ``shared_by`` replicas have it together."""

    blocks: float
    block_s: float = 0.0
    latency_s: float = 0.0
    shared_by: int = 1

    def __post_init__(self) -> None:
        if min(self.blocks, self.shared_by) < 1 or min(self.block_s, self.latency_s) < 0:
            raise ValueError("a store has blocks, replicas that share it, and transfers that take no less than no time")


class StoredBlocks:
    """Which blocks are kept, and in which order they go (vLLM ``CPUOffloadingManager``, ``LRUCachePolicy``)."""

    def __init__(self, blocks: float) -> None:
        self._blocks = blocks
        self._users: dict[Hashable, int] = {}  # transfers under way from each block
        self._idle: OrderedDict[Hashable, None] = OrderedDict()  # no transfer under way, the first to go in front

    def __len__(self) -> int:
        return len(self._users)

    @property
    def spare(self) -> float:
        """Blocks that there may be room for: all without a transfer under way."""
        return self._blocks - len(self._users) + len(self._idle)

    def has(self, name: Hashable) -> bool | None:
        """Whether a block is there; None: it is on its way."""
        users = self._users.get(name)
        return False if users is None else None if users == _STORING else True

    def touch(self, names: Sequence[Hashable]) -> None:
        """Mark blocks as used just now: the last block of a request will go before its first."""
        idle, move_to_end = self._idle, self._idle.move_to_end
        for name in reversed(names):
            if name in idle:
                move_to_end(name)

    def make_room(self, names: Sequence[Hashable]) -> list[Hashable] | None:
        """Make room for the blocks that are not there, which are returned; None: there is too little."""
        new = [name for name in names if name not in self._users]
        short = len(self._users) + len(new) - self._blocks
        if short > 0:
            needed = set(names)
            most = int(short)
            going = [name for name in self._first_idle(most + len(needed)) if name not in needed][:most]
            if len(going) < most:
                return None
            for name in going:
                del self._idle[name], self._users[name]
        self._users.update(dict.fromkeys(new, _STORING))
        return new

    def make_some_room(self, names: Iterable[Hashable]) -> list[Hashable]:
        """The same for the first of them that there is room for."""
        new = [name for name in names if name not in self._users]
        return self.make_room(new if len(new) <= self.spare else new[: int(self.spare)]) or []

    def _first_idle(self, count: int) -> list[Hashable]:
        return [name for name, _ in zip(self._idle, range(count), strict=False)]

    def stored(self, names: Iterable[Hashable]) -> None:
        """Their copies are complete."""
        for name in names:
            self._users[name] = 0
            self._idle[name] = None

    def hold(self, names: Iterable[Hashable]) -> None:
        """The blocks are being read: they stay until ``let_go``."""
        for name in names:
            self._users[name] += 1
            self._idle.pop(name, None)

    def let_go(self, names: Iterable[Hashable]) -> None:
        """They have been read."""
        for name in names:
            self._users[name] -= 1
            if not self._users[name]:
                self._idle[name] = None


class OffloadStore:
    """One disk, or one store that replicas share: what is there at a time, and when transfers end.

    It is asked in the order of time, by whichever replica.
    """

    def __init__(self, limits: StoreLimits) -> None:
        self._limits = limits
        self._blocks = StoredBlocks(limits.blocks)
        self._free_s = [-math.inf, -math.inf]  # when each direction has sent all that was asked of it: writes, reads
        self._under_way: list[tuple[float, int, bool, Sequence[Hashable]]] = []  # by end, then as they were begun
        self._begun = 0

    @property
    def shared(self) -> bool:
        """Several replicas may have it together."""
        return self._limits.shared_by > 1

    def has(self, name: Hashable, now: float) -> bool:
        """Whether a block can be read."""
        self._settle(now)
        return self._blocks.has(name) is True

    def touch(self, names: Sequence[Hashable], now: float) -> None:
        """Mark blocks as used just now."""
        self._settle(now)
        self._blocks.touch(names)

    def hold(self, name: Hashable) -> None:
        """A block will be read, and stays until then."""
        self._blocks.hold((name,))

    def write(self, names: Sequence[Hashable], now: float) -> float:
        """Write those that are not there, as far as there is room: when that has ended."""
        self._settle(now)
        new = self._blocks.make_some_room(names)
        return self._begin(new, now, writes=True) if new else now

    def read(self, names: Sequence[Hashable], now: float) -> float:
        """Read blocks that are held: when that has ended."""
        return self._begin(names, now, writes=False)

    def _begin(self, names: Sequence[Hashable], now: float, writes: bool) -> float:
        direction = 0 if writes else 1
        end_s = max(now + self._limits.latency_s, self._free_s[direction]) + len(names) * self._limits.block_s
        self._free_s[direction] = end_s
        self._begun += 1
        heapq.heappush(self._under_way, (end_s, self._begun, writes, names))
        return end_s

    def _settle(self, now: float) -> None:
        while self._under_way and self._under_way[0][0] <= now:
            _, _, writes, names = heapq.heappop(self._under_way)
            (self._blocks.stored if writes else self._blocks.let_go)(names)


class OffloadStores:
    """The stores of all replicas of a pool, in which a block has one name, whoever of them writes it."""

    def __init__(self, limits: Sequence[StoreLimits]) -> None:
        self.names = PrefixNames()
        self._limits = limits
        self._made: dict[tuple[int, int], OffloadStore] = {}

    def of(self, replica: int) -> list[OffloadStore]:
        """Those of one replica, in the order in which they are asked; made by the first that shares one."""
        keys = [(number, replica // limits.shared_by) for number, limits in enumerate(self._limits)]
        return [self._made.setdefault(key, OffloadStore(self._limits[key[0]])) for key in keys]


class StoreTransfers:
    """What a replica has under way between its host memory and its stores (vLLM ``TieringOffloadingManager``)."""

    def __init__(self, stores: Sequence[OffloadStore], host: StoredBlocks) -> None:
        self.stores = stores
        self.changed = False  # since it was last asked: the scheduler has heard of a transfer that has ended
        self.promoted = 0  # blocks, since a batch was sent
        self._host = host
        # Of each store what the scheduler has not heard of: (end, number, it goes to the store, blocks).
        self._under_way: list[list[tuple[float, int, bool, Sequence[Hashable]]]] = [[] for _ in stores]
        self._asked: dict[int, dict[Request, list[Hashable]]] = {}  # in this step: what is to be read from each store
        self._begun = 0
        self._polled = False  # in this step

    @property
    def busy(self) -> bool:
        """The scheduler has yet to hear of a transfer (vLLM ``has_pending_work``)."""
        return any(self._under_way)

    @property
    def next_s(self) -> float:
        """When the next transfer ends, or has ended, of which the scheduler has not heard; inf: there is none."""
        return min((transfers[0][0] for transfers in self._under_way if transfers), default=math.inf)

    def poll(self, now: float) -> None:
        """The scheduler hears of what has ended, once in a step (vLLM ``_maybe_process_finished_jobs``)."""
        if self._polled:
            return
        self._polled = True
        for transfers in self._under_way:
            while transfers and transfers[0][0] <= now:
                _, _, writes, names = heapq.heappop(transfers)
                (self._host.let_go if writes else self._host.stored)(names)
                self.changed = True

    def promote(self, name: Hashable, request: Request, now: float) -> int | None:
        """Ask for a block that host memory lacks: the store that has it; None: none does, or the host has no room.

        vLLM ``lookup`` behind its primary tier, and ``_initiate_promotion``.
        """
        for number, store in enumerate(self.stores):
            if store.has(name, now):
                if self._host.make_room((name,)) is None:
                    return None  # vLLM asks no further store
                store.hold(name)
                self._asked.setdefault(number, {}).setdefault(request, []).append(name)
                self.promoted += 1
                return number
        return None

    def touch(self, names: Sequence[Hashable], now: float) -> None:
        """Blocks are used just now, wherever they are."""
        for store in self.stores:
            store.touch(names, now)

    def spill(self, names: Sequence[Hashable], now: float) -> None:
        """Write blocks that have come to host memory, where they stay until then (vLLM ``complete_store``)."""
        for number, store in enumerate(self.stores):
            self._host.hold(names)
            self._note(number, store.write(names, now), True, names)

    def end_step(self, now: float) -> None:
        """Begin to read what was asked for (vLLM ``on_schedule_end``)."""
        self.poll(now)
        self._polled = False
        for number, by_request in self._asked.items():
            for names in by_request.values():
                self._note(number, self.stores[number].read(names, now), False, names)
        self._asked = {}

    def _note(self, number: int, end_s: float, writes: bool, names: Sequence[Hashable]) -> None:
        self._begun += 1
        heapq.heappush(self._under_way[number], (end_s, self._begun, writes, names))

    def take_news(self, now: float) -> bool:
        """Whether another look may find something new at this time."""
        changed, self.changed = self.changed, False
        return changed or self.next_s <= now
