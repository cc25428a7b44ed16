"""Sarathi-Serve: chunked prefill where a prompt gets the KV of its whole length when it is admitted.

It differs from ``chunked`` only where KV is given on demand.
"""

from evaluator.policies.record import BatchingPolicy

# Sarathi-Serve's scheduler calls vLLM v0's block manager, whose `allocate` takes the blocks of the whole prompt
# before the first chunk; vLLM v1 `allocate_slots` takes those of the chunk alone.
SARATHI = BatchingPolicy(
    "sarathi",
    label="Sarathi-Serve",
    source="Agrawal et al., Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve, OSDI 2024",
    whole_prompts=False,
    whole_kv=True,
)
