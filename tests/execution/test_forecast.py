"""What a sweep would take: counts are exact where all designs are examined, the rest is said to be an estimate."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from evaluator.cli.app import app
from evaluator.execution import forecast as module
from evaluator.execution.forecast import forecast
from evaluator.scenario import load_scenario

SCENARIO = {
    "workload": {
        "arrivals": {"process": "poisson", "rate_rps": 2},
        "lengths": {"source": "fixed", "prompt_tokens": 100, "output_tokens": 10},
        "requests": 100,
        "seeds": [0, 1],
    },
    "deployment": {"model": "llama-3.1-70b", "hardware": "h100-sxm", "batching": {"max_num_seqs": 256}},
    "sweep": {"deployment.tensor_parallel": [1, 2, 4], "deployment.hardware": ["h100-sxm", "l40s"]},
}


def foretold(sweep=None, overrides=(), **arguments):
    scenario = SCENARIO if sweep is None else SCENARIO | {"sweep": sweep}
    return forecast(load_scenario(scenario, overrides), **arguments)


def test_counts():
    found = foretold()
    assert (found.designs, found.examined, found.feasible) == (6, 6, 3)
    assert (found.groups, found.compilations, found.requests, found.by_token) == (1, 1, 600, 0)
    assert sum(found.reasons.values()) == 3
    assert all("does not fit: " in reason for reason in found.reasons)


def test_more_designs_and_requests_take_longer():
    less, more = foretold(), foretold(overrides=["workload.requests=10000000"])
    assert more.requests == 3 * 2 * 10_000_000
    assert more.feasible == less.feasible
    assert more.seconds > 5 * less.seconds and more.peak_bytes > 3e9
    assert foretold(sensitivity=True).requests == 13 * 600  # six inputs up and down


def test_the_memory_of_workers_counts_where_there_are_workers(monkeypatch):
    monkeypatch.setattr("evaluator.execution.schedule.processors", lambda: 8)
    rates = {"deployment.tensor_parallel": [4], "workload.arrivals.rate_rps": [1, 2]}
    arguments = {"all apart": {}, "a shard": {"rows": range(0, 4)}, "one deployment": {"sweep": rates}}
    alone = {name: foretold(**given).peak_bytes for name, given in arguments.items()}
    monkeypatch.setattr("evaluator.execution.schedule.WORTH_WORKERS", 0)
    # Each has the whole grid, also that of a shard.
    grid_of_six = 6 * (module.BYTES_PER_POINT + module.BYTES_PER_DEPLOYMENT)
    grids = {
        "all apart": grid_of_six,
        "a shard": grid_of_six,
        "one deployment": 2 * module.BYTES_PER_POINT + module.BYTES_PER_DEPLOYMENT,
    }
    for name, given in arguments.items():
        workers = 7 * (module.BYTES_PER_WORKER + grids[name])
        assert foretold(**given).peak_bytes - alone[name] == pytest.approx(workers, rel=1e-9)
    with monkeypatch.context() as without:
        without.setenv("EVALUATOR_CACHE", "")  # where no programs are kept
        assert foretold().peak_bytes == alone["all apart"]
    monkeypatch.setattr("evaluator.execution.schedule.ROUTERS", SimpleNamespace(own=("mine",)))
    assert foretold().peak_bytes == alone["all apart"]


def test_requests_of_an_axis_are_what_they_are():
    found = foretold({"deployment.tensor_parallel": [4], "workload.requests": [200_000, 400_000]})
    assert (found.groups, found.compilations, found.requests) == (2, 2, 2 * 600_000)


def test_what_only_the_reference_runs_is_told():
    branches = ["workload.reasoning={branches: 4, scale: 2}", "deployment.kv.admission=on_demand"]
    found = foretold({"deployment.tensor_parallel": [4]}, branches)
    assert (found.by_token, found.compilations) == (1, 0)
    assert "; 1 design token by token" in str(found)


def test_requests_at_the_level_of_requests():
    only = {"deployment.tensor_parallel": [4]}
    found = foretold(only, ["deployment.batching.policy=continuous"], simulator="request")
    assert (found.feasible, found.by_token, found.compilations, found.requests) == (1, 0, 0, 200)
    assert foretold(only, simulator="request").reasons == {
        "unsupported: simulator request does not cover batching.policy chunked": 1
    }


def test_of_a_large_sweep_some_designs_stand_for_all(monkeypatch):
    monkeypatch.setattr(module, "MOST_EXAMINED", 100)
    found = foretold({"deployment.tensor_parallel": [1, 4], "workload.arrivals.rate_rps": {"linspace": [1, 2, 500]}})
    assert (found.designs, found.examined) == (1000, 100)
    assert found.feasible == pytest.approx(500, abs=20)
    assert "(estimated from 100 of them)" in str(found)


def test_a_reason_is_told_by_an_example_with_its_device_and_its_figures():
    found = foretold({"deployment.tensor_parallel": [1, 2], "deployment.hardware": ["h100-sxm"]})
    assert found.reasons == {
        "does not fit: 141.1 GB of weights per device exceed the 79.0 GB usable of 86 GB on h100-sxm": 1,
    }


def test_a_shard_is_told_of_its_own_rows():
    shards = [foretold(rows=rows) for rows in (range(0, 4), range(4, 6), range(6, 6))]
    assert [found.designs for found in shards] == [4, 2, 0]
    whole = foretold()
    assert sum(found.feasible for found in shards) == whole.feasible
    assert sum(found.requests for found in shards) == whole.requests
    assert "0: 0 feasible, 0 not" in str(shards[-1])


def test_values_by_seed_make_the_file_larger():
    assert foretold(by_seed=True).output_bytes > foretold().output_bytes


@pytest.mark.parametrize(
    ("size", "words"), [(500.0, "0.5 kB"), (118_000.0, "118 kB"), (42_000.0, "42 kB"), (2.4e6, "2.4 MB")]
)
def test_sizes_are_plain_numbers(size, words):
    assert module._size(size) == words


def test_conditions_count():
    found = foretold(SCENARIO["sweep"] | {"where": "tensor_parallel == 4"})
    assert (found.designs, found.feasible) == (2, 2)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "workload.requests=100000000",
            "must be an integer from 1 to 10000000, got 100000000; a long run's statistics",
        ),
        ("deployment.replicas=1000000", "must be an integer from 1 to 10000, got 1000000; simulate one replica"),
    ],
)
def test_what_would_never_end_is_refused(override, message):
    with pytest.raises(ValueError, match=message):
        load_scenario({**SCENARIO, "sweep": {}}, [override])


def test_the_command(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(load_scenario(SCENARIO).text)
    result = CliRunner().invoke(app, ["sweep", str(path), "--dry-run", "--out", str(tmp_path / "x.nc")])
    assert result.exit_code == 0
    for part in ("6: 3 feasible, 3 not", "1 compilation\n", "time             about", "(estimate)", "output "):
        assert part in result.output
    assert not (tmp_path / "x.nc").exists()


def test_the_command_tells_of_one_shard(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(load_scenario(SCENARIO).text)
    line = ["sweep", str(path), "--dry-run", "--shard", "2/3", "--out", str(tmp_path / "x.zarr")]
    result = CliRunner().invoke(app, line)
    assert result.exit_code == 0 and "designs          2: " in result.output
    assert list(tmp_path.iterdir()) == [path]


def test_jax_is_not_loaded():
    code = "import sys; from evaluator.execution.forecast import forecast; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
