"""What a worker process sets for itself."""

import pickle
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import gc
from evaluator.execution import worker
worker.plan_of_task = lambda task: (None, None)
worker.answer_of = lambda whole, levels, asked: (asked, gc.get_threshold(), gc.get_freeze_count() > 0)
worker.main()
"""


def test_a_worker_looks_for_cycles_seldom_and_not_in_its_plan():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=Path(__file__).parents[2], input=pickle.dumps("a chunk"),
        capture_output=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    assert pickle.loads(done.stdout) == ("a chunk", (50_000, 5, 2), True)
