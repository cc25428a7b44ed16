"""Shapes of the cost model's arrays, and the namespace that computes on them.

The same functions run on plain floats, on NumPy arrays and on JAX arrays and tracers, so that no class fits all of
their arguments: every alias below is ``Any`` to a type checker, and says to a reader which axes there are. All are
float64 (a clock in float32 loses 1e-3 of a p99 over 100,000 requests). The names of the axes:

* ``operator``: the operators of one replica, or those of one scaling (see ``kernel.Operator``);
* ``op_class``: ``rates.OP_CLASSES``; ``dtype``: ``dtypes.COMPUTE_DTYPES``; ``size``: ``rates.GROUPED``;
* ``level``: levels of the links, nearest first;
* ``...``: no axis (one configuration, one batch), or any axes that broadcast with one another: the lanes of an engine,
  the points of a grid. They are the trailing axes, so that a sum over ``operator`` is a sum over axis 0.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

Array = Any
"""A float, a NumPy array or a JAX array of any shape."""
Batched = Any
"""(...): one number per configuration and batch."""
PerOperator = Any
"""(operator, ...); as plain floats a tuple or list of them."""
PerClass = Any
"""(op_class,)"""
PerDtype = Any
"""(dtype,)"""
PerLevel = Any
"""(level,)"""
PerSize = Any
"""(size,)"""
Scalar = Any
"""()"""


class _Floats:
    """What of an array namespace the cost functions use, on plain floats."""

    # A call of NumPy on a scalar takes about a microsecond; the reference prices every iteration of a run by these.
    sqrt, expm1, log1p, ceil = math.sqrt, math.expm1, math.log1p, staticmethod(math.ceil)
    maximum, minimum, floor = max, min, staticmethod(math.floor)

    @staticmethod
    def where(condition: bool, yes: float, no: float) -> float:
        return yes if condition else no


def array_namespace(*arrays: Array) -> Any:
    """``jax.numpy`` where any argument is a JAX array or tracer, plain Python for floats alone, else ``numpy``.

    JAX is looked up among the loaded modules and never imported: without it ``estimate`` starts in 0.3 s.
    """
    # The exact type, since np.float64 inherits from float and is NumPy's business.
    for array in arrays:
        if type(array) is not float:
            break
    else:
        return _Floats
    jax = sys.modules.get("jax")
    # A tracer is a jax.Array, too, so that one check serves values and traces.
    if jax is not None and any(isinstance(array, jax.Array) for array in arrays):
        return jax.numpy
    return np


def is_traced(array: Array) -> bool:
    """Whether an array's numbers are not known yet, because JAX traces the function that computes on it."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(array, jax.core.Tracer)
