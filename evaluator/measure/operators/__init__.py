"""The operators as JAX programs, one class per file: registered here by name.

Each makes a ``Call`` of a point. Every call works on what the one before it gave: this chain of data is what keeps a
compiler from merging, reordering or dropping calls.
"""

from __future__ import annotations

from evaluator.measure.operators.all_reduce import all_reduce
from evaluator.measure.operators.attention import attention
from evaluator.measure.operators.call import Call, Make, precision_of
from evaluator.measure.operators.elementwise import elementwise
from evaluator.measure.operators.gemm import gemm
from evaluator.measure.operators.grouped_gemm import grouped_gemm

MAKERS: dict[str, Make] = {
    "gemm": gemm,
    "grouped_gemm": grouped_gemm,
    "attention_prefill": attention,
    "attention_decode": attention,
    "elementwise": elementwise,
    "all_reduce": all_reduce,
}

__all__ = ["MAKERS", "Call", "precision_of"]
