"""Whole scenarios with reasoning on several branches: both engines, all sides of a deployment, and what is counted."""

from __future__ import annotations

import numpy as np
import pytest

from evaluator.device import configure
from evaluator.metrics import summarise
from evaluator.plan import plan
from evaluator.run import simulate, sweep
from evaluator.scenario import load_scenario
from tests.reference.serve.test_pool import CLOSED, KEPT, TIGHT
from tests.scenario.build import scenario
from tests.simulation.engines import LEVELS, TIMES, Designs, outcomes
from tests.simulation.test_pipelines import assert_same, both_ways

FOUR = "workload.reasoning={branches: 4, scale: 2}"
SIDES = "deployment.pools={prefill: {role: prefill}, decode: {role: decode, batching: {policy: continuous}}}"
SHARED = {
    "chunked": (FOUR,),
    "the first two": ("workload.reasoning={branches: 5, first: 2}", "deployment.batching.policy=continuous"),
    "all alike, replicas": (
        "workload.reasoning={branches: 3, branch_lengths: same}", "deployment.batching.policy=mixed",
        "deployment.replicas=2",
    ),
    "windows, experts, seeds": (FOUR, "deployment.model=gpt-oss-20b", "workload.seeds=[3, 5]"),
    "closed loop": (FOUR, CLOSED, "deployment.calibration=datasheet"),
    "full cache": (
        FOUR, "deployment.hardware=rtx-4090", "deployment.precision.weights=fp8", "workload.arrivals.rate_rps=40"
    ),
    "system prompts": (FOUR, *KEPT),
    "disaggregated": (FOUR, SIDES),
    "few tokens, disaggregated": ("workload.reasoning={branches: 3, scale: 0.01}", SIDES),
}  # fmt: skip


DESIGNS = Designs(SHARED)


@pytest.mark.parametrize("name", SHARED)
def test_both_engines_give_the_same(name):
    DESIGNS.both(name)


@pytest.mark.parametrize("phases", [(), (SIDES,)], ids=["mixed", "disaggregated"])
def test_every_token_of_every_branch_is_counted(phases):
    configure()
    found = outcomes("iteration", FOUR, "workload.warmup_requests=0", "workload.cooldown_requests=0", *phases)
    tokens = plan(scenario(FOUR)).jobs(plan(scenario(FOUR)).configurations[0])[0].demand.branch_tokens
    np.testing.assert_array_equal(found.tokens.output_tokens[0, 0], tokens.sum(axis=1))
    np.testing.assert_array_equal(found.tokens.path_tokens[0, 0], tokens[:, -1])
    after_first = tokens.sum() - 4 * (tokens[0] > 0).any()  # the first token of the first request starts the count
    assert after_first - 4 * (len(tokens) - 1) <= found.itl[0][0][1].sum() <= after_first
    table = summarise(found, LEVELS)
    path_s = (found.times.last_token_s - found.times.first_token_s) / (found.tokens.path_tokens - 1)
    assert table["tpot_s_mean"].item() == pytest.approx(path_s.mean())


def test_a_longer_path_is_a_longer_request():
    found = sweep(scenario(workload__reasoning__scale=[1, 4], workload__reasoning__branches=[1, 3]))
    assert found["engine"].values.tolist() == ["iteration"] * 4
    assert (np.diff(found["output_tok_per_s"]) > 0)[[0, 2]].all()
    one, other = found["e2e_s_mean"].values[[0, 2]]
    assert other > 3 * one
    assert found["scale"].values.tolist() == [1, 1, 4, 4]


LACKING = {
    "kv.admission on_demand": (*TIGHT, "workload.lengths={source: fixed, prompt_tokens: 800, output_tokens: 60}"),
    "pipeline_parallel": ("deployment.pipeline_parallel=2",),
    "packing least_work_left": ("deployment.batching.packing=least_work_left",),
    "router least_work": ("deployment.replicas=2", "deployment.router=least_work"),
}


@pytest.mark.parametrize(("reason", "overrides"), LACKING.items(), ids=LACKING)
def test_what_the_engine_lacks_is_computed_token_by_token_and_said(reason, overrides):
    found = simulate(scenario(FOUR, *overrides, "workload.requests=20"))
    assert (found.summary["status"].item(), found.summary["engine"].item()) == ("ok", "token")
    assert plan(scenario(FOUR, *overrides)).configurations[0].lacking == (f"workload.reasoning.branches with {reason}",)


@pytest.mark.parametrize("model", ["llama-3.1-8b", "gpt-oss-20b"])
def test_with_kv_for_all_it_makes_no_difference_when_it_is_given(model):
    configure()
    reserved = outcomes("iteration", FOUR, f"deployment.model={model}")
    on_demand = outcomes("iteration", FOUR, f"deployment.model={model}", "deployment.kv.admission=on_demand")
    assert on_demand.engine.item() == "token" and on_demand.summed("preemptions") == 0
    for name in TIMES:
        np.testing.assert_allclose(
            getattr(on_demand.times, name), getattr(reserved.times, name), rtol=1e-9, err_msg=name
        )
    assert on_demand.summed("kv_unit_s") < reserved.summed("kv_unit_s")


def test_the_table_of_requests_tells_the_longest_branch():
    found = simulate(scenario(FOUR)).requests
    assert (found["path_tokens"] < found["output_tokens"]).all()
    tpot_s = (found["last_token_s"] - found["first_token_s"]) / (found["path_tokens"] - 1)
    np.testing.assert_allclose(found["tpot_s"], tpot_s, rtol=1e-12)
    assert "path_tokens" not in simulate(scenario()).requests


def in_stages(*stages, **pools):
    """A few requests on three branches through stages of a pipeline."""
    return {
        "workload": {
            "arrivals": {"process": "poisson", "rate_rps": 6},
            "lengths": {"source": "uniform", "prompt_min": 1, "prompt_max": 300, "output_min": 1, "output_max": 12},
            "reasoning": {"branches": 3},
            "requests": 60,
        },
        "deployment": {"model": "llama-3.1-8b", "hardware": "h100-sxm", **pools},
        "pipeline": [*stages, {"stage": "tool", "seconds": 0.2}],
    }


@pytest.mark.parametrize("simulator", ["iteration", "token"])
@pytest.mark.parametrize("pools", [{}, {"pools": {"p": {"role": "prefill"}, "d": {"role": "decode"}}}])
def test_branches_between_stages(simulator, pools):
    """The stations one after the other against all of them on one clock."""
    configure()
    whole = plan(
        load_scenario(in_stages({"stage": "tool", "seconds": 0.1}, "prefill", "decode", **pools)), simulator=simulator
    )
    ((chain, network),) = both_ways(whole)
    assert_same(chain, network)
    np.testing.assert_array_equal(chain.tokens.longest, network.tokens.longest)
    assert (chain.tokens.output_tokens > chain.tokens.longest).any()


def test_no_branch_is_chosen_to_go_on():
    loop = {"stage": "tool", "seconds": 0.1, "back_to": "prefill", "times": 2}
    (configuration,) = plan(load_scenario(in_stages("prefill", "decode", loop))).configurations
    assert configuration.status == (
        "unsupported: workload.reasoning.branches with a pipeline that comes to the LLM more than once: it is not said "
        "which branch goes on; use one branch"
    )


def test_back_pressure_counts_the_kv_of_all_branches():
    """Pools in one loop: a decode side that has room for few requests holds back the prefill side."""
    held = (FOUR, SIDES, "deployment.transfer={backpressure: true}", "workload.arrivals.rate_rps=20")
    found = outcomes("iteration", *held)
    assert found.engine.item() == "token" and np.isfinite(found.times.last_token_s).all()
    free = outcomes("iteration", FOUR, SIDES, "workload.arrivals.rate_rps=20")
    np.testing.assert_array_equal(found.tokens.output_tokens, free.tokens.output_tokens)


STATUSES = {
    "infeasible: a request decodes on 8 branches, and max_num_seqs is 4; raise it or use fewer "
    "workload.reasoning.branches": ("deployment.batching.max_num_seqs=4",),
    "unsupported: workload.reasoning.branches with policy lightllm; use policy chunked or continuous, or one branch": (
        "deployment.batching.policy=lightllm", "deployment.kv.block_tokens=1",
    ),
    "unsupported: workload.reasoning.branches with preemption swap; use preemption recompute, or one branch": (
        "deployment.kv={admission: on_demand, preemption: swap, swap_bandwidth: 25GB/s}",
    ),
    "infeasible: a request of 160,992 tokens on 8 branches exceeds the KV cache of": (
        "workload.lengths={source: fixed, prompt_tokens: 1000, output_tokens: 20000}", "deployment.hardware=rtx-4090",
        "deployment.precision.weights=fp8",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("status", "overrides"), STATUSES.items(), ids=["seats", "policy", "swap", "memory"])
def test_a_problem_is_said(status, overrides):
    (configuration,) = plan(scenario("workload.reasoning={branches: 8}", *overrides)).configurations
    assert configuration.status.startswith(status)


def test_the_request_level_engine_says_so():
    (configuration,) = plan(scenario(FOUR, "deployment.batching.policy=continuous"), simulator="request").configurations
    assert configuration.status == (
        "unsupported: simulator request does not cover workload.reasoning.branches; use simulator iteration"
    )
