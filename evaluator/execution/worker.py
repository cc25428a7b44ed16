"""A worker process: simulates chunks for the process that started it, as ``workers`` asks. It never loads JAX."""

from __future__ import annotations

import os
import pickle
import signal
import sys

import numpy as np

from evaluator.plan import plan
from evaluator.simulation.measured import measured


def main() -> None:
    """Read pickled questions from stdin until it is closed, write pickled answers to what was stdout.

    The first question is (scenario, inputs of elasticities, quantile levels); each later one is the configurations of a
    chunk, and its answer their measures or the exception. Ctrl-C is for the other process to deal with.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not get between the answers
    scenario, inputs, levels = pickle.load(sys.stdin.buffer)
    whole = plan(scenario, np.zeros(0, dtype=np.int64), "token", inputs)
    while True:
        try:
            configs = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        answer: object
        try:
            chunk = whole.of(configs)
            (group,) = chunk.groups
            answer = measured(chunk, group, group.members, levels)
        except Exception as error:
            answer = error
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    main()
