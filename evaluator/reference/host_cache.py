"""Host memory under the prefix cache of a device, as vLLM 0.28 keeps it (``OffloadingConnector`` with its CPU manager).

Whole blocks are copied to the host as they are computed (write-through), and kept there after the device has forgotten
them. A request finds blocks of the host behind those that it finds on the device, and waits, with blocks of its own,
until they are loaded; others run meanwhile. Where the host is full, the block that was used the longest ago goes;
blocks with a transfer under way stay.

An iteration has three parts. The scheduler looks (``look``), starts loads (``load``) and says what is to be stored
(``plan``). The worker starts the copies (``begin``): those to the host of the iteration before, so that no token waits
for them, then the loads, and notes which transfers have ended. The scheduler is told of these when the iteration ends
(``tell``). Each direction of the link does one copy after the other.

Behind host memory there may be stores, which get what has come to it and give it back (``offload_stores``).

By vLLM blocks are written through. SGLang's HiCache (0.5.23, ``--hicache-write-policy``) may also wait until a second
request has a block (``hiradix_cache.HiRadixCache._inc_hit_count``: ``write_through_selective``), or until the device
takes it for another (``evict``, ``write_back``); then the batch that it is taken for waits for the copy.

Planned asynchronously the worker starts the copies of a batch while the one before is computed. They wait for its end
on the device; the worker itself waits only for those that make room, so that it notes what has ended by then.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from evaluator.reference.block_pool import BlockPool
from evaluator.reference.offload_stores import OffloadStore, StoredBlocks, StoreLimits, StoreTransfers
from evaluator.reference.request import Request

WRITE_THROUGH = "write_through"
SELECTIVE = "write_through_selective"
WRITE_BACK = "write_back"
WRITES = (WRITE_THROUGH, SELECTIVE, WRITE_BACK)

_ASKED_AGAIN = 16
"""Blocks may come from stores so many times host memory's room, before those that wait for them are given up."""


@dataclass(frozen=True)
class HostLimits:
    """What a replica has of it, in blocks of the device's cache, and the seconds that a copy of one takes.

    ``prompts_only``: blocks of answers are not stored (vLLM's ``offload_prompt_only``, its default), but on eviction.
    ``write``: when a block is copied to the host: one of ``WRITES``.
    """

    blocks: int
    prompts_only: bool = True
    store_block_s: float = 0.0
    load_block_s: float = 0.0
    write: str = WRITE_THROUGH
    stores: tuple[StoreLimits, ...] = ()  # behind it, in the order in which they are asked

    def __post_init__(self) -> None:
        if self.blocks < 1 or min(self.store_block_s, self.load_block_s) < 0:
            raise ValueError("host memory has blocks, and a copy of one takes no less than no time")
        if self.write not in WRITES:
            raise ValueError(f"write must be one of {', '.join(WRITES)}, got {self.write!r}")


@dataclass(eq=False, slots=True)
class HostCopy:
    """Blocks of a request on their way. ``blocks``: of the device, where they are stored; of no request if evicted."""

    request: Request | None
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

    names: Sequence[Hashable] = ()  # of its whole blocks
    looked_at: int = 0  # of its blocks, from the first on: stored or left to others
    on_device: int = 0  # of its blocks, those that were found there when it was last looked at
    counted: int = 0  # of its blocks, those for which it counts among the requests that had them
    promoted: dict[Hashable, int] = field(default_factory=dict)  # blocks that it asked stores for: of which one
    transfers: dict[HostCopy, None] = field(default_factory=dict)
    loaded: bool = False  # its load has ended
    blocks: Sequence[int] = ()  # that it had when it was preempted last
    gone: bool = False  # all that it will ever store is planned


class HostCache:
    """vLLM ``OffloadingConnectorScheduler`` and ``OffloadingConnectorWorker``, for layers of full attention."""

    def __init__(
        self, memory: HostLimits, pool: BlockPool, block_tokens: int, stores: Sequence[OffloadStore] = ()
    ) -> None:
        self.blocks = StoredBlocks(memory.blocks)
        self.transfers = StoreTransfers(stores, self.blocks)
        self.now = -math.inf  # when the batch is planned
        self._had_by: dict[Hashable, int] = {}  # selective: requests that had a block since the device forgot it last
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
        pool.evicted = [] if memory.write == WRITE_BACK else None

    # -- the scheduler

    def look(self, request: Request, hit_tokens: int) -> int | None:
        """Tokens to load behind those found on the device; None: it cannot be said yet, the request waits.

        vLLM ``get_num_new_matched_tokens``.
        """
        known = self._known.setdefault(request, _Known())
        if known.transfers:
            return None
        self._name(request, known, request.target)
        first = known.on_device = hit_tokens // self._block
        found, pending = first, False
        if first < len(known.names):
            self.transfers.poll(self.now)
        for name in known.names[first:]:
            there = self.blocks.has(name)
            if there is False:
                store = self.transfers.promote(name, request, self.now)
                if store is None:
                    break
                known.promoted[name], there = store, None
            pending |= there is None
            found += 1
        # Blocks that another request loads already are found on the device once they have come.
        pending |= any(name in self._loading for name in known.names[first:found])
        self._touch(known)
        return None if pending else (found - first) * self._block

    def load(self, request: Request, hit_tokens: int, tokens: int) -> None:
        """Plan to fill a request's blocks behind those found on the device from the host; it has got these blocks."""
        self.transfers.promoted = 0
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
        if known.promoted:
            if request.admission < 0:
                asked = [known.promoted[name] for name in names if name in known.promoted]
                shared = [self.transfers.stores[number].shared for number in asked]
                request.shared_tokens = sum(shared) * self._block
                request.storage_tokens = len(shared) * self._block - request.shared_tokens
            known.promoted.clear()

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
        self.transfers.end_step(self.now)
        taken = set(self._pool.taken or ())
        self._pool.taken = []
        if self._pool.evicted:
            self._store_evicted(self._pool.evicted)
            self._pool.evicted = []
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
        return self._copies > 0 or bool(self._finished) or self.transfers.busy

    def unstored(self) -> Iterable[Request]:
        """Requests whose blocks found no room before."""
        return self._again

    def tell(self, ended: Iterable[HostCopy], now: float) -> None:
        """The scheduler hears of transfers that have ended (vLLM ``update_connector_output``)."""
        for transfer in ended:
            self._copies -= 1
            if transfer.stores:
                self.blocks.stored(transfer.names)
                self.transfers.spill(transfer.names, now)
            if transfer.request is None:
                continue
            known = self._known[transfer.request]
            del known.transfers[transfer]
            if transfer.stores:
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
        """When the next transfer ends; inf if none is under way, or none that those who wait can hope for."""
        if self._in_vain:
            return math.inf
        copies = min((transfers[0].end_s for transfers in self._under_way if transfers), default=math.inf)
        return min(copies, self.transfers.next_s)

    @property
    def has_begun_all(self) -> bool:
        """Nothing waits for the next batch to be begun."""
        return not self._deferred

    def settled(self, now: float) -> bool:
        """Another look at this time finds nothing new."""
        news = self.transfers.take_news(now) and not self._in_vain
        return not news and self.has_begun_all

    @property
    def _in_vain(self) -> bool:
        """Blocks come from stores again and again.

        vLLM makes room in host memory block by block: where it is too small for what is waited for, blocks that have
        come from a store go again for those behind them, and the request asks for them anew, for ever.
        """
        return self.transfers.promoted > _ASKED_AGAIN * self._memory.blocks

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
        if len(known.names) < tokens // self._block:
            known.names = self._pool.all_first_names(request, tokens // self._block)

    def _touch(self, known: _Known) -> None:
        self.blocks.touch(known.names)
        self.transfers.touch(known.names, self.now)

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
        if self._memory.write == WRITE_BACK:
            return None
        self.transfers.poll(self.now)
        new = self.blocks.make_room(self._wanted(known, first, last))
        if new is None:
            self._again[request] = None
            return None
        self._again.pop(request, None)
        known.looked_at = last
        if not new:
            return None
        self._touch(known)
        stored = set(new)
        sources = [blocks[position] for position in range(first, last) if known.names[position] in stored]
        transfer = HostCopy(request, new, sources)
        known.transfers[transfer] = None
        self._copies += 1
        self._stores.append(transfer)
        return transfer

    def _wanted(self, known: _Known, first: int, last: int) -> Sequence[Hashable]:
        """Of the blocks of a request those that are to be stored now: selective, those that another had before."""
        if self._memory.write != SELECTIVE:
            return known.names[first:last]
        for position in range(max(first, known.counted), last):
            name = known.names[position]
            # Computed anew it had been forgotten, and its node of SGLang's tree with the count.
            self._had_by[name] = self._had_by.get(name, 0) + 1 if position < known.on_device else 1
        known.counted = max(known.counted, last)
        return [name for name in known.names[first:last] if self._had_by.get(name, 0) > 1]

    def _store_evicted(self, evicted: Sequence[tuple[int, Hashable]]) -> None:
        """Blocks that the device takes for others are stored before these are written."""
        blocks = {name: block for block, name in evicted}
        new = self.blocks.make_some_room(blocks)
        if new:
            transfer = HostCopy(None, new, [blocks[name] for name in new])
            self._copies += 1
            self._stores.append(transfer)
            self._at_once[transfer] = None
