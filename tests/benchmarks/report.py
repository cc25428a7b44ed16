"""The table at the end, and the same as JSON."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.benchmarks.registry import Row
from tests.benchmarks.timing import cores

Results = Mapping[str, Sequence[Row]]


def line(row: Row) -> str:
    """One row as text."""
    return f"  {row.label:<52}{_number(row.value):>12} {row.unit:<14}{row.note}".rstrip()


def table(results: Results) -> str:
    """All rows under the names of their benchmarks."""
    blocks = ["\n".join([name, *map(line, rows)]) for name, rows in results.items()]
    return "\n\n".join([f"Benchmarks on {cores()} cores, {machine()}", *blocks])


def machine() -> str:
    """Processor and software, for whoever reads the numbers later."""
    from importlib.metadata import version

    return f"{_processor()}, Python {platform.python_version()}, jax {version('jax')}, numpy {version('numpy')}"


def write_json(path: Path, results: Results) -> None:
    """Write machine and rows."""
    rows = {name: [vars(row) for row in given] for name, given in results.items()}
    path.write_text(json.dumps({"machine": machine(), "cores": cores(), "benchmarks": rows}, indent=1) + "\n")


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    names = [text for text in info.read_text().splitlines() if text.startswith("model name")] if info.exists() else []
    return names[0].split(":", 1)[1].strip() if names else platform.processor() or platform.machine()


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) or abs(value) >= 1000 else f"{value:.3g}"
