"""The batching policies: one record each, by the name that scenario files use.

A policy that combines decisions which others have made (see ``record.BatchingPolicy``) is a record in ``published`` and
its name in ``POLICIES``, or a record of one's own that is given to ``register``: checks, the vectorised engine and the
reference read the record (docs/parts.md). One whose order of decisions is new also needs a field of the record
that tells it apart, a scheduler in ``reference.schedulers`` and the same order in the program ``preemptive``.
"""

from evaluator.errors import InputError
from evaluator.policies.published import CHUNKED, CONTINUOUS, LIGHTLLM, MIXED, ORCA, SARATHI, STATIC, TOKEN_RATIO
from evaluator.policies.record import BatchingPolicy
from evaluator.registry import Registry

__all__ = ["CHUNKED", "CONTINUOUS", "ENCODING", "MIXED", "POLICIES", "BatchingPolicy", "policy", "register"]

POLICIES: Registry[BatchingPolicy] = Registry(
    "batching policy", (STATIC, CONTINUOUS, CHUNKED, MIXED, ORCA, SARATHI, LIGHTLLM, TOKEN_RATIO)
)
register = POLICIES.register

# An encoder attends over the whole text, so that a prompt cannot be cut into chunks, and it has no decodes to share
# an iteration with: of the policies this is the one that asks for neither.
ENCODING = CONTINUOUS
"""Of a pool that says none and computes encoders, whose attention needs whole texts."""


def policy(name: str) -> BatchingPolicy:
    """The policy of this name. InputError if there is none."""
    if name not in POLICIES:
        raise InputError(f"no batching policy {name!r}; the policies are {', '.join(POLICIES)}")
    return POLICIES[name]
