"""Continuous batching with prompts first: prompts are computed in iterations of their own while the decodes wait."""

from evaluator.policies.record import BatchingPolicy

# vLLM v0 `_schedule_default`: `_schedule_prefills` is asked first, and running sequences decode only in steps in
# which it admitted nothing. That is why TPOT has the prompts of others in it.
CONTINUOUS = BatchingPolicy(
    "continuous",
    label="vLLM v0",
    source="Kwon et al., Efficient Memory Management for LLM Serving with PagedAttention, SOSP 2023; vLLM 0.x",
    prefill_alone=True,
)
