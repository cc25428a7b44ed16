"""Whole scenarios on the reference: equal to the vectorised engine where that applies, and the features beyond it."""

from __future__ import annotations

import copy
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from evaluator import results
from evaluator.execution.workers import WorkerPool
from evaluator.metrics.use import pooled
from evaluator.plan import RateChange, plan
from evaluator.reference import RankBalance
from evaluator.reference import simulate as serve
from evaluator.reference.serve.pool import TokenGaps
from evaluator.routing import ROUTERS
from evaluator.run import simulate, sweep
from evaluator.simulation import simulate_configurations
from tests.execution.build import Interrupting
from tests.reference.build import random_scenario
from tests.results.build import same
from tests.scenario.build import scenario
from tests.simulation.engines import LEVELS, Designs, outcomes
from tests.thorough import THOROUGH, tried

CLOSED = "workload.arrivals={process: closed_loop, users: 7}"
EXPERTS = "deployment.model=gpt-oss-20b"
"""Of all designs in which users wait for a frontend, so that they share a program."""
SHARED = {
    "chunked": (),
    "continuous on replicas": ("deployment.batching.policy=continuous", "deployment.replicas=2"),
    "random router": ("deployment.batching.policy=mixed", "deployment.replicas=2", "deployment.router=random"),
    "closed loop, windows, experts": (EXPERTS, CLOSED, "deployment.replicas=2"),
    "decode": ("deployment.role=decode", "deployment.batching.policy=static"),
    "full cache": ("deployment.hardware=rtx-4090", "deployment.precision.weights=fp8", "workload.arrivals.rate_rps=40"),
    "seeds": ("workload.seeds=[3, 5]", "workload.cached_tokens=50"),
}
KEPT = ("workload.sessions={system_prompts: 4, system_tokens: 1000}", "deployment.kv.prefix_caching=true")
SHARED["system prompts"] = (*KEPT, "deployment.replicas=2")
TIGHT = (
    "deployment.hardware=rtx-4090",
    "deployment.precision.weights=fp8",
    "deployment.kv.admission=on_demand",
    "deployment.kv.memory_fraction=0.55",
    "workload.arrivals.rate_rps=60",
    "workload.lengths={source: fixed, prompt_tokens: 1500, output_tokens: 600}",
)
"""Little KV, much load."""
PIPELINE = "deployment.pipeline_parallel=2"
WINDOWS = (*TIGHT, EXPERTS, "deployment.kv.memory_fraction=0.93")
SEEDS = ("workload.seeds=[3, 5]",) if THOROUGH else ()
"""Another number of lanes is another program: for the general ones only once, else with ``make test-thorough``."""
GENERAL = {
    "on demand": (*TIGHT, *SEEDS),
    "system prompts on demand": (
        *TIGHT,
        *KEPT,
        "workload.lengths={source: fixed, prompt_tokens: 500, output_tokens: 600}",
        "deployment.kv.watermark=0.1",
    ),
    "watermark, whole prompts": (*TIGHT, "deployment.kv.watermark=0.1", "deployment.batching.policy=continuous"),
    "windows": (*WINDOWS, "deployment.batching.max_num_seqs=64"),
    "sarathi": (*TIGHT, "deployment.batching.policy=sarathi"),
    "decode on demand": (*WINDOWS, "deployment.role=decode", CLOSED),
    "pipeline of experts": (
        PIPELINE, EXPERTS, "deployment.batching.policy=continuous", "deployment.replicas=2"
    ),
    "pipeline on demand": (PIPELINE, *TIGHT, CLOSED),
    "orca": ("deployment.batching.policy=orca", "workload.arrivals.rate_rps=40"),
    "lightllm": (*TIGHT, "deployment.batching.policy=lightllm", "deployment.kv.block_tokens=1"),
    "packing": (*TIGHT, "deployment.batching.packing=least_work_left"),
    "full prompt": (*TIGHT, "deployment.kv.full_prompt=true"),
    "threshold": ("deployment.batching.long_prefill_token_threshold=64", "workload.arrivals.rate_rps=40"),
}  # fmt: skip

THREE = "deployment.replicas=3"
TOGETHER = {
    **{
        router.name: (THREE, "workload.arrivals.rate_rps=60", f"deployment.router={router.name}")
        for router in ROUTERS.values()
        if router.counts is not None
    },
    "heavy_light": (THREE, "deployment.router={heavy_light: {prompt_tokens: 1000}}"),
    "least_kv on demand": (*TIGHT, THREE, "deployment.router=least_kv", "workload.seeds=[3, 5]"),
    "windows, least_context": (
        *WINDOWS, "workload.arrivals={process: closed_loop, users: 59}", "deployment.router=least_context",
        "deployment.replicas=2",
    ),
    "pipelines, least_work": (PIPELINE, *TIGHT, CLOSED, THREE, "deployment.router=least_work"),
    "users at random": (THREE, EXPERTS, CLOSED, "deployment.router=random", *SEEDS),
    "packing, least_work": (
        *TIGHT, THREE, "deployment.router=least_work", "deployment.batching.packing=least_work_left"
    ),
    "few users": (
        THREE, EXPERTS, "workload.arrivals={process: closed_loop, users: 2}", "deployment.router=least_work"
    ),
}  # fmt: skip
if THOROUGH:  # programs of their own, whose parts others have
    GENERAL["pipeline"] = (PIPELINE, "deployment.replicas=2")
    TOGETHER["lightllm, least_tokens"] = (*GENERAL["lightllm"], THREE, "deployment.router=least_tokens")

DESIGNS = Designs(SHARED | GENERAL | TOGETHER)
PREEMPTING = ("on demand", "windows", "windows, least_context")


@pytest.mark.parametrize("name", DESIGNS.designs)
def test_both_engines_give_the_same(name):
    found = DESIGNS.both(name)
    np.testing.assert_array_equal(*found.column("replica"))
    assert name not in PREEMPTING or found.summed("preemptions")[0].all()


def test_system_prompts_are_computed_once_and_stay():
    found, whole = (outcomes("token", *KEPT[:count]) for count in (2, 1))
    np.testing.assert_array_equal(found.tokens.prompt_tokens, whole.tokens.prompt_tokens)
    assert found.tokens.cached_tokens is not None and (found.tokens.cached_tokens == 992).all()  # 62 whole blocks of 16
    assert whole.tokens.cached_tokens is not None and not whole.tokens.cached_tokens.any()
    assert (found.times.first_token_s < whole.times.first_token_s).all()
    assert (found.summed("kv_unit_s") > 4 * 62 * found.makespan_s).all()
    assert (found.summed("kv_units_max") < whole.summed("kv_units_max") + 4 * 62).all()


@pytest.mark.parametrize("seed", range(tried(12)))
def test_gaps_are_those_between_the_recorded_tokens(seed):
    case = random_scenario(seed)
    recorded = case.run(tokens=True).requests
    since = float(np.median([request.first_token_s for request in recorded]))
    times = [np.array(request.token_s) for request in recorded]
    wanted = np.concatenate([np.diff(time)[time[1:] > since] for time in times])
    gaps = TokenGaps(len(recorded))
    case.run(observe=gaps.add)
    values, weights = gaps.after(since)
    assert weights.sum() == len(wanted)
    np.testing.assert_allclose(np.repeat(values, weights.astype(int)), np.sort(wanted), rtol=1e-9, atol=1e-12)


def test_no_gaps():
    assert [part.size for part in pooled([])] == [0, 0]


BEYOND = {
    "swap": (
        (
            "deployment.kv={admission: on_demand, preemption: swap, swap_bandwidth: 25GB/s}",
            "deployment.replicas=2",
            "deployment.router=least_work",
        ),
        "preemption swap with router least_work",
    ),
    "batch queue in a pipeline": (
        ("deployment.batching.planning=queued", PIPELINE),
        "batching.planning queued with pipeline_parallel",
    ),
}


@pytest.mark.parametrize(("overrides", "reason"), BEYOND.values(), ids=list(BEYOND))
def test_what_the_engine_lacks_is_computed_token_by_token_and_said(overrides, reason):
    ds = sweep(scenario(*overrides))
    assert (ds["status"].item(), ds["engine"].item()) == ("ok", "token")
    assert ds.attrs["engine_note"] == f"1 of 1 configurations were computed token by token: {reason}"
    assert np.isfinite(ds["itl_s"]).all() and 0 < ds["mfu"] < 1 and 0 < ds["kv_used_mean"] <= ds["kv_used_max"] <= 1


def test_ranks_are_balanced_by_what_they_report_of_every_iteration(monkeypatch):
    """``RankBalance`` is compared with vLLM's own balance; the scenario has it, and no leap hides a report from it."""
    balanced: list[int] = []

    def both(cost, policy, limits, requests, **options):
        assert options["router"] == "vllm_ranks"
        alone = options | {"router": RankBalance(), "observe": None, "tokens": True}
        again = serve(cost, policy, limits, copy.deepcopy(requests), **alone)
        balanced.extend(request.replica for request in again.requests)
        return serve(cost, policy, limits, requests, **options)

    monkeypatch.setattr("evaluator.reference.serve.pool.simulate", both)
    found = outcomes(
        "auto",
        THREE.replace("replicas", "data_parallel"),
        "deployment.router=vllm_ranks",
        "workload.arrivals.rate_rps=60",
    )
    assert found.engine.tolist() == ["token"]
    assert found.times.replica[0, 0].tolist() == balanced
    assert min(np.bincount(balanced, minlength=3)) >= 10


def test_prefixes_of_windows_are_found_with_groups_of_layers():
    """What the catalog's layers are grouped to is what the reference counts in, and caches are as vLLM has them."""
    asked = ("workload.sessions={turns: 6}", "deployment.kv={layer_groups: true, admission: on_demand}", EXPERTS)
    found, alone = outcomes("auto", *asked), outcomes("token", *asked[::2])
    (configuration,) = plan(scenario(*asked)).configurations
    kv = configuration.stations[0].design.ready.kv
    assert [group.window for group in kv.groups] == [128, None]
    assert found.engine.tolist() == ["token"]
    hits, none = found.tokens.cached_tokens, alone.tokens.cached_tokens
    assert hits is not None and (hits > 0).sum() >= 30
    assert none is not None and not none.any()  # without groups windows are not searched
    assert found.summed("kv_units_max").item() <= kv.capacity_units


def test_preemptions_are_counted_and_swapping_takes_time():
    """Every KV key moves something."""
    changes = ("preemption=recompute", "watermark=0.2", "swap_bytes=1GB", "swap_bytes=0")
    swap = "deployment.kv={preemption: swap, swap_bandwidth: 25GB/s}"
    found = [
        simulate(
            scenario(*TIGHT, *((swap,) if "swap" in change else ()), f"deployment.kv.{change}"), simulator="token"
        ).summary
        for change in changes
    ]
    assert all(summary["preemptions"].item() > 0 for summary in found)
    ends = [summary["e2e_s_mean"].item() for summary in found]
    assert ends[0] == pytest.approx(ends[3], rel=1e-12)  # without room for a swap all is computed anew
    assert len({round(end, 9) for end in ends}) == 3


def test_replicas_of_a_pipeline_share_the_devices():
    """Two ranks of half the layers: as much useful work, twice the devices, each rank with the host's time."""
    split = "deployment.pipeline_parallel="
    one, two = (outcomes("token", f"{split}{pipeline_ranks}") for pipeline_ranks in (1, 2))
    assert (one.summed("devices").item(), two.summed("devices").item()) == (1, 2)
    np.testing.assert_allclose(one.summed("flops"), two.summed("flops"), rtol=1e-6)
    whole = plan(scenario(f"{split}2", "deployment.calibration=datasheet")).configurations[0].stations[0].design.ready
    assert len(whole.pipeline_ranks) == 2 and all(
        pipeline_rank.iteration_s >= 1e-3 for pipeline_rank in whole.pipeline_ranks
    )


def test_a_sweep_may_mix_engines():
    axes = {"deployment__kv__admission": ["reserve", "on_demand"], "workload__arrivals__rate_rps": [1, 2, 3]}
    ds = sweep(scenario("workload.reasoning={branches: 2}", **axes))
    assert ds["engine"].values.tolist() == ["iteration"] * 3 + ["token"] * 3
    assert ds.attrs["engine_note"].startswith("3 of 6 configurations were")
    np.testing.assert_allclose(ds["ttft_s_mean"][:3], ds["ttft_s_mean"][3:], rtol=1e-9)  # KV is not short
    assert "engine_note" not in sweep(scenario(), simulator="token").attrs


def test_worker_processes_give_the_same(monkeypatch):
    queued = ("deployment.batching.planning=queued", PIPELINE)
    small = scenario(*queued, deployment__router=["round_robin", "random"], deployment__replicas=[2, 3])
    here = sweep(small)
    asked = []
    monkeypatch.setattr("evaluator.execution.schedule.TOKEN_REQUESTS_PER_CHUNK", 60)
    compute = WorkerPool.compute
    monkeypatch.setattr(WorkerPool, "compute", lambda crew, chunk: asked.append(chunk) or compute(crew, chunk))
    same(sweep(small), here)
    assert sorted([configuration.config for configuration in chunk] for chunk in asked) == [[0], [1], [2], [3]]


def test_an_interrupted_sweep_on_workers_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr("evaluator.execution.schedule.TOKEN_REQUESTS_PER_CHUNK", 60)
    small, out = scenario(workload__arrivals__rate_rps=[1, 2, 3, 4]), tmp_path / "x.nc"
    with pytest.raises(KeyboardInterrupt):
        sweep(small, out=out, progress=Interrupting(), simulator="token")
    again = Interrupting(after=99)
    found = sweep(small, out=out, progress=again, simulator="token")
    assert again.kept >= 1
    same(found, sweep(small, simulator="token"))
    same(results.read(out), found)


def test_chunks_of_another_engine_are_not_taken_up(tmp_path, monkeypatch):
    monkeypatch.setattr("evaluator.execution.schedule.TOKEN_REQUESTS_PER_CHUNK", 60)
    small, out = scenario(workload__arrivals__rate_rps=[1, 2]), tmp_path / "x.nc"
    with pytest.raises(KeyboardInterrupt):
        sweep(small, out=out, progress=Interrupting(), simulator="token")
    again = Interrupting(after=99)
    sweep(small, out=out, progress=again)
    assert again.kept == 0


def test_what_fails_in_a_worker_is_raised_here():
    whole = plan(scenario(CLOSED), simulator="token")
    (configuration,) = whole.configurations
    crew = WorkerPool(whole, LEVELS)
    try:
        with pytest.raises(ValueError, match="rate"):
            crew.compute([replace(configuration, changes=(RateChange(1.0),))])
        assert crew.compute([configuration])["engine"].tolist() == ["token"]
    finally:
        crew.close()
    with pytest.raises(RuntimeError, match="the run is over"):
        crew.compute([configuration])


def test_workers_do_without_jax():
    code = "import sys, evaluator.execution.worker, evaluator.reference.serve.pool; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("simulator", ["token", "iteration"])
@pytest.mark.parametrize("admission", ["reserve", "on_demand"])
def test_a_request_that_is_never_admitted_is_our_fault(simulator, admission):
    whole = plan(scenario(f"deployment.kv.admission={admission}"), simulator=simulator)
    (configuration,) = whole.configurations
    (station,) = configuration.stations
    replica = station.design.ready
    tiny = replace(replica, kv=replace(replica.kv, capacity_units=1))
    configuration = configuration.with_stations((replace(station, design=replace(station.design, replica=tiny)),))
    with pytest.raises(RuntimeError, match=f"configuration 0: the {simulator} engine never admitted a request"):
        simulate_configurations(whole, [configuration])


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ((PIPELINE,), "planning asynchronous with pipeline_parallel; use planning queued"),
        (
            ("deployment.batching.policy=continuous",),
            "planning asynchronous with policy continuous; use policy chunked",
        ),
    ],
)
def test_what_cannot_be_planned_ahead_is_told(overrides, told):
    ds = sweep(scenario("deployment.batching.planning=asynchronous", *overrides))
    assert ds["status"].item() == f"unsupported: batching.{told}"


def test_planning_ahead_keeps_the_device_busy_and_lets_arrivals_wait():
    """An arrival meets a planned iteration, which it waits for. Frontends count no such iteration beside it."""
    busy = "workload.arrivals.rate_rps=20"
    ahead = outcomes("token", busy, "deployment.batching.planning=asynchronous")
    at_once = outcomes("token", busy)
    wait = (ahead.times.scheduled_s - ahead.times.arrival_s) - (at_once.times.scheduled_s - at_once.times.arrival_s)
    assert wait.mean() > 0
    np.testing.assert_array_equal(ahead.tokens.output_tokens, at_once.tokens.output_tokens)
