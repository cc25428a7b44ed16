"""The cost model: operators, roofline, collectives, memory, and the iteration cost function that they fold into.

*What a device does.* ``operators`` puts together what ``mixers``, ``feed_forward``, ``embedding_and_head``,
``adapters`` and ``prediction`` emit, each an ``Operator`` (``kernel``): products by ``gemm`` and ``projections``, what
ranks send one another by ``exchange``, what uneven experts cost by ``imbalance``. ``eager`` has the operators of
unfused PyTorch.

*What that takes.* ``coefficients`` are an operator set as arrays, ``rates`` those of a device; ``collectives`` and
``unit_times`` divide the one by the other, ``fold`` adds up, and ``iteration`` is the one place where a batch gets its
time, with ``roofline``, ``mixed_attention``, ``delta_rule`` and ``host``. ``arrays`` names the axes, ``lanes`` stacks
configurations.

*Other forms of an iteration.* ``fitted`` chooses by the calibration set; ``polynomial`` and ``table`` of
``quantities``, ``dispatched``, ``speculative``, ``lockstep`` (ranks that wait for one another), ``one_of`` (which is
known in the run alone).

*How devices share a model.* ``parallel`` and whether shards are whole ``blocks``; ``context_parallel``,
``prefill_context``, ``feed_forward_apart``, ``two_batch_overlap``.

*Memory.* ``memory`` is of ``weights``, ``activations`` and what is kept of sequences: ``layer_state``, ``kv``,
``kv_groups``. Dtypes: ``precision`` names, ``dtypes`` widths.

*What others ask.* ``batch`` (statistics of simple batches), ``breakdown``, ``steady``, ``utilisation``,
``request_times``, ``frontend``, ``transfer``, ``vector_search``.
"""

from __future__ import annotations

from evaluator.cost.batch import attention_area, decode_batch, prefill_batch, together
from evaluator.cost.breakdown import OperatorTime, breakdown
from evaluator.cost.coefficients import coefficients, reach
from evaluator.cost.fitted import fitted_cost, iteration_cost
from evaluator.cost.fold import fold, fold_rates
from evaluator.cost.iteration import BatchStatistics, CostParameters, OperatorRows, iteration_time
from evaluator.cost.kernel import Operator
from evaluator.cost.lanes import RowCounts, common_counts, pad_rows, row_counts, stack
from evaluator.cost.memory import (
    KvLayout,
    MemoryPlan,
    kv_bytes_per_token,
    kv_units,
    memory_plan,
    memory_problem,
    model_window,
)
from evaluator.cost.operators import operators
from evaluator.cost.parallel import Parallel, parallel_problem
from evaluator.cost.rates import OP_CLASSES, Rates, rates
from evaluator.cost.utilisation import IdealTime, ideal_time, ideal_times
from evaluator.cost.weights import weight_bytes

__all__ = [
    "OP_CLASSES",
    "BatchStatistics",
    "CostParameters",
    "IdealTime",
    "KvLayout",
    "MemoryPlan",
    "Operator",
    "OperatorRows",
    "OperatorTime",
    "Parallel",
    "Rates",
    "RowCounts",
    "attention_area",
    "breakdown",
    "coefficients",
    "common_counts",
    "decode_batch",
    "fitted_cost",
    "fold",
    "fold_rates",
    "ideal_time",
    "ideal_times",
    "iteration_cost",
    "iteration_time",
    "kv_bytes_per_token",
    "kv_units",
    "memory_plan",
    "memory_problem",
    "model_window",
    "operators",
    "pad_rows",
    "parallel_problem",
    "prefill_batch",
    "rates",
    "reach",
    "row_counts",
    "stack",
    "together",
    "weight_bytes",
]
