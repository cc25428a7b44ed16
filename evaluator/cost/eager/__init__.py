"""The eager operator set: LLaMA layers as unfused PyTorch modules run them, after BestServe's tables 1-2 and 6-13.

``tables`` has the works and traffic of every operator, ``slips`` what the paper prints otherwise, ``modules`` the times
of modules and of an iteration whose operators a host dispatches, ``cost`` the cost that engines take.
"""

from evaluator.cost.eager.cost import EagerCost, eager_cost
from evaluator.cost.eager.modules import Dispatch, EagerRates, ModuleTime, block_s, iteration_s, module_times
from evaluator.cost.eager.shape import EagerShape, eager_problem, eager_shape, eager_split_problem
from evaluator.cost.eager.slips import AsPrinted
from evaluator.cost.eager.tables import Corrected, Row

__all__ = [
    "AsPrinted",
    "Corrected",
    "Dispatch",
    "EagerCost",
    "EagerRates",
    "EagerShape",
    "ModuleTime",
    "Row",
    "block_s",
    "eager_cost",
    "eager_problem",
    "eager_shape",
    "eager_split_problem",
    "iteration_s",
    "module_times",
]
