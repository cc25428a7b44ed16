"""Orca: whole prompts beside the decodes; only the number of sequences bounds an iteration, KV is reserved.

The vectorised engine runs it in its any-order program.
"""

from evaluator.policies.record import BatchingPolicy

ORCA = BatchingPolicy(
    "orca",
    label="Orca",
    source="Yu et al., Orca: A Distributed Serving System for Transformer-Based Generative Models, OSDI 2022, alg. 1",
    token_budget=False,
    admission="reserve",
    preemptive_program=True,
)
