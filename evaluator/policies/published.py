"""The batching policies of serving systems, as they were published: one record each.

A record says where it differs from ``MIXED``, whose fields all have their defaults (``record.BatchingPolicy``).
"""

from evaluator.policies.record import BatchingPolicy

# FasterTransformer has no scheduler: a backend in front of it forms a batch, and KV of the longest sequence is
# allocated for each place before the batch starts. Hence no admission but ``reserve``.
STATIC = BatchingPolicy(
    "static",
    label="FasterTransformer",
    source="NVIDIA FasterTransformer; the baseline of Yu et al., Orca, OSDI 2022, section 2",
    prefill_alone=True,
    drain_first=True,
    admission="reserve",
)
"""Static batching: a batch of requests is computed to its end before the next one is admitted."""

# vLLM v0 `_schedule_default`: `_schedule_prefills` is asked first, and running sequences decode only in steps in
# which it admitted nothing. That is why TPOT has the prompts of others in it.
CONTINUOUS = BatchingPolicy(
    "continuous",
    label="vLLM v0",
    source="Kwon et al., Efficient Memory Management for LLM Serving with PagedAttention, SOSP 2023; vLLM 0.x",
    prefill_alone=True,
)
"""Continuous batching with prompts first: prompts are computed in iterations of their own while the decodes wait."""

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
"""Chunked prefill: one token budget per iteration, for decodes first, then for chunks of prompts."""

# All fields have their defaults: a whole prompt that no longer fits into what the decodes leave of the budget waits,
# which is vLLM v1 with `enable_chunked_prefill` off.
MIXED = BatchingPolicy(
    "mixed",
    label="Splitwise mixed machines; vLLM v1 without chunked prefill",
    source="Patel et al., Splitwise: Efficient Generative LLM Inference Using Phase Splitting, ISCA 2024",
)
"""Mixed batching: whole prompts beside the decodes, within one token budget."""

# Algorithm 1 stops admitting at `n_rsrv + req.max_tokens > n_slots`: KV for the whole output is set aside at once, so
# that nothing is ever preempted, and no line of it counts the tokens of an iteration.
ORCA = BatchingPolicy(
    "orca",
    label="Orca",
    source="Yu et al., Orca: A Distributed Serving System for Transformer-Based Generative Models, OSDI 2022, alg. 1",
    token_budget=False,
    admission="reserve",
    preemptive_program=True,
)
"""Orca: whole prompts beside the decodes; only the number of sequences bounds an iteration, KV is reserved.

The vectorised engine runs it in its program ``preemptive``."""

# Sarathi-Serve's scheduler calls vLLM v0's block manager, whose `allocate` takes the blocks of the whole prompt
# before the first chunk; vLLM v1 `allocate_slots` takes those of the chunk alone.
SARATHI = BatchingPolicy(
    "sarathi",
    label="Sarathi-Serve",
    source="Agrawal et al., Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve, OSDI 2024",
    whole_prompts=False,
    whole_kv=True,
)
"""Sarathi-Serve: chunked prefill where a prompt gets the KV of its whole length when it is admitted.

It differs from ``chunked`` only where KV is given on demand."""

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
"""LightLLM: decodes, and now and then a look at who waits; KV by the token, admission by its future peak."""

TOKEN_RATIO = BatchingPolicy(
    "token_ratio",
    label="SGLang",
    source="SGLang 0.5.23: PrefillAdder, Scheduler, ScheduleBatch.retract_decode (python/sglang/srt/managers)",
    whole_prompts=False,
    prefill_alone=True,
    token_ratio=True,
    admission="on_demand",
    preemptive_program=True,
    plans_ahead=True,
)
"""SGLang: chunks of prompts in iterations of their own; admission by how long answers turn out to be."""
