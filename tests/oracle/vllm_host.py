"""vLLM's scheduler with its ``OffloadingConnector``, whose worker is a clock: copies take the time that a case says.

The connector's half in the scheduler is vLLM's own, with its manager of host memory. Of the worker's half
(``OffloadingConnectorWorker``, ``SingleDirectionOffloadingHandler``) there is when it begins which copies, for which it
waits, and what it tells: no bytes.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading import scheduler as offloading
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

from tests.oracle import vllm_stores
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
        self._free_to_begin = 0  # behind the copies that it had to wait for

    def _start(self, job: int, what: tuple[str, int], direction: int, now: int) -> None:
        self.ends[job] = int(max(now, self._free[direction])) + what[1] * self._ticks[direction]
        self._free[direction] = self.ends[job]
        self._requests[job] = what[0]
        self.under_way[direction].append(job)

    def begin(self, meta: Any, now: int, device_free: int = 0) -> tuple[int, int]:
        """``handle_preemptions`` and ``start_kv_transfers``: when they are done, and when the batch may begin.

        Copies wait for what the device has to do (``SingleDirectionOffloadingHandler``: ``stream.wait_stream``), the
        worker only for those that it is told to wait for.
        """
        done = max(now, self._free_to_begin)
        ready = max(done, device_free)
        stores = {job: (each.req_id, len(each.src_spec.block_ids)) for job, each in meta.store_jobs.items()}
        at_once = sorted(meta.jobs_to_flush or ())
        self._deferred.update((job, stores.pop(job)) for job in at_once if job in stores)
        for job, what in self._deferred.items():
            self._start(job, what, 0, ready)
        self._deferred = stores
        self._free_to_begin = done = max([done, *(self.ends[job] for job in at_once if job in self.ends)])
        start = max(ready, done)
        for job, each in meta.load_jobs.items():
            self._start(job, (each.req_id, len(each.dst_spec.block_ids)), 1, start)
        return done, start

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

    def __init__(self, case: Case, engine: Engine) -> None:
        scheduler, self._host_blocks = engine.scheduler, case.host_blocks
        self._connector = scheduler.connector.connector_scheduler
        self.loaded: list[tuple[int, int]] = []
        ended: list[str] = []
        alloc, meta, free = (
            self._connector.update_state_after_alloc, self._connector.build_connector_meta, scheduler._free_request
        )  # fmt: skip

        def allocated(request: Any, blocks: Any, external: int) -> None:
            if external:
                self.loaded.append((int(request.request_id), external))
                self.progress()
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
    def stores(self) -> list[Any]:
        """Behind host memory."""
        return list(getattr(self._connector.manager, "secondary_tiers", ()))

    def progress(self) -> None:
        """A request begins to load, or a batch was sent."""
        for store in self.stores:
            store.read = 0

    def news(self) -> bool:
        """Another look may find something new."""
        return any([store.news() for store in self.stores]) and not self.in_vain

    @property
    def in_vain(self) -> bool:
        """Blocks come from stores again and again, and go for others before all that a request waits for are there."""
        return sum(store.read for store in self.stores) > 16 * self._host_blocks

    def shutdown(self) -> None:
        """Give back what is mapped."""
        if self.stores:
            self._connector.manager.shutdown()

    def next_ends(self, worker: _Worker) -> list[float]:
        """When transfers end that those who wait can hope for."""
        if self.in_vain:
            return []
        times = [worker.ends[jobs[0]] for jobs in worker.under_way if jobs]
        return [*times, *(store.next for store in self.stores if store.next < math.inf)]

    def step(self, step: Step) -> Step:
        """The same with what the connector was asked to load since the one before."""
        loaded, self.loaded = tuple(sorted(self.loaded)), []
        manager = self._connector.manager
        manager = getattr(manager, "primary_tier", manager)
        return replace(step, loaded=loaded, host_blocks=len(manager._policy.blocks))


def serve(case: Case) -> Log:
    """All iterations. Errors: RuntimeError where requests never finish, but where vLLM's get stuck.

    Planned ahead, who was preempted in flight stands before requests whose blocks have come from the host, wants to
    load, too, and finds no room beside what is kept for these, which are not looked at behind it. Or prompts preempt
    one another for blocks that are free an iteration later, all are admitted again, and do the same once more.
    """
    engine, worker = Engine(case), _Worker(case)
    recorded = _Recorded(case, engine)
    steps = (_ahead if case.asynchronous else _one_by_one)(case, engine, worker, recorded)
    recorded.shutdown()
    if min(engine.last) < 0 and engine.scheduler.running:
        raise RuntimeError(f"{case.feature} {case.seed}: requests never finish")
    return Log(tuple(steps), tuple(engine.first), tuple(engine.last))


def _in_order_of_arrival(case: Case) -> deque[int]:
    return deque(sorted(range(len(case.requests)), key=lambda index: case.requests[index].arrival_ticks))


def _one_by_one(case: Case, engine: Engine, worker: _Worker, recorded: _Recorded) -> list[Step]:
    """``EngineCore.step``: a batch is planned when the one before has ended."""
    scheduler, clock = engine.scheduler, vllm_stores.CLOCK
    steps: list[Step] = []
    arriving = _in_order_of_arrival(case)
    now = 0
    while True:
        while arriving and case.requests[arriving[0]].arrival_ticks <= now:
            engine.submit(arriving.popleft())
        if scheduler.has_requests():
            preempted = len(engine.preempted)
            clock.now = now
            output = scheduler.schedule()
            given = engine.samples(output)
            done, start = worker.begin(output.kv_connector_metadata, now)
            told = worker.ended(done)
            end = start
            if output.total_num_scheduled_tokens:
                end = start + iteration_ticks(output)
                steps.append(recorded.step(engine.step(output, start, end)))
                recorded.progress()
            clock.now = end
            _update(engine, output, given, told, end)
            changed = told.kv_connector_worker_meta.completed_jobs or len(engine.preempted) > preempted
            changed = recorded.news() or changed
            if output.total_num_scheduled_tokens or changed or start > now or not worker.idle:
                now = end
                continue
        times = recorded.next_ends(worker)
        times += [case.requests[arriving[0]].arrival_ticks] if arriving else []
        if not times:
            return steps
        now = int(max(now, min(times)))


def _ahead(case: Case, engine: Engine, worker: _Worker, recorded: _Recorded) -> list[Step]:
    """``EngineCore.step_with_batch_queue``: two batches are under way, empty ones too.

    Where nothing can run the engine goes round and round, which takes no time here: once that changes nothing any more,
    the clock goes to the end of the next copy or to the next arrival.
    """
    scheduler, clock = engine.scheduler, vllm_stores.CLOCK
    steps: list[Step] = []
    arriving = _in_order_of_arrival(case)
    queue: deque[tuple[Any, dict[str, int], KVConnectorOutput, int]] = deque()
    now = free = in_vain = rounds = 0
    progress = before = 0  # tokens and arrivals, and those when last all that ran were preempted
    while True:
        while arriving and case.requests[arriving[0]].arrival_ticks <= now:
            engine.submit(arriving.popleft())
            progress += 1
        if scheduler.has_requests():
            preempted = len(engine.preempted)
            clock.now = now
            output = scheduler.schedule()
            runs, given = output.total_num_scheduled_tokens > 0, engine.samples(output)
            changed = runs or len(engine.preempted) > preempted
            progress += sum(given.values())
            if changed and not runs:
                rounds, before = rounds + 1 if progress == before else 1, progress
                if rounds > case.blocks:
                    return steps
            end, start = worker.begin(output.kv_connector_metadata, now, free)
            told = worker.ended(end)
            if runs:
                end = free = start + iteration_ticks(output)
                steps.append(recorded.step(engine.step(output, start, end)))
                recorded.progress()
            changed |= recorded.news()
            changed |= bool(told.kv_connector_worker_meta.completed_jobs) or not worker.idle
            in_vain = 0 if changed else in_vain + 1
            queue.append((output, given, told, end))
            if len(queue) < 2 and (runs or scheduler.has_requests()):
                continue
        elif not queue:
            if not arriving:
                return steps
            now = max(now, case.requests[arriving[0]].arrival_ticks)
            continue
        output, given, told, end = queue.popleft()
        clock.now = now = max(now, end)
        _update(engine, output, given, told, now)
        if in_vain > 2:  # all that is in the queue was planned since
            times = recorded.next_ends(worker)
            times += [case.requests[arriving[0]].arrival_ticks] if arriving else []
            if not times:
                return steps
            now, in_vain = int(max(now, min(times))), 0


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
