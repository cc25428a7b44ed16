"""``evaluator.typed`` is what the keys of the records make of it, and its words are those that the loader takes."""

import subprocess
import sys
from pathlib import Path

import pytest

from evaluator import typed
from evaluator.scenario import load_scenario
from evaluator.scenario.python_types import python_types

ROOT = Path(__file__).resolve().parents[2]
BUILT = ROOT / "evaluator" / "typed.pyi"


def test_the_types_of_this_checkout_are_in_step_with_the_keys():
    if not BUILT.exists():
        pytest.skip("the types are not built here: make typed")
    assert BUILT.read_text() == python_types(), "run: make typed"


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


def test_at_run_time_the_types_are_there_though_nothing_was_built():
    assert {"Scenario", "Workload", "Deployment", "ModelName"} <= set(dir(typed)) and "Mapping" not in dir(typed)
    with pytest.raises(AttributeError, match=r"module 'evaluator\.typed' has no attribute 'Deploiment'"):
        typed.Deploiment  # noqa: B018


def test_a_checker_finds_a_wrong_word(tmp_path):
    """The types by themselves: a checker that follows the package's imports takes seven times as long."""
    (tmp_path / "typed.pyi").write_text(python_types())
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
