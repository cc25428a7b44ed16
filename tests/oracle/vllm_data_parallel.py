"""vLLM's own choice of data-parallel ranks, without processes: its client, its coordinator, and a scheduler a rank.

``DPLBAsyncMPClient`` chooses; ``DPCoordinatorProc`` runs as it is, in a thread, on sockets, a poller and a clock that
stand in for those of its module. Ranks do not wait for one another, as those of a model without experts.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec
from vllm.v1.engine import EngineCoreOutputs, coordinator
from vllm.v1.engine.core_client import DPLBAsyncMPClient
from vllm.v1.metrics.stats import SchedulerStats

from tests.oracle.cases import TICK_S, Case, Log, Step
from tests.oracle.vllm_engine import Engine, iteration_ticks


class _Socket:
    """A socket of the coordinator: what it receives is put there, what it sends is taken from it."""

    def __init__(self) -> None:
        self.arrived: list[Any] = []
        self.sent: list[bytes] = []

    def recv(self) -> Any:
        return self.arrived.pop(0)

    def send(self, message: bytes) -> None:
        self.sent.append(message)


class _Coordinator:
    """``DPCoordinatorProc.process_input_socket`` in a thread that runs only between two of its polls."""

    def __init__(self, ranks: int, stats_ms: int) -> None:
        self.now_s = 0.0
        self._due_s = 0.0
        self._sockets = {name: _Socket() for name in ("front", "output", "back")}
        self._sockets["back"].arrived = [b"\x01"] * ranks
        self._events: list[tuple[_Socket, int]] | None = []
        self._turn, self._polled = threading.Semaphore(0), threading.Semaphore(0)
        stand_ins = {
            "zmq": SimpleNamespace(Context=SimpleNamespace, Poller=lambda: self, XPUB=0, PULL=0, POLLIN=1),
            "time": SimpleNamespace(time=lambda: self.now_s),
            "make_zmq_socket": lambda path, **_: nullcontext(self._sockets[path]),
            "MsgpackDecoder": lambda _: SimpleNamespace(decode=lambda outputs: outputs),
            "set_process_title": lambda _: None,
        }

        def run() -> None:
            with mock.patch.multiple(coordinator, **stand_ins):
                process = coordinator.DPCoordinatorProc(ranks, stats_ms, enable_wave_coordination=False)
                try:
                    process.process_input_socket("front", "output", "back")
                except SystemExit:
                    self._polled.release()

        threading.Thread(target=run, daemon=True).start()
        self._polled.acquire()

    def register(self, socket: _Socket, flags: int) -> None:
        """Of the poller."""

    def poll(self, timeout: float) -> list[tuple[_Socket, int]]:
        """Of the poller: until something comes or the time is over, which ``tell`` and ``advance`` say."""
        self._due_s = self.now_s + timeout / 1000
        self._polled.release()
        self._turn.acquire()
        if self._events is None:
            raise SystemExit
        return self._events

    def _go_on(self, events: list[tuple[_Socket, int]] | None) -> None:
        self._events = events
        self._turn.release()
        self._polled.acquire()

    def advance(self, now_s: float) -> None:
        """Whatever it does before now."""
        while self._due_s < now_s:
            self.now_s = self._due_s
            self._go_on([])
        self.now_s = now_s

    def tell(self, outputs: EngineCoreOutputs, now_s: float) -> None:
        """A message of a rank."""
        self.advance(now_s)
        self._sockets["output"].arrived.append(outputs)
        self._go_on([(self._sockets["output"], 1)])

    def published(self) -> list[list[float]] | None:
        """What it has told the frontends last, if anything since it was asked."""
        sent, self._sockets["front"].sent = self._sockets["front"].sent, []
        return msgspec.msgpack.decode(sent[-1])[0] if sent else None

    def stop(self) -> None:
        """Ends the thread."""
        self._go_on(None)


def _client(ranks: int) -> DPLBAsyncMPClient:
    client = object.__new__(DPLBAsyncMPClient)
    client.core_engines = [bytes([rank]) for rank in range(ranks)]
    client.lb_engines = [[0, 0, 0.0] for _ in range(ranks)]
    client.client_count, client.client_index, client.eng_start_index = 1, 0, 0
    client.reqs_in_flight, client.engine_inflight = {}, Counter()
    return client


class _Rank:
    """An engine core between its steps (``EngineCoreProc.run_busy_loop``)."""

    def __init__(self, case: Case, index: int, told: _Coordinator) -> None:
        self.engine, self.index, self._told = Engine(case), index, told
        self.inbox: list[int] = []
        self.under_way: tuple[Any, dict[str, int], float] | None = None
        self._counts = (0, 0)

    def publish(self, now_s: float) -> None:
        """``_maybe_publish_request_counts``."""
        scheduler = self.engine.scheduler
        counts = scheduler.get_request_counts()
        if counts != self._counts:
            self._counts = counts
            stats = SchedulerStats(*counts, kv_cache_usage=scheduler.get_kv_cache_usage())
            self._told.tell(EngineCoreOutputs(engine_index=self.index, scheduler_stats=stats), now_s)

    def finish(self, now: float) -> list[str]:
        """The step under way ends: who has its last token."""
        assert self.under_way is not None
        output, given, _ = self.under_way
        self.under_way = None
        self.engine.update(output, given, now)
        self.publish(now * TICK_S)
        return [name for name in given if self.engine.requests[name].is_finished()]

    def begin(self, now: float) -> Step | None:
        """The next step, if there is anything to do."""
        for index in self.inbox:
            self.engine.submit(index)
        self.inbox = []
        self.publish(now * TICK_S)
        while self.engine.scheduler.has_requests():
            output = self.engine.scheduler.schedule()
            given = self.engine.samples(output)
            if output.total_num_scheduled_tokens:
                end = now + iteration_ticks(output)
                self.under_way = output, given, end
                return self.engine.step(output, round(now), round(end))
            self.engine.update(output, given, now)
        return None


def serve(case: Case) -> Log:
    """All iterations of all ranks, in the order in which they start."""
    told, client = _Coordinator(case.data_parallel, case.stats_ms), _client(case.data_parallel)
    ranks = [_Rank(case, index, told) for index in range(case.data_parallel)]
    waiting = sorted(range(len(case.requests)), key=lambda index: case.requests[index].arrival_ticks)
    steps: list[Step] = []
    while True:
        ends = [rank.under_way[2] for rank in ranks if rank.under_way]
        arrivals = [case.requests[waiting[0]].arrival_ticks] if waiting else []
        if not ends and not arrivals:
            break
        now = min(ends + arrivals)
        for rank in ranks:
            if rank.under_way and rank.under_way[2] <= now:
                finished = set(rank.finish(now))
                asyncio.run(client.process_engine_outputs(client, EngineCoreOutputs(finished_requests=finished)))
        while waiting and case.requests[waiting[0]].arrival_ticks <= now:
            told.advance(now * TICK_S)
            client.lb_engines = told.published() or client.lb_engines
            index = waiting.pop(0)
            asked = SimpleNamespace(request_id=str(index), data_parallel_rank=None, pooling_params=None)
            chosen = client.get_core_engine_for_request(asked)
            ranks[client.core_engines.index(chosen)].inbox.append(index)
        for rank in ranks:
            if rank.under_way is None and (step := rank.begin(now)):
                steps.append(step)
    told.stop()
    # Of each request one rank knows the times, the others have -1.
    first = (max(at) for at in zip(*(rank.engine.first for rank in ranks), strict=True))
    last = (max(at) for at in zip(*(rank.engine.last for rank in ranks), strict=True))
    return Log(tuple(steps), tuple(map(round, first)), tuple(map(round, last)))
