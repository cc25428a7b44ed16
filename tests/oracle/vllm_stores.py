"""Stores behind host memory for vLLM's ``TieringOffloadingManager``: what they keep, and a clock instead of bytes.

vLLM's own secondary tiers keep all that they are given (``fs``: an evictor of one's own removes files), in the time
that a disk takes. These keep the blocks that were used last, by vLLM's ``CPUOffloadingManager``, and take the ticks
that a case says: each direction does one transfer after the other, behind a latency that passes beside them.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable
from typing import Any

from vllm.v1.kv_offload.base import LookupResult, OffloadKey, ReqContext, RequestOffloadingContext
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob

NAME = "ScriptedTier"


class Clock:
    """What time it is, in ticks, for all stores of an engine."""

    now = 0


CLOCK = Clock()


class ScriptedTier(SecondaryTierManager):
    """One store of a case."""

    def __init__(self, blocks: int, block_ticks: int, latency_ticks: int, **given: Any) -> None:
        super().__init__(**given)
        self._kept, self._most = CPUOffloadingManager(blocks), blocks
        self._block_ticks, self._latency_ticks = block_ticks, latency_ticks
        self._free = [-math.inf, -math.inf]
        self._to_settle: list[tuple[int, int, int, list[OffloadKey], ReqContext]] = []
        self._to_tell: list[tuple[int, int, int]] = []
        self._begun = 0
        self.told = False  # since it was last asked
        self.read = 0  # blocks, since a batch was sent or a request began to load

    def _settle(self) -> CPUOffloadingManager:
        while self._to_settle and self._to_settle[0][0] <= CLOCK.now:
            _, _, direction, keys, context = heapq.heappop(self._to_settle)
            (self._kept.complete_load if direction else self._kept.complete_store)(keys, context)
        return self._kept

    def _begin(self, job: TransferJob, direction: int, keys: list[OffloadKey]) -> None:
        self._begun += 1
        end = CLOCK.now
        if keys:
            begin = max(end + self._latency_ticks, self._free[direction])
            end = self._free[direction] = int(begin + len(keys) * self._block_ticks)
            heapq.heappush(self._to_settle, (end, self._begun, direction, keys, job.req_context))
        heapq.heappush(self._to_tell, (end, self._begun, job.job_id))

    @property
    def next(self) -> float:
        return self._to_tell[0][0] if self._to_tell else math.inf

    def news(self) -> bool:
        told, self.told = self.told, False
        return told or self.next <= CLOCK.now

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        found = self._settle().lookup(key, req_context)
        return LookupResult.HIT if found is LookupResult.HIT else LookupResult.MISS

    def submit_store(self, job_metadata: TransferJob) -> None:
        kept, context = self._settle(), job_metadata.req_context
        new = [key for key in job_metadata.keys if kept.lookup(key, context) is LookupResult.MISS]
        new = new[: self._most - len(kept._policy.blocks) + kept._num_evictable_cache_blocks]
        if new:
            assert kept.prepare_store(new, context) is not None
        self._begin(job_metadata, 0, new)

    def submit_load(self, job_metadata: TransferJob) -> None:
        keys = list(job_metadata.keys)
        self._settle().prepare_load(keys, job_metadata.req_context)
        self.read += len(keys)
        self._begin(job_metadata, 1, keys)

    def get_finished_jobs(self) -> Iterable[JobResult]:
        ended = []
        while self.next <= CLOCK.now:
            ended.append(JobResult(job_id=heapq.heappop(self._to_tell)[2], success=True))
            self.told = True
        return ended

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        self._settle().touch(keys, req_context)

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    def drain_jobs(self) -> None:
        raise NotImplementedError
