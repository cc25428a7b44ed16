"""Signals at the worst moments: every one ends the process, with its exit code and without a traceback."""

import itertools
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.forked import Forked
from tests.thorough import THOROUGH

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
LONGEST_S = 60.0  # a guard against hanging
HEAD = """
import os, signal, sys, time
from evaluator.cli import signals
def hit():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.05)
signals.take()
"""
PLACES = {
    "before the command": "hit(); time.sleep(30)",
    "an import": "with signals.unwinding():\n    import slow",
    "between an import and its end": "with signals.unwinding():\n    import quick\n    time.sleep(30)",
    "code of JAX that drops it": """
with signals.unwinding():
    exec("try:\\n    hit()\\nexcept BaseException:\\n    print('dropped')", {"__name__": "jax.fake", "hit": hit})
    time.sleep(30)
""",
    "a destructor": """
class Dies:
    def __del__(self):
        hit()
with signals.unwinding():
    Dies()
    time.sleep(30)
""",
    "somebody who drops everything": """
with signals.unwinding():
    while True:
        try:
            hit()
            time.sleep(30)
        except BaseException:
            pass
""",
}


@pytest.fixture(autouse=True)
def heeded():
    """Signals that a shell lets the tests ignore are heeded by what they start."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGHUP,)}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("place", PLACES)
def test_a_signal_ends_the_process_wherever_it_is(place, tmp_path):
    (tmp_path / "slow.py").write_text("import __main__, time\n__main__.hit()\ntime.sleep(30)\n")
    (tmp_path / "quick.py").write_text("import __main__\n__main__.hit()\n")
    program = HEAD + "try:\n" + "".join(f"    {line}\n" for line in PLACES[place].splitlines())
    program += (
        "except KeyboardInterrupt as error:\n    sys.stderr.write(signals.message(''))\n    sys.exit(error.code)\n"
    )
    path = os.pathsep.join([str(tmp_path), os.getcwd()])
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=LONGEST_S,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (143, ""), done.stderr
    assert done.stderr.strip() == "interrupted"
    assert time.monotonic() - start < 20  # far below the sleeps


def test_what_is_kept_is_told_wherever_it_ends():
    program = f"{HEAD}with signals.interrupted('all is kept'):\n    hit()\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=LONGEST_S)
    assert (done.returncode, done.stderr) == (143, "interrupted; all is kept\n")


MOMENTS_S = (0.12, 0.4, 0.9)
"""Imports, the reading of the scenario, compiling."""


@pytest.mark.parametrize(
    ("after_s", "number"),
    list(itertools.product(MOMENTS_S, CODES) if THOROUGH else zip(MOMENTS_S, CODES, strict=True)),
)
def test_signals_while_the_program_starts(number, after_s, tmp_path):
    """Whatever is hit, and by whichever signal."""
    process = subprocess.Popen(
        [sys.executable, "-m", "evaluator", "sweep", "closed-loop", "--out", str(tmp_path / "a.nc"), "-q"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "EVALUATOR_CACHE": ""},
    )  # fmt: skip
    time.sleep(after_s)
    process.send_signal(number)
    start = time.monotonic()
    _, err = process.communicate(timeout=LONGEST_S)
    # Before Python has come to the first line of the program the signal's default action ends it.
    assert process.returncode in (CODES[number], -number), err
    assert "Traceback" not in err or process.returncode == -number
    assert "fault of evaluator" not in err
    assert time.monotonic() - start < 20


@pytest.mark.parametrize("closed", [(1,), (2,), (1, 2), (0, 1, 2)])
def test_closed_streams_go_nowhere(closed, tmp_path):
    """The result is written whole, and nothing that is printed gets into it."""
    from evaluator import results
    from tests.cli.test_robustness import SCENARIO

    (tmp_path / "small.yaml").write_text(SCENARIO)
    words = ["sweep", "small.yaml", "--simulator", "token", "--out", "a.nc"]
    if 0 in closed:  # in a Python that starts without them
        shut = "; ".join(["import os", *(f"os.close({number})" for number in closed)])
        program = f"{shut}; os.execv({sys.executable!r}, [{sys.executable!r}, '-m', 'evaluator', *{words!r}])"
        done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, timeout=LONGEST_S)
        code, out, err = done.returncode, "", ""
    else:
        process = Forked("from evaluator.cli import main; main()", words, cwd=tmp_path, closed=closed)
        out, err = process.communicate(timeout=LONGEST_S)
        code = process.returncode
    assert code == 0, err
    assert results.read(tmp_path / "a.nc").sizes["config"] == 2
    assert ("2 configurations" in out) == (1 not in closed)
