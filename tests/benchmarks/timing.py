"""Stopwatches: the best of several runs, because other programs on the machine only ever make one slower."""

from __future__ import annotations

import json
import os
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 1800
REPEATS = 4


@dataclass(frozen=True)
class Best:
    """Shortest wall time of several runs, and the least processor time of a run, with processes that it started."""

    wall_s: float
    cpu_s: float


def cores() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def best_of(run: Callable[[], Any], repeats: int = REPEATS) -> Best:
    """The best of ``repeats`` runs after one that warms up."""
    run()
    times = []
    for _ in range(repeats):
        cpu, wall = processor_s(), time.perf_counter()
        run()
        times.append((time.perf_counter() - wall, processor_s() - cpu))
    return Best(*(min(column) for column in zip(*times, strict=True)))


def in_threads(run: Callable[[Any], Any], jobs: Sequence[Any], threads: int) -> list[Any]:
    """Results of ``run`` on all jobs, in order, by a pool of threads (XLA runs outside Python's lock)."""
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(run, jobs))


def in_process(*arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """Standard output of a fresh Python with these arguments, in the repository's root."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=os.environ | dict(environment or {}),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)} exited with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def probe(module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What a module of this package that measures its own process prints as JSON on its last line."""
    lines = in_process("-m", f"tests.benchmarks.{module}", *arguments, environment=environment).splitlines()
    return json.loads(lines[-1])


def median_start(*arguments: str, runs: int = 5) -> float:
    """Median wall time of a fresh Python with these arguments, seconds; one more run before fills the disk's cache."""
    times = []
    for _ in range(runs + 1):
        start = time.perf_counter()
        in_process(*arguments)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def processor_s() -> float:
    """Processor time of this process and of those that it started, which have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def peak_memory_of_all(looks: Callable[[], bool]) -> int:
    """The most bytes that this process and those that it started had resident together, pages that they share counted
    once, as looked at twice a second as long as ``looks`` says so; those of this process alone where they are more."""
    most = 0
    while looks():
        tasks = Path("/proc/self/task").glob("*/children")
        started = [number for task in tasks for number in task.read_text(encoding="utf-8").split()]
        most = max(most, sum(map(_resident, ["self", *started])))
        time.sleep(0.5)
    return max(most, peak_memory())


def _resident(process: str) -> int:
    """With its share of pages that others have, too."""
    try:
        found = re.search(r"\nPss:\s*(\d+) kB", Path(f"/proc/{process}/smaps_rollup").read_text(encoding="utf-8"))
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return 0
    return int(found.group(1)) * 1024 if found else 0


def peak_memory() -> int:
    """Most bytes of memory that this process ever had resident.

    Linux hands ``ru_maxrss`` down from the process that started this one, so its own high-water mark is read instead.
    """
    status = Path("/proc/self/status")
    if status.exists():
        found = re.search(r"VmHWM:\s*(\d+) kB", status.read_text(encoding="utf-8"))
        if found:
            return int(found.group(1)) * 1024
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale
