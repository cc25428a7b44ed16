"""How long a newcomer waits for the first output of a command."""

from __future__ import annotations

from collections.abc import Iterator

from tests.benchmarks.registry import Row, benchmark
from tests.benchmarks.timing import median_start

COMMANDS = {
    "evaluator --help": ("--help",),
    "evaluator estimate": (
        "estimate",
        "--model",
        "llama-3.1-70b",
        "--hardware",
        "h100-sxm",
        "--tp",
        "4",
        "--rate",
        "2",
    ),
}


@benchmark("cold-start")
def cold_start(quick: bool) -> Iterator[Row]:
    """Seconds of `--help` and `estimate` in a fresh process."""
    bare = median_start("-c", "pass")
    yield Row("python -c pass", bare, "s", "median of 5")
    for label, arguments in COMMANDS.items():
        took = median_start("-m", "evaluator", *arguments)
        yield Row(label, took, "s", f"median of 5; {took / bare:.1f} x an empty Python")
