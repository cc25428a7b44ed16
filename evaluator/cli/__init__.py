"""The command ``evaluator``. Nothing heavy is imported here: NumPy, pandas and JAX load inside the commands."""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress

from evaluator.cli import signals

__all__ = ["main"]


def main() -> None:
    """The entry point of the command ``evaluator``: signals and streams first, then what takes time to import."""
    # In this order: an import takes a second in which Ctrl-C must already be a message, and a closed stream must be
    # open before anything can print.
    signals.take()
    _open_streams()
    # Read when NumPy loads. The matrices of our fits are small (thousands of rows, tens of columns): a thread a core
    # gains nothing there, and threads that spin for one another take 80 times as long where the cores are busy.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Plans, traces of programs and the reference are of objects by the million, few of them in cycles. To look for
    # cycles every 700 objects takes a tenth of the time until a program is compiled.
    gc.set_threshold(50_000)
    from evaluator.cli.app import app

    app(prog_name="evaluator")


def _open_streams() -> None:
    """Streams that were closed (``>&-``) go nowhere, as to /dev/null.

    Else Python has None in their place, and the first file that is opened gets their number: what a library or a
    worker prints would be written into a result.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            with suppress(OSError):
                opened = os.open(os.devnull, os.O_RDWR)
                if opened != number:
                    os.dup2(opened, number)
                    os.close(opened)
                os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
