"""The data-parallel rank that vLLM's own frontend chooses, by what its coordinator last told it of the ranks."""

from __future__ import annotations

from evaluator.routing.record import Router

VLLM_RANKS = Router(
    "vllm_ranks",
    "vLLM's own balance of the data-parallel ranks of a server: what waits and runs there as the ranks last reported "
    "it, 100 ms ago or so, and what the frontend has sent since.",
    by_reports=True,
)
"""``reference.data_parallel`` computes it. The interval is no key: a server of vLLM has none for it
(``DPCoordinator.__init__``: 100 ms)."""
