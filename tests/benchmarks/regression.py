"""Two commits side by side: the processor time of the cases of docs/speed.md, in turns, on whatever machine this is.

``python -m tests.benchmarks.regression BEFORE [AFTER]``, or ``make bench-regression BEFORE=main``. Each commit has a
work tree and a process of its own, in which every case runs once to compile and then in turns with the other commit's;
so what else the machine does meets both. Ratios are medians over pairs, with their quartiles: more than 1 is slower
than before. AFTER is the tree as it lies here unless it names a commit. A case that a commit cannot run is left out,
and says why.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HERE = "."
PER_DESIGN = 1000
"""Requests."""
ON_DEMAND = {"deployment.kv.admission": "on_demand"}
TIGHT = {**ON_DEMAND, "deployment.kv.capacity_tokens": 40_000}
OF_EIGHT = {"sweep": {"workload.arrivals.rate_rps": [8, 160]}}
EIGHT = {**OF_EIGHT, "deployment.replicas": 8}
LOCKSTEP = {**OF_EIGHT, "deployment.data_parallel": 8, "deployment.model": "qwen3-30b-a3b"}
SESSIONS = {"turns": 4, "think_s": 5}
POOLS = {"prefill": {"role": "prefill"}, "decode": {"role": "decode"}}
CASES: dict[str, dict[str, Any]] = {
    "chunked": {},
    "continuous": {"deployment.batching.policy": "continuous"},
    "MoE": {"deployment.model": "qwen3-30b-a3b"},
    "windowed, MoE": {"deployment.model": "gpt-oss-20b"},
    "on_demand": ON_DEMAND,
    "on_demand, windowed, MoE": {**ON_DEMAND, "deployment.model": "gpt-oss-20b"},
    "on_demand, short of KV": TIGHT,
    "planned ahead": {"deployment.batching.planning": "asynchronous"},
    "planned ahead, on_demand": {**ON_DEMAND, "deployment.batching.planning": "asynchronous"},
    "orca": {"deployment.batching.policy": "orca"},
    "least_work_left": {"deployment.batching.packing": "least_work_left"},
    "512 tokens of a prompt at a time": {"deployment.batching.long_prefill_token_threshold": 512},
    "lightllm": {"deployment.batching.policy": "lightllm", "deployment.kv.block_tokens": 1},
    "two pipeline ranks": {"deployment.pipeline_parallel": 2},
    "8 replicas, least_outstanding": {**EIGHT, "deployment.router": "least_outstanding"},
    "8 replicas, least_work": {**EIGHT, "deployment.router": "least_work"},
    "8 replicas, least_kv, short of KV": {**EIGHT, **TIGHT, "deployment.router": "least_kv"},
    "8 data-parallel ranks in lockstep": LOCKSTEP,
    "8 ranks in lockstep, least_outstanding": {**LOCKSTEP, "deployment.router": "least_outstanding"},
    "prefix cache by content": {**ON_DEMAND, "deployment.kv.prefix_caching": True, "workload.sessions": SESSIONS},
    "prefill and decode apart": {"deployment.pools": POOLS, "deployment.transfer": {"link": "rdma-400g"}},
    "drafts": {"deployment.speculative": {"method": "ngram", "tokens": 3, "acceptance": 0.6}},
    "as many devices as designs": {"sweep": {"deployment.hardware.memory_bandwidth": [3.0e12, 3.4e12]}},
}
"""Changes of the scenario of ``asked`` by name; what ``sweep`` names is swept in place of the rate."""


def asked(case: str, designs: int) -> dict[str, Any]:
    """The scenario of a case, of so many designs with 1,000 requests each."""
    # Not above: the process of an older commit runs this file with that commit's package, which may lack the module.
    from evaluator.arguments.table import put

    changes = dict(CASES[case])
    ends = changes.pop("sweep", {"workload.arrivals.rate_rps": [1, 20]})
    scenario: dict[str, Any] = {
        "name": "regression",
        "workload": {
            "arrivals": {"process": "poisson", "rate_rps": 10},
            "lengths": {"source": "azure-conv-2023"},
            "requests": PER_DESIGN,
            "warmup_requests": 100,
            "seeds": [0],
        },
        # What engines do by themselves may differ between commits: cases say what their speed depends on.
        "deployment": {
            "model": "llama-3.1-8b",
            "hardware": "h100-sxm",
            "kv": {"admission": "reserve", "memory_fraction": 0.9},
        },
        "sweep": {key: {"linspace": [*values, designs]} for key, values in ends.items()},
    }
    for key, value in changes.items():
        put(scenario, key, value)
    return scenario


# -- in the process of a commit, which has nothing of this file but what it is sent


def serve() -> None:
    """For each scenario on standard input: the processor time of its sweep, or why it did not run."""
    from evaluator import sweep

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed
    for line in sys.stdin:
        start = _cpu_s()
        try:
            statuses = sweep(json.loads(line), simulator="iteration", progress=False)["status"].values
            answer = {"cpu_s": _cpu_s() - start, "problem": next((str(one) for one in statuses if one != "ok"), None)}
        except Exception as error:
            answer = {"problem": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


def _cpu_s() -> float:
    """Of all threads, and of processes that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


# -- in the process that compares


@contextmanager
def work_tree(commit: str) -> Iterator[Path]:
    """The files of a commit, as long as they are needed."""
    if commit == HERE:
        yield ROOT
        return
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        _git("worktree", "add", "--quiet", "--detach", str(tree), commit)
        try:
            yield tree
        finally:
            _git("worktree", "remove", "--force", str(tree))


def _git(*arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=ROOT, check=True)


@contextmanager
def serving(tree: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that runs the package of a work tree."""
    code = f"import runpy; runpy.run_path({__file__!r})['serve']()"
    environment = os.environ | {"PYTHONPATH": str(tree)}
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tree,
        env=environment,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.communicate()  # the end of its input ends it


def cpu_s(process: subprocess.Popen[str], scenario: dict[str, Any]) -> float:
    """Processor time of the scenario in a process; RuntimeError with what is wrong where it does not run."""
    assert process.stdin is not None and process.stdout is not None
    print(json.dumps(scenario), file=process.stdin, flush=True)
    answer = json.loads(process.stdout.readline() or '{"problem": "the process ended"}')
    if answer["problem"]:
        raise RuntimeError(answer["problem"])
    return answer["cpu_s"]


def compared(processes: list[subprocess.Popen[str]], scenario: dict[str, Any], pairs: int) -> str:
    """A row: medians of both commits, and the ratio of pairs."""
    for process in processes:
        cpu_s(process, scenario)  # compiles
    times: list[tuple[float, float]] = []
    for number in range(pairs):
        order = processes if number % 2 == 0 else processes[::-1]  # neither is always the second
        one, other = (cpu_s(process, scenario) for process in order)
        times.append((one, other) if number % 2 == 0 else (other, one))
    before, after = (statistics.median(column) for column in zip(*times, strict=True))
    low, middle, high = statistics.quantiles([other / one for one, other in times], method="inclusive")
    return f"{before:8.3f} {after:8.3f} {middle:7.3f}   {low:.3f} to {high:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.regression", description=__doc__)
    parser.add_argument("before", help="a commit")
    parser.add_argument("after", nargs="?", default=HERE, help="another; the tree as it is without one")
    parser.add_argument("--pairs", type=int, default=7, help="runs of each commit")
    parser.add_argument("--designs", type=int, default=128, help="of a case, with 1,000 requests each")
    parser.add_argument("--cases", nargs="*", default=list(CASES), metavar="CASE", help=f"of {', '.join(CASES)}")
    chosen = parser.parse_args()
    unknown = [case for case in chosen.cases if case not in CASES]
    if unknown or chosen.pairs < 2:
        parser.error(f"no case {', '.join(unknown)}; there are {', '.join(CASES)}" if unknown else "two pairs at least")
    print(f"{'':34}{'before':>8} {'after':>8} {'ratio':>7}   quartiles (processor seconds)", flush=True)
    with ExitStack() as stack:
        trees = [stack.enter_context(work_tree(commit)) for commit in (chosen.before, chosen.after)]
        for case in chosen.cases:
            with (
                ExitStack() as running
            ):  # a process for each case: what one compiled does not fill the next one's memory
                processes = [running.enter_context(serving(tree)) for tree in trees]
                try:
                    row = compared(processes, asked(case, chosen.designs), chosen.pairs)
                except RuntimeError as error:
                    row = f" not compared: {error}"
            print(f"{case:34}{row}", flush=True)


if __name__ == "__main__":
    main()
