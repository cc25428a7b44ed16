"""Ctrl-C, SIGTERM and SIGHUP: taken from the first line of the program on, and always the end of the process.

Python runs a signal's handler between two bytecodes of the main thread, wherever that is, and an exception raised there
unwinds what runs. Some places cannot be unwound: an import (half-loaded C extensions crash the process later, or call
the interruption an ImportError), JAX (its C++ turns an exception in a callback into an abort, or drops it), ``__del__``
(Python drops it) and C++ itself, where the handler waits for as long as XLA compiles. So the handler raises in
evaluator's own code alone, and a thread that the operating system wakes with every signal (``signal.set_wakeup_fd``)
ends the process where that takes too long. Files are written beside their place and moved there at the end, so that
leaving at any time loses no result.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

GRACE_S = 1.0
"""How long the main thread may take to come back to code that can be unwound, before the process is ended as it is."""
UNWINDING_S = 3.0
"""How long it may then take to close files, workers and a cluster. A second signal does not wait for it."""
# Between two looks whether the main thread can be unwound; and then whether somebody has dropped the interruption.
_POKE_S, _POKE_AGAIN_S = 0.02, 0.5
_SAME_SIGNAL_S = 0.3  # a terminal, a shell and a scheduler may each pass the same interruption on
# weakref: callbacks, whose exceptions Python drops as it does those of `__del__`.
_NOT_UNWOUND = ("importlib", "jax", "jaxlib", "weakref", "_weakrefset")


class Interruption(KeyboardInterrupt):
    """A signal that ends the run; ``code`` is what the process leaves with: 128 and the number of the signal."""

    code = 128 + signal.SIGINT


class Terminated(Interruption):
    """SIGTERM: as Ctrl-C, asked for by a scheduler."""

    code = 128 + signal.SIGTERM


class HungUp(Interruption):
    """SIGHUP: as Ctrl-C, because the terminal is gone."""

    # 128 + SIGHUP, a name that Windows does not have.
    code = 129


class _State:
    """What has happened so far; of the process, as signals are."""

    kind: type[Interruption] | None = None  # the first signal that came
    raised_at: float | None = None  # when the main thread was told, by ``time.monotonic``
    unwinds = False  # whether a command runs, whose failures become messages
    poked = False  # whether it is the watching thread that calls the handler, not another signal
    said = False
    kept = ""  # what is kept of the work if it ends now


_KINDS: dict[int, type[Interruption]] = {signal.SIGINT: Interruption, signal.SIGTERM: Terminated}
if hasattr(signal, "SIGHUP"):
    _KINDS[signal.SIGHUP] = HungUp


def take() -> None:
    """Take the signals from now on; those that are to be ignored (nohup, a background job's Ctrl-C) stay ignored."""
    for number in _KINDS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _interrupt)
    # Windows has no wake-up by pipe: there the handler alone must do.
    if os.name == "posix":
        woken, wakes = os.pipe()
        os.set_blocking(wakes, False)  # which Python asks for
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        threading.Thread(target=_watch, args=(woken,), name="signals", daemon=True).start()


@contextmanager
def unwinding() -> Iterator[None]:
    """In here a signal raises an ``Interruption``, of which the command makes a message and an exit code."""
    _State.unwinds = True
    try:
        yield
    finally:
        _State.unwinds = False


@contextmanager
def interrupted(what_is_kept: str) -> Iterator[None]:
    """An interruption in here says ``what_is_kept`` of the work."""
    before, _State.kept = _State.kept, what_is_kept
    try:
        yield
    except KeyboardInterrupt as error:
        raise type(error)(what_is_kept) from None
    finally:
        _State.kept = before


@contextmanager
def told_to_stop() -> Iterator[Callable[[Callable[[str], None]], AbstractContextManager[None]]]:
    """For work that must not be unwound where it stands, as an event loop's: it is told to stop instead.

    Gives what holds while that work runs, of a function that stops it. From then on to the end of this a signal raises
    nothing, so that what there is can be written; a second one ends the process at once. The interruption comes at the
    end.
    """
    before: dict[int, Any] = {}
    stops: list[Callable[[str], None]] = []

    def heed(number: int, frame: FrameType | None) -> None:
        if _State.kind is not None:
            _leave()
        _State.kind = _KINDS[number]
        for stop in stops:
            stop("interrupted")

    @contextmanager
    def holding(stop: Callable[[str], None]) -> Iterator[None]:
        stops.append(stop)
        for number in _KINDS:
            # What is ignored (nohup) stays ignored in here, too.
            if signal.getsignal(number) is _interrupt:
                before[number] = signal.signal(number, heed)
        try:
            yield
        finally:
            stops.remove(stop)

    try:
        yield holding
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if _State.kind is not None:
        raise _State.kind


def message(what_is_kept: str) -> str:
    """The last words of an interrupted run, to be said once."""
    _State.said = True
    return f"interrupted; {what_is_kept}" if what_is_kept else "interrupted"


def _interrupt(number: int, frame: FrameType | None) -> None:
    """The handler, in the main thread."""
    _State.kind = _State.kind or _KINDS[number]
    poked, _State.poked = _State.poked, False
    if _State.raised_at is not None:
        again = not poked and time.monotonic() - _State.raised_at > _SAME_SIGNAL_S
        # An exception that is being handled is ours on its way up: ``finally`` and ``with`` take their time. Without
        # one, somebody has dropped it, as a ``__del__`` does.
        dropped = sys.exc_info()[1] is None and not _State.said
        if again or dropped:
            _leave()
    elif not _State.unwinds:
        _leave()
    elif _can_be_unwound(frame):
        _State.raised_at = time.monotonic()
        raise _State.kind
    # Else the watching thread asks again until it can.


def _can_be_unwound(frame: FrameType | None) -> bool:
    while frame is not None:
        module = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if module in _NOT_UNWOUND or frame.f_code.co_name == "__del__":
            return False
        frame = frame.f_back
    return True


def _watch(woken: int) -> None:
    """In a thread of its own: after the first signal, see to it that the process ends."""
    number = os.read(woken, 1)[0]
    while number not in _KINDS or signal.getsignal(number) is not _interrupt:  # others may have handlers, too
        number = os.read(woken, 1)[0]
    _State.kind = _State.kind or _KINDS[number]
    end = time.monotonic() + GRACE_S
    while _State.raised_at is None:
        if time.monotonic() > end:
            _leave()
        _poke(number, _POKE_S)
    end = time.monotonic() + UNWINDING_S
    while time.monotonic() < end:
        _poke(number, _POKE_AGAIN_S)
    _leave()


def _poke(number: int, after_s: float) -> None:
    """Let the handler run again in the main thread, perhaps in another frame."""
    time.sleep(after_s)
    _State.poked = True
    if hasattr(signal, "pthread_kill"):  # it wakes the main thread from a sleep or a wait, too
        signal.pthread_kill(threading.main_thread().ident or 0, number)
    # Windows has no pthread_kill; a sleep of the main thread is not interrupted there.
    else:
        _thread.interrupt_main(signal.Signals(number))


def _leave() -> NoReturn:
    """End the process where it is: no exception would get through, and no ``finally`` is waited for."""
    kind = _State.kind or Interruption
    if not _State.said:
        with suppress(OSError):  # not by stderr, whose lock the interrupted thread may hold
            os.write(2, f"{message(_State.kept)}\n".encode())
    # Not ``sys.exit``: it raises, in a thread that nobody waits for.
    os._exit(kind.code)
