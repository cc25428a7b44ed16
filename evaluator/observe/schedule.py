"""Sends the requests of a load at their times: at those of a clock, when an answer has come, or both."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

import aiohttp

from evaluator.deploy.send_load import Load
from evaluator.observe.client import OK, Exchange, ask
from evaluator.observe.server import LiveServer
from evaluator.progress import ProgressReport

_SPIN_S = 0.002
"""The event loop's timers are whole milliseconds and late by some: before a request is due it is polled instead."""
_AHEAD_BYTES = 64 * 2**20
"""Bodies that are made before they are due. A prompt of 8,000 tokens takes a millisecond or two, in which nothing else
is sent or read."""
_REFILL_S = 0.02  # with less time than this before the next request no body is made


@dataclass(frozen=True)
class LoadLimits:
    """Bounds of a run: how much is in flight at most, how long it and each request may take, when it is given up."""

    in_flight: int = 1024
    duration_s: float = 3600.0
    request_s: float = 600.0
    wait_s: float = 300.0  # that a server may be silent while it owes an answer
    failures: int = 50  # one after the other, with no answer between them


class Sender:
    """One run of a load against a server. ``exchanges`` grow as requests end, whatever becomes of them."""

    def __init__(
        self,
        load: Load,
        server: LiveServer,
        session: aiohttp.ClientSession,
        limits: LoadLimits,
        exchanges: list[Exchange],
        progress: ProgressReport | None,
    ) -> None:
        self._load, self._server, self._session = load, server, session
        self._limits, self._exchanges, self._progress = limits, exchanges, progress
        self._places = asyncio.Semaphore(limits.in_flight)
        self._tasks: set[asyncio.Task] = set()
        self._after: dict[int, list[dict[str, Any]]] = {}  # turns that wait for an answer, by its request
        self._ahead: deque[tuple[dict[str, Any], bytes, int]] = deque()
        self._ahead_bytes = 0
        self._failures = 0  # since the last answer
        self._stopping = asyncio.Event()
        self._fault: BaseException | None = None
        self.ended_by = ""
        self.held = 0  # requests that waited because as many as allowed were in flight
        self.start_s = self.end_s = 0.0

    def stop(self, why: str) -> None:
        """End the run: nothing more is sent, and what is in flight is cut off."""
        self.ended_by = self.ended_by or why
        self._stopping.set()

    async def run(self) -> None:
        """Warm the caches as the simulated ones were, then send everything."""
        # One after the other and each to its end, before the clock starts: its KV must be cached, and not be computed,
        # when the load comes.
        for prompt in self._load.head["warm"]:
            ids = self._load.prompt({"id": -1, "prompt": prompt})
            exchange = Exchange(-1, 0, 0.0, len(ids))
            await ask(self._session, self._server.url, self._server.body(0, ids, 1), exchange,
                      self._limits.request_s, self._limits.wait_s)  # fmt: skip
        users = self._load.head["users"]
        timed = [request for request in self._load.requests if users or "think_s" not in request]
        if not users:
            # In an open loop turns are sent when the answer before has come; in a closed one users take them in their
            # order.
            for request in self._load.requests:
                if "think_s" in request:
                    self._after.setdefault(request["after"], []).append(request)
            timed.sort(key=lambda request: request["at_s"])  # of one time in their order
        alone = iter([request for request in timed if "after" not in request])
        # All that fit into the bound: at the start nobody waits for the client.
        self._fill(alone)
        self.start_s = time.perf_counter()
        sending = asyncio.create_task(self._closed(timed, users) if users else self._open(timed, alone))
        stopped = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({sending, stopped}, timeout=self._limits.duration_s, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()  # a fault of ours must not look like the end of the load
            elif not stopped.done():
                self.ended_by = f"the {self._limits.duration_s:g} s of --max-duration were over"
        finally:
            self.end_s = time.perf_counter()
            for task in (running := [sending, stopped, *self._tasks]):
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        if self._fault is not None:
            raise self._fault

    async def _open(self, timed: list[dict[str, Any]], alone: Iterator[dict[str, Any]]) -> None:
        for request in timed:
            due_s = self.start_s + request["at_s"]
            # One body at a time, and the loop between: answers that have come must be read while bodies are made.
            while due_s - time.perf_counter() > _REFILL_S and self._fill(alone, 1):
                await asyncio.sleep(0)
            await _until(due_s)
            # Behind its time and not before it: a place is only taken by what is sent.
            await self._place()
            self._launch(self._exchange(request, due_s))
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _closed(self, requests: list[dict[str, Any]], users: int) -> None:
        following = {request["after"]: request for request in requests if "think_s" in request}
        opening = iter([request for request in requests if "think_s" not in request])

        async def user() -> None:
            due_s = time.perf_counter()
            for request in opening:  # whoever has finished a session opens the next one
                turn: dict[str, Any] | None = request
                while turn is not None:
                    await self._send(turn, due_s)
                    last, turn = turn, following.get(turn["id"])
                    pause_s = turn["think_s"] if turn is not None else last.get("rest_s", 0.0)
                    due_s = time.perf_counter() + pause_s

        async with asyncio.TaskGroup() as group:
            for _ in range(min(users, len(requests))):
                group.create_task(user())

    async def _send(self, request: dict[str, Any], due_s: float) -> None:
        await _until(due_s)
        await self._place()
        await self._exchange(request, due_s)

    async def _place(self) -> None:
        """Wait for a place among the requests in flight."""
        if self._places.locked():
            self.held += 1
        await self._places.acquire()

    def _launch(self, sending: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(sending)
        self._tasks.add(task)
        task.add_done_callback(self._landed)

    def _landed(self, task: asyncio.Task) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            # `ask` makes a status of whatever the server does: what comes here is a fault of this program.
            self._fault = task.exception()
            self.stop("a fault of the client")

    async def _exchange(self, request: dict[str, Any], due_s: float) -> None:
        """Send a request, which has a place among those in flight, and note what became of it."""
        exchange = Exchange(request["id"], request.get("model", 0), due_s, 0)
        try:
            body, exchange.prompt_tokens = self._body(request)
            await ask(self._session, self._server.url, body, exchange, self._limits.request_s,
                      self._limits.wait_s)  # fmt: skip
        finally:  # also where the run ends before the answer
            self._exchanges.append(exchange)
            self._places.release()
        self._load.answered(request, exchange.tokens)
        self._load.done[request["id"]].set()
        answered_s = exchange.last_s if exchange.status == OK else time.perf_counter()
        # Think time runs from the last token, as in the simulation, and not from when this line is reached.
        for turn in self._after.get(request["id"], ()):
            self._launch(self._send(turn, answered_s + turn["think_s"]))
        self._count(exchange)

    def _count(self, exchange: Exchange) -> None:
        if self._progress is not None:
            self._progress.advance()
        self._failures = 0 if exchange.status == OK else self._failures + 1
        if self._failures >= self._limits.failures:
            last = f"{exchange.status}: {exchange.error}"
            self.stop(f"the last {self._failures} requests failed one after the other ({last})")

    def _fill(self, alone: Iterator[dict[str, Any]], most: int = 10**9) -> bool:
        """Make bodies of requests that follow no answer, in the order of their times; False: there is nothing to do."""
        for _ in range(most):
            request = next(alone, None) if self._ahead_bytes < _AHEAD_BYTES else None
            if request is None:
                return False
            made = self._made(request)
            self._ahead.append((request, *made))
            self._ahead_bytes += len(made[0])
        return True

    def _body(self, request: dict[str, Any]) -> tuple[bytes, int]:
        """A request as it is sent, and the tokens of its prompt."""
        # By identity, in order: requests are sent in the order in which their bodies were made.
        if self._ahead and self._ahead[0][0] is request:
            _, body, tokens = self._ahead.popleft()
            self._ahead_bytes -= len(body)
            return body, tokens
        return self._made(request)

    def _made(self, request: dict[str, Any]) -> tuple[bytes, int]:
        ids = self._load.prompt(request)
        return self._server.body(request.get("model", 0), ids, request["output_tokens"]), len(ids)


async def _until(due_s: float) -> None:
    """Return at a time of ``time.perf_counter``, a few microseconds late where the loop has nothing else to do."""
    while (left_s := due_s - time.perf_counter()) > 0:
        await asyncio.sleep(left_s - _SPIN_S if left_s > _SPIN_S else 0)
