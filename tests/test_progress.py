import io
import sys
import types

import pytest

from evaluator.progress import Progress, followed, format_duration


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def run(stream, clock, steps, total=100, kept=0, **options):
    with Progress(total, stream=stream, clock=clock, **options) as progress:
        if kept:
            progress.keep(kept)
        for seconds, units in steps:
            clock.now += seconds
            progress.advance(units)
    return progress


def test_log_gets_a_line_every_ten_seconds_and_one_at_the_end():
    stream = io.StringIO()
    run(stream, Clock(), [(1.0, 5)] * 20)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("50/100 configurations  50 %  5 configurations/s")
    assert lines[0].endswith("10 s left")
    assert lines[-1] == "100/100 configurations in 20 s  5 configurations/s"


def test_terminal_has_one_line_that_is_overwritten_whole():
    stream = Terminal()
    run(stream, Clock(), [(1.0, 50)] * 2)
    text = stream.getvalue()
    assert text.count("\n") == 1 and text.endswith("\n")
    first, *later = text.rstrip("\n").split("\r")[1:]
    assert first == "0/100 configurations  0 %  starting"
    widths = [len(first), *(len(line) for line in later)]
    assert all(after >= len(before.rstrip()) for before, after in zip([first, *later], widths[1:], strict=False))


def test_terminal_is_not_written_more_than_ten_times_a_second():
    stream = Terminal()
    run(stream, Clock(), [(0.001, 1)] * 100)
    assert stream.getvalue().count("\r") <= 3


def test_rate_leaves_out_the_first_report_which_compiles():
    clock = Clock()
    progress = Progress(1000, stream=io.StringIO(), clock=clock)
    clock.now += 30
    progress.advance(100)
    assert progress.rate(clock.now) == pytest.approx(100 / 30)
    clock.now += 1
    progress.advance(100)
    assert progress.rate(clock.now) == pytest.approx(100)
    assert progress.line(clock.now).endswith("8.0 s left")
    assert progress.summary(clock.now).startswith("200/1,000 configurations in 31 s  6.45 configurations/s")


def test_finished_work_of_an_earlier_run_is_done_but_not_speed():
    clock = Clock()
    progress = run(io.StringIO(), clock, [(10.0, 10), (10.0, 10)], kept=80)
    assert progress.done == 100
    assert progress.rate(clock.now) == pytest.approx(1.0)
    assert "(80 of them finished before)" in progress.summary(clock.now)


def test_requests_per_second_follow_from_the_units():
    stream = io.StringIO()
    run(stream, Clock(), [(1.0, 100)], requests_per_unit=40_000)
    assert stream.getvalue().rstrip().endswith("100 configurations/s  4 M requests/s")


def test_nothing_to_do():
    stream = io.StringIO()
    run(stream, Clock(), [], total=0)
    assert stream.getvalue() == "0/0 configurations in 0.0 s\n"


def test_an_interrupted_run_tells_how_far_it_came():
    stream, clock = io.StringIO(), Clock()
    with pytest.raises(KeyboardInterrupt), Progress(10, stream=stream, clock=clock) as progress:
        clock.now += 1
        progress.advance(4)
        raise KeyboardInterrupt
    assert stream.getvalue().splitlines()[-1].startswith("4/10 configurations  40 %")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0 s"), (4.24, "4.2 s"), (9.97, "10 s"), (59.6, "1 min 00 s"), (200, "3 min 20 s"), (7500, "2 h 05 min")],
)
def test_durations_are_readable(seconds, text):
    assert format_duration(seconds) == text


# --- notebooks


class Kernel:
    """As much of IPython as a bar needs; ``shown`` is what stands under the cell, one after the other."""

    def __init__(self, monkeypatch, kernel=True):
        self.shown = []
        shell = types.SimpleNamespace(kernel=None) if kernel else types.SimpleNamespace()
        display = types.ModuleType("IPython.display")
        display.HTML, display.display = str, self._display
        ipython = types.ModuleType("IPython")
        ipython.get_ipython, ipython.display = lambda: shell, display
        monkeypatch.setitem(sys.modules, "IPython", ipython)
        monkeypatch.setitem(sys.modules, "IPython.display", display)

    def _display(self, what, display_id):
        assert display_id
        self.shown.append(what)
        return types.SimpleNamespace(update=self.shown.append)


def test_a_notebook_gets_a_bar_without_being_asked(monkeypatch):
    kernel = Kernel(monkeypatch)
    with followed(None, 4) as progress:
        progress.advance(4)
    assert "max='4'" in kernel.shown[0] and "starting" in kernel.shown[0]
    assert "value='4'" in kernel.shown[-1] and "4/4 configurations in" in kernel.shown[-1]


def test_no_bar_where_it_is_not_wanted_and_none_outside_a_notebook(monkeypatch):
    kernel = Kernel(monkeypatch)
    with followed(False, 4) as progress:
        assert progress is None
    Kernel(monkeypatch, kernel=False)
    with followed(None, 4) as progress:
        assert progress is None
    assert kernel.shown == []


def test_one_of_the_caller_s_own_is_left_alone():
    own = Progress(4, stream=io.StringIO())
    with followed(own, 9) as progress:
        assert progress is own
