"""Static batching: a batch of requests is computed to its end before the next one is admitted."""

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
