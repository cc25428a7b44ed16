"""Chunked prefill: one token budget per iteration, for decodes first, then for chunks of prompts."""

from evaluator.policies.record import BatchingPolicy

CHUNKED = BatchingPolicy(
    "chunked",
    label="vLLM v1",
    source="vLLM 1.x scheduler, after Agrawal et al., Sarathi-Serve, OSDI 2024",
    whole_prompts=False,
    plans_ahead=True,
)
