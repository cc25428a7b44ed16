"""How long a newcomer waits for the first output of a command, and for the answer of each scenario of the gallery."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator

import numpy as np

from evaluator.metrics import OK
from evaluator.plan import Plan, plan
from evaluator.plan.simulators import AUTO
from evaluator.scenario import load_scenario
from tests.benchmarks.registry import Row, benchmark
from tests.benchmarks.timing import ROOT, in_process, median_start, processor_s

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
SIMULATE = "import sys, json, evaluator; evaluator.simulate(sys.argv[1], select=json.loads(sys.argv[2]))"


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
    """Seconds of `sweep` of each scenario, and of `simulate` of one of its designs, with an empty cache of programs."""
    in_process("-m", "evaluator", "--help")  # bytecode, which an installer writes
    for path in sorted((ROOT / "scenarios").glob("*.yaml")):
        if path.stem in NEEDS_A_TRACE or (quick and path.stem not in QUICK):
            continue
        found = plan(load_scenario(path), simulator=AUTO)
        engines = ", ".join(sorted({group.simulator for group in found.groups}))
        with tempfile.TemporaryDirectory() as folder:
            wall, cpu = _took(folder, "-m", "evaluator", "sweep", str(path), "--quiet", "--out", f"{folder}/out.nc")
        yield Row(path.stem, wall, "s", f"{cpu:.1f} s of processors; {found.requests:,} requests, {engines}")
        with tempfile.TemporaryDirectory() as folder:
            wall, cpu = _took(folder, "-c", SIMULATE, str(path), json.dumps(_one_of(found)))
        yield Row(f"{path.stem}: simulate", wall, "s", f"{cpu:.1f} s of processors")


def _one_of(found: Plan) -> dict[str, str]:
    """The selection of the middle one of the configurations that can run."""
    able = np.flatnonzero([configuration.status == OK for configuration in found.configurations])
    steps = found.grid.steps(int(able[len(able) // 2]))
    return {axis.name: str(axis.values[step]) for axis, step in zip(found.grid.axes, steps, strict=True)}


def _took(folder: str, *arguments: str) -> tuple[float, float]:
    """Seconds of a fresh Python until it ends, and of all processors; programs are kept in the folder."""
    before, start = processor_s(), time.perf_counter()
    in_process(*arguments, environment={"EVALUATOR_CACHE": f"{folder}/cache"})
    return time.perf_counter() - start, processor_s() - before
