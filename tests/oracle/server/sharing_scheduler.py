"""The recorder for a machine of two cores, inside vLLM's engine process.

While its worker computes, the engine process polls for the result and yields in between. On a core that it shares with
the HTTP server this starves the server: first tokens came up to 300 ms late. Here it sleeps between polls instead.
"""

from __future__ import annotations

import time

from vllm.distributed.device_communicators import shm_broadcast
from vllm_iterations import RecordingScheduler

POLL_S = 5e-5


class SharingScheduler(RecordingScheduler):
    """What it inherits; made in the engine process, where the polling is."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        shm_broadcast.sched_yield = lambda: time.sleep(POLL_S)
