"""Worker processes: within one process Python's lock keeps engines in plain Python to one processor, and the compiled
engine, whose chunks take and give back that lock some 4,000 times, to one and a half.

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
from evaluator.device import compilation_cache
from evaluator.plan import Configuration, Group, Plan, RateChange, plan
from evaluator.replica import Change
from evaluator.simulation.summaries import Values, summaries

Variant = tuple[int, tuple[Change | RateChange, ...]]
"""A configuration by its row of the grid, and the changes by which it differs from that."""

Question = tuple[Group, list[Variant]]
"""A chunk as another process is asked for it: its group, with the shapes of its compiled programs but without
configurations, and what is to be computed."""


def processors() -> int:
    """How many processors this process may use."""
    # Not ``os.cpu_count``, which is the whole machine also where a container or ``taskset`` leaves two of its cores.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def task_of(whole: Plan, levels: np.ndarray) -> bytes:
    """What all chunks of a sweep have in common, as another process gets it before the first one."""
    return pickle.dumps((whole.scenario, whole.simulator, whole.inputs, whole.by_seed, whole.able, levels))


def plan_of_task(task: BinaryIO) -> tuple[Plan, np.ndarray]:
    """In the worker process: the plan of the sweep, without configurations yet, and the levels of its quantiles."""
    scenario, simulator, inputs, by_seed, able, levels = pickle.load(task)
    # Of no row: those of a chunk are planned when it is asked for (``answer_of``), by the same simulators.
    whole = plan(scenario, np.zeros(0, dtype=np.int64), simulator, inputs, by_seed)
    return replace(whole, able=able), levels


def question_of(whole: Plan, chunk: list[Configuration]) -> Question:
    """A chunk as it is sent to another process: the objects that configurations share would be sent with each."""
    # A configuration has its workload, costs and plan with it; the worker has planned the same scenario and finds it
    # again by its number.
    asked = [(configuration.config, configuration.changes) for configuration in chunk]
    return replace(whole.group_of(chunk[0]), configurations=[]), asked


def answer_of(whole: Plan, levels: np.ndarray, question: Question) -> Values:
    """In the worker process: the statistics of a chunk."""
    group, asked = question
    chunk = whole.of(np.unique([config for config, _ in asked]))
    configurations = {configuration.config: configuration for configuration in chunk.configurations}
    variants = [reduce(chunk.changed, changes, configurations[config]) for config, changes in asked]
    # The group of the whole sweep: its shapes are those of the programs that all processes compile.
    return summaries(replace(chunk, groups=[replace(group, configurations=variants)]), variants, levels)


class WorkerPool:
    """Workers that are started as they are needed, one for each thread that asks at a time; ``close`` ends them."""

    def __init__(self, whole: Plan, levels: np.ndarray) -> None:
        self._whole, self._task = whole, task_of(whole, levels)
        self._idle: list[subprocess.Popen] = []
        self._all: list[subprocess.Popen] = []
        self._lock = Lock()
        self._closed = False

    def compute(self, chunk: list[Configuration]) -> Values:
        """The statistics of one chunk, row by row. What went wrong in the worker is raised here."""
        worker = self._take()
        try:
            answer = _ask(worker, question_of(self._whole, chunk))
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


def _ask(worker: subprocess.Popen, question: Question) -> Any:
    assert worker.stdin is not None and worker.stdout is not None
    try:
        pickle.dump(question, worker.stdin)
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
    """The environment of a worker: this very package, wherever it was imported from, one thread, and what a program may
    have told JAX itself."""
    package = str(Path(evaluator.__file__).parents[1])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    # One thread each, since there is a worker for every processor; BLAS would start as many again in each of them.
    threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    # The compiled engine has workers only where JAX computes on processors.
    jax_settings = {"JAX_PLATFORMS": "cpu"}
    cache = sys.modules["jax"].config.jax_compilation_cache_dir if "jax" in sys.modules else None
    if cache and cache != str(compilation_cache()):
        jax_settings["JAX_COMPILATION_CACHE_DIR"] = cache
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **threads, **jax_settings}
