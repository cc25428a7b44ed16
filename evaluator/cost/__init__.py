"""The cost model: operators, roofline, collectives, memory, and the iteration cost function that they fold into."""

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
