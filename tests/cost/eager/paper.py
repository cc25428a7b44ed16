"""BestServe's own replica: CodeLlama-34b on Ascend 910B3, with the numbers that its table 3 was computed from."""

from __future__ import annotations

from dataclasses import replace

from evaluator.catalog import load_calibration, load_hardware, load_model
from evaluator.cost.eager import AsPrinted, Corrected, EagerCost, eager_cost


def paper_cost(tables: AsPrinted | Corrected | None = None, tensor_parallel: int = 4) -> EagerCost:
    """The shipped set, which says where its numbers are from, as the rows of table 3 need it and not their totals.

    Tables as printed, a host that waits for each layer, and the 0.100 ms of both modules' communication, which equation
    8 gives in neither phase: it must be the least that a transmission takes.
    """
    figures = load_calibration("ascend-910b3-bestserve", "ascend-910b3").eager
    figures = replace(figures, runs_ahead=False, message_s=100e-6)
    cost = eager_cost(load_model("codellama-34b"), load_hardware("ascend-910b3"), tensor_parallel, figures)
    return cost._replace(tables=AsPrinted() if tables is None else tables)
