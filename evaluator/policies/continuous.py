"""Continuous batching with prompts first: prompts are computed in iterations of their own while the decodes wait."""

from evaluator.policies.record import BatchingPolicy

CONTINUOUS = BatchingPolicy(
    "continuous",
    label="vLLM v0",
    source="Kwon et al., Efficient Memory Management for LLM Serving with PagedAttention, SOSP 2023; vLLM 0.x",
    prefill_alone=True,
)
