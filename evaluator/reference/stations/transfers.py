"""The links between a prefill and a decode side, and what waits for them.

Without back-pressure a transfer begins with the first token (layer by layer: as long before as it can go on without a
pause), once the link of the prefill replica is free; the prefill replica has then forgotten the request. Requests are
sent in the order of their first tokens. In a chain they are in the order in which their layers come, which is another
one only where prompts are computed in chunks beside one another: of a chain all first tokens are known beforehand.

With it (vLLM's NixlConnector, whose decode side pulls and then tells the prefill side to free its blocks; DistServe,
arXiv:2401.09670 section 4.3; Mooncake) the KV stays on the prefill replica until the transfer has ended. The decode
replica is chosen with the first token, and reserves room for the request's KV as soon as there is some (under
``on_demand`` between two iterations). Until then the request waits, first come first served for each decode replica.
The transfer begins when there is room and the link is free. Layer by layer, the replica is chosen and asked for room
when the prompt's first chunk is computed; layers that were computed before there was room are sent after it.

A stage between prefill and decode comes before the transfer: the request goes to the link when the stage has answered,
and with back-pressure the prefill replica keeps its KV meanwhile, since nothing has been sent yet.

Nothing can wait for ever. A decode replica never waits for a prefill replica. A request that has room is sent in
finite time, since a link takes only requests that have room, and then runs (``queues.Queues.reserve`` says why requests
that were preempted cannot keep it from that). So room comes free, the first that waits for it gets it, since each fits
into an empty cache (``plan.checks``), and with its transfer a prefill replica gets back what its queue may wait for.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from evaluator.reference.request import Request
from evaluator.reference.stations.phase import Choose, PhaseStation


class Sending(NamedTuple):
    """What it takes to send a request's KV: seconds on the link, and the share of it that may be sent ahead."""

    service_s: float
    ahead: float  # (n - 1) / n of n layers; 0 where it is sent as a whole


class TransferTimes(NamedTuple):
    """When a request came to the link, when its transfer began and when it was there; seconds."""

    ready_s: float
    started_s: float
    left_s: float


class Transfers:
    """``sending`` says what a request takes from one replica to another (None: to whichever).

    ``choose`` chooses the decode replica with the first token; None: the decode side does it on arrival. ``groups`` are
    those of the prefill replicas, where requests keep to them. ``one_by_one``: every prefill replica sends one request
    after the other, in the order in which they may be sent; those of one time in the order in which they could begin.
    """

    batches = False

    def __init__(
        self,
        prefill: PhaseStation,
        decode: PhaseStation,
        sending: Callable[[int, int, int | None], Sending],
        *,
        latency_s: float,
        one_by_one: bool,
        by_layer: bool,
        backpressure: bool,
        choose: Choose | None,
        groups: Sequence[int] | None,
    ) -> None:
        self.done: dict[int, TransferTimes] = {}  # by request index
        self._prefill, self._decode = prefill, decode
        self._sending, self._latency_s = sending, latency_s
        self._one_by_one, self._backpressure = one_by_one, backpressure
        self._choose, self._groups = choose, groups
        self._ahead = by_layer and backpressure
        self._free_s: dict[int, float] = {}  # by prefill replica
        self._came_s: dict[int, float] = {}  # by index: with the first token, or behind stages that stand in between
        self._computed: list[Request] = []  # parts of the prefill side, since the last launch
        self._waiting: dict[int, Request] = {}  # by index: computed, without room
        self._room_s: dict[int, float] = {}  # by index: since when there is room
        self._under_way: list[tuple[float, int, Request]] = []
        self._entries = 0
        self._passing: list[Request] = []  # requests of one token
        self._passes_s = math.inf
        if backpressure:
            decode.on_room = self._room
            for part in prefill.parts.values():
                # The prefill replica keeps the blocks until the decode side has them (``Replica.release``).
                part.held = part.index in decode.parts
            if by_layer:
                prefill.on_begun = self._ask

    @property
    def next_s(self) -> float:
        """When the next transfer ends, or now if requests only pass."""
        return min(self._under_way[0][0] if self._under_way else math.inf, self._passes_s)

    def finish(self, now: float) -> list[Request]:
        leaving, self._passing, self._passes_s = self._passing, [], math.inf
        while self._under_way and self._under_way[0][0] <= now:
            _, _, part = heapq.heappop(self._under_way)
            if self._backpressure:
                self._prefill.pool.release(part, now)
            leaving.append(part)
        return leaving

    def submit(self, request: Request, now: float) -> None:
        if request.index in self._decode.parts:
            self._came_s[request.index] = now
            # What comes from a stage is the stage's own record of the request, of which only the index is used.
            self._computed.append(self._prefill.parts[request.index])
        else:
            self._passing.append(request)
            self._passes_s = now

    def launch(self, now: float) -> None:
        computed, self._computed = sorted(self._computed, key=lambda part: part.index), []
        ready = []
        for part in computed:
            if not self._ahead:
                self._ask(part, now)
            # Computed, and no room yet: it begins when there is (``_room``).
            if self._backpressure and part.index not in self._room_s:
                self._waiting[part.index] = part
            else:
                ready.append(part)
        # A link is first come, first served by when a transfer could begin: layer by layer that is before the first
        # token, in another order than that of the first tokens.
        for part in sorted(ready, key=self._may_begin):
            self._begin(part, self._may_begin(part)[0])

    def _ask(self, part: Request, now: float) -> None:
        """Choose the decode replica, where that is not for its side to do, and ask it for room."""
        if self._choose is None or part.index not in self._decode.parts:
            return
        coming = self._decode.parts[part.index]
        replica = self._choose(coming, now, None if self._groups is None else self._groups[part.replica])
        if self._backpressure:
            self._decode.pool.expect(coming, replica, now)
        else:
            replica.announce(coming)

    def _room(self, coming: Request, now: float) -> None:
        """There is room for a request on the decode side."""
        self._room_s[coming.index] = now
        part = self._waiting.pop(coming.index, None)
        if part is not None:
            self._begin(part, now)

    def _takes(self, part: Request) -> Sending:
        receiver = self._decode.parts[part.index].replica
        return self._sending(part.index, part.replica, receiver if receiver >= 0 else None)

    def _may_begin(self, part: Request) -> tuple[float, int]:
        """From when on a prompt that has come can be sent without a pause, and there is room if it needs some."""
        takes = self._takes(part)
        # All layers but the last may be sent while the prompt is computed, as far as they fit into the time that it
        # takes.
        head_s = takes.ahead * min(takes.service_s, part.first_token_s - part.scheduled_s)
        return max(self._came_s[part.index] - head_s, self._room_s.get(part.index, -math.inf)), part.index

    def _begin(self, part: Request, may_s: float) -> None:
        service_s = self._takes(part).service_s
        start_s = max(may_s, self._free_s.get(part.replica, -math.inf)) if self._one_by_one else may_s
        self._free_s[part.replica] = start_s + service_s
        left_s = start_s + service_s + self._latency_s
        self.done[part.index] = TransferTimes(self._came_s[part.index], start_s, left_s)
        heapq.heappush(self._under_way, (left_s, self._entries, part))
        self._entries += 1
