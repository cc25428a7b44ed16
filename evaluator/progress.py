"""How far a long run has come, for people who wait: a line on a terminal, lines in a log, a bar in a notebook."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Protocol, Self, TextIO

TERMINAL_INTERVAL_S = 0.1
NOTEBOOK_INTERVAL_S = 0.2
LOG_INTERVAL_S = 10.0


class ProgressReport(Protocol):
    """What a long run tells of itself."""

    def expect(self, units: int) -> None: ...
    def keep(self, units: int) -> None: ...
    def advance(self, units: int = 1) -> None: ...
    def note(self, text: str) -> None: ...


class Progress:
    """Counts units of work and writes done, share, rates and time left to ``stream`` (stderr).

    The first report of work also pays for compiling, so rates and the time left are measured from it on, as soon
    as there is a second one. The closing line tells the time of everything.
    """

    def __init__(
        self,
        total: int,
        unit: str = "configurations",
        requests_per_unit: float = 0.0,
        *,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total = total
        self.unit = unit
        self.requests_per_unit = requests_per_unit
        self.done = 0
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._on_terminal = self._stream.isatty()
        self._interval_s = TERMINAL_INTERVAL_S if self._on_terminal else LOG_INTERVAL_S
        self._kept = 0  # units an earlier run had finished: they count as done, not as speed
        self._first: tuple[float, int] | None = None  # time and units of the first report
        # Counted from the start until a report comes, so that a log tells nothing in the first seconds.
        self._start = self._written = clock()
        self._width = 0

    def __enter__(self) -> Self:
        self._start = self._written = self._clock()
        if self._on_terminal:
            self._write(self.line(self._start))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        now = self._clock()
        # A run that failed has no closing line: how far it came stays as the last one.
        self._write(self.line(now) if kind is not None else self.summary(now))
        if self._on_terminal:
            self._stream.write("\n")
            self._stream.flush()

    def expect(self, units: int) -> None:
        """There are ``units`` to do, as has turned out after the start."""
        self.total = units

    def keep(self, units: int) -> None:
        """``units`` were finished by an earlier run: done, but no measure of the speed."""
        self.done += units
        self._kept += units

    def note(self, text: str) -> None:
        """Write a line for the user above the line of the progress."""
        if self._on_terminal:
            # Over the line of the progress, which the next report writes again below.
            self._stream.write("\r" + text.ljust(self._width) + "\n")
        else:
            self._stream.write(text + "\n")
        self._stream.flush()

    def advance(self, units: int = 1) -> None:
        """``units`` more are done."""
        now = self._clock()
        self.done += units
        if self._first is None:
            # Without what an earlier run had done, which took no time in this one.
            self._first = (now, self.done - self._kept)
        # By time and not by units: a chunk may be a thousand designs or a single one.
        if now - self._written >= self._interval_s:
            self._written = now
            self._write(self.line(now))

    def rate(self, now: float) -> float:
        """Units per second, without the first report and what it compiled where later ones are known; 0 if unknown."""
        worked = self.done - self._kept
        # The first report waits for the compilation: once there is a later one, the speed is what came after the first.
        start, before = self._start, 0
        if self._first is not None and worked > self._first[1]:
            start, before = self._first
        return (worked - before) / (now - start) if now > start else 0.0

    def line(self, now: float) -> str:
        """Done, total, share, rates and the time left."""
        text = f"{self.done:,}/{self.total:,} {self.unit}"
        if self.total:
            # Rounded down: 100 % means that all is done.
            text += f"  {100 * self.done // self.total} %"
        rate = self.rate(now)
        if rate <= 0:
            return text + "  starting"
        left = format_duration((self.total - self.done) / rate)
        return f"{text}  {self._rates(rate)}  {left} left"

    def summary(self, now: float) -> str:
        """The closing line: what was done in which time, compiling included."""
        worked, elapsed = self.done - self._kept, now - self._start
        text = f"{self.done:,}/{self.total:,} {self.unit} in {format_duration(elapsed)}"
        if self._kept:
            text += f" ({self._kept:,} of them finished before)"
        return f"{text}  {self._rates(worked / elapsed)}" if worked and elapsed > 0 else text

    def _rates(self, rate: float) -> str:
        text = f"{_short(rate)} {self.unit}/s"
        return f"{text}  {_short(rate * self.requests_per_unit)} requests/s" if self.requests_per_unit else text

    def _write(self, line: str) -> None:
        if self._on_terminal:
            # Spaces over what is left of a longer line before it.
            self._stream.write("\r" + line.ljust(self._width))
            self._width = len(line)
        else:
            self._stream.write(line + "\n")
        self._stream.flush()


class NotebookProgress(Progress):
    """Progress as a bar and a line under a cell of a notebook, drawn anew in its place."""

    def __init__(self, total: int, unit: str = "configurations", requests_per_unit: float = 0.0) -> None:
        super().__init__(total, unit, requests_per_unit)
        self._on_terminal = False
        self._interval_s = NOTEBOOK_INTERVAL_S
        self._cell: Any = None

    def __enter__(self) -> Self:
        super().__enter__()
        self._write(self.line(self._start))
        return self

    def _write(self, line: str) -> None:
        # Loaded only in a notebook, which has it.
        from IPython.display import HTML, display

        bar = f"<progress style='width: 16em' value='{self.done}' max='{max(self.total, self.done, 1)}'></progress>"
        shown = HTML(f"{bar} <code>{line}</code>")
        if self._cell is None:
            self._cell = display(shown, display_id=True)
        else:
            self._cell.update(shown)


def in_notebook() -> bool:
    """Whether this runs in a kernel that has a notebook before it. IPython is not loaded to find that out."""
    # Looked up among loaded modules: whoever has a notebook has IPython.
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


@contextmanager
def followed(
    progress: ProgressReport | bool | None, total: int, unit: str = "configurations", requests_per_unit: float = 0.0
) -> Iterator[ProgressReport | None]:
    """What a run reports to: the caller's own; with True a line or a bar; with None a bar, but only in a notebook."""
    if not isinstance(progress, bool) and progress is not None:
        yield progress
    elif progress is True or (progress is None and in_notebook()):
        with (NotebookProgress if in_notebook() else Progress)(total, unit, requests_per_unit) as shown:
            yield shown
    else:
        yield None


def _short(value: float) -> str:
    """Three significant digits with k, M or G."""
    for factor, letter in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        # 999.5 shows as "1 k", not as "1e+03".
        if value >= 0.9995 * factor:
            return f"{_three_digits(value / factor)}{letter}"
    return _three_digits(value)


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 99.95 else f"{value:.3g}"


def format_duration(seconds: float) -> str:
    """``4.2 s``, ``52 s``, ``3 min 20 s`` or ``2 h 05 min``."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
