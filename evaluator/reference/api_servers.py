"""The API servers in front of the engines of a pool, token by token.

An engine hands the tokens of an iteration to the API servers of its clients and goes on: its queue to them has no
bound (``EngineCoreProc.process_output_sockets`` of vLLM), so that a slow API server holds no iteration up. Each of them
is one process (``AsyncLLM.output_handler``), which takes tokens in the order in which they come: a FIFO queue with one
server.

What a request takes of it by itself is in ``Calibration.frontend_s``, which is measured on servers with little to do.
So the clients of a server with a queue have a token later by its wait, until the server begins with it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from operator import itemgetter

from evaluator.reference.request import Request
from evaluator.reference.running_batch import Iteration


class ApiServers:
    """Those of all replicas of a pool under one seed: ``servers`` for each replica of so many data-parallel ``ranks``.

    Requests are shared out among them in turn, in the order in which they come to a rank. (vLLM's share a socket, on
    which whoever is idle takes the next connection.) What a request takes beside its tokens counts with the first.

    ``waits`` has the waits of the first and the last token of each request, seconds; ``gaps`` of each token but the
    first (when the engine had it, its request, the gap before it as its client sees it).
    """

    def __init__(self, servers: int, ranks: int, per_token_s: float, per_request_s: float) -> None:
        self._servers, self._ranks = servers, ranks
        self._per_token_s, self._per_request_s = per_token_s, per_request_s
        self._given: list[tuple[float, int, Sequence[Request]]] = []  # tokens that no server has taken yet
        self._free_s: defaultdict[tuple[int, int], float] = defaultdict(lambda: -math.inf)
        self._seen_s: dict[Request, float] = {}  # when the client had the last token so far
        self.waits: dict[Request, tuple[float, float]] = {}
        self.gaps: list[tuple[float, Request, float]] = []

    def give(self, iteration: Iteration, rank: int, requests: Sequence[Request]) -> None:
        """The tokens of an iteration of a rank, or of those of a leap; ``requests`` by their numbers in it."""
        decodes = [requests[number] for number in iteration.decodes]
        end_s = iteration.start_s
        for step in range(iteration.iterations - 1):
            end_s += iteration.first_s + step * iteration.slope_s
            self._given.append((end_s, rank, decodes))
        completed = [requests[number] for number in iteration.completed]
        self._given.append((iteration.end_s, rank, [*decodes, *completed]))

    def settle(self) -> None:
        """Serve all tokens that were given. Tokens that are given later must not come earlier than these."""
        # Ranks tell of their iterations in any order, and of several at once. The sort keeps the order of a rank.
        for given_s, rank, requests in sorted(self._given, key=itemgetter(0, 1)):
            for request in requests:
                self._serve(request, rank, given_s)
        self._given.clear()

    def _serve(self, request: Request, rank: int, given_s: float) -> None:
        server = rank // self._ranks, (request.order + rank % self._ranks) % self._servers
        begin_s = max(given_s, self._free_s[server])
        first_wait_s, _ = self.waits.get(request, (begin_s - given_s, 0.0))
        service_s = self._per_token_s
        if request in self._seen_s:
            self.gaps.append((given_s, request, begin_s - self._seen_s[request]))
        else:
            service_s += self._per_request_s
        self._free_s[server] = begin_s + service_s
        self._seen_s[request], self.waits[request] = begin_s, (first_wait_s, begin_s - given_s)

    def last_wait_s(self, request: Request) -> float:
        """Of the last token that was given of a request."""
        self.settle()
        return self.waits[request][1]
