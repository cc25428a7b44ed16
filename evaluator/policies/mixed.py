"""Mixed batching: whole prompts beside the decodes, within one token budget."""

from evaluator.policies.record import BatchingPolicy

# All fields have their defaults: a whole prompt that no longer fits into what the decodes leave of the budget waits,
# which is vLLM v1 with `enable_chunked_prefill` off.
MIXED = BatchingPolicy(
    "mixed",
    label="Splitwise mixed machines; vLLM v1 without chunked prefill",
    source="Patel et al., Splitwise: Efficient Generative LLM Inference Using Phase Splitting, ISCA 2024",
)
