"""One configuration with every request: on the engine, small, and the hour of a production service."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from evaluator.errors import InputError
from evaluator.plan import plan
from evaluator.run import simulate
from evaluator.scenario import load_scenario
from tests.run.build import TIMES, ordered, plausible
from tests.scenario.build import scenario

ROOT = Path(__file__).resolve().parents[2]


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
    capacity = plan(one).configurations[0].stations[0].design.ready.kv.capacity_units
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
    exact, simulator = (simulate(scenario(*settings), simulator=name).requests for name in ("token", "iteration"))
    for name in ("arrival_s", "scheduled_s", "first_token_s", "last_token_s"):
        np.testing.assert_allclose(simulator[name], exact[name], rtol=1e-9, err_msg=name)
    sent, answered = np.sort(simulator["arrival_s"])[8:], np.sort(simulator["last_token_s"])[: 60 - 8]
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
