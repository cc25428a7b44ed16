"""A class name means one thing in the whole package, so that a reader needs no import to know which one it is."""

import ast
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "evaluator"

SHARED = {
    # The programs of the engine are written side by side: each has its input, its structure and its state.
    "Given", "Lane", "State", "Structure",
    # What jobs ask of a station, and the section of a scenario that says so.
    "Demand",
}  # fmt: skip
"""Names that several files may define; each group of them with the reason."""


def places() -> dict[str, list[str]]:
    """The files that define each class name."""
    found = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                found[node.name].append(path.relative_to(PACKAGE).as_posix())
    return found


def test_a_class_name_stands_once():
    twice = {name: files for name, files in places().items() if len(files) > 1 and name not in SHARED}
    assert not twice, f"{twice}: give one of each a name of its own, or a reason in SHARED"


def test_the_exceptions_are_still_needed():
    needed = {name for name, files in places().items() if len(files) > 1}
    assert needed >= SHARED, f"{sorted(SHARED - needed)} stand once: take them out of SHARED"
