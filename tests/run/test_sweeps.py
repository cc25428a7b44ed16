"""From a scenario to its dataset: whole sweeps on the engine, small; interrupted and gone on with."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from evaluator import results
from evaluator.errors import InputError
from evaluator.metrics import OK
from evaluator.run import simulate, sweep
from evaluator.stations.engine.fcfs_reserved import run_lanes
from tests.execution.build import Interrupting
from tests.results.build import same
from tests.run.build import plausible
from tests.scenario.build import GRID, scenario


def test_a_sweep_is_labelled_and_plausible(swept):
    assert swept.sizes["config"] == 12
    assert swept["config"].values.tolist() == list(range(12))
    assert swept["rate_rps"].values[:3].tolist() == [2, 20, 2]
    assert set(swept["engine"].values) == {"iteration"} and set(swept["provenance"].values) == {"calibrated"}
    assert set(swept["calibration_set"].values) == {"h100-sxm-vllm.serving"}
    plausible(swept)
    whole = results.unstack(swept)
    assert whole["ttft_s_mean"].dims == ("model", "policy", "rate_rps")
    able = whole["ttft_s_mean"].sel(model=["llama-3.1-8b", "gpt-oss-20b"])
    assert (able.sel(rate_rps=20) > able.sel(rate_rps=2)).all()


def test_what_each_seed_says_is_there_if_it_is_asked_for(grid, swept):
    both = sweep(grid, by_seed=True)
    same(both.drop_vars([name for name in both.variables if name == "seed" or str(name).endswith("_by_seed")]), swept)
    assert both["seed"].values.tolist() == [0, 1] and both["ttft_s_by_seed"].dims == ("config", "seed", "quantile")
    for name in ("ttft_s", "e2e_s_mean", "throughput_rps", "slo_attainment", "utilisation"):
        xr.testing.assert_allclose(both[f"{name}_by_seed"].mean("seed"), both[name], rtol=1e-12)
    apart = both["ttft_s_by_seed"].diff("seed").squeeze() / np.sqrt(2)
    np.testing.assert_allclose(np.abs(apart) / np.sqrt(2), both["ttft_s_stderr"], rtol=1e-9)
    alone = sweep(scenario("workload.seeds=[1]", **GRID), by_seed=True)
    np.testing.assert_array_equal(alone["ttft_s_by_seed"][:, 0], both["ttft_s_by_seed"].sel(seed=1))


def test_seeds_of_designs_of_which_none_can_run():
    result = sweep(scenario("deployment.model=llama-3.1-70b", "workload.seeds=[0, 1]"), by_seed=True)
    assert result["status"].item().startswith("infeasible")
    assert result["itl_s_by_seed"].shape == (1, 2, 4) and result["itl_s_by_seed"].isnull().all()


def test_every_row_of_a_sweep_is_the_run_of_its_point(grid, swept):
    for config in (0, 3, 5, 6):
        row = swept.isel(config=config)
        select = {name: str(row[name].values) for name in ("model", "policy", "rate_rps")}
        one = simulate(grid, select=select).summary
        same(one, swept.isel(config=[config]))


def test_every_device_of_a_sweep_over_figures_is_the_run_of_its_own():
    """Their costs are folded together and what was checked is shared; the numbers are those of each alone."""
    grid = scenario(
        deployment__hardware__memory_bandwidth=[2e12, 3.35e12, 5e12],
        deployment__hardware__memory_bytes=["20GB", "80GB"],  # the model does not fit into the less
        deployment__tensor_parallel=[1, 2],
    )
    found = sweep(grid)
    for config in range(found.sizes["config"]):
        row = found.isel(config=config)
        names = ("memory_bandwidth", "memory_bytes", "tensor_parallel")
        alone = scenario(*(f"deployment.hardware.{name}={row[name].item()}" for name in names[:2]),
                         f"deployment.tensor_parallel={row['tensor_parallel'].item()}")  # fmt: skip
        one = sweep(alone).isel(config=0)
        for name in found.data_vars:
            np.testing.assert_array_equal(row[name].values, one[name].values, err_msg=name)


def test_what_cannot_run_is_a_row_beside_what_can(swept):
    absent = swept["model"].values == "llama-3.1-70b"
    assert all(text.startswith("infeasible: does not fit") for text in swept["status"].values[absent])
    assert (swept["status"].values[~absent] == OK).all()
    assert swept["ttft_s"].isnull().values[absent].all() and not swept["slo_met"].values[absent].any()


def test_a_sweep_in_which_nothing_can_run_is_all_rows():
    ds = sweep(scenario(deployment__model=["llama-3.1-70b", "llama-3.1-405b"], workload__arrivals__rate_rps=[1, 2]))
    assert all(text.startswith("infeasible: does not fit") for text in ds["status"].values)
    assert ds["ttft_s"].isnull().all() and ds["throughput_rps"].isnull().all()


def test_a_group_in_which_nothing_can_run_does_not_stop_the_others():
    """Experts have a program of their own; here the model with experts has too short a context."""
    long = "workload.lengths={source: fixed, prompt_tokens: 50000, output_tokens: 5}"
    ds = sweep(scenario(long, "workload.requests=12", deployment__model=["llama-3.1-8b", "qwen3-30b-a3b"]))
    assert ds["status"].values[0] == OK and "exceeds the 40,960 positions" in ds["status"].values[1]
    assert np.isfinite(ds["ttft_s"].values[0]).all()


def test_the_same_sweep_gives_the_same_dataset(grid, swept):
    same(sweep(grid), swept)


def test_few_programs_serve_many_configurations(grid, swept):
    """One for each structure: what the first sweep compiled serves another one with other numbers."""
    before = run_lanes._cache_size()
    sweep(scenario("workload.seeds=[2, 3]", **{**GRID, "workload__arrivals__rate_rps": [1, 3, 9]}))
    assert run_lanes._cache_size() == before


def test_seeds_differ_and_are_averaged():
    several, single = scenario("workload.seeds=[0, 1, 2]"), [scenario(f"workload.seeds=[{seed}]") for seed in range(3)]
    context = [float(sweep(one)["ttft_s_mean"].item()) for one in single]
    assert len(set(context)) == 3
    ds = sweep(several)
    assert ds["ttft_s_mean"].item() == pytest.approx(np.mean(context))
    assert ds["ttft_s_mean_stderr"].item() == pytest.approx(np.std(context, ddof=1) / np.sqrt(3))


def test_unusable_simulator():
    with pytest.raises(InputError, match="there is no simulator 'fluid'; use auto or iteration or request or token"):
        sweep(scenario(), simulator="fluid")


def test_every_policy_has_every_role_in_every_loop():
    """All of them run, and an open loop of little load waits less than everything at once."""
    axes = {
        "deployment__batching__policy": ["static", "continuous", "chunked", "mixed"],
        "deployment__role": ["mixed", "prefill", "decode"],
        "workload__arrivals": [
            {"process": "all_at_once"},
            {"process": "closed_loop", "users": 4},
            {"process": "closed_loop", "users": 500},  # more than there are requests
            {"process": "gamma", "rate_rps": 0.5, "cv": 2},
        ],
    }
    ds = sweep(scenario(**axes))
    assert (ds["status"].values == OK).all()
    assert np.isfinite(ds["e2e_s"]).all() and (ds["mfu"] > 0).all() and (ds["kv_used_max"] <= 1).all()
    wait = ds["queue_wait_s_mean"].values.reshape(4, 3, 4)
    assert (wait[..., 3] < wait[..., 0]).all()
    np.testing.assert_allclose(wait[..., 0], wait[..., 2], rtol=1e-12)
    single = ds["tpot_s_mean"].isnull().values.reshape(4, 3, 4)
    assert single[:, 1].all() and not single[:, [0, 2]].any()


# --- interrupted sweeps


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr("evaluator.execution.schedule.CONFIGS_PER_CHUNK", 2)


def kept_chunks(out: Path) -> int:
    return len(list(out.with_suffix(".chunks").glob("*/chunk-*.npz")))


def test_an_interrupted_sweep_goes_on_where_it_was(grid, swept, small_chunks, tmp_path):
    out = tmp_path / "a.nc"
    with pytest.raises(KeyboardInterrupt):
        sweep(grid, out=out, progress=Interrupting())
    assert not out.exists()
    assert kept_chunks(out) >= 1
    progress = Interrupting(after=-1)
    same(sweep(grid, out=out, progress=progress), swept)
    assert progress.kept >= 2
    assert progress.notes == [
        f"going on with {progress.kept} configurations that an interrupted run finished; --fresh starts anew"
    ]
    same(results.read(out), swept)
    assert [path.name for path in tmp_path.iterdir()] == ["a.nc"]


def test_a_fresh_sweep_takes_nothing_up(grid, swept, small_chunks, tmp_path):
    out = tmp_path / "a.nc"
    with pytest.raises(KeyboardInterrupt):
        sweep(grid, out=out, progress=Interrupting())
    progress = Interrupting(after=-1)
    same(sweep(grid, out=out, progress=progress, fresh=True), swept)
    assert progress.kept == 0 and not progress.notes


def test_chunks_of_another_scenario_are_left_alone_and_told(grid, swept, small_chunks, tmp_path):
    out = tmp_path / "a.nc"
    with pytest.raises(KeyboardInterrupt):
        sweep(grid, out=out, progress=Interrupting())
    before, progress = kept_chunks(out), Interrupting(after=-1)
    sweep(scenario("workload.seeds=[0, 2]", **GRID), out=out, progress=progress)
    assert progress.kept == 0
    (note,) = progress.notes
    assert note == f"{tmp_path / 'a.chunks'} keeps chunks of other scenarios or versions; remove it, if not wanted"
    assert kept_chunks(out) == before
    again = Interrupting(after=-1)
    same(sweep(grid, out=out, progress=again), swept)
    assert again.kept >= 2 and not out.with_suffix(".chunks").exists()


def test_a_result_that_cannot_be_written_loses_no_chunk(grid, swept, small_chunks, tmp_path, monkeypatch):
    out = tmp_path / "a.nc"

    def full(self, *_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("evaluator.results.files.write_own", full)
        message = r"cannot write .*a\.nc: No space left on device; all finished chunks are kept in .*a\.chunks/"
        with pytest.raises(InputError, match=message):
            sweep(grid, out=out)
    progress = Interrupting(after=-1)
    same(sweep(grid, out=out, progress=progress), swept)
    assert progress.kept == 12


def test_two_runs_on_one_output(grid, tmp_path):
    out = tmp_path / "a.nc"

    class Meeting(Interrupting):
        def advance(self, units: int = 1) -> None:
            with pytest.raises(
                InputError, match=r"a\.nc: process \d+ on .* is writing it; wait for it, or choose another"
            ):
                sweep(grid, out=out)
            sweep(scenario(), out=tmp_path / "b.nc")

    sweep(grid, out=out, progress=Meeting())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.nc", "b.nc"]


def test_chunks_before_a_changed_trace_are_not_taken_up(small_chunks, tmp_path):
    trace, out = tmp_path / "trace.csv", tmp_path / "a.nc"
    axes = {"workload__arrivals__scale": [1, 2, 3, 4]}
    text = "arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{i},{10 + i},5\n" for i in range(20))
    trace.write_text(text)
    replay = f"workload.arrivals={{process: trace, file: {trace}}}"
    settings = (replay, "workload.lengths=null", "workload.requests=null", "workload.warmup_requests=null")
    with pytest.raises(KeyboardInterrupt):
        sweep(scenario(*settings, **axes), out=out, progress=Interrupting())
    os.utime(trace, (0, 0))  # the clock has jumped; the requests are the same
    progress = Interrupting(after=1)
    with pytest.raises(KeyboardInterrupt):
        sweep(scenario(*settings, **axes), out=out, progress=progress)
    assert progress.kept == 2
    trace.write_text(text.replace(",5\n", ",15\n"))
    progress = Interrupting(after=-1)
    sweep(scenario(*settings, **axes), out=out, progress=progress)
    assert progress.kept == 0
