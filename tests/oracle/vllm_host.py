"""vLLM's scheduler with its ``OffloadingConnector``, whose worker is a clock: copies take the time that a case says.

The connector's half in the scheduler is vLLM's own, with its manager of host memory. Of the worker's half
(``OffloadingConnectorWorker``, ``SingleDirectionOffloadingHandler``) there is when it begins which copies, for which it
waits, and what it tells: no bytes.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading import scheduler as offloading
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

from tests.oracle.cases import Case, Log, Step
from tests.oracle.vllm_engine import Engine, iteration_ticks


class _InOrder(set):  # type: ignore[type-arg]
    """vLLM goes through some sets, whose order is that of the hashes of a process: here it is that of their making."""

    def __init__(self, items: Iterable[Any] = ()) -> None:
        self._made = list(items)
        super().__init__(self._made)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._made) if len(self) == len(self._made) else super().__iter__()


offloading.set = _InOrder  # type: ignore[attr-defined]


class _Worker:
    """When copies begin and end. Each direction does one after the other, in the order in which they were begun."""

    def __init__(self, case: Case) -> None:
        self._ticks = (case.store_ticks, case.load_ticks)
        self._deferred: dict[int, tuple[str, int]] = {}  # stores of the batch before: (request, blocks) by job
        self.under_way: tuple[deque[int], deque[int]] = deque(), deque()
        self._free = [-math.inf, -math.inf]
        self.ends: dict[int, int] = {}
        self._requests: dict[int, str] = {}

    def _start(self, job: int, what: tuple[str, int], direction: int, now: int) -> None:
        self.ends[job] = int(max(now, self._free[direction])) + what[1] * self._ticks[direction]
        self._free[direction] = self.ends[job]
        self._requests[job] = what[0]
        self.under_way[direction].append(job)

    def begin(self, meta: Any, now: int) -> int:
        """``handle_preemptions`` and ``start_kv_transfers``: when the batch begins."""
        stores = {job: (each.req_id, len(each.src_spec.block_ids)) for job, each in meta.store_jobs.items()}
        at_once = sorted(meta.jobs_to_flush or ())
        self._deferred.update((job, stores.pop(job)) for job in at_once if job in stores)
        for job, what in self._deferred.items():
            self._start(job, what, 0, now)
        self._deferred = stores
        start = max([now, *(self.ends[job] for job in at_once if job in self.ends)])
        for job, each in meta.load_jobs.items():
            self._start(job, (each.req_id, len(each.dst_spec.block_ids)), 1, start)
        return start

    @property
    def idle(self) -> bool:
        return not self._deferred

    def ended(self, now: int) -> KVConnectorOutput:
        """``get_finished``."""
        told, loaded = OffloadingWorkerMetadata(), set()
        for direction, jobs in enumerate(self.under_way):
            while jobs and self.ends[jobs[0]] <= now:
                job = jobs.popleft()
                del self.ends[job]
                told.mark_completed(job)
                if direction:
                    loaded.add(self._requests[job])
        return KVConnectorOutput(finished_recving=loaded, kv_connector_worker_meta=told)


class _Recorded:
    """What the connector was asked to load, and what its host memory has; requests that ended keep their order."""

    def __init__(self, engine: Engine) -> None:
        scheduler = engine.scheduler
        self._connector = scheduler.connector.connector_scheduler
        self.loaded: list[tuple[int, int]] = []
        ended: list[str] = []
        alloc, meta, free = (
            self._connector.update_state_after_alloc, self._connector.build_connector_meta, scheduler._free_request
        )  # fmt: skip

        def allocated(request: Any, blocks: Any, external: int) -> None:
            if external:
                self.loaded.append((int(request.request_id), external))
            alloc(request, blocks, external)

        def built(output: Any) -> Any:
            assert set(ended) == output.finished_req_ids
            output.finished_req_ids = _InOrder(ended)
            ended.clear()
            return meta(output)

        def freed(request: Any, *more: Any, **options: Any) -> Any:
            ended.append(request.request_id)
            return free(request, *more, **options)

        self._connector.update_state_after_alloc = allocated
        self._connector.build_connector_meta = built
        scheduler._free_request = freed

    @property
    def host_blocks(self) -> int:
        return len(self._connector.manager._policy.blocks)


def serve(case: Case) -> Log:
    """All iterations. Errors: RuntimeError where requests never finish."""
    engine, worker = Engine(case), _Worker(case)
    scheduler, recorded = engine.scheduler, _Recorded(engine)
    steps: list[Step] = []
    arriving = deque(sorted(range(len(case.requests)), key=lambda index: case.requests[index].arrival_ticks))
    now = 0
    while True:
        while arriving and case.requests[arriving[0]].arrival_ticks <= now:
            engine.submit(arriving.popleft())
        if scheduler.has_requests():
            preempted = len(engine.preempted)
            output = scheduler.schedule()
            given = engine.samples(output)
            start = worker.begin(output.kv_connector_metadata, now)
            told = worker.ended(start)
            end = start
            if output.total_num_scheduled_tokens:
                end = start + iteration_ticks(output)
                step = engine.step(output, start, end)
                loaded, recorded.loaded = tuple(sorted(recorded.loaded)), []
                steps.append(Step(*list(vars(step).values())[:6], loaded, recorded.host_blocks))
            _update(engine, output, given, told, end)
            changed = told.kv_connector_worker_meta.completed_jobs or len(engine.preempted) > preempted
            if output.total_num_scheduled_tokens or changed or start > now or not worker.idle:
                now = end
                continue
        times = [worker.ends[jobs[0]] for jobs in worker.under_way if jobs]
        times += [case.requests[arriving[0]].arrival_ticks] if arriving else []
        if not times:
            break
        now = max(now, min(times))
    if min(engine.last) < 0:
        raise RuntimeError(f"{case.feature} {case.seed}: requests never finish")
    return Log(tuple(steps), tuple(engine.first), tuple(engine.last))


def _update(engine: Engine, output: Any, given: dict[str, int], told: KVConnectorOutput, now: int) -> None:
    """``Engine.update``, with what the worker tells."""
    update = engine.scheduler.update_from_output

    def with_transfers(output: Any, made: ModelRunnerOutput) -> Any:
        made.kv_connector_output = told
        return update(output, made)

    engine.scheduler.update_from_output = with_transfers
    try:
        engine.update(output, given, now)
    finally:
        engine.scheduler.update_from_output = update
