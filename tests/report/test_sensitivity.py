"""What a little more of an input buys: closed forms, identities and the plumbing of ``sweep --sensitivity``."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from evaluator import results
from evaluator.catalog.store import find
from evaluator.errors import InputError
from evaluator.metrics import elasticity
from evaluator.metrics.variables import INPUTS
from evaluator.plan import plan
from evaluator.report import elasticity_table, plot_sensitivity
from evaluator.report.picture.sensitivity import sensitivity_figure_of
from evaluator.run import sweep
from evaluator.simulation import summaries
from evaluator.stations.engine.fcfs_reserved import run_lanes
from tests.execution.build import Interrupting
from tests.results.build import same
from tests.scenario.build import GRID, scenario

SIGNS = xr.DataArray([1, 1, 1, -1, -1, -1], coords={"input": list(INPUTS)})
ONE = ("workload.requests=1", "workload.warmup_requests=0")
LENGTHS = "workload.lengths={{source: fixed, prompt_tokens: {}, output_tokens: {}}}"
ON_SWAP = (  # a decode cache that is always too small
    "deployment.hardware=rtx-4090",
    "deployment.kv={admission: on_demand, preemption: swap, swap_bandwidth: 5e8, memory_fraction: 0.75}",
    "workload.arrivals={process: all_at_once}",
    LENGTHS.format(900, 300),
)


def total(ds: xr.Dataset, name: str) -> np.ndarray:
    """Elasticities to the rates minus those to the times, (config,): what an hour of half the length would do."""
    return (ds[f"{name}_elasticity"] * SIGNS).sum("input", skipna=False).values


@pytest.fixture
def step(monkeypatch):
    """Sets another size of the step."""

    def change(size: float) -> None:
        monkeypatch.setattr(elasticity, "STEP", size)
        monkeypatch.setattr(summaries, "STEP", size)

    return change


# --- identities and closed forms


@pytest.mark.parametrize("simulator", ["iteration", "token"])
def test_one_request_has_elasticities_that_add_up_to_minus_one(simulator, step):
    """Latencies of an idle system are homogeneous in all rates and times together (Euler); off by the step squared."""
    one = scenario(*ONE, LENGTHS.format(2000, 50), deployment__tensor_parallel=[1, 2])
    errors = []
    for size in (0.05, 0.01):
        step(size)
        ds = sweep(one, sensitivity=True, simulator=simulator)
        latencies = [total(ds, name) for name in ("ttft_s_mean", "tpot_s_mean", "e2e_s_mean")]
        np.testing.assert_allclose(latencies, -1.0, rtol=1e-3)
        errors.append(np.abs(np.array(latencies) + 1.0))
    np.testing.assert_allclose(errors[1], errors[0] / 25, rtol=0.1, atol=1e-9)


def test_where_nothing_has_a_clock_of_its_own_all_metrics_are_homogeneous():
    """Closed loop and all at once: queues and all, with what the order of events does to it within the error."""
    axes = {
        "workload__arrivals": [{"process": "closed_loop", "users": 6}, {"process": "all_at_once"}],
        "deployment__batching__policy": ["continuous", "chunked"],
    }
    ds = sweep(scenario("workload.seeds=[0, 1, 2]", "deployment.tensor_parallel=2", **axes), sensitivity=True)
    for name, expected in (("e2e_s_mean", -1.0), ("output_tok_per_s", 1.0), ("utilisation", 0.0)):
        np.testing.assert_allclose(total(ds, name), expected, atol=0.03)


def test_swapping_is_a_link():
    ds = sweep(scenario(*ON_SWAP), sensitivity=True)
    assert ds["preemptions"].item() > 5
    assert ds["e2e_s_mean_elasticity"].sel(input="link_bandwidth").item() < -0.01
    assert total(ds, "e2e_s_mean").item() == pytest.approx(-1.0, abs=0.05)


def test_the_share_of_the_host():
    """Time per token is linear in the host's: its elasticity is the share, all that is fixed or has a rate the rest."""
    ds = sweep(scenario(*ONE, LENGTHS.format(100, 200)), sensitivity=True)
    host = plan(scenario()).configurations[0].stations[0].design.calibration
    share = (host.step_overhead_s + host.sequence_overhead_s) / ds["tpot_s_mean"].item()
    found = ds["tpot_s_mean_elasticity"].sel(input="host_overhead").item()
    assert found == pytest.approx(share, rel=1e-3)


def test_a_decode_that_only_reads_memory(tmp_path, monkeypatch):
    """Without overheads a decode of one sequence is bound by bandwidth alone: elasticity -1; a long prompt by FLOPs."""
    (tmp_path / "calibration").mkdir()
    text = find("calibrations", "datasheet").read_text().replace("name: datasheet", "name: bare")
    for old in ("launch_s: 2us", "launch_s: 9us", "launch_s: 10us", "step_overhead_s: 1ms", "overhead_s: 5us"):
        text = text.replace(old, f"{old.split(':')[0]}: 0s")
    (tmp_path / "calibration" / "bare.yaml").write_text(text.replace("knee: 0.15", "knee: 0"))
    monkeypatch.setenv("EVALUATOR_PATH", str(tmp_path))
    ds = sweep(scenario(*ONE, LENGTHS.format(8000, 50), "deployment.calibration=bare"), sensitivity=True)
    np.testing.assert_allclose(ds["tpot_s_mean_elasticity"], [[-1.0, 0.0, 0.0, 0.0, 0.0, 0.0]], atol=1e-12)
    assert ds["ttft_s_mean_elasticity"].sel(input="flops").item() < -0.8


def test_a_device_of_ones_own_with_more_bandwidth_gives_the_same(tmp_path, monkeypatch):
    """What a user finds who writes the faster and the slower device down and sweeps over them."""
    text = find("hardware", "h100-sxm").read_text()
    assert text.count("memory_bandwidth: 3.35TB/s") == 1
    folder = tmp_path / "models" / "hardware"
    folder.mkdir(parents=True)
    for name, factor in (("slower", 1 / 1.05), ("faster", 1.05)):
        own = text.replace("memory_bandwidth: 3.35TB/s", f"memory_bandwidth: {3.35e12 * factor!r}")
        (folder / f"{name}.yaml").write_text(own.replace("name: h100-sxm", f"name: {name}"))
    monkeypatch.setenv("EVALUATOR_PATH", str(tmp_path))
    load = ("workload.arrivals.rate_rps=20", "workload.seeds=[0, 1]", "deployment.calibration=datasheet")
    found = sweep(scenario(*load), sensitivity=["memory_bandwidth"])
    _is_the_difference(found, sweep(scenario(*load, deployment__hardware=["slower", "faster"])))


def test_a_device_like_one_with_more_bandwidth_gives_the_same():
    """It keeps the set that was fitted to the device."""
    load = ("workload.arrivals.rate_rps=20", "workload.seeds=[0, 1]")
    found = sweep(scenario(*load), sensitivity=["memory_bandwidth"])
    own = sweep(scenario(*load, deployment__hardware__memory_bandwidth__times=[1 / 1.05, 1.05]))
    assert (found["calibration_set"] == "h100-sxm-vllm.serving").all()
    assert (own["calibration_set"] == "h100-sxm-vllm.serving").all() and (own["provenance"] == "extrapolated").all()
    _is_the_difference(found, own)


def _is_the_difference(found, own):
    for name in ("ttft_s", "tpot_s_mean", "e2e_s", "itl_s", "output_tok_per_s", "utilisation"):
        slow, fast = own[name].values
        np.testing.assert_allclose(
            found[f"{name}_elasticity"].values[0, 0], np.log(fast / slow) / (2 * np.log(1.05)), rtol=1e-9, atol=1e-12
        )


def test_waits_of_a_single_server():
    """M/D/1: d ln W / d ln D = (2 - rho) / (1 - rho), shared among the inputs as the service time itself is."""
    alone = (
        "deployment.role=prefill",
        "deployment.batching={policy: continuous, max_num_seqs: 1}",
        "deployment.calibration=datasheet",  # no frontend beside the server
    )
    fixed = LENGTHS.format(4000, 1)
    idle = sweep(scenario(*alone, fixed, *ONE), sensitivity=True)
    service, load = idle["ttft_s_mean"].item(), 0.6
    seeds = f"workload.seeds={list(range(30))}"
    many = (f"workload.arrivals.rate_rps={load / service}", "workload.requests=4000", "workload.warmup_requests=400")
    ds = sweep(scenario(*alone, fixed, seeds, *many), sensitivity=True)
    expected = idle["ttft_s_mean_elasticity"] * (2 - load) / (1 - load)
    error = ds["queue_wait_s_mean_elasticity_stderr"]
    assert (error <= 0.04 * np.abs(expected)).all()
    # W bends with D: the central difference is off by h^2 / 6 of its third derivative, some 0.1 %.
    assert (np.abs(ds["queue_wait_s_mean_elasticity"] - expected) <= 4 * error + 0.002 * np.abs(expected)).all()


# --- the sweep around it


@pytest.fixture(scope="module")
def grid():
    return scenario("workload.seeds=[0, 1]", **GRID)


@pytest.fixture(scope="module")
def swept(grid) -> xr.Dataset:
    return sweep(grid, sensitivity=True)


def test_a_sensitivity_adds_to_a_sweep_and_changes_nothing(grid, swept):
    plain = sweep(grid)
    same(swept[list(plain.data_vars)], plain)
    assert swept["input"].values.tolist() == list(INPUTS)
    assert swept["ttft_s_elasticity"].dims == ("config", "input", "quantile")
    assert swept["slo_attainment_elasticity"].dims == ("config", "input")
    assert swept["ttft_s_elasticity"].attrs["units"] == "1" and "x 1.05" in swept["ttft_s_elasticity"].description
    able = swept["status"].values == "ok"
    assert np.isnan(swept["e2e_s_mean_elasticity"].values[~able]).all()
    found = swept.isel(config=able)["e2e_s_mean_elasticity"]
    assert (found.sel(input=["memory_bandwidth", "flops"]) < 0).all()
    assert (found.sel(input=["link_bandwidth", "link_latency"]) == 0).all()  # of one device
    assert results.unstack(swept)["e2e_s_mean_elasticity"].dims == ("model", "policy", "rate_rps", "input")


def test_some_inputs_are_those_of_all(grid, swept):
    some = sweep(grid, sensitivity=["host_overhead", "flops"])
    same(some, swept.sel(input=["flops", "host_overhead"]))


def test_no_program_of_its_own_and_no_chunk_matters(grid, swept, monkeypatch):
    before = run_lanes._cache_size()
    monkeypatch.setattr("evaluator.execution.schedule.REQUESTS_PER_CHUNK", 1)
    assert len(plan(grid, inputs=("flops",)).groups) == len(plan(grid).groups)
    same(sweep(grid, sensitivity=True), swept)
    assert run_lanes._cache_size() == before


def test_an_interrupted_sensitivity_goes_on(grid, swept, monkeypatch, tmp_path):
    monkeypatch.setattr("evaluator.execution.schedule.CONFIGS_PER_CHUNK", 2)
    out = tmp_path / "a.nc"
    with pytest.raises(KeyboardInterrupt):
        sweep(grid, out=out, progress=Interrupting(), sensitivity=True)
    plain = Interrupting(after=-1)
    sweep(grid, out=out, progress=plain)
    assert plain.kept == 0
    progress = Interrupting(after=-1)
    same(sweep(grid, out=out, progress=progress, sensitivity=True), swept)
    assert progress.kept >= 2
    same(results.read(out), swept)


def test_engines_and_processes_agree(monkeypatch):
    small = scenario("workload.seeds=[0, 1]", deployment__tensor_parallel=[1, 2])
    fast, exact = sweep(small, sensitivity=True), sweep(small, sensitivity=True, simulator="token")
    names = [name for name in fast.data_vars if "_elasticity" in str(name) and not str(name).startswith("itl_s")]
    for name in names:
        np.testing.assert_allclose(fast[name], exact[name], rtol=1e-6, atol=1e-8, err_msg=str(name))
    monkeypatch.setattr("evaluator.execution.schedule._known_elsewhere", lambda *_: False)
    same(sweep(small, sensitivity=True, simulator="token"), exact)


def test_what_is_left_to_the_reference_has_elasticities_too():
    ds = sweep(scenario(LENGTHS.format(500, 20), deployment__pipeline_parallel=[1, 2]), sensitivity=True)
    assert ds["engine"].values.tolist() == ["iteration", "token"]
    assert (ds["e2e_s_mean_elasticity"].sel(input="memory_bandwidth") < -0.3).all()


def test_stages_of_a_pipeline_talk_over_links():
    ds = sweep(scenario(LENGTHS.format(500, 20), "deployment.pipeline_parallel=2"), sensitivity=True)
    assert ds["e2e_s_mean_elasticity"].sel(input="link_latency").item() > 0
    assert ds["e2e_s_mean_elasticity"].sel(input="memory_bandwidth").item() < -0.3


def test_a_name_that_is_no_input():
    with pytest.raises(InputError, match="there is no input 'bandwidth'; did you mean"):
        sweep(scenario(), sensitivity=["bandwidth"])


# --- as text and picture


def test_the_table_names_what_limits_the_best(swept):
    text = elasticity_table(swept, 2)
    head, _, names, parts, rule, first, *rest = text.splitlines()
    assert head == "What limits the best 2 configurations: change in % for 1 % more of an input, ± chance and step"
    assert names.split()[:6] == ["#", "1", "%", "more", "of", "memory"] and "bandwidth" in parts and set(rule) == {"-"}
    assert "link" not in names  # one device
    assert first.startswith("1  TTFT p90") and "±" in first
    assert [line[:1] for line in rest] == [" ", " ", "2", " ", " "] and "USD per Mtok" in text
    assert max(map(len, text.splitlines())) <= 100


def drawn(ds: xr.Dataset, path) -> list:
    """The panels of the picture, which can be written."""
    assert plot_sensitivity(ds, path) == path and path.stat().st_size > 10_000
    return sensitivity_figure_of(ds).axes


def test_the_picture_of_a_design_has_a_bar_for_each_input(swept, tmp_path):
    panels = drawn(swept.isel(config=[0]), tmp_path / "one.png")
    assert [axes.get_title(loc="left") for axes in panels] == ["TTFT p90", "TPOT p90", "USD per Mtok"]
    assert all(len(axes.patches) == 4 for axes in panels)  # one device has no links


def test_the_picture_over_the_load_is_of_the_best_design(swept, tmp_path):
    panels = drawn(swept, tmp_path / "all.png")
    assert panels[0].get_xlabel() == "arrival rate (requests/s)"
    shown = [line.get_ydata() for line in panels[0].lines if len(line.get_xdata()) == 2]
    best = [swept["ttft_s_elasticity"].sel(input="flops", quantile=0.9).values[at : at + 2] for at in (0, 2, 4, 6)]
    assert any(np.array_equal(values, one) for values in shown for one in best)


def test_the_command(evaluator, tmp_path):
    file = tmp_path / "s.yaml"
    file.write_text(
        "name: s\nworkload:\n  arrivals: {process: poisson, rate_rps: 4}\n  lengths: {source: azure-conv-2023}\n"
        "  requests: 60\n  warmup_requests: 10\ndeployment: {model: llama-3.1-8b, hardware: h100-sxm}\n"
    )
    picture = tmp_path / "s.png"
    code, out, err = evaluator("sweep", file, "--sensitivity", "--out", tmp_path / "s.nc", "--plot", picture)
    assert code == 0 and "What limits the best configuration" in out
    assert f"{picture} and {tmp_path / 's-sensitivity.png'}" in err and (tmp_path / "s-sensitivity.png").exists()
    assert results.read(tmp_path / "s.nc").sizes["input"] == len(INPUTS)
    assert "What limits" not in evaluator("sweep", file, "-q")[1]
    assert evaluator("sweep", file, "-q", "--sensitivity", "--top", 0)[1] == ""
    code, out, err = evaluator("sweep", file, "-q", "--sensitivity", "--set", "deployment.model=llama-3.1-405b")
    assert code == 2 and "What limits" not in out and "does not fit" in err
