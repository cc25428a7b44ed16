"""KV that a decode replica sets aside for requests whose prompts are computed elsewhere, before it is sent."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from evaluator.reference.request import Request

if TYPE_CHECKING:
    from evaluator.reference.queues import Queues


class KvReservations:
    """Requests for which this replica was chosen (``expected``) get KV here in turn; those that have it are sent."""

    def __init__(self) -> None:
        self.expected: deque[Request] = deque()  # without a KV reservation yet
        self._granted = 0

    def grant(self, queues: Queues, tokens_left: int = 1) -> list[Request]:
        """Give KV to expected requests, first come first served, as far as there is room; those that got it.

        Where KV is taken on demand that is KV for the prompt and, if that is complete, for the next token.
        ``tokens_left``: of the budget of this iteration. While a preempted request waits for KV nobody new gets any.
        So reservations become fewer until the preempted one is admitted: those who hold them run, or are preempted in
        their turn, and in the end some request has all KV for itself.
        """
        granted: list[Request] = []
        # Only the first is looked at: a later, smaller request that took the room in its stead could do so again and
        # again.
        while self.expected and not queues.preempted_waiting and not queues.short_of_kv:
            request = self.expected[0]
            # vLLM looks at them behind all that wait, as long as the iteration has tokens and a seat left, which they
            # do not take (``Scheduler.schedule``).
            is_full = tokens_left <= 0 or queues.waiting or queues.seats >= queues.limits.max_num_seqs
            if queues.limits.batch_queue and is_full:
                break
            # What is in the cache here need not be sent: NIXL asks the prefill side for the tokens that are not
            # computed locally (vLLM 0.28 ``nixl/pull_scheduler.get_num_new_matched_tokens``), and ``allocate_slots``
            # makes the request a user of the blocks found, which nobody takes while the others are under way.
            hit = queues.kv.lookup(request)
            if not queues.kv.admit(request, self._units(queues, request), hit, self._keep_free(queues)):
                break
            request.hit_tokens = hit
            self._granted += 1
            request.reservation = self._granted
            granted.append(self.expected.popleft())
            queues.waiting_units -= request.kv_units
        return granted

    @staticmethod
    def _units(queues: Queues, request: Request) -> int:
        if not queues.on_demand:
            return request.kv_units
        decodes_next = request.computed == request.target
        return queues.sizes.decoding(request, request.target + (queues.limits.decode_tokens if decodes_next else 0))

    @staticmethod
    def _keep_free(queues: Queues) -> int:
        """Units that a reservation must leave."""
        watermark = queues.limits.watermark_units if queues.on_demand else 0
        if not queues.limits.batch_queue:
            return watermark
        # What prompts under way still need is theirs (vLLM ``_inflight_prefill_reserved_blocks``).
        return queues.sizes.lacking_of_prompts(queues.prompts) + (watermark if queues.running else 0)
