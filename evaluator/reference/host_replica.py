"""A replica whose prefix cache spills to host memory: what differs from one that has its device alone.

``host_cache`` has the blocks and the copies. Here is when the scheduler asks it, in the queues, and when the engine
waits for it, in the replica. An engine with a host is never at rest while copies are under way: it goes round without
a batch, and hears what has ended.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from evaluator.cost.iteration import BatchStatistics
from evaluator.reference.batch import Batch
from evaluator.reference.host_cache import HostCache
from evaluator.reference.limits import Limits
from evaluator.reference.offload_stores import OffloadStore, OffloadStores
from evaluator.reference.prefix_cache import PrefixCache
from evaluator.reference.queues import Queues
from evaluator.reference.replica import Replica
from evaluator.reference.request import Request
from evaluator.reference.running_batch import RunningBatch


def replica_maker(limits: Limits) -> Callable[..., Replica]:
    """What makes the replicas of a pool, as ``Replica`` does: with host memory they ask it, too.

    They share what the stores behind it are shared by.
    """
    if limits.host is None:
        return Replica
    stores = OffloadStores(limits.host.stores)

    def make(index: int, *given: Any, **options: Any) -> Replica:
        replica = HostReplica(index, *given, stores=stores.of(index), **options)
        replica.queues.kv.pool.names = stores.names
        return replica

    return make


class HostQueues(Queues):
    """The first waiting request is looked up in host memory, too; while its blocks are loaded, others may pass it."""

    def __init__(self, limits: Limits, window: int, stores: Sequence[OffloadStore]) -> None:
        super().__init__(limits, window)
        assert limits.host and isinstance(self.kv, PrefixCache), "``Limits`` refuses a host without a prefix cache"
        self.kv: PrefixCache
        self.host = HostCache(limits.host, self.kv.pool, limits.block_tokens, stores)
        self.loading: dict[Request, bool] = {}  # of the waiting, those with blocks from the host; whether they came
        self.writing: set[Request] = set()  # planned asynchronously: who takes part in the batch under way
        self._given_up: list[list[int]] = []  # blocks of those of them that were preempted

    def found(self, request: Request) -> int:
        """Nothing more where its blocks are loaded already."""
        return 0 if request in self.loading else super().found(request)

    def may_pass(self, request: Request, hit: int) -> bool | None:
        """vLLM ``Scheduler.schedule``, ``load_kv_async``: it gets the blocks of what is loaded, and no seat."""
        if self.seats + request.width > self.limits.max_num_seqs:
            return False  # a request that is looked at uses the blocks that it finds on the host
        if request in self.loading:
            if not self.loading[request]:
                if not self.host.take_load(request):
                    return None
                self.loading[request] = True
                self.kv.register(request, request.computed)
                # The next token comes from the last one of the prompt, which is computed whatever is loaded.
                request.computed = min(request.computed, request.target - 1)
            return True
        tokens = self.host.look(request, hit)
        if not tokens:
            return None if tokens is None else True
        # It will not run before it is loaded, and cannot be preempted: what prompts under way need is left to them.
        others = self.sizes.lacking_of_prompts([*self.prompts, *self.loading])
        units = self.sizes.computed(request, hit + tokens)
        fits = self.sizes.computed(request, request.target) if self.limits.full_prompt else 0
        keep_free = self.limits.watermark_units if self.running else 0
        if not self.kv.admit(request, units, hit, keep_free, max(fits, units + others)):
            return False
        self.host.load(request, hit, tokens)
        self.loading[request] = False
        self.work_tokens -= hit + tokens - request.computed
        request.computed = hit + tokens
        if request.admission < 0:
            request.hit_tokens, request.host_tokens = hit, tokens
        return None

    def _place(self, request: Request, start: int, tokens: int, hit: int, whole_kv: bool, padding: int = 0) -> bool:
        loads, hit_tokens = request in self.loading, request.hit_tokens
        if not super()._place(request, start, tokens, hit, whole_kv, padding):
            return False
        if loads:
            del self.loading[request]
            self.host.admit(request)
            # What was found was said when its load began; the batch begins behind all of it.
            request.hit_tokens = hit_tokens
            self.cached[-1] = (request.index, start)
        return True

    def _release(self, request: Request) -> None:
        """A load must not fill blocks that the batch under way still writes to.

        So these are free when it has ended (vLLM ``Scheduler._free_request_blocks``, ``defer_block_free``).
        """
        self.host.preempt(request)
        if request in self.writing:
            self._given_up.append(self.kv.give_up(request))
        else:
            super()._release(request)

    def written(self, last: bool) -> None:
        """A batch has ended, after which no other is under way (``last``) or one is."""
        for blocks in self._given_up:
            self.kv.give_back(blocks)
        self._given_up.clear()
        if last:
            self.writing = set()

    def depart(self, request: Request) -> None:
        self.host.finish(request)
        super().depart(request)


class HostReplica(Replica):
    """Copies begin and end with its batches; where there is none to compute, an empty one stands for the wait."""

    queues: HostQueues
    leaps = False  # the host is told of whole blocks, one by one
    keeps_empty = True  # between two looks copies end, and make room
    _rounds = (0, -1)  # see ``_is_stuck``; with the tokens that were to come then

    def __init__(self, *given: Any, stores: Sequence[OffloadStore] = (), **options: Any) -> None:
        self._stores = stores
        super().__init__(*given, **options)

    def _make_queues(self) -> HostQueues:
        return HostQueues(self.limits, self.window, self._stores)

    def _arrive(self, request: Request, now: float) -> RunningBatch | None:
        """An arrival ends a wait for copies, as it ends a leap."""
        if not (self.running_batches and self.running_batches[0].waits):
            return super()._arrive(request, now)
        self.queues.arrive(request)
        # Once of several that arrive together: each entry of the calendar whose time is the running batch's ends it.
        brought_forward = self.running_batches[0].end_s > now
        self.running_batches[0].end_s = now
        return self.running_batches[0] if brought_forward else None

    def form(self, now: float) -> Batch:
        """Forms the batch, and plans which blocks of its requests are stored to host memory."""
        host = self.queues.host
        host.now = now
        batch = super().form(now)
        members = {chunk.request: chunk.high for chunk in batch.chunks}
        if batch.decodes is not None:
            again = (request for request in host.unstored() if request in batch.decodes.members)
            # The token before fills a block. That of the batch under way is not known yet, and is not stored.
            unknown = self.queues.writing
            late = batch.decodes.due() if unknown else ()
            for request in (*batch.decodes.due(1), *late, *again):
                members[request] = batch.decodes.computed(request) + (request not in unknown)
        host.plan(members.items(), self.queues.preempted)
        return batch

    def _send(self, batch: Batch, now: float) -> RunningBatch:
        host = self.queues.host
        start, ended = host.begin(now, self.pipeline.free_s)
        running_batch = super()._send(batch, start)
        running_batch.ended, running_batch.loaded, running_batch.host_blocks = ended, host.loaded, len(host.blocks)
        host.loaded, host.transfers.promoted = [], 0
        return running_batch

    def take_off(self, batch: Batch, sums: BatchStatistics, start: float, end: float) -> RunningBatch:
        """Launches the batch; planned asynchronously, it writes to the blocks of its requests until it has ended."""
        if self.limits.asynchronous:
            # Before requests whose last token is in this batch leave the group of its decodes.
            self.queues.writing = {chunk.request for chunk in batch.chunks}
            self.queues.writing.update(batch.decodes.members if batch.decodes else ())
        return super().take_off(batch, sums, start, end)

    def _wait(self, batch: Batch, now: float) -> RunningBatch | None:
        """Nobody can take part: what stands for the time until the engine looks again, if it will."""
        host = self.queues.host
        while True:
            start, ended = host.begin(now)
            if start > now:  # blocks to load into are still being stored
                return self._stand(RunningBatch(batch, self.weigh(batch)[0], now, start, busy=False, ended=ended))
            host.tell(ended, now)
            if not (ended or self.queues.preempted) and host.settled(now):
                return self._until_next_copy(batch, now)
            batch = self.form(now)
            if batch:
                return self._send(batch, now)

    def _until_next_copy(self, batch: Batch, now: float) -> RunningBatch | None:
        """A batch that stands for the time until a copy ends or a request arrives; None: no copy is under way."""
        next_s = self.queues.host.next_s
        if next_s == math.inf:
            return None
        return self._stand(RunningBatch(batch, self.weigh(batch)[0], now, next_s, busy=False, waits=True))

    def _stand(self, running_batch: RunningBatch) -> RunningBatch:
        self.running_batches.append(running_batch)
        self.queues.under_way.append(running_batch.batch)
        return running_batch

    def _fill_batch_queue(self, now: float) -> list[RunningBatch]:
        """Fills the batch queue as without a host; empty batches that report copies keep the engine going, too."""
        launched: list[RunningBatch] = []
        host, in_vain = self.queues.host, 0
        while not self._waits and not self._is_stuck:
            if self.queues.running or self.queues.waiting or host.busy:
                batch = self.form(now)
                if not batch and self.queues.preempted:
                    rounds, left = self._rounds[0], self.queues.output_tokens
                    self._rounds = (rounds + 1 if left == self._rounds[1] else 1, left)
                    if self._is_stuck:
                        break
                running_batch = self._send(batch, now) if batch else self._only_copies(batch, now)
                changed = running_batch.busy or running_batch.ended or self.queues.preempted or not host.settled(now)
                in_vain = 0 if changed else in_vain + 1
                launched += [running_batch] if running_batch.busy else []
                self._batches.append(running_batch)
                if len(self._batches) < self._most_batches:
                    continue
            elif not self._batches:
                break
            oldest = self._batches[0]
            assert oldest is not None
            if not oldest.busy and oldest.end_s <= now:
                self._batches.popleft()
                host.tell(oldest.ended, now)
            else:
                self._waits = True
                if not oldest.busy:  # the worker waits for copies that make room
                    self.running_batches.appendleft(oldest)
                    self.queues.under_way.appendleft(oldest.batch)
                    launched.append(oldest)
            # The engine goes round and round, and all batches in the queue were planned since nothing changes.
            if in_vain > 2 and not self.running_batches:
                self._batches.clear()
                wait = self._until_next_copy(batch, now)
                if wait is None:
                    break  # who waits can never be admitted
                self._waits = True
                launched.append(wait)
        return launched

    @property
    def _is_stuck(self) -> bool:
        """Again and again all that ran were preempted, and none of them had a token or came in between.

        Planned asynchronously, blocks of the preempted are free an iteration later, and so prompts may preempt one
        another for ever, as in vLLM 0.28. A round that helps leaves at least a block more in the prefix cache.
        """
        return self._rounds[0] > self.queues.kv.capacity

    def _only_copies(self, batch: Batch, now: float) -> RunningBatch:
        """An empty batch, which is over when the worker has begun the copies that it was told of."""
        host = self.queues.host
        ended = host.begin(now, self.pipeline.free_s)[1]
        return RunningBatch(batch, self.weigh(batch)[0], now, host.worker_free_s, busy=False, ended=ended)

    def _has_written(self, running_batch: RunningBatch) -> None:
        if running_batch.busy and self.queues.writing:
            self.queues.written(last=not self.running_batches)

    def finish(self, running_batch: RunningBatch) -> list[Request]:
        """The scheduler hears of the copies that had ended when the batch began."""
        finished = super().finish(running_batch)
        self.queues.host.tell(running_batch.ended, running_batch.end_s)
        return finished

    def _leave_late(self, request: Request) -> None:
        """Delivers the token; vLLM stores the blocks of a request preempted with its last token under way, too."""
        if request not in self.queues.leaving:
            self.queues.host.finish(request)
        super()._leave_late(request)
