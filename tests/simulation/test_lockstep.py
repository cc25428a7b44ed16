"""Data-parallel replicas in scenarios: what they are equal to, what they keep, and what is refused of them."""

from __future__ import annotations

import numpy as np
import pytest

import evaluator
from evaluator.plan import plan
from evaluator.scenario import load_scenario
from tests.thorough import THOROUGH

COLUMNS = ("ttft_s_mean", "tpot_s_mean", "e2e_s_mean", "output_tok_per_s", "utilisation", "mfu", "mbu", "kv_used_mean",
           "iterations", "preemptions", "usd_per_mtok", "joule_per_tok")  # fmt: skip
RATES = {"workload.arrivals.rate_rps": [4.0, 12.0]}


def scenario(sweep=RATES, **deployment):
    return {
        "workload": {
            "arrivals": {"process": "poisson", "rate_rps": 4.0},
            "lengths": {"source": "azure-conv-2023"},
            "requests": 120,
            "warmup_requests": 10,
            "seeds": [0],
        },
        "deployment": {"model": "qwen3-30b-a3b", "hardware": "h100-sxm", **deployment},
        "sweep": sweep,
    }


def assert_equal(one, other, rtol):
    for name in COLUMNS:
        np.testing.assert_allclose(one[name].values, other[name].values, rtol=rtol, err_msg=name)


LAYOUTS = {
    "workload.arrivals.rate_rps": [12.0],
    "deployment": {
        "zip": [
            {"data_parallel": 4, "expert_parallel": 4},
            {"data_parallel": 2, "tensor_parallel": 2, "replicas": 2},
            {"data_parallel": 8, "expert_parallel": 4, "router": "least_outstanding"},
            {"data_parallel": 4, "expert_parallel": 4, "expert_exchange": "all_to_all"},
            {"data_parallel": 4, "expert_parallel": 4, "redundant_experts": 32, "batching": {"policy": "continuous"}},
            {"data_parallel": 2, "expert_parallel": 2, "kv": {"capacity_tokens": 12000, "admission": "on_demand"}},
        ]
    },
}


BEHIND_PREFILL = {
    "pools": {
        "first": {"role": "prefill", "tensor_parallel": 2, "batching": {"policy": "continuous"}},
        "second": {"role": "decode", "data_parallel": 2, "expert_parallel": 2, "batching": {"policy": "continuous"}},
    }
}


def test_both_engines_agree_on_layouts_and_on_devices_that_do_not_exist():
    """The vectorised engine folds the costs of all devices of a layout at once, the reference those of each.

    One of the layouts is a decode pool in lockstep behind a prefill pool: it runs in the program of the others.
    """
    layouts = {"zip": [*LAYOUTS["deployment"]["zip"], BEHIND_PREFILL]}
    bandwidths = ["2TB/s", "3TB/s", "5TB/s"]
    axes = {**LAYOUTS, "deployment": layouts, "deployment.hardware.memory_bandwidth": bandwidths}
    fast, exact = (evaluator.sweep(scenario(axes), simulator=simulator) for simulator in ("iteration", "token"))
    assert set(fast["status"].values) == {"ok"} and set(fast["engine"].values) == {"iteration"}
    assert_equal(fast, exact, 1e-9)
    assert (np.diff(fast["tpot_s_mean"].values.reshape(-1, 3)) < 0).all()


def test_devices_are_those_of_all_ranks():
    configurations = plan(load_scenario(scenario(LAYOUTS))).configurations
    assert [configuration.devices for configuration in configurations] == [4, 8, 8, 4, 4, 2]
    assert [configuration.stations[0].deployment.ranks for configuration in configurations] == [4, 4, 8, 4, 4, 2]


@pytest.mark.parametrize("simulator", ["iteration", "token"])
def test_ranks_of_a_dense_model_are_replicas(simulator):
    given = {"model": "llama-3.1-8b", "tensor_parallel": 2}
    ranks = evaluator.sweep(scenario(data_parallel=2, replicas=2, **given), simulator=simulator)
    assert_equal(ranks, evaluator.sweep(scenario(replicas=4, **given), simulator=simulator), 0)


def test_one_rank_is_a_replica_as_it_was():
    one, other = (evaluator.sweep(scenario(**given), simulator="token") for given in ({"data_parallel": 1}, {}))
    assert_equal(one, other, 0)


def test_ranks_wait_for_one_another():
    """Beside the same devices that serve by themselves, each with all experts: what the lockstep costs in time."""
    layouts = {"data_parallel": 4, "expert_parallel": 4}, {"replicas": 4}
    ranks, apart = (evaluator.sweep(scenario(**layout), simulator="token") for layout in layouts)
    assert (ranks["utilisation"].values > apart["utilisation"].values).all()
    assert (ranks["kv_used_mean"].values < apart["kv_used_mean"].values).all()  # experts leave more room


def behind_a_closed_loop():
    pools = {
        "first": {"role": "prefill", "batching": {"policy": "continuous"}},
        "second": {
            "role": "decode", "data_parallel": 2, "pipeline_parallel": 2, "expert_parallel": 2,
            "batching": {"policy": "continuous"},
        },
    }  # fmt: skip
    given = scenario(sweep={"workload.arrivals.users": [3, 20]}, pools=pools)
    given["workload"] |= {"arrivals": {"process": "closed_loop", "users": 8}, "requests": 60}
    return given


def test_devices_of_ranks_in_a_pipeline():
    assert plan(load_scenario(behind_a_closed_loop())).configurations[0].devices == 5


@pytest.mark.skipif(not THOROUGH, reason="a program of its own, whose parts others have")
def test_a_closed_loop_over_a_prefill_pool_and_ranks_in_a_pipeline():
    given = behind_a_closed_loop()
    fast, exact = (evaluator.sweep(given, simulator=simulator) for simulator in ("iteration", "token"))
    assert set(fast["status"].values) == {"ok"} and set(fast["engine"].values) == {"iteration"}
    assert_equal(fast, exact, 1e-9)


SHORT = {"workload": {"lengths": {"source": "fixed", "prompt_tokens": 500, "output_tokens": 50}, "requests": 100,
                      "arrivals": {"process": "poisson", "rate_rps": 4.0}}}  # fmt: skip


def test_ranks_of_sglang_share_a_chunk():
    """8,192 tokens on an H100, a quarter on each of four ranks; those of a dense model are servers by themselves."""
    layouts = [{"data_parallel": ranks, "model": model} for ranks in (1, 4) for model in ("qwen3-30b-a3b", "qwen3-8b")]
    configurations = plan(
        load_scenario(scenario({"deployment": {"zip": layouts}}, engine="sglang") | SHORT)
    ).configurations
    assert [configuration.stations[0].max_num_batched_tokens for configuration in configurations] == [
        8192,
        8192,
        2048,
        8192,
    ]
    fractions = [configuration.stations[0].deployment.kv.memory_fraction for configuration in configurations]
    assert fractions[2] < fractions[0] == fractions[1] == fractions[3]


@pytest.mark.parametrize(
    ("deployment", "message"),
    [
        ({"data_parallel": 4, "expert_parallel": 3}, "expert_parallel 3 does not divide the 4 devices"),
        (
            {"expert_exchange": "all_to_all", "expert_parallel": 2, "tensor_parallel": 2},
            "infeasible: expert_exchange all_to_all without data_parallel: every device has all tokens; use gather",
        ),
        (
            {"data_parallel": 2, "expert_parallel": 2, "redundant_experts": 130},
            "redundant_experts 130 exceed the 128 with which each of the 2 parts has a copy of each expert",
        ),
        (
            {"model": "deepseek-v3", "data_parallel": 8, "expert_parallel": 8},
            "remedy: tensor_parallel >= 2 or pipeline_parallel >= 2 or data_parallel >= 16 with expert_parallel 16",
        ),
        ({"data_parallel": 2, "redundant_experts": 8}, "infeasible: redundant_experts 8 without expert_parallel"),
        (
            {"tensor_parallel": 4, "expert_parallel": 4, "redundant_experts": 8},
            "unsupported: redundant_experts 8 without data_parallel",
        ),
        ({"model": "llama-3.1-8b", "data_parallel": 2, "expert_parallel": 2}, "llama-3.1-8b, which has no experts"),
    ],
)
def test_what_cannot_be_is_refused_by_name(deployment, message):
    found = evaluator.sweep(scenario(sweep={}, **deployment))
    assert message in str(found["status"].values)


def test_the_request_level_engine_refuses_ranks_in_lockstep():
    given = scenario(sweep={}, data_parallel=2, batching={"policy": "continuous"})
    found = str(evaluator.sweep(given, simulator="request")["status"].values)
    assert "simulator request does not cover data_parallel of qwen3-30b-a3b, whose ranks run in lockstep" in found
