"""Which LLM serving design to build or buy: thousands of designs on real traffic, on a laptop.

The public functions are imported when they are first touched, so that ``import evaluator`` costs nothing
and JAX is loaded only by what computes.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from evaluator.version import __version__

if TYPE_CHECKING:
    from evaluator.errors import InputError
    from evaluator.estimation.batches import iteration_time
    from evaluator.estimation.estimate import estimate
    from evaluator.report.accessor import read
    from evaluator.results.gather import gather
    from evaluator.run import simulate, sweep, sweep_shard
    from evaluator.scenario import load_scenario
    from evaluator.search import optimize
    from evaluator.validation import validate

__all__ = [
    "InputError",
    "__version__",
    "estimate",
    "gather",
    "iteration_time",
    "load_scenario",
    "optimize",
    "read",
    "simulate",
    "sweep",
    "sweep_shard",
    "validate",
]

# Where each name is defined; imported one by one, as JAX alone takes most of a second.
_HOME = {
    "InputError": "evaluator.errors",
    "estimate": "evaluator.estimation",
    "gather": "evaluator.results.gather",
    "iteration_time": "evaluator.estimation.batches",
    "load_scenario": "evaluator.scenario",
    "optimize": "evaluator.search",
    "read": "evaluator.report.accessor",
    "simulate": "evaluator.run",
    "sweep": "evaluator.run",
    "sweep_shard": "evaluator.run",
    "validate": "evaluator.validation",
}


_GIVE_DATASETS = ("optimize", "simulate", "sweep")


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'evaluator' has no attribute {name!r}")
    if name in _GIVE_DATASETS:
        import_module("evaluator.report.accessor")  # so that their datasets have ``.evaluator``
    value = getattr(import_module(_HOME[name]), name)
    # Kept in the module, so that the next access finds it without coming here.
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
