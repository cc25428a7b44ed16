"""One process at a time on one output: a lock that the operating system gives back when its holder dies."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from evaluator.errors import InputError

try:
    import fcntl
except ImportError:  # Windows has no such locks: there two runs on one output are not told
    fcntl = None  # type: ignore[assignment]


def lock_of(output: Path) -> Path:
    """The lock file of an output."""
    return output.with_name(f".{output.name}.lock")


@contextmanager
def exclusive(path: Path, output: Path) -> Iterator[None]:
    """Hold the lock file ``path`` while ``output`` is written. InputError where another process holds it.

    The lock is one of ``flock``, so that nothing is left to clean up after a run that was killed; a file system that
    knows no locks is written without.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = _held(path)
    except BlockingIOError:
        raise InputError(f"{output}: {_holder(path)} is writing it; wait for it, or choose another --out") from None
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error
    try:
        yield
    finally:
        with suppress(OSError):  # before it is given back: who waits for it then finds another file
            path.unlink()
        os.close(descriptor)


def _held(path: Path) -> int:
    """The descriptor of the locked file. BlockingIOError where another process has it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if fcntl is not None:
                _lock(descriptor)
            if not _is_there(path, descriptor):  # its holder took it away between our opening and locking it
                os.close(descriptor)
                continue
            # For the message of whoever finds the file locked (``_holder``).
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())
            return descriptor
        except BaseException:
            # Not closed, the descriptor would keep the lock for as long as this process lives.
            with suppress(OSError):
                os.close(descriptor)
            raise


def _lock(descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        # An OSError as well, and the one that says that another process holds the lock.
        raise
    except OSError:  # the file system has no locks
        return


def _is_there(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _holder(path: Path) -> str:
    with suppress(OSError, UnicodeDecodeError):
        return path.read_text(encoding="utf-8") or "another process"
    return "another process"
