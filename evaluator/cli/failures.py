"""What every failure becomes: one line on stderr and an exit code.

0 good, 1 our fault, 2 the user's input, 3 a gate failed (``validate``, ``compare --fail-above``), 130 interrupted by
Ctrl-C, 143 by SIGTERM (129 by SIGHUP), as a scheduler sends it when a job's time is over.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import typer
import typer.core

from evaluator.errors import InputError

OUR_FAULT = 1
USER_INPUT = 2
GATE = 3
INTERRUPTED = 130
_NO_ROOM = (errno.ENOSPC, errno.EFBIG, errno.EROFS, getattr(errno, "EDQUOT", errno.ENOSPC))


class Terminated(KeyboardInterrupt):
    """SIGTERM: as Ctrl-C, asked for by a scheduler."""

    code = 128 + signal.SIGTERM


class HungUp(KeyboardInterrupt):
    """SIGHUP: as Ctrl-C, because the terminal is gone."""

    code = 129


class Commands(typer.core.TyperGroup):
    """The group of all commands; usage errors are Typer's own (exit code 2)."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; leave with a message and an exit code where it fails."""
        with _failures(), _signals():
            result = super().invoke(ctx)
            sys.stdout.flush()  # a reader that has gone away shows here, not when Python exits
            return result


@contextmanager
def interrupted(kept: str) -> Iterator[None]:
    """An interruption in here says what is ``kept`` of the work."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise type(error)(kept) from None


@contextmanager
def _signals() -> Iterator[None]:
    """Let a scheduler's signals end a command as Ctrl-C does, so that files are closed and what is kept is told."""
    kinds: dict[int, type[KeyboardInterrupt]] = {signal.SIGTERM: Terminated}
    if hasattr(signal, "SIGHUP"):
        kinds[signal.SIGHUP] = HungUp

    def interrupt(number: int, frame: object) -> None:
        raise kinds[number]

    before = {}
    if threading.current_thread() is threading.main_thread():  # nobody else may set them
        asked = [number for number in kinds if signal.getsignal(number) == signal.SIG_DFL]  # not under nohup
        before = {number: signal.signal(number, interrupt) for number in asked}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except InputError as error:
        _leave(USER_INPUT, f"error: {_one_line(error)}", error)
    except BrokenPipeError:
        _drop_stdout()
        raise typer.Exit(OUR_FAULT) from None
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError) as error:
        place = error.filename if error.filename is not None else ""
        _leave(USER_INPUT, f"error: {place}: {error.strerror or error}", error)
    except OSError as error:
        if error.errno not in _NO_ROOM:
            _leave(OUR_FAULT, _fault(error), error, ours=True)
        _leave(USER_INPUT, f"error: cannot write {error.filename or 'the output'}: {error.strerror}", error)
    except KeyboardInterrupt as error:
        code = getattr(error, "code", INTERRUPTED)
        _leave(code, f"interrupted; {error}" if str(error) else "interrupted", error)
    except _typer_errors():
        raise
    except Exception as error:
        _leave(OUR_FAULT, _fault(error), error, ours=True)


def _typer_errors() -> tuple[type[BaseException], ...]:
    """Exit, Abort and usage errors: Typer carries its own copy of Click from some version on, so go by BadParameter."""
    click_exception = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
    return typer.Exit, typer.Abort, click_exception


def _leave(code: int, message: str, error: BaseException, ours: bool = False) -> None:
    debugging = bool(os.environ.get("EVALUATOR_DEBUG"))
    if debugging:
        traceback.print_exception(error)
    typer.echo(message, err=True)
    if ours and not debugging:
        typer.echo("This is a fault of evaluator, not of your input. EVALUATOR_DEBUG=1 shows where.", err=True)
    raise typer.Exit(code) from None


def _fault(error: BaseException) -> str:
    return f"internal error: {type(error).__name__}: {_one_line(error)}"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _drop_stdout() -> None:
    """What is still buffered goes nowhere, or Python would complain about the pipe once more when it exits."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
