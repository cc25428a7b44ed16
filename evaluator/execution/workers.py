"""Worker processes for engines in plain Python, which would keep to one processor within one process.

They are started by their own command, not by ``multiprocessing``: that would run a user's script or notebook once more
in each of them, and a fork of a process in which JAX has threads may hang.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO

import numpy as np

import evaluator
from evaluator.plan import Configuration, Plan, RateChange, plan
from evaluator.plan.simulators import REQUEST, TOKEN
from evaluator.replica import Change

Variant = tuple[int, tuple[Change | RateChange, ...]]
"""A configuration by its row of the grid, and the changes by which it differs from that."""


def processors() -> int:
    """How many processors this process may use."""
    # Not ``os.cpu_count``, which is the whole machine also where a container or ``taskset`` leaves two of its cores.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def task_of(whole: Plan, simulator: str, levels: np.ndarray) -> bytes:
    """What all chunks of a sweep have in common, as another process gets it before the first one."""
    return pickle.dumps((whole.scenario, simulator, whole.inputs, whole.by_seed, whole.able, levels))


def plan_of_task(task: BinaryIO) -> tuple[Plan, np.ndarray]:
    """In the worker process: the plan of the sweep, without configurations yet, and the levels of its quantiles."""
    scenario, simulator, inputs, by_seed, able, levels = pickle.load(task)
    # Of no row: those of a chunk are planned when it is asked for (``configurations_of``), by the same simulators.
    whole = plan(scenario, np.zeros(0, dtype=np.int64), simulator, inputs, by_seed)
    return replace(whole, able=able), levels


def variants_of(chunk: list[Configuration]) -> list[Variant]:
    """A chunk as it is sent to another process: the objects that configurations share would be sent with each."""
    # A configuration has its workload, costs and plan with it; the worker has planned the same scenario and finds it
    # again by its number.
    return [(configuration.config, configuration.changes) for configuration in chunk]


def configurations_of(whole: Plan, asked: list[Variant]) -> tuple[Plan, list[Configuration]]:
    """In the worker process: the plan of a chunk's configurations, which are of one group, and their variants."""
    chunk = whole.of(np.unique([config for config, _ in asked]))
    configurations = {configuration.config: configuration for configuration in chunk.configurations}
    return chunk, [reduce(chunk.changed, changes, configurations[config]) for config, changes in asked]


class WorkerPool:
    """Workers that are started as they are needed, one for each thread that asks at a time; ``close`` ends them."""

    def __init__(self, whole: Plan, levels: np.ndarray) -> None:
        # What the vectorised engine lacks is the reference's.
        simulator = REQUEST if whole.simulator == REQUEST else TOKEN
        self._task = task_of(whole, simulator, levels)
        self._idle: list[subprocess.Popen] = []
        self._all: list[subprocess.Popen] = []
        self._lock = Lock()
        self._closed = False

    def compute(self, chunk: list[Variant]) -> dict[str, np.ndarray]:
        """The statistics of one chunk, row by row. What went wrong in the worker is raised here."""
        worker = self._take()
        try:
            answer = _ask(worker, chunk)
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            raise RuntimeError(f"a worker process ended with code {worker.wait()}") from error
        # Only a worker that has answered is idle: after an exception of the pipe it may hold half an answer, and is
        # left to ``close``.
        self._idle.append(worker)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _take(self) -> subprocess.Popen:
        with self._lock:
            if self._closed:
                raise RuntimeError("the run is over")
            if self._idle:
                return self._idle.pop()
            worker = subprocess.Popen(
                [sys.executable, "-m", "evaluator.execution.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=_environment(),
            )
            # Under the lock, so that ``close`` misses none that was just started.
            self._all.append(worker)
        assert worker.stdin is not None
        with suppress(BrokenPipeError):  # told by the first question
            worker.stdin.write(self._task)
        return worker

    def close(self) -> None:
        """Kill the workers at once: the results of what they compute are not wanted any more."""
        with self._lock:
            self._closed = True
            for worker in self._all:
                worker.kill()
            for worker in self._all:
                worker.wait()
            for worker in self._idle:
                _close_pipes(worker)


def _ask(worker: subprocess.Popen, chunk: list[Variant]) -> Any:
    assert worker.stdin is not None and worker.stdout is not None
    try:
        pickle.dump(chunk, worker.stdin)
        worker.stdin.flush()
        return pickle.load(worker.stdout)
    except BaseException:
        _close_pipes(worker)
        raise


def _close_pipes(worker: subprocess.Popen) -> None:
    for pipe in (worker.stdin, worker.stdout):
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()


def _environment() -> dict[str, str]:
    """The environment of a worker: this very package, wherever it was imported from, and one thread."""
    package = str(Path(evaluator.__file__).parents[1])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    # One thread each, since there is a worker for every processor; BLAS would start as many again in each of them.
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
