"""Orca: whole prompts beside the decodes; only the number of sequences bounds an iteration, KV is reserved.

The vectorised engine runs it in its program ``preemptive``.
"""

from evaluator.policies.record import BatchingPolicy

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
