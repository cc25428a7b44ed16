"""A worker process: simulates chunks for the process that started it, as ``workers`` asks. It loads JAX only for chunks
of the compiled engine."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sys
from contextlib import suppress

from evaluator.execution.workers import answer_of, plan_of_task


def main() -> None:
    """Read pickled questions from stdin until it is closed, write pickled answers to what was stdout.

    The first question is the sweep, as of ``task_of``; each later one is a chunk, as ``WorkerPool`` asks it, and its
    answer the statistics or the exception. Ctrl-C is for the other process to deal with.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not get between the answers
    with suppress(EOFError, pickle.UnpicklingError, BrokenPipeError):  # the other process has ended, or was killed
        whole, levels = plan_of_task(sys.stdin.buffer)
        # The reference makes objects by the million, and few cycles but those that hold a run together: to look for
        # them every 700 objects, and among all that the plan has, takes up to a quarter of its time.
        gc.freeze()
        gc.set_threshold(50_000, 5, 2)
        while True:
            asked = pickle.load(sys.stdin.buffer)
            answer: object
            try:
                answer = answer_of(whole, levels, asked)
            except Exception as error:
                answer = error
            pickle.dump(answer, answers)
            answers.flush()
    with suppress(BrokenPipeError):
        answers.close()


if __name__ == "__main__":
    main()
