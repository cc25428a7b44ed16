"""Mixed batching: whole prompts beside the decodes, within one token budget."""

from evaluator.policies.record import BatchingPolicy

MIXED = BatchingPolicy(
    "mixed",
    label="Splitwise mixed machines; vLLM v1 without chunked prefill",
    source="Patel et al., Splitwise: Efficient Generative LLM Inference Using Phase Splitting, ISCA 2024",
)
