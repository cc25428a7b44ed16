"""Host memory under the prefix cache of a device, as vLLM 0.28 keeps it (``OffloadingConnector`` with its CPU manager).

Whole blocks are copied to the host as they are computed (write-through), and kept there after the device has forgotten
them. A request finds blocks of the host behind those that it finds on the device, and waits, with blocks of its own,
until they are loaded; others run meanwhile. Where the host is full, the block that was used the longest ago goes;
blocks with a transfer under way stay.

An iteration has three parts. The scheduler looks (``look``), starts loads (``load``) and says what is to be stored
(``plan``). The worker starts the copies (``begin``): those to the host of the iteration before, so that no token waits
for them, then the loads, and notes which transfers have ended. The scheduler is told of these when the iteration ends
(``tell``). Each direction of the link does one copy after the other.

Planned asynchronously the worker starts the copies of a batch while the one before is computed. They wait for its end
on the device; the worker itself waits only for those that make room, so that it notes what has ended by then.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from evaluator.reference.block_pool import ROOT, BlockPool
from evaluator.reference.request import Request

_STORING = -1


@dataclass(frozen=True)
class HostLimits:
    """What a replica has of it, in blocks of the device's cache, and the seconds that a copy of one takes.

    ``prompts_only``: blocks of answers are not stored (vLLM's ``offload_prompt_only``, its default).
    """

    blocks: int
    prompts_only: bool = True
    store_block_s: float = 0.0
    load_block_s: float = 0.0

    def __post_init__(self) -> None:
        if self.blocks < 1 or min(self.store_block_s, self.load_block_s) < 0:
            raise ValueError("host memory has blocks, and a copy of one takes no less than no time")


@dataclass(eq=False, slots=True)
class HostCopy:
    """Blocks of a request on their way. ``blocks``: of the device, where they are stored."""

    request: Request
    names: Sequence[Hashable]
    blocks: Sequence[int] = ()
    end_s: float = math.inf

    @property
    def stores(self) -> bool:
        """To the host."""
        return bool(self.blocks)


@dataclass(eq=False, slots=True)
class _Known:
    """What is known of a request: vLLM ``RequestOffloadState``."""

    names: list[Hashable] = field(default_factory=list)  # of its whole blocks
    looked_at: int = 0  # of its blocks, from the first on: stored or left to others
    transfers: dict[HostCopy, None] = field(default_factory=dict)
    loaded: bool = False  # its load has ended
    blocks: Sequence[int] = ()  # that it had when it was preempted last
    gone: bool = False  # all that it will ever store is planned


class HostBlocks:
    """Which blocks the host has, and in which order they go (vLLM ``CPUOffloadingManager``, ``LRUCachePolicy``)."""

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self._users: dict[Hashable, int] = {}  # loads under way of each block
        self._idle: OrderedDict[Hashable, None] = OrderedDict()  # no transfer under way, the first to go in front

    def __len__(self) -> int:
        return len(self._users)

    def has(self, name: Hashable) -> bool | None:
        """Whether a block is there; None: it is on its way."""
        users = self._users.get(name)
        return False if users is None else None if users == _STORING else True

    def touch(self, names: Sequence[Hashable]) -> None:
        """Mark blocks as used just now: the last block of a request will go before its first."""
        for name in reversed(names):
            if name in self._idle:
                self._idle.move_to_end(name)

    def make_room(self, names: Sequence[Hashable]) -> list[Hashable] | None:
        """Make room for the blocks that are not there, which are returned; None: there is too little."""
        new = [name for name in names if name not in self._users]
        short = len(self._users) + len(new) - self._blocks
        if short > 0:
            kept = set(names)
            going = [name for name in self._first_idle(short + len(kept)) if name not in kept][:short]
            if len(going) < short:
                return None
            for name in going:
                del self._idle[name], self._users[name]
        self._users.update(dict.fromkeys(new, _STORING))
        return new

    def _first_idle(self, count: int) -> list[Hashable]:
        return [name for name, _ in zip(self._idle, range(count), strict=False)]

    def stored(self, names: Iterable[Hashable]) -> None:
        """Their copies are complete."""
        for name in names:
            self._users[name] = 0
            self._idle[name] = None

    def hold(self, names: Iterable[Hashable]) -> None:
        """The blocks are being loaded: they stay until ``let_go``."""
        for name in names:
            self._users[name] += 1
            self._idle.pop(name, None)

    def let_go(self, names: Iterable[Hashable]) -> None:
        """A load of them has ended."""
        for name in names:
            self._users[name] -= 1
            if not self._users[name]:
                self._idle[name] = None


class HostCache:
    """vLLM ``OffloadingConnectorScheduler`` and ``OffloadingConnectorWorker``, for layers of full attention."""

    def __init__(self, memory: HostLimits, pool: BlockPool, block_tokens: int) -> None:
        self.blocks = HostBlocks(memory.blocks)
        self._memory, self._pool, self._block = memory, pool, block_tokens
        self._known: dict[Request, _Known] = {}
        self._loading: dict[Hashable, None] = {}  # blocks
        self._finished: list[tuple[Request, list[int]]] = []  # since the last plan, with the blocks that they had
        self._again: dict[Request, None] = {}  # there was no room for their blocks
        # Blocks of requests that are gone may be given to others before they are stored: those wait for the copy.
        self._sources: dict[int, dict[HostCopy, None]] = {}
        self._loads: list[HostCopy] = []  # planned with this batch
        self._stores: list[HostCopy] = []  # planned with this batch, and begun with the next one
        self._deferred: list[HostCopy] = []  # planned with the batch before
        self._at_once: dict[HostCopy, None] = {}  # to be complete before this batch begins
        self._under_way: tuple[deque[HostCopy], deque[HostCopy]] = deque(), deque()  # stores, loads
        self._free_s = [-math.inf, -math.inf]  # when each direction has done all that was begun
        self._copies = 0  # planned, of which the scheduler has not been told the end
        self.worker_free_s = -math.inf  # when the worker has started what it was told of
        self.loaded: list[tuple[int, int]] = []  # since the last batch: (request, tokens)
        pool.taken = []

    # -- the scheduler

    def look(self, request: Request, hit_tokens: int) -> int | None:
        """Tokens to load behind those found on the device; None: it cannot be said yet, the request waits.

        vLLM ``get_num_new_matched_tokens``.
        """
        known = self._known.setdefault(request, _Known())
        if known.transfers:
            return None
        self._name(request, known, request.target)
        first = hit_tokens // self._block
        found, pending = first, False
        for name in known.names[first:]:
            there = self.blocks.has(name)
            if there is False:
                break
            pending |= there is None
            found += 1
        # Blocks that another request loads already are found on the device once they have come.
        pending |= any(name in self._loading for name in known.names[first:found])
        self.blocks.touch(known.names)
        return None if pending else (found - first) * self._block

    def load(self, request: Request, hit_tokens: int, tokens: int) -> None:
        """Plan to fill a request's blocks behind those found on the device from the host; it has got these blocks."""
        known = self._known[request]
        known.looked_at = (hit_tokens + tokens) // self._block
        names = known.names[hit_tokens // self._block : known.looked_at]
        self.blocks.hold(names)
        self._loading.update(dict.fromkeys(names))
        transfer = HostCopy(request, names)
        known.transfers[transfer] = None
        self._copies += 1
        self._loads.append(transfer)
        self.loaded.append((request.index, tokens))

    def take_load(self, request: Request) -> bool:
        """Whether its load has ended, which is told once."""
        known = self._known[request]
        ended, known.loaded = known.loaded, False
        return ended

    def admit(self, request: Request) -> None:
        """A request runs whose load has ended: vLLM counts its blocks as given to it anew."""
        self._pool.note(request.blocks)

    def preempt(self, request: Request) -> None:
        """A request is preempted, and about to give its blocks back."""
        self._known[request].blocks = list(request.blocks)

    def finish(self, request: Request) -> None:
        """A request is done, and about to give its blocks back.

        Of one that got its last token after it was preempted, vLLM stores what its blocks hold by then.
        """
        known = self._known.get(request)
        if known is not None:
            self._finished.append((request, list(request.blocks or known.blocks)))
            for transfer in known.transfers:
                self._watch(transfer)

    def plan(self, members: Iterable[tuple[Request, int]], preempted: Iterable[Request]) -> None:
        """What is to be stored of these, in order of admission, each with its tokens once the batch has ended.

        vLLM ``build_connector_meta``. Members without a new block need not be named. A block is stored once it is
        whole, or at the end of an answer, where vLLM counts the last token in, whose KV is never computed.
        """
        taken = set(self._pool.taken or ())
        self._pool.taken = []
        for request in preempted:
            known = self._known.get(request)
            self._at_once.update(known.transfers if known else {})
        for block in taken & self._sources.keys():
            self._at_once.update(self._sources[block])
        again = {request: tokens for request, tokens in members if request.blocks}
        for request, tokens in sorted(again.items(), key=lambda each: each[0].admission):
            self._store(request, tokens, request.blocks)
        finished, self._finished = self._finished, []
        for request, blocks in finished:
            stored = self._store(request, request.known_tokens, blocks)
            if stored is not None:
                self._watch(stored)
                if taken.intersection(stored.blocks):
                    self._at_once[stored] = None
            self._again.pop(request, None)
            self._known[request].gone = True
            self._forget(request)

    @property
    def busy(self) -> bool:
        """There is something to plan or to tell, whoever waits or runs (vLLM ``has_pending_push_work``)."""
        return self._copies > 0 or bool(self._finished)

    def unstored(self) -> Iterable[Request]:
        """Requests whose blocks found no room before."""
        return self._again

    def tell(self, ended: Iterable[HostCopy]) -> None:
        """The scheduler hears of transfers that have ended (vLLM ``update_connector_output``)."""
        for transfer in ended:
            known = self._known[transfer.request]
            del known.transfers[transfer]
            self._copies -= 1
            if transfer.stores:
                self.blocks.stored(transfer.names)
                for block in transfer.blocks:
                    watching = self._sources.get(block, {})
                    watching.pop(transfer, None)
                    if not watching:
                        self._sources.pop(block, None)
            else:
                self.blocks.let_go(transfer.names)
                for name in transfer.names:
                    del self._loading[name]
                known.loaded = True
            self._forget(transfer.request)

    # -- the worker

    @property
    def next_s(self) -> float:
        """When the next transfer ends; inf if none is under way."""
        return min((transfers[0].end_s for transfers in self._under_way if transfers), default=math.inf)

    @property
    def has_begun_all(self) -> bool:
        """Nothing waits for the next batch to be begun."""
        return not self._deferred

    def begin(self, now: float, device_free_s: float = -math.inf) -> tuple[float, list[HostCopy]]:
        """Start what was planned: when the batch may begin, and the transfers of which it tells the end.

        ``device_free_s``: when the device is done with the batches before, for which copies wait.
        """
        done = max(now, self.worker_free_s)
        ready = max(done, device_free_s)
        at_once, self._at_once = self._at_once, {}
        for transfer in (*self._deferred, *(transfer for transfer in self._stores if transfer in at_once)):
            self._start(transfer, ready)
        self._deferred, self._stores = [transfer for transfer in self._stores if transfer not in at_once], []
        self.worker_free_s = done = max([done, *(transfer.end_s for transfer in at_once)])
        start = max(ready, done)
        for transfer in self._loads:
            self._start(transfer, start)
        self._loads = []
        ended = []
        for transfers in self._under_way:
            while transfers and transfers[0].end_s <= done:
                ended.append(transfers.popleft())
        return start, ended

    # -- of both

    def _start(self, transfer: HostCopy, now: float) -> None:
        direction = 0 if transfer.stores else 1
        block_s = (self._memory.store_block_s, self._memory.load_block_s)[direction]
        transfer.end_s = max(now, self._free_s[direction]) + len(transfer.names) * block_s
        self._free_s[direction] = transfer.end_s
        self._under_way[direction].append(transfer)

    def _name(self, request: Request, known: _Known, tokens: int) -> None:
        """Names of its whole blocks, as far as its tokens are known."""
        for position in range(len(known.names), tokens // self._block):
            known.names.append(self._pool.name_of(request, position, known.names[-1] if known.names else ROOT))

    def _forget(self, request: Request) -> None:
        if self._known[request].gone and not self._known[request].transfers:
            del self._known[request]

    def _watch(self, transfer: HostCopy) -> None:
        for block in transfer.blocks:
            self._sources.setdefault(block, {})[transfer] = None

    def _store(self, request: Request, tokens: int, blocks: Sequence[int]) -> HostCopy | None:
        known = self._known[request]
        self._name(request, known, tokens)
        most = request.prompt_tokens if self._memory.prompts_only else tokens
        first, last = known.looked_at, min(min(tokens, most) // self._block, len(blocks))
        if last <= first:
            return None
        new = self.blocks.make_room(known.names[first:last])
        if new is None:
            self._again[request] = None
            return None
        self._again.pop(request, None)
        known.looked_at = last
        if not new:
            return None
        self.blocks.touch(known.names)
        stored = set(new)
        sources = [blocks[position] for position in range(first, last) if known.names[position] in stored]
        transfer = HostCopy(request, new, sources)
        known.transfers[transfer] = None
        self._copies += 1
        self._stores.append(transfer)
        return transfer
