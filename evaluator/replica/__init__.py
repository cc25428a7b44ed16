"""One replica of the serving engine, from names to what it costs: the one place where it is built.

``ReplicaSpec`` (which model on which hardware, how it is split, what it may take) -> ``ReplicaBuild``: iteration
costs, KV cache, weights and ideal times of a ``RunnableReplica``, or the ``Problem`` for which there is none.

``scenario`` makes a ``spec`` of a deployment, ``build`` a ``replica_build`` of that: with ``drafts``, priced by
``costing``, of many at once by ``batched_costs``. ``changes`` are those of sensitivities; ``unpipelined`` is the closed
form's view.
"""

from evaluator.replica.build import build, kept_model
from evaluator.replica.changes import Change, chosen_inputs
from evaluator.replica.replica_build import Problem, ReplicaBuild, RunnableReplica
from evaluator.replica.scenario import default_budget, design, on_device, replica_spec, token_budget, varied
from evaluator.replica.spec import ReplicaSpec
from evaluator.replica.unpipelined import UnpipelinedCost, passage

__all__ = [
    "Change",
    "Problem",
    "ReplicaBuild",
    "ReplicaSpec",
    "RunnableReplica",
    "UnpipelinedCost",
    "build",
    "chosen_inputs",
    "default_budget",
    "design",
    "kept_model",
    "on_device",
    "passage",
    "replica_spec",
    "token_budget",
    "varied",
]
