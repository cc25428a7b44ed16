"""How long a newcomer waits for the first output of a command, and for the answer of each scenario of the gallery."""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from evaluator.plan import plan
from evaluator.plan.simulators import AUTO
from evaluator.scenario import load_scenario
from tests.benchmarks.registry import Row, benchmark
from tests.benchmarks.timing import ROOT, in_process, median_start

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
QUICK = ("quickstart", "disaggregation", "prefix-caching")
NEEDS_A_TRACE = ("trace-replay",)


@benchmark("cold-start")
def cold_start(quick: bool) -> Iterator[Row]:
    """Seconds of `--help` and `estimate` in a fresh process."""
    bare = median_start("-c", "pass")
    yield Row("python -c pass", bare, "s", "median of 5")
    for label, arguments in COMMANDS.items():
        took = median_start("-m", "evaluator", *arguments)
        yield Row(label, took, "s", f"median of 5; {took / bare:.1f} x an empty Python")


@benchmark("gallery")
def gallery(quick: bool) -> Iterator[Row]:
    """Seconds of `evaluator sweep` of each scenario with an empty cache of programs, and of its processors."""
    in_process("-m", "evaluator", "--help")  # bytecode, which an installer writes
    for path in sorted((ROOT / "scenarios").glob("*.yaml")):
        if path.stem in NEEDS_A_TRACE or (quick and path.stem not in QUICK):
            continue
        with tempfile.TemporaryDirectory() as folder:
            environment = {"EVALUATOR_CACHE": str(Path(folder) / "cache")}
            wall, cpu = _took("sweep", str(path), "--quiet", "--out", f"{folder}/out.nc", environment=environment)
        found = plan(load_scenario(path), simulator=AUTO)
        engines = ", ".join(sorted({group.simulator for group in found.groups}))
        yield Row(path.stem, wall, "s", f"{cpu:.1f} s of processors; {found.requests:,} requests, {engines}")


def _took(*arguments: str, environment: dict[str, str]) -> tuple[float, float]:
    """Seconds of a command until it ends, and of all processors."""
    before, start = _ended_s(), time.perf_counter()
    in_process("-m", "evaluator", *arguments, environment=environment)
    return time.perf_counter() - start, _ended_s() - before


def _ended_s() -> float:
    """Processor time of processes that have ended, and of those that these started."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
