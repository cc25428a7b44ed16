"""``evaluator.typed`` is what the tables of keys make of it, and its words are those that the loader takes."""

import subprocess
import sys
from pathlib import Path

from evaluator import typed
from evaluator.scenario import load_scenario

ROOT = Path(__file__).resolve().parents[2]


def test_the_types_are_in_step_with_the_keys():
    made = subprocess.run(
        [sys.executable, "-m", "evaluator.scenario.python_types"], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout
    formatted = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "-"], input=made, capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout
    assert formatted == (ROOT / "evaluator" / "typed.py").read_text(), "run: make typed"


def test_a_scenario_of_types_is_one_of_mappings():
    question = typed.Scenario(
        workload=typed.Workload(
            arrivals=typed.PoissonArrivals(process="poisson", rate_rps="2/s"),
            lengths=typed.FixedLengths(source="fixed", prompt_tokens=100, output_tokens=10),
        ),
        deployment=typed.Deployment(model="llama-3.1-8b", hardware="h100-sxm", kv=typed.Kv(block_tokens=32)),
        slo={"ttft": {"p90": "1s"}},
    )
    scenario = load_scenario(question)
    assert scenario.workload.arrivals.rate_rps == 2.0 and scenario.deployment.kv.block_tokens == 32


def test_a_checker_finds_a_wrong_word(tmp_path):
    """The types by themselves: a checker that follows the package's imports takes seven times as long."""
    (tmp_path / "typed.py").write_text((ROOT / "evaluator" / "typed.py").read_text())
    (tmp_path / "wrong.py").write_text(
        "from typed import Batching, Deployment\n"
        'Deployment(model="x", batching=Batching(policy="chunkd"))\n'
        "Deployment(tensor_paralel=2)\n"
    )
    found = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-incremental", "--config-file=", "wrong.py"],
        capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert "Literal['chunkd']" in found.stdout and '"tensor_paralel"' in found.stdout, found.stdout + found.stderr
