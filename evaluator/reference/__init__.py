"""The reference: serving simulated by events, one iteration and one token at a time, in plain Python, to be read.

It is the oracle of the vectorised engine: both must give the same times, but this one follows every request through its
own objects and takes no short cut that is not tested against the long way.

Read ``network`` for the order of events and ``stations/`` for what a request passes, ``schedulers/`` for what a policy
means, ``queues`` for the moves that schedulers are made of (admission, growth and preemption of KV), ``replica``
for the way of an iteration, ``request`` for how iterations are leapt over. ``simulate`` runs one pool of replicas.
``serve/`` is what the simulation calls: a plan's configurations on these stations.
``request_level`` stands apart: BestServe's coarser algorithms, which are the request-level engine.
"""

from __future__ import annotations

from evaluator.reference.data_parallel import RankBalance
from evaluator.reference.grouped_kv import KvGroup
from evaluator.reference.host_cache import HostLimits
from evaluator.reference.limits import Limits
from evaluator.reference.request import Request
from evaluator.reference.running_batch import Iteration
from evaluator.reference.simulate import PoolOutcome, simulate, simulate_replica

__all__ = [
    "HostLimits",
    "Iteration",
    "KvGroup",
    "Limits",
    "PoolOutcome",
    "RankBalance",
    "Request",
    "simulate",
    "simulate_replica",
]
