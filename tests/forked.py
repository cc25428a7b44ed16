"""Programs in processes of their own, forked from one that has imported what they need.

Python takes one to two seconds to import NumPy, xarray, HDF5 and Dask. A test of what a process does once it runs (it
is killed, its disk is full) need not pay that for each; tests of how it starts use ``subprocess``.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_SERVER = multiprocessing.get_context("forkserver")
# What a sweep that writes a dataset imports, in part late. None of it starts a thread, which a fork would lose; JAX
# would. A name that is not there is imported by the forked process itself, if it needs it.
_SERVER.set_forkserver_preload(
    ["evaluator.cli.app", "evaluator.cli.sweep", "evaluator.run", "evaluator.execution.schedule",
     "evaluator.accuracy.cases", "evaluator.reference.serve.pool", "typer._adapters", "dask.distributed",
     "dask.array", "h5netcdf.legacyapi", "xarray.namedarray._array_api", "zarr", "evaluator.observe"]
)  # fmt: skip
_STREAMS = ("stdin", "stdout", "stderr")


class Forked:
    """``python -c PROGRAM ARGUMENTS`` with the ways of ``subprocess.Popen``; what it prints must fit into pipes."""

    def __init__(
        self, program: str, arguments: Iterable[Any] = (), cwd: Path | None = None, closed: Iterable[int] = ()
    ) -> None:
        pipes = [_SERVER.Pipe(duplex=False) for _ in (1, 2)]
        self._outputs = [reader for reader, _ in pipes]
        ignored = [number for number in (signal.SIGINT, signal.SIGHUP) if signal.getsignal(number) == signal.SIG_IGN]
        self._process = _SERVER.Process(
            target=_become,
            args=(program, [str(each) for each in arguments], dict(os.environ), str(cwd or Path.cwd()),
                  [writer for _, writer in pipes], tuple(closed), ignored),
        )  # fmt: skip
        self._process.start()
        for _, writer in pipes:
            writer.close()  # so that the pipe ends with the process
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """As of ``Popen``: None while it runs, below 0 where a signal ended it."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """The same."""
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def communicate(self, timeout: float) -> tuple[str, str]:
        """What it printed to stdout and stderr, once it has ended."""
        self._process.join(timeout)
        assert self.returncode is not None, f"not at its end after {timeout:g} s"
        printed = []
        for output in self._outputs:
            with output, open(output.fileno(), encoding="utf-8", errors="replace", closefd=False) as text:
                printed.append(text.read())
        return printed[0], printed[1]


def _become(
    program: str, arguments: list[str], environment: Mapping[str, str], cwd: str, writers: list[Any],
    closed: Iterable[int], ignored: Iterable[int],
) -> None:  # fmt: skip
    """In the new process: what Python makes of its surroundings when it starts, then the program."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    for number in (signal.SIGINT, signal.SIGHUP):
        default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if number in ignored else default)
    for number, writer in zip((1, 2), writers, strict=True):
        os.dup2(writer.fileno(), number)
        writer.close()
    sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, encoding="utf-8", closefd=False)  # noqa: SIM115
    for number in closed:
        os.close(number)
        # Python has no stream for a descriptor that is closed when it starts.
        setattr(sys, _STREAMS[number], None)
        setattr(sys, f"__{_STREAMS[number]}__", None)
    sys.argv = ["-c", *arguments]
    exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})
