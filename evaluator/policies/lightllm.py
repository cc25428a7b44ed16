"""LightLLM: decodes, and now and then a look at who waits; KV by the token, admission by its future peak."""

from evaluator.policies.record import BatchingPolicy

# LightLLM's router counts the decode steps since it last looked at the queue, and admits by the memory that the batch
# will need at its worst moment: no program for first come, first served knows that order.
LIGHTLLM = BatchingPolicy(
    "lightllm",
    label="LightLLM",
    source="Gong et al., Past-Future Scheduler for LLM Serving under SLA Guarantees, ASPLOS 2025; LightLLM's router",
    prefill_alone=True,
    admission="on_demand",
    look_every=10,  # LightLLM's max_wait_tokens
    preemptive_program=True,
)
