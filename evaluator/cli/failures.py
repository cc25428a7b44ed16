"""What every failure becomes: one line on stderr and an exit code.

0 good, 1 our fault, 2 the user's input, 3 a gate failed (``validate``, ``compare --fail-above``), 130 interrupted by
Ctrl-C, 143 by SIGTERM (129 by SIGHUP), as a scheduler sends it when a job's time is over.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import typer
import typer.core

from evaluator.cli.output import fail, print_document, wants_document
from evaluator.cli.signals import message, unwinding
from evaluator.errors import InputError

OUR_FAULT = 1
USER_INPUT = 2
GATE = 3
INTERRUPTED = 130
_NO_ROOM = (errno.ENOSPC, errno.EFBIG, errno.EROFS, getattr(errno, "EDQUOT", errno.ENOSPC))
_OF_FILES = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)


class Commands(typer.core.TyperGroup):
    """The group of all commands; usage errors are Typer's own (exit code 2)."""

    def main(self, args: Sequence[str] | None = None, *others: Any, **more: Any) -> Any:
        """Run a command line, and with ``--json`` print its document."""
        # Read before Click does: whether a document is wanted must be known when a usage error is raised,
        # which is while arguments are parsed.
        words = list(sys.argv[1:] if args is None else args)
        if not wants_document(words):
            return super().main(args, *others, **more)
        alone = more | {"standalone_mode": False}  # errors are to come here
        try:
            code = print_document(lambda: super(Commands, self).main(words, *others, **alone), words)
        # ``evaluator ... | head``: the reader has what it wanted, and a message would reach no one.
        except BrokenPipeError:
            _drop_stdout()
            code = OUR_FAULT
        sys.exit(code)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; leave with a message and an exit code where it fails."""
        with _failures(), unwinding():
            result = super().invoke(ctx)
            sys.stdout.flush()  # a reader that has gone away shows here, not when Python exits
            return result


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except InputError as error:
        _leave(USER_INPUT, f"error: {_one_line(error)}", error)
    except BrokenPipeError:
        _drop_stdout()
        # No message: the reader that went away may have been the only one, and `| head` is no fault.
        raise typer.Exit(OUR_FAULT) from None
    except OSError as error:
        # A full disk is for the user to deal with, though the call that failed may name no file.
        if error.errno in _NO_ROOM:
            _leave(USER_INPUT, f"error: cannot write {error.filename or 'the output'}: {error.strerror}", error)
        # Without a file it is a socket, a pipe or a process of ours.
        if error.filename is None and not isinstance(error, _OF_FILES):
            _leave(OUR_FAULT, _fault(error), error, ours=True)
        # Whatever is wrong with a file (a loop of links, a name too long, no right to read it), its owner can mend.
        _leave(USER_INPUT, f"error: {error.filename or ''}: {error.strerror or error}", error)
    # Not an ``Exception``, so it would pass the last clause; its code says which signal it was.
    except KeyboardInterrupt as error:
        _leave(getattr(error, "code", INTERRUPTED), message(str(error)), error)
    # These carry exit codes and texts of their own, which Typer prints.
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
        # Beside the message, not instead: what a user reports has both.
        traceback.print_exception(error)
    fail("internal" if ours else "input" if code == USER_INPUT else "interrupted", message)
    if ours and not debugging:
        typer.echo("This is a fault of evaluator, not of your input. EVALUATOR_DEBUG=1 shows where.", err=True)
    raise typer.Exit(code) from None


def _fault(error: BaseException) -> str:
    return f"internal error: {type(error).__name__}: {_one_line(error)}"


def _one_line(error: BaseException) -> str:
    # Errors of libraries span lines; ours are one line, which scripts and ``--json`` rely on.
    return " ".join(str(error).split())


def _drop_stdout() -> None:
    """What is still buffered goes nowhere, or Python would complain about the pipe once more when it exits."""
    with suppress(OSError, ValueError):
        # As the documentation of Python's ``signal`` advises for SIGPIPE.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
