"""Sweeps on a Dask cluster on this machine: the numbers of a single process, also where workers die."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from evaluator import results
from evaluator.errors import InputError
from evaluator.execution import cluster
from evaluator.execution.cluster import connected
from evaluator.run import sweep
from tests.results.build import same
from tests.scenario.build import GRID, scenario

ROOT = Path(__file__).resolve().parents[2]


def program(*arguments):
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300)


def test_a_killed_worker_loses_nothing_and_doubles_nothing(tmp_path):
    out = tmp_path / "a.nc"
    done = program("-m", "tests.execution.cluster_probe", out, 2)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"rows": 12, "killed": 2}
    same(results.read(out), sweep(scenario("workload.seeds=[0, 1]", **GRID)))


def test_the_command_starts_a_cluster_of_its_own(evaluator, as_users_run, tmp_path):
    settings = ["--set", "workload.requests=40", "--set", "workload.warmup_requests=5", "--top", "0"]
    done = program("-m", "evaluator", "sweep", "policies", *settings, "--cluster", "dask", "--out", tmp_path / "a.nc")
    assert done.returncode == 0, done.stderr
    assert "40/40 configurations" in done.stderr
    code, _, err = evaluator("sweep", "policies", *settings, "--out", tmp_path / "b.nc")
    assert code == 0, err
    same(results.read(tmp_path / "a.nc"), results.read(tmp_path / "b.nc"))


def test_what_a_worker_cannot_use_is_the_users_input(evaluator):
    settings = ["--set", "slo={itl: {p90: 1s}}", "--set", "workload.requests=40"]
    done = program("-m", "evaluator", "sweep", "closed-loop", "--simulator", "request", *settings, "--cluster", "dask")
    code, _, err = evaluator("sweep", "closed-loop", "--simulator", "request", *settings)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (code, err.splitlines()[-1])
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("unlike", "message"),
    [
        ({"version": "0.0.1"}, r"has evaluator .*, the sweep is of 0\.0\.1; install the same"),
        ({"code": "other"}, r"has other sources of evaluator .* than the sweep; install the same"),
        ({"catalog": "other"}, r"finds other models, devices or calibrations than the sweep; .* EVALUATOR_PATH"),
    ],
)
def test_a_worker_that_would_find_other_numbers_is_refused(unlike, message):
    task = cluster._Task("a", b"", **unlike)
    cluster.begin(task)
    with pytest.raises(InputError, match=f"a worker of the cluster {message}"):
        raise cluster._compute("a", 0, (None, []))
    cluster.end(task)


def test_a_scheduler_that_is_not_there(monkeypatch):
    monkeypatch.setattr("evaluator.execution.cluster.CONNECT_S", 0.2)
    for address in ("tcp://127.0.0.1:9", "nonsense"):
        with pytest.raises(InputError, match=rf"--cluster {address}: there is no Dask scheduler"), connected(address):
            pass


def test_without_dask_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setattr("evaluator.execution.cluster.find_spec", lambda name: None)
    message = r"--cluster needs Dask: pip install 'evaluator\[cluster\]'"
    with pytest.raises(InputError, match=message), connected("dask"):
        pass
