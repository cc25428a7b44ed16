"""A vLLM server on this machine's processors, and its own load generator."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import evaluator
from tests.oracle.server.loads import SERVE

URL = "http://127.0.0.1:8233"
SERVED = "tiny"
HOOKS = Path(evaluator.__path__[0]) / "measure" / "hooks"
_READY_S = 300.0


@contextlib.contextmanager
def server(vllm: Path, model: Path, iterations: Path, log: Path) -> Iterator[None]:
    """Serves ``model`` at URL, its worker on a core of its own, until it is left; iterations go to a file."""
    cores = sorted(os.sched_getaffinity(0))
    environment = _environment() | {
        "PYTHONPATH": f"{HOOKS}{os.pathsep}{Path(__file__).parent}",
        "RECORD_ITERATIONS": str(iterations), "RECORD_MODEL": "tiny-llama", "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": str(cores[-1]), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    command = [
        str(vllm), "serve", str(model), "--served-model-name", SERVED, "--host", "127.0.0.1",
        "--port", URL.rpartition(":")[2], *SERVE, "--scheduler-cls", "sharing_scheduler.SharingScheduler",
    ]  # fmt: skip
    with log.open("w") as told:
        process = subprocess.Popen(
            command, env=environment, stdout=told, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        _first(process.pid)
        until = time.monotonic() + _READY_S
        while not _answers("/health"):
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the server did not start; {log} tells why")
            time.sleep(1)
        _first(process.pid)  # once more: what it has started since
        for pid in _of_session(process.pid):
            # The worker has its core of its own already; the HTTP server and the engine share what is left.
            if os.sched_getaffinity(pid) != {cores[-1]} and len(cores) > 1:
                os.sched_setaffinity(pid, cores[:-1])
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


def bench(vllm: Path, model: Path, arguments: Sequence[str], result: Path) -> dict:
    """One run of ``vllm bench serve`` on empty prefix caches: what it saved."""
    _answers("/reset_prefix_cache", b"")
    result.parent.mkdir(parents=True, exist_ok=True)
    command = [
        str(vllm), "bench", "serve", "--backend", "vllm", "--base-url", URL, "--model", SERVED,
        "--tokenizer", str(model), "--dataset-name", "random", "--ignore-eos", "--disable-tqdm",
        "--save-result", "--save-detailed", "--result-dir", str(result.parent), "--result-filename", result.name,
        *arguments,
    ]  # fmt: skip
    cores = sorted(os.sched_getaffinity(0))
    with result.with_suffix(".log").open("w") as told:
        process = subprocess.Popen(
            command, env=_environment(), stdout=told, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        _first(process.pid)
        if len(cores) > 1:
            os.sched_setaffinity(process.pid, cores[:-1])
        if process.wait(600):
            raise RuntimeError(f"vllm bench serve failed; {result.with_suffix('.log')} tells why")
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return json.loads(result.read_text())


@contextlib.contextmanager
def busy() -> Iterator[None]:
    """Fills what the cores beside the worker's leave idle, before all but the server and its client.

    Two virtual processors are often one core's two threads: how fast one is depends on whether the other works, on
    whatever. With a neighbour that always works its speed is one.
    """
    cores = sorted(os.sched_getaffinity(0))
    fillers = [subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True) for _ in cores[1:]]
    for process, core in zip(fillers, cores, strict=False):
        os.sched_setaffinity(process.pid, {core})
        _first(process.pid, -10)
    try:
        yield
    finally:
        for process in fillers:
            process.kill()
            process.wait()


def _environment() -> dict[str, str]:
    return dict(os.environ) | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}


def _answers(path: str, data: bytes | None = None) -> bool:
    try:
        with urllib.request.urlopen(URL + path, data=data, timeout=30) as response:
            return response.status == 200
    except (urllib.error.URLError, OSError):
        return False


def _first(pid: int, niceness: int = -20) -> None:
    """Puts the session of a process before others on a busy machine, as far as this user may.

    Where the kernel groups tasks by session (autogroup) niceness counts within a session alone, and that of the group
    between them.
    """
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(niceness))
    for each in _of_session(pid):
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, each, -10)


def _of_session(session: int) -> list[int]:
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [pid for pid in pids if _session_of(pid) == session]


def _session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:  # it has ended
        return -1
