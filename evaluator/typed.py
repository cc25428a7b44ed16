"""The scenario file as Python types: dictionaries that editors complete and type checkers check.

``evaluator.sweep(Scenario(workload=Workload(...), deployment=Deployment(...)))`` takes what YAML would hold. At run
time all of them are plain dictionaries, and what the loader refuses of a file it refuses of them. Quantities are SI
numbers or texts with a unit (``80GB``, ``50ms``).

The types follow from the keys of the records. Here they are made when one of them is first asked for; type checkers and
editors read ``typed.pyi``, which is written when the package is built or installed for development (``make typed``
after a change of the keys), and is not in the repository.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal, get_origin


@cache
def _types() -> dict[str, Any]:
    """The types by their names."""
    from evaluator.scenario.python_types import python_types

    module: dict[str, Any] = {"__name__": __name__}
    # The text is made by the package of its own records.
    exec(python_types(), module)
    # Without what the text imports: its own are classes, and choices of very many words.
    made_here = {name: getattr(value, "__module__", "") == __name__ for name, value in module.items()}
    return {name: value for name, value in module.items() if made_here[name] or get_origin(value) is Literal}


def __getattr__(name: str) -> Any:
    if not name.startswith("_") and name in _types():  # names with _ are asked for by the import system
        return _types()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(_types())
