"""Sweeps that are killed in the middle and gone on with: nothing computed is lost, nothing comes twice."""

import os
import re
import signal
import time

import pytest

from evaluator import results
from tests.forked import Forked
from tests.results.build import same

SMALL = ("workload.requests=60", "workload.warmup_requests=20", "workload.seeds=[0]")
SETTINGS = ["closed-loop", "--simulator", "token", "--top", "0", *(word for each in SMALL for word in ("--set", each))]
LONGEST_S = 120.0  # a guard against hanging
SLOWLY = """
import os, sys, time
go, with_workers = sys.argv.pop(1), sys.argv.pop(1) == "workers"
from evaluator import cli
from evaluator.execution import schedule
from evaluator.run import rows
schedule.TOKEN_REQUESTS_PER_CHUNK = 360
if not with_workers:
    schedule._known_elsewhere = lambda *_: False
write = rows.write_chunk
def write_and_wait(*args):
    write(*args)
    while not os.path.exists(go):
        time.sleep(0.01)
rows.write_chunk = write_and_wait
cli.main()
"""
"""The command in four small chunks, after each of which it waits until a file is there: however fast the machine, it is
there to be interrupted."""


class Run:
    """``evaluator sweep`` as a process of its own; its chunks are counted from outside.

    It waits after a chunk until it is to ``go_on``, unless it ``waits`` for nobody. Worker processes, which take as
    long to start as all else, compute where ``workers`` do.
    """

    def __init__(self, out, *options, waits=True, workers=False):
        self.out = out
        self.kept_before = self.chunks()
        self._go = out.parent.parent / f"{out.parent.name}-{time.monotonic_ns()}.go"
        if not waits:
            self.go_on()
        how = "workers" if workers else "alone"
        self.process = Forked(SLOWLY, [self._go, how, "sweep", *SETTINGS, *options, "--out", out])

    def go_on(self):
        self._go.touch()

    def chunks(self):
        return len(list(self.out.with_suffix(".chunks").rglob("chunk-*.npz")))

    def wait_for(self, more):
        """Until there are so many chunks more than at the start."""
        end = time.monotonic() + LONGEST_S
        while self.chunks() < self.kept_before + more and self.process.poll() is None:
            assert time.monotonic() < end
            time.sleep(0.01)
        assert self.process.poll() is None, "it ended before it was interrupted"

    def stop(self, number):
        self.process.send_signal(number)
        return self.end()

    def end(self):
        _, told = self.process.communicate(timeout=LONGEST_S)
        return self.process.returncode, told


@pytest.fixture(autouse=True)
def heeded():
    """Signals that a shell lets the tests ignore, behind nohup or in the background, are heeded by what they start."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed") / "a.nc"
    assert Run(out, waits=False).end()[0] == 0
    return results.read(out)


def went_on_with(told):
    found = re.search(r"going on with ([\d,]+) configurations that an interrupted run finished; --fresh", told)
    return int(found[1].replace(",", "")) if found else 0


def test_kills_and_signals_lose_nothing(undisturbed, tmp_path):
    """One after the other on the same output; what is whole in the end is all that is left."""
    out, kept = tmp_path / "a.nc", []
    for number, code in ((signal.SIGKILL, -9), (signal.SIGTERM, 143), (signal.SIGINT, 130)):
        run = Run(out, workers=True)
        run.wait_for(1)
        left, told = run.stop(number)
        assert left == code, told
        if number != signal.SIGKILL:
            assert told.splitlines()[-1] == "interrupted; finished chunks are kept, the same command goes on with them"
        assert "Traceback" not in told
        kept.append(went_on_with(told))
        assert run.chunks() > run.kept_before and not out.exists()
    assert kept[0] == 0 < kept[1] < kept[2]
    code, told = Run(out, "--resume", waits=False, workers=True).end()
    assert code == 0 and went_on_with(told) > kept[2]
    same(results.read(out), undisturbed)
    assert [path.name for path in tmp_path.iterdir()] == ["a.nc"]


def test_fresh_starts_anew(undisturbed, tmp_path):
    run = Run(tmp_path / "a.nc")
    run.wait_for(1)
    run.stop(signal.SIGKILL)
    code, told = Run(tmp_path / "a.nc", "--fresh", waits=False).end()
    assert code == 0 and "going on with" not in told
    same(results.read(tmp_path / "a.nc"), undisturbed)


def test_a_second_run_on_the_same_output_is_told(undisturbed, tmp_path):
    first = Run(tmp_path / "a.nc")
    first.wait_for(1)
    code, told = Run(tmp_path / "a.nc", "--quiet").end()
    assert code == 2
    assert re.fullmatch(rf"error: .*a\.nc: process {first.process.pid} on .* is writing it; wait for it, or .*\n", told)
    first.go_on()
    assert first.end()[0] == 0
    same(results.read(tmp_path / "a.nc"), undisturbed)


def test_nohup_is_respected(tmp_path):
    """SIGHUP ends a run as Ctrl-C does, unless it is to be ignored."""
    run = Run(tmp_path / "a.nc")
    run.wait_for(1)
    assert run.stop(signal.SIGHUP)[0] == 129
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        run = Run(tmp_path / "a.nc")
    finally:
        signal.signal(signal.SIGHUP, before)
    run.wait_for(1)
    os.kill(run.process.pid, signal.SIGHUP)
    run.go_on()
    assert run.end()[0] == 0
