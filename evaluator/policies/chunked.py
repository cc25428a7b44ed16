"""Chunked prefill: one token budget per iteration, for decodes first, then for chunks of prompts."""

from evaluator.policies.record import BatchingPolicy

# vLLM v1 `Scheduler.schedule` gives tokens to `self.running` first and to `self.waiting` with what is left of
# `max_num_scheduled_tokens`; a decode is a request that lacks one token, a chunk one that lacks many.
CHUNKED = BatchingPolicy(
    "chunked",
    label="vLLM v1",
    source="vLLM 1.x scheduler, after Agrawal et al., Sarathi-Serve, OSDI 2024",
    whole_prompts=False,
    # vLLM v1's engine core schedules step n + 1 while step n is on the device (`async_scheduling`).
    plans_ahead=True,
)
