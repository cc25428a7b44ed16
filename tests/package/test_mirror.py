"""Tests of a room look into it; those of other rooms use what it offers.

What is private (a name that begins with an underscore) and what lies deep (a module four levels down) may be imported
by the tests that mirror the room: ``tests/ROOM/`` or ``tests/test_ROOM.py``.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
DEEP = 5  # evaluator, its room, and three folders or modules below


def intrusions(path: Path, code: str) -> Iterator[str]:
    """What a test, at ``path`` below the tests, imports from within a room that it does not mirror."""
    mirrored = {path.parts[0], path.parts[0].removeprefix("test_").removesuffix(".py")}
    for node in ast.walk(ast.parse(code)):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("evaluator."):
            continue
        parts = str(node.module).split(".")
        private = [name.name for name in node.names if name.name.startswith("_")]
        private += [part for part in parts if part.startswith("_")]
        if (private or len(parts) >= DEEP) and parts[1] not in mirrored:
            yield f"{path}: from {node.module} import {', '.join(name.name for name in node.names)}"


def test_tests_look_into_the_room_that_they_mirror_alone():
    paths = (path.relative_to(TESTS) for path in sorted(TESTS.rglob("*.py")))
    tests = [path for path in paths if path.parts[0] != "benchmarks"]
    assert [text for path in tests for text in intrusions(path, (TESTS / path).read_text(encoding="utf-8"))] == []


def test_an_intrusion_is_found():
    private, deep = "from evaluator.units import _UNITS", "from evaluator.stations.engine.joint.state import where"
    for path, code, count in (
        ("test_units.py", private, 0), ("units/test_any.py", private, 0), ("cli/test_any.py", private, 1),
        ("stations/engine/joint/build.py", deep, 0), ("simulation/test_pools.py", deep, 1),
        ("cli/test_any.py", "from evaluator.units import parse", 0),
    ):  # fmt: skip
        assert len(list(intrusions(Path(path), code))) == count, (path, code)
