"""The package of a tree in numbers: sizes, comments, names, records, and the files that one design enters.

``python -m tests.benchmarks.house [TREE ...]`` prints a column for each tree (default: this one), so that two commits
stand side by side. Sources are read by ``ast`` and ``tokenize``; the design is traced in a process of its own, by
``sys.setprofile``.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import io
import json
import os
import subprocess
import sys
import threading
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
GENERATED = ("typed.py",)
"""Modules that a program writes: they count as modules and lines, but their classes and functions are nobody's work."""

TIMES = ("scheduled_s", "first_token_s")
FIELDS = (*TIMES, "output_tokens", "busy_s", "kv_unit_s", "max_num_seqs")
"""Fields that say the same of a request, a station or a limit wherever they stand; each class with one repacks it."""

VAGUE = ("found", "one", "each", "at", "place", "own", "known", "there", "told", "kept")
"""Names that say nothing of what they hold."""

COMPILED = ("Structure", "Program", "StationGroup", "CompileKey")
"""What classes are called that say what is compiled."""

SHORT, LONG, MANY = 6, 40, 6
"""Lines of a function that could stand where it is used, lines that fill a screen, and parameters that are enough."""


@dataclass
class Module:
    """What one file has. Lines of a function are those from ``def`` on."""

    path: str  # within the package
    lines: int = 0
    code: int = 0  # lines with a token beside docstrings (of modules, classes, functions) and comments
    comments: int = 0  # lines that hold nothing else
    beside: int = 0  # comments behind code
    functions: list[int] = field(default_factory=list)
    parameters: list[int] = field(default_factory=list)
    private: list[tuple[int, int]] = field(default_factory=list)  # lines, and how often the file says its name
    classes: list[str] = field(default_factory=list)
    fields: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))  # of FIELDS -> classes
    assigned: Counter[str] = field(default_factory=Counter)

    @property
    def room(self) -> str:
        return self.path.split("/")[0].removesuffix(".py")


def read(path: Path, package: Path) -> Module:
    """The counts of one file."""
    text = path.read_text(encoding="utf-8")
    module = Module(path.relative_to(package).as_posix(), lines=len(text.splitlines()))
    tree = ast.parse(text)
    documented: set[int] = set()
    names, said = [], Counter[str]()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            documented.update(_docstring(node))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            module.assigned[node.id] += 1
        if module.path in GENERATED:
            continue
        if isinstance(node, ast.ClassDef):
            module.classes.append(node.name)
            for key in (part.target.id for part in node.body if _is_field(part)):
                module.fields[key].append(node.name)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            taken = node.args
            module.functions.append(node.end_lineno - node.lineno + 1)
            module.parameters.append(len(taken.posonlyargs) + len(taken.args) + len(taken.kwonlyargs))
            if node.name.startswith("_") and not node.name.startswith("__"):
                names.append((node.name, module.functions[-1]))
    occupied: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            alone = token.line.strip().startswith("#")
            module.comments += alone
            module.beside += not alone
        elif token.string.strip() and token.type != tokenize.ENDMARKER:
            occupied.update(range(token.start[0], token.end[0] + 1))
        if token.type == tokenize.NAME:
            said[token.string] += 1
    module.code = len(occupied - documented)
    module.private = [(lines, said[name]) for name, lines in names]
    return module


def _docstring(node: Any) -> range:
    first = node.body[0] if node.body else None
    text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    return range(first.lineno, first.end_lineno + 1) if text else range(0)


def _is_field(part: ast.stmt) -> bool:
    return isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)


def modules_of(tree: Path) -> list[Module]:
    """The modules of a tree's package."""
    package = tree / "evaluator"
    return [read(path, package) for path in sorted(package.rglob("*.py"))]


def counted(modules: Sequence[Module]) -> Iterator[tuple[str, str]]:
    """What there is of a package, row by row."""
    code, comments = sum(each.code for each in modules), sum(each.comments for each in modules)
    functions = [lines for each in modules for lines in each.functions]
    private = [entry for each in modules for entry in each.private]
    once = [lines for lines, said in private if said == 2]  # where it is defined, and one more time
    classes = Counter(name for each in modules for name in each.classes)
    yield "modules", f"{len(modules):,}"
    yield "lines", f"{sum(each.lines for each in modules):,}"
    yield "lines of code", f"{code:,}"
    yield "lines of a module: median / p90 / most", _spread([each.lines for each in modules])
    yield "classes, without generated ones", f"{classes.total():,}"
    yield "names of classes that are defined more than once", f"{sum(count > 1 for count in classes.values()):,}"
    yield "functions", f"{len(functions):,}"
    yield "lines of a function: median / p90 / most", _spread(functions)
    yield f"functions of more than {LONG} lines", f"{sum(lines > LONG for lines in functions):,}"
    many = sum(count > MANY for each in modules for count in each.parameters)
    yield f"functions of more than {MANY} parameters", f"{many:,}"
    yield "private functions", f"{len(private):,}"
    yield "private functions that are used once", f"{len(once):,}"
    yield f"of these with at most {SHORT} lines", f"{sum(lines <= SHORT for lines in once):,}"
    yield "lines of comment alone", f"{comments:,}"
    yield "lines of comment per 100 of code", f"{100 * comments / code:.1f}"
    yield "comments behind code per 100 lines of code", f"{100 * sum(each.beside for each in modules) / code:.1f}"
    for name in FIELDS:
        yield f"classes with a field {name}", f"{sum(len(each.fields[name]) for each in modules)}"
    times = {(each.path, name) for each in modules for key in TIMES for name in each.fields[key]}
    yield "records of a request's times (either of the first two)", f"{len(times)}"
    compiled = sum(any(name.endswith(word) for word in COMPILED) for name in classes.elements())
    yield f"classes called {', '.join(COMPILED)}", f"{compiled}"
    for name in VAGUE:
        where = [each.assigned[name] for each in modules if each.assigned[name]]
        yield f"{name} = ...", f"{sum(where)} in {len(where)} modules"


def _spread(lines: Sequence[int]) -> str:
    ordered = sorted(lines)
    return f"{median(ordered):g} / {ordered[int(0.9 * len(ordered))]:,} / {ordered[-1]:,}"


def by_room(modules: Sequence[Module]) -> Iterator[tuple[str, str]]:
    """Comment lines per 100 lines of code and lines of code of each room, the largest first."""
    rooms: dict[str, list[Module]] = defaultdict(list)
    for each in modules:
        rooms[each.room].append(each)
    for room, inside in sorted(rooms.items(), key=lambda entry: -sum(each.code for each in entry[1])):
        code, comments = sum(each.code for each in inside), sum(each.comments for each in inside)
        share = f"{100 * comments / code:.1f}" if code else "-"
        yield room, f"{len(inside):>3} files {code:>6,} code {share:>5} comments"


class Trace:
    """Counts the files of the package that calls go to: as ``sys.setprofile``, in all threads."""

    def __init__(self, package: Path) -> None:
        self.package, self.files, self.calls, self.changes = f"{package}{os.sep}", set[str](), 0, 0
        self._last = ""

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            name = frame.f_code.co_filename
            if name.startswith(self.package):
                self.calls += 1
                self._go(name)
        elif event == "return":  # the file that it returns to, over those of other packages
            caller = frame.f_back
            while caller is not None and not caller.f_code.co_filename.startswith(self.package):
                caller = caller.f_back
            if caller is not None:
                self._go(caller.f_code.co_filename)

    def _go(self, name: str) -> None:
        self.files.add(name)
        self.changes += name != self._last and bool(self._last)
        self._last = name

    def of(self, run: Callable[[], Any]) -> Any:
        """What ``run`` returns, which is traced."""
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            return run()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]

    def __str__(self) -> str:
        rooms = {name.removeprefix(self.package).split(os.sep)[0] for name in self.files}
        return f"{len(self.files)} files in {len(rooms)} rooms"


def traced() -> Iterator[tuple[str, str]]:
    """The files that one design of quickstart enters, 200 requests, with the plain-Python simulator: no JAX."""
    import evaluator

    package = Path(evaluator.__file__).resolve().parent
    axes = (
        "deployment.hardware: [h100-sxm], deployment.tensor_parallel: [4], deployment.batching.policy: [chunked], "
        "workload.arrivals.rate_rps: [4]"
    )
    changes = ("workload.requests=200", "workload.warmup_requests=20", f"sweep={{{axes}}}")
    load_scenario, sweep = evaluator.load_scenario, evaluator.sweep  # looked up here: that runs evaluator/__init__.py
    simulator = "simulator" if "simulator" in inspect.signature(sweep).parameters else "engine"
    load, planned, run, table = (Trace(package) for _ in range(4))
    scenario = load.of(lambda: load_scenario(package.parent / "scenarios/quickstart.yaml", changes))
    yield "load", str(load)
    try:
        from evaluator.plan import plan

        planned.of(lambda: plan(scenario))
        yield "plan alone", str(planned)
        yield "changes of file in it, to and fro", f"{planned.changes:,}"
        yield "calls of load and plan", f"{load.calls + planned.calls:,}"
    except ImportError as error:  # the one name here that is not public
        yield "plan alone", f"not found: {error}"
    result = run.of(lambda: sweep(scenario, **{simulator: "token"}))
    table.of(lambda: repr(result.evaluator))
    run.files |= table.files
    yield "sweep, token by token, and its table", str(run)
    run.files |= load.files | planned.files
    yield "all", str(run)


def _trace_of(tree: Path) -> list[tuple[str, str]]:
    """``traced`` of a tree, in a process that imports its package."""
    ran = subprocess.run(
        [sys.executable, __file__, "--trace"],
        env=os.environ | {"PYTHONPATH": str(tree)}, cwd=tree, capture_output=True, text=True,
    )  # fmt: skip
    if ran.returncode:
        return [("traced", f"failed: {ran.stderr.strip().splitlines()[-1]}")]
    return [(str(label), str(value)) for label, value in json.loads(ran.stdout)]


def table(trees: Sequence[Path]) -> str:
    """All rows, a column for each tree."""
    columns = []
    for tree in trees:
        modules = modules_of(tree)
        sections = {"": counted(modules), "files that one design enters": _trace_of(tree), "by room": by_room(modules)}
        columns.append({(title, label): value for title, rows in sections.items() for label, value in rows})
    titles = dict.fromkeys(title for column in columns for title, _ in column)
    keys = [key for title in titles for key in dict.fromkeys(k for column in columns for k in column if k[0] == title)]
    label_width = max(len(label) for _, label in keys)
    widths = [max(map(len, [tree.name, *column.values()])) for tree, column in zip(trees, columns, strict=True)]
    heads = (tree.name.rjust(width) for tree, width in zip(trees, widths, strict=True))
    lines, last = ["  ".join([" " * label_width, *heads]).rstrip()], ""
    for title, label in keys:
        lines += [f"\n{title}"] if title != last else []
        values = (column.get((title, label), "-").rjust(width) for column, width in zip(columns, widths, strict=True))
        lines.append("  ".join([label.ljust(label_width), *values]))
        last = title
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.house", description=__doc__)
    parser.add_argument("trees", nargs="*", type=Path, metavar="TREE", help="folders that hold evaluator/ (this one)")
    parser.add_argument("--trace", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.trace:
        print(json.dumps(list(traced())))
        return
    trees = [tree.resolve() for tree in chosen.trees or [ROOT]]
    missing = [str(tree) for tree in trees if not (tree / "evaluator").is_dir()]
    if missing:
        parser.error(f"no folder evaluator in {', '.join(missing)}")
    print(table(trees))


if __name__ == "__main__":
    main()
