"""From a scenario to its dataset: whole sweeps and single runs on the engine, small."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from evaluator import results
from evaluator.errors import InputError
from evaluator.metrics import OK
from evaluator.plan import plan
from evaluator.results.gather import gather
from evaluator.results.shards import Shard
from evaluator.run import simulate, sweep, sweep_shard
from evaluator.scenario import load_scenario
from evaluator.stations.engine.in_order import run_lanes
from tests.execution.build import Interrupting
from tests.results.build import same
from tests.scenario.build import GRID, scenario

ROOT = Path(__file__).resolve().parents[1]
TIMES = ["arrival_s", "scheduled_s", "first_token_s", "last_token_s"]


def plausible(ds: xr.Dataset) -> None:
    """What holds for every design that ran."""
    ran = ds.isel(config=np.flatnonzero(ds["status"].values == OK))
    for name in ("mfu", "mbu", "utilisation", "kv_used_max", "kv_used_mean"):
        assert ((ran[name] > 0) & (ran[name] <= 1)).all(), name
    assert (ran["kv_used_mean"] <= ran["kv_used_max"]).all()
    for name in ("queue_wait_s", "ttft_s", "tpot_s", "e2e_s", "itl_s"):
        assert np.isfinite(ran[name]).all() and (ran[name].diff("quantile") >= 0).all(), name
    assert (ran["ttft_s"] >= ran["queue_wait_s"]).all() and (ran["e2e_s"] >= ran["ttft_s"]).all()
    assert (ran["throughput_rps"] > 0).all() and (ran["usd_per_mtok"].isnull() | (ran["usd_per_mtok"] > 0)).all()


def ordered(table: pd.DataFrame) -> None:
    """Every time is finite, and they follow each other."""
    times = table[TIMES].to_numpy()
    assert np.isfinite(times).all() and (np.diff(times, axis=1) >= 0).all()
    assert (table["first_token_s"] > table["scheduled_s"]).all()
    assert ((table["last_token_s"] > table["first_token_s"]) == (table["output_tokens"] > 1)).all()


# --- sweeps


@pytest.fixture(scope="module")
def grid():
    return scenario("workload.seeds=[0, 1]", **GRID)


@pytest.fixture(scope="module")
def swept(grid) -> xr.Dataset:
    return sweep(grid)


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


def test_every_row_of_a_sweep_is_the_run_of_its_point(grid, swept):
    for config in (0, 3, 5, 6):
        row = swept.isel(config=config)
        select = {name: str(row[name].values) for name in ("model", "policy", "rate_rps")}
        one = simulate(grid, select=select).summary
        same(one, swept.isel(config=[config]))


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
    means = [float(sweep(one)["ttft_s_mean"].item()) for one in single]
    assert len(set(means)) == 3
    ds = sweep(several)
    assert ds["ttft_s_mean"].item() == pytest.approx(np.mean(means))
    assert ds["ttft_s_mean_stderr"].item() == pytest.approx(np.std(means, ddof=1) / np.sqrt(3))


def test_unusable_engine():
    with pytest.raises(InputError, match="there is no engine 'fluid'; use iteration or request or token"):
        sweep(scenario(), engine="fluid")


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
        patch.setattr(xr.Dataset, "to_netcdf", full)
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


# --- shards


@pytest.mark.parametrize("count", [1, 3, 5])
def test_shards_are_the_single_run_bit_for_bit(grid, swept, count, tmp_path):
    """In any order, one of them interrupted and gone on with; of five the last has no rows."""
    out = tmp_path / "a.zarr"
    shards = [Shard(number, count) for number in range(count, 0, -1)]
    with pytest.raises(KeyboardInterrupt):
        sweep_shard(grid, shards[-1], out, progress=Interrupting())
    assert all(sweep_shard(grid, shard, out, command="sweep --shard {shard}") for shard in shards[1:])
    if count > 1:
        found = gather(out)
        assert (found.missing, found.commands) == ((shards[0],), (f"sweep --shard {count}/{count}",))
        assert not out.exists()
    assert sweep_shard(grid, shards[0], out)
    assert not sweep_shard(grid, shards[0], out)
    assert gather(out).missing == ()
    back = results.read(out)
    same(back, swept)
    assert {name: text for name, text in back.attrs.items() if name != "created"} == {
        name: text for name, text in swept.attrs.items() if name != "created"
    }
    assert [path.name for path in tmp_path.iterdir()] == ["a.zarr"]


def test_shards_of_another_scenario_are_another_sweep(grid, tmp_path):
    out = tmp_path / "a.zarr"
    few = scenario(workload__arrivals__rate_rps=[1, 2])
    sweep_shard(few, Shard(1, 2), out)
    sweep_shard(scenario(workload__arrivals__rate_rps=[1, 3]), Shard(2, 2), out)
    assert [shard.number for shard in gather(out).missing] in ([1], [2])
    sweep_shard(few, Shard(2, 2), out)
    assert gather(out).missing == ()
    assert results.read(out)["rate_rps"].values.tolist() == [1, 2]


def test_what_the_reference_computed_is_told_of_all_shards(tmp_path):
    axes = {"deployment__kv__preemption": ["recompute", "swap"], "deployment__replicas": [1, 2]}
    mixed = scenario("deployment.kv={admission: on_demand, swap_bandwidth: 25GB/s}", **axes)
    for number in (1, 2):
        sweep_shard(mixed, Shard(number, 2), tmp_path / "a.zarr")
    gather(tmp_path / "a.zarr")
    note = results.read(tmp_path / "a.zarr").attrs.get("engine_note")
    assert note == sweep(mixed).attrs.get("engine_note")


def test_shards_are_written_as_zarr(grid, tmp_path):
    with pytest.raises(InputError, match=r"a\.nc: shards are put together as Zarr; choose an --out that ends"):
        sweep_shard(grid, Shard(1, 2), tmp_path / "a.nc")


# --- single runs


def test_a_run_reports_every_request():
    result = simulate(scenario("workload.seeds=[3, 5]"))
    table = result.requests
    assert len(table) == 120 and table.groupby("seed")["request"].nunique().tolist() == [60, 60]
    ordered(table)
    measured = table[table["measured"]]
    assert len(measured) == 88  # of 60 requests ten are cut at the start, six at the end
    assert result.summary["e2e_s_mean"].item() == pytest.approx(measured.groupby("seed")["e2e_s"].mean().mean())
    plausible(result.summary)


def test_what_cannot_run_says_why():
    with pytest.raises(InputError, match="small: infeasible: does not fit"):
        simulate(scenario("deployment.model=llama-3.1-70b"))


def test_littles_law_of_a_run():
    """Requests inside over time, and blocks held over time, against what each request adds to them."""
    engine_alone = "deployment.calibration=datasheet"  # without a frontend: clients see what the replica does
    one = scenario("workload.requests=400", "workload.warmup_requests=0", "workload.arrivals.rate_rps=10", engine_alone)
    result = simulate(one)
    table = result.requests
    makespan = table["last_token_s"].max() - table["arrival_s"].min()
    times = table["arrival_s"].min() + np.linspace(0, makespan, 200_000)
    inside = np.searchsorted(table["arrival_s"], times) - np.searchsorted(np.sort(table["last_token_s"]), times)
    rate = len(table) / makespan
    assert inside.mean() == pytest.approx(rate * result.summary["e2e_s_mean"].item(), rel=1e-3)
    blocks = np.ceil((table["prompt_tokens"] + table["output_tokens"] - 1) / 16)
    held = (blocks * (table["last_token_s"] - table["scheduled_s"])).sum() / makespan
    capacity = plan(one).members[0].stations[0].design.ready.kv.capacity_units
    assert result.summary["kv_used_mean"].item() == pytest.approx(held / capacity, rel=1e-9)


@pytest.mark.parametrize("router", ["round_robin", "random"])
def test_replicas_share_the_requests(router):
    settings = ("deployment.replicas=3", f"deployment.router={router}", "workload.seeds=[0, 1]")
    result = simulate(scenario(*settings, "workload.arrivals.rate_rps=60"))
    table = result.requests
    assert len(table) == 120
    ordered(table)
    per_seed = table.groupby("seed")["replica"]
    if router == "round_robin":
        assert all((column == np.arange(60) % 3).all() for _, column in per_seed)
    else:
        first, second = (column.to_numpy() for _, column in per_seed)
        assert set(first) == {0, 1, 2} and (first != second).any()
    assert result.summary["devices"].item() == 3
    for (_, _), part in table.groupby(["seed", "replica"]):
        assert part["scheduled_s"].is_monotonic_increasing
    plausible(result.summary)


def test_one_of_several_replicas_is_a_run_of_its_own(tmp_path):
    """Each replica serves its share as if it were alone with it."""
    whole = simulate(scenario("deployment.replicas=2", "workload.arrivals.rate_rps=40")).requests
    share = whole[whole["replica"] == 1]
    trace = tmp_path / "share.csv"
    share[["arrival_s", "prompt_tokens", "output_tokens"]].to_csv(trace, index=False)
    settings = (f"workload.arrivals={{process: trace, file: {trace}}}", "workload.lengths=null")
    alone = simulate(scenario(*settings, "workload.requests=30")).requests
    np.testing.assert_allclose(alone[TIMES[1:]], share[TIMES[1:]], rtol=1e-9)


def test_there_may_be_more_replicas_than_requests():
    for router in ("round_robin", "random"):
        result = simulate(scenario("deployment.replicas=80", f"deployment.router={router}"))
        ordered(result.requests)
        assert (result.requests["replica"] < 80).all()
        plausible(result.summary)


def test_gaps_and_mfu_agree_with_the_requests():
    """The pooled mean gap is all decode time over all gaps; useful FLOPs are at least two per weight and token."""
    result = simulate(scenario("workload.warmup_requests=0"))
    table = result.requests
    seconds = (table["last_token_s"] - table["first_token_s"]).sum()
    assert result.summary["itl_s_mean"].item() == pytest.approx(seconds / (table["output_tokens"] - 1).sum(), rel=0.01)
    tokens = (table["prompt_tokens"] + table["output_tokens"] - 1).sum()
    peak_s = result.summary["mfu"].item() * result.summary["utilisation"].item() * table["last_token_s"].max()
    assert 1.0 < peak_s * 989e12 / (2 * 6.98e9 * tokens) < 1.2  # 6.98 G weights in the layers of Llama-3.1-8B


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_closed_loop_never_has_more_requests_than_users(replicas):
    settings = ("workload.arrivals={process: closed_loop, users: 8}", f"deployment.replicas={replicas}")
    result = simulate(scenario(*settings))
    table = result.requests
    ordered(table)
    events = np.concatenate([table["arrival_s"], table["last_token_s"]])
    order = np.lexsort((np.repeat([1, -1], 60), events))
    inside = np.cumsum(np.repeat([1, -1], 60)[order])
    assert inside.max() == 8
    assert (inside[8 : 60 - 8] >= 7).all()  # nobody pauses
    assert not result.summary["saturated"].item()
    plausible(result.summary)


@pytest.mark.parametrize("replicas", [1, 3])
def test_users_wait_for_the_frontend(replicas):
    """Both engines send a request when an answer has reached a user, not when the engine has it."""
    settings = ("workload.arrivals={process: closed_loop, users: 8}", f"deployment.replicas={replicas}")
    exact, engine = (simulate(scenario(*settings), engine=name).requests for name in ("token", "iteration"))
    for name in ("arrival_s", "scheduled_s", "first_token_s", "last_token_s"):
        np.testing.assert_allclose(engine[name], exact[name], rtol=1e-9, err_msg=name)
    sent, answered = np.sort(engine["arrival_s"])[8:], np.sort(engine["last_token_s"])[: 60 - 8]
    np.testing.assert_allclose(sent, answered, rtol=1e-9)


def test_roles_split_the_work():
    """A prefill-only replica ends with the first token, a decode-only one computes no prompt."""
    prefill = simulate(scenario("deployment.role=prefill")).requests
    assert (prefill["output_tokens"] == 1).all() and (prefill["first_token_s"] == prefill["last_token_s"]).all()
    ordered(prefill)
    decode = simulate(scenario("deployment.role=decode")).requests
    mixed = simulate(scenario()).requests
    ordered(decode)
    np.testing.assert_array_equal(decode["output_tokens"], mixed["output_tokens"])
    assert decode["ttft_s"].mean() < prefill["ttft_s"].mean() < mixed["ttft_s"].mean() * 1.01


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


def test_a_trace_is_replayed(tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens,cached_tokens\n0.5,100,5,0\n1,2000,1,1999\n1,70,30,10\n")
    settings = (f"workload.arrivals={{process: trace, file: {trace}}}", "workload.lengths=null")
    table = simulate(scenario(*settings, "workload.requests=3", "workload.warmup_requests=0")).requests
    assert table["arrival_s"].tolist() == [0.5, 1, 1]
    assert table["prompt_tokens"].tolist() == [100, 2000, 70]
    assert table["cached_tokens"].tolist() == [0, 1999, 10]
    assert table["scheduled_s"].iloc[0] == 0.5
    ordered(table)


def test_a_trace_that_starts_late_has_the_same_use(tmp_path):
    """Timestamps of a day, or since 1970, say nothing about the load."""
    uses = []
    for start in (0.0, 3600.0):
        rows = "".join(f"{start + i / 10},500,50\n" for i in range(60))
        trace = tmp_path / f"from-{start}.csv"
        trace.write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
        settings = (f"workload.arrivals={{process: trace, file: {trace}}}", "workload.lengths=null")
        summary = simulate(scenario(*settings)).summary
        uses.append([summary[name].item() for name in ("ttft_s_mean", "throughput_rps", "utilisation", "kv_used_mean")])
    np.testing.assert_allclose(*uses, rtol=1e-6)


def test_the_hour_of_a_production_service(data_folder):
    """The Azure conversation trace on four replicas: every request once, in order, no token lost."""
    trace = data_folder / "azure_llm_trace_conv_2023.csv"
    settings = (f"workload.arrivals.file={trace}", "sweep=null")
    result = simulate(load_scenario(ROOT / "scenarios" / "trace-replay.yaml", settings))
    table, written = result.requests, pd.read_csv(trace)
    assert len(table) == len(written) == 19_366
    assert table["request"].tolist() == list(range(len(written)))
    for name in ("arrival_s", "prompt_tokens", "output_tokens"):
        np.testing.assert_array_equal(table[name], written[name])
    ordered(table)
    assert (table["replica"] == np.arange(len(table)) % 4).all()
    plausible(result.summary)
    later = table[table["output_tokens"] > 1]
    gaps = (later["last_token_s"] - later["first_token_s"]).sum()
    assert gaps == pytest.approx((later["tpot_s"] * (later["output_tokens"] - 1)).sum())
