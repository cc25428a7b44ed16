"""Which LLM serving design to build or buy: thousands of designs on real traffic, on a laptop.

The public functions are imported when they are first touched, so that ``import evaluator`` costs nothing
and JAX is loaded only by what computes.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from evaluator.version import __version__

if TYPE_CHECKING:
    from evaluator.cost.iteration import iteration_time
    from evaluator.errors import InputError
    from evaluator.estimation import estimate
    from evaluator.run import simulate, sweep
    from evaluator.scenario import load_scenario
    from evaluator.search import optimize
    from evaluator.validation import validate

__all__ = [
    "InputError",
    "__version__",
    "estimate",
    "iteration_time",
    "load_scenario",
    "optimize",
    "simulate",
    "sweep",
    "validate",
]

_HOME = {
    "InputError": "evaluator.errors",
    "estimate": "evaluator.estimation",
    "iteration_time": "evaluator.cost.iteration",
    "load_scenario": "evaluator.scenario",
    "optimize": "evaluator.search",
    "simulate": "evaluator.run",
    "sweep": "evaluator.run",
    "validate": "evaluator.validation",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'evaluator' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
