"""What parts of one's own are made of, and how they become known to scenarios: docs/parts.md has an example of each.

A part is a record: a ``BatchingPolicy``, a ``Router``, a ``KvManager`` or a ``StageKind``. ``register`` makes it known
by its name for as long as the process lives. Names are imported when they are first touched, because ``UnitKv`` and its
like load JAX.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from evaluator import kv_managers, policies, routing, stages

if TYPE_CHECKING:
    from evaluator.kv_managers import KvManager
    from evaluator.policies import BatchingPolicy
    from evaluator.reference import Limits, Request
    from evaluator.reference.kv import CountedKv
    from evaluator.routing import Independent, InTurn, Router, by_turns
    from evaluator.stages import StageKind
    from evaluator.stations.engine.preemptive.kv import KvPart, UnitKv
    from evaluator.stations.engine.preemptive.lane import Given
    from evaluator.stations.engine.preemptive.state import State

# Each name with the module that has it, which is loaded when the name is touched: a policy or a router is a
# record of a few words, and should not cost its user the second that JAX takes.
_HOME = {
    "BatchingPolicy": "evaluator.policies",
    "CountedKv": "evaluator.reference.kv",
    "Given": "evaluator.stations.engine.preemptive.lane",
    "InTurn": "evaluator.routing",
    "Independent": "evaluator.routing",
    "KvManager": "evaluator.kv_managers",
    "KvPart": "evaluator.stations.engine.preemptive.kv",
    "Limits": "evaluator.reference",
    "Request": "evaluator.reference",
    "Router": "evaluator.routing",
    "StageKind": "evaluator.stages",
    "State": "evaluator.stations.engine.preemptive.state",
    "UnitKv": "evaluator.stations.engine.preemptive.kv",
    "by_turns": "evaluator.routing",
}

__all__ = [
    "BatchingPolicy",
    "CountedKv",
    "Given",
    "InTurn",
    "Independent",
    "KvManager",
    "KvPart",
    "Limits",
    "Request",
    "Router",
    "StageKind",
    "State",
    "UnitKv",
    "by_turns",
    "register",
]


def register(part: BatchingPolicy | Router | KvManager | StageKind) -> None:
    """Make a part known to scenarios by its name, in place of one of one's own that had it.

    Errors: ValueError for a name that a part of the package has, TypeError for what is no part.
    """
    # By its class, and into the registry of its kind. There are four, since what a key of a scenario may name
    # differs: a policy in ``batching.policy``, a router in ``router``, a manager in ``kv.manager``, a stage in
    # ``pipeline``. What each must hold to stands with its record: ``policies.record``, ``routing.record``,
    # ``kv_managers.KvManager``, ``stages.record``.
    if isinstance(part, policies.BatchingPolicy):
        policies.register(part)
    elif isinstance(part, routing.Router):
        routing.register(part)
    elif isinstance(part, kv_managers.KvManager):
        kv_managers.register(part)
    elif isinstance(part, stages.StageKind):
        stages.register(part)
    else:
        raise TypeError(f"expected a BatchingPolicy, Router, KvManager or StageKind, got {type(part).__name__}")


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'evaluator.parts' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    # Kept, so that the next look does not come here.
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
