"""SGLang: chunks of prompts in iterations of their own; admission by how long answers turn out to be."""

from evaluator.policies.record import BatchingPolicy

TOKEN_RATIO = BatchingPolicy(
    "token_ratio",
    label="SGLang",
    source="SGLang 0.5.23: PrefillAdder, Scheduler, ScheduleBatch.retract_decode (python/sglang/srt/managers)",
    whole_prompts=False,
    prefill_alone=True,
    token_ratio=True,
    admission="on_demand",
)
