"""BestServe's own replica: CodeLlama-34b on Ascend 910B3, with the numbers that its table 3 was computed from."""

from __future__ import annotations

from evaluator.catalog import load_calibration, load_hardware, load_model
from evaluator.cost.eager import AsPrinted, Corrected, EagerCost, eager_cost


def paper_cost(tables: AsPrinted | Corrected | None = None, tensor_parallel: int = 4) -> EagerCost:
    """As the shipped set has it, which says where each number is from; ``tables`` other than the printed ones."""
    figures = load_calibration("ascend-910b3-bestserve", "ascend-910b3").eager
    cost = eager_cost(load_model("codellama-34b"), load_hardware("ascend-910b3"), tensor_parallel, figures)
    return cost if tables is None else cost._replace(tables=tables)
