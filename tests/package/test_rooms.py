"""Data moves one way: a room of the package imports the rooms before it, never one behind it.

A room is a folder or a module directly in ``evaluator/``. ORDER is the data-flow line of the design, written as rows:
a room may import every room of the rows above its own. Rooms of one row do not know one another. A new room needs a
place in ORDER; an import against the order needs an entry in EXCEPTIONS, with the reason why it is right or what it
waits for. Only the command line and the package's own ``__init__`` may see everything.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "evaluator"

ORDER = (
    # What knows nothing of serving
    ("errors", "version", "progress", "device", "records", "registry"),
    ("units", "yaml"),
    # What things are, and how long an iteration takes
    ("catalog",),
    ("huggingface",),
    ("arguments",),  # the command lines of engines
    # How a scenario says them: readers of keys, which stand on the records that they fill, in any room from here on
    ("keys",),
    ("cost",),
    ("policies", "routing", "kv_managers", "speculation"),
    # Formulas on results; they know no scenario, and give the others their names of variables and states
    ("metrics",),
    # From what the user asks to what has to be run
    ("tiers",),
    ("stages",),
    ("scenario",),
    ("typed",),  # which is made from the keys
    ("traffic",),
    ("replica",),
    ("accuracy",),
    ("estimation",),
    ("plan",),
    # What runs it: JAX over many lanes, and plain Python token by token
    ("stations",),
    ("reference",),
    ("simulation",),
    ("execution",),
    # What becomes of it
    ("results",),
    ("report",),
    # Questions that a user asks as a whole
    ("run",),
    ("validation", "search"),
    ("deploy",),  # from a design of a result to what runs it
    ("observe",),  # the same load, sent by ourselves
    # Workshops beside the data flow: experiments that others measured, our own measurements, fits to both
    ("experiments",),
    ("compare",),
    ("calibrate",),
    ("measure",),
    ("parts",),  # what users build parts of their own from
    ("__init__",),
    ("cli",),
    ("__main__",),
)

EXCEPTIONS = {
    (
        "catalog/read_model.py",
        "evaluator.huggingface",
    ): "a config.json may stand for a model's name",
    ("execution/workers.py", "evaluator"): "finds the package's folder for the processes that it starts",
}

ROW = {room: row for row, rooms in enumerate(ORDER) for room in rooms}


def room_of(module: str) -> str:
    """The room of ``evaluator.room.more``; the package itself is the room ``__init__``."""
    return [*module.split("."), "__init__"][1]


def imports(path: Path) -> Iterator[str]:
    """The modules of the package that a file imports, anywhere in it, also for annotations alone."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name.split(".")[0] == "evaluator")
        elif isinstance(node, ast.ImportFrom) and node.module == "evaluator":
            yield from (f"evaluator.{each.name}" for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("evaluator."):
            yield node.module


def against_the_order(room: str, imported: str) -> bool:
    other = room_of(imported)
    return other != room and ROW[other] >= ROW[room]


def violations(files: Iterable[Path]) -> set[tuple[str, str]]:
    """(file, module that it imports) of every import against the order, exceptions included."""
    found = ((path.relative_to(PACKAGE), module) for path in files for module in imports(path))
    return {(str(path), module) for path, module in found if against_the_order(path.with_suffix("").parts[0], module)}


def rooms() -> list[str]:
    folders = (path.parent.name for path in PACKAGE.glob("*/__init__.py"))
    return sorted({*folders, *(path.stem for path in PACKAGE.glob("*.py"))})


def test_every_room_has_one_place_in_the_order():
    assert len(ROW) == sum(map(len, ORDER)), "a room stands in ORDER twice"
    missing = [room for room in rooms() if room not in ROW]
    assert not missing, f"{missing}: give them a row of ORDER in {Path(__file__).name}"


@pytest.mark.parametrize("room", rooms())
def test_a_room_imports_only_rooms_before_it(room):
    files = [*(PACKAGE / room).rglob("*.py"), *PACKAGE.glob(f"{room}.py")]
    found = sorted(violations(files) - set(EXCEPTIONS))
    told = "; ".join(f"{path} imports {module}" for path, module in found)
    assert not found, f"{told}: data moves one way, see ORDER in {Path(__file__).name}"


def test_every_exception_is_still_one():
    stale = set(EXCEPTIONS) - violations({PACKAGE / file for file, _ in EXCEPTIONS})
    assert not stale, f"{sorted(stale)} are no exceptions any more: take them out of EXCEPTIONS"


def test_an_import_against_the_order_is_found():
    assert against_the_order("cost", "evaluator.plan.plan") and against_the_order("stations", "evaluator.reference")
    assert not against_the_order("plan", "evaluator.cost.lanes") and not against_the_order("cost", "evaluator.cost")


LARGE = 5
"""A room of more files says where each of them belongs."""
EXEMPT = {
    "cli": "a module for each command, by its name",
    "routing": "a module for each router, by its name",
    "stages": "a module for each stage, by its name",
    "reference": "tells where to begin to read, which the others follow from",
}


def modules_without_a_word(room: Path) -> list[str]:
    """The modules and folders of a room that the docstring of its ``__init__`` does not name."""
    told = ast.get_docstring(ast.parse((room / "__init__.py").read_text(encoding="utf-8"))) or ""
    modules = [path.stem for path in sorted(room.glob("*.py")) if path.stem != "__init__"]
    folders = [path.name for path in sorted(room.iterdir()) if (path / "__init__.py").exists()]
    return [name for name in (*modules, *folders) if not re.search(rf"``{name}(/|\.py|)``", told)]


@pytest.mark.parametrize(
    "room",
    [path for path in sorted(PACKAGE.iterdir()) if len(list(path.glob("*.py"))) > LARGE],
    ids=lambda path: path.name,
)
def test_a_large_room_says_where_each_of_its_modules_belongs(room):
    assert room.name in EXEMPT or modules_without_a_word(room) == []
