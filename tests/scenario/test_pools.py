"""Several pools in a scenario: what each inherits, what a sweep sets in one of them, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from evaluator.errors import InputError
from evaluator.keys import written
from evaluator.scenario import LinkFigures, Scenario, Transfer, expand, load_scenario, pools_of

BOTH = {"second": {"role": "decode"}, "first": {"role": "prefill"}}


def disaggregated(pools: Any = BOTH, sweep: Any = None, **deployment: Any) -> Scenario:
    """A deployment with these pools and keys beside them."""
    beside = {"model": "llama-3.1-8b", "hardware": "h100-sxm", **deployment}
    return load_scenario(
        {
            "workload": {
                "arrivals": {"process": "poisson", "rate_rps": 4},
                "lengths": {"source": "fixed", "prompt_tokens": 100, "output_tokens": 10},
            },
            "deployment": {**{key: value for key, value in beside.items() if value is not None}, "pools": pools},
            "sweep": sweep,
        }
    )


def test_a_pool_says_what_differs_from_what_is_said_beside_it():
    pools = {
        "second": {"role": "decode", "hardware": "h200-sxm", "batching": {"max_num_seqs": 64}, "replicas": 3},
        "first": {"role": "prefill", "precision": {"kv": "fp8"}, "usd_per_device_hour": 2},
    }
    found = disaggregated(
        pools, batching={"policy": "continuous", "max_num_seqs": 8}, precision={"weights": "fp8"}, tensor_parallel=2,
        router={"decode": "random"}, usd_per_device_hour=3,
    )  # fmt: skip
    (first, prefill), (second, decode) = pools_of(found.deployment)  # in the order in which a request passes them
    assert (first, second, prefill.role, decode.role) == ("first", "second", "prefill", "decode")
    assert (prefill.hardware, decode.hardware) == ("h100-sxm", "h200-sxm")
    assert (prefill.tensor_parallel, decode.tensor_parallel, prefill.replicas, decode.replicas) == (2, 2, 1, 3)
    assert (prefill.batching.policy, prefill.batching.max_num_seqs) == ("continuous", 8)
    assert (decode.batching.policy, decode.batching.max_num_seqs) == ("continuous", 64)
    assert (prefill.precision.kv, prefill.precision.weights, decode.precision.kv) == ("fp8", "fp8", "bf16")
    assert (prefill.router, decode.router) == ("round_robin", "random")
    assert (prefill.usd_per_device_hour, decode.usd_per_device_hour) == (2, 3)


def test_what_every_pool_says_need_not_be_said_beside_them():
    pools = {name: {**pool, "hardware": "l40s"} for name, pool in BOTH.items()}
    assert [pool.hardware for _, pool in pools_of(disaggregated(pools, hardware=None).deployment)] == ["l40s"] * 2
    swept = disaggregated(pools, sweep={"deployment.pools.first.hardware": ["h100-sxm", "l40s"]}, hardware=None)
    chosen = [[pool.hardware for _, pool in pools_of(point[1])] for point in expand(swept).points]
    assert chosen == [["h100-sxm", "l40s"], ["l40s", "l40s"]]


def test_a_sweep_sets_keys_of_one_pool_and_of_the_link():
    axes = {
        "deployment.pools.second.replicas": [1, 2],
        "deployment.pools.first.batching.max_num_seqs": [4, 8],
        "deployment.transfer.link": ["nvlink", "ethernet-25g"],
        "where": "pools.second.replicas * max_num_seqs < 16",
    }
    points = [point[1] for point in expand(disaggregated(sweep=axes)).points]
    assert len(points) == 6
    found = [
        (decode.replicas, prefill.batching.max_num_seqs, decode.batching.max_num_seqs, whole.transfer.link)
        for whole in points
        for (_, prefill), (_, decode) in [pools_of(whole)]
    ]
    assert found[-1] == (2, 4, None, "ethernet-25g") and found[2] == (1, 8, None, "nvlink")


def test_designs_with_pools_beside_designs_without():
    designs = {"how": {"zip": [{"replicas": 2}, {"deployment.pools": BOTH}]}}
    points = [point[1] for point in expand(disaggregated(None, sweep=designs)).points]
    assert [[(name, pool.role, pool.replicas) for name, pool in pools_of(one)] for one in points] == [
        [("engine", "mixed", 2)],
        [("first", "prefill", 1), ("second", "decode", 1)],
    ]


def test_several_pools_of_one_role_stand_side_by_side():
    pools = {"late": {"role": "decode"}, "a": {"role": "prefill", "weight": 2}, "b": {"role": "prefill", "replicas": 6}}
    found = pools_of(disaggregated(pools, router={"prefill": "random"}).deployment)
    assert [(name, pool.role, pool.router) for name, pool in found] == [
        ("a", "prefill", "random"), ("b", "prefill", "random"), ("late", "decode", "round_robin")
    ]  # fmt: skip
    assert [pool.weight for _, pool in found] == [2, None, None]


def test_a_pool_may_have_a_device_that_is_in_no_file():
    pools = {**BOTH, "first": {"role": "prefill", "hardware": {"like": "h100-sxm", "memory_bandwidth": "4TB/s"}}}
    (_, prefill), (_, decode) = pools_of(disaggregated(pools).deployment)
    assert (str(prefill.hardware), decode.hardware) == ("like h100-sxm, memory_bandwidth 4000000000000.0", "h100-sxm")


def test_a_design_may_have_other_pools_than_another():
    """A pool with null is as good as absent, so that designs can take away those of the base."""
    mixes = [{"deployment.pools": {"third": {"role": "prefill"}}}, {"deployment.pools": {"first": None, "second": None,
             "whole": {"role": "mixed"}}}]  # fmt: skip
    points = [point[1] for point in expand(disaggregated(sweep={"mix": {"zip": mixes}})).points]
    assert [[name for name, _ in pools_of(point)] for point in points] == [["first", "third", "second"], ["whole"]]


def test_transfer():
    assert disaggregated().deployment.transfer == Transfer("rdma-400g", "cache", "auto", "per_replica")
    given = disaggregated(transfer={"link": {"bandwidth": "10GB/s", "latency": "1ms"}, "dtype": "fp8"}).deployment
    assert given.transfer == Transfer(LinkFigures(1e10, 1e-3), dtype="fp8")
    swept = disaggregated(transfer={"link": {"bandwidth": "10GB/s"}}, sweep={
        "deployment.transfer.link.bandwidth": ["20GB/s", "30GB/s"]})  # fmt: skip
    assert [one[1].transfer.link.bandwidth for one in expand(swept).points] == [2e10, 3e10]


PREFILL, DECODE, MIXED = ({"role": role} for role in ("prefill", "decode", "mixed"))
REFUSED = {
    "no decode": ({"a": PREFILL}, {}, r"deployment\.pools: the prefill pool a needs a decode pool beside it; add one"),
    "no prefill": ({"a": DECODE}, {}, r"the decode pool a needs a prefill pool beside it; .* role: prefill"),
    "several prefill, no decode": (
        {"a": PREFILL, "b": PREFILL},
        {},
        r"deployment\.pools: the prefill pool a needs a decode pool beside it; add one with role: decode",
    ),
    "mixed beside prefill alone": ({"a": PREFILL, "c": MIXED}, {}, r"the prefill pool a needs a decode pool beside it"),
    "split of one role": (
        {"a": MIXED},
        {"split": {"prompt_tokens_above": 9}},
        r"deployment\.split\.prompt_tokens_above: is for mixed pools beside prefill and decode pools; add the others",
    ),
    "split without pools": (
        None,
        {"split": {"prompt_tokens_above": 9}},
        r"deployment\.split\.prompt_tokens_above: is for mixed pools .*: add deployment\.pools",
    ),
    "split": (
        {**BOTH, "c": MIXED},
        {"split": {"prompt_tokens_above": -1}},
        r"deployment\.split\.prompt_tokens_above: must be an integer from 0",
    ),
    "weight": ({"a": {**MIXED, "weight": 0}}, {}, r"deployment\.pools\.a\.weight: must be greater than 0, got 0"),
    "groups": (BOTH, {"transfer": {"groups": 0}}, r"deployment\.transfer\.groups: must be an integer from 1"),
    "figures": (BOTH, {"transfer": {"figures": "per_node"}}, r"'per_node' is not one of per_replica, per_device"),
    "backpressure": (BOTH, {"transfer": {"backpressure": "on"}}, r"transfer\.backpressure: expected true or false"),
    "null": ({"a": None}, {}, r"deployment\.pools: holds no pool: all are null; describe one such as"),
    "no role": ({"a": {}}, {}, r"deployment\.pools\.a\.role: is required"),
    "role": ({"a": {"role": "prefil"}}, {}, r"pools\.a\.role: 'prefil' is not one of mixed, .*did you mean prefill"),
    "key": ({"a": {**MIXED, "replica": 2}}, {}, r"pools\.a\.replica: unknown key \(did you mean replicas\?\)"),
    "name": ({"a b": MIXED}, {}, r"pools\.a b: a name is made of letters, digits and _"),
    "role beside": (BOTH, {"role": "prefill"}, r"deployment\.role: say the role in each of the pools"),
    "routers": (BOTH, {"router": {"decode": "robin"}}, r"deployment\.router\.decode: 'robin' is not one of random"),
    "routers of one": ({"a": MIXED}, {"router": {"decode": "random"}}, r"deployment\.router: routers by role are for"),
    "no hardware": (BOTH, {"hardware": None}, r"deployment\.hardware: is required"),
    "swap": (
        {**BOTH, "first": {**PREFILL, "kv": {"preemption": "swap"}}},
        {},
        r"deployment\.pools\.first\.kv\.swap_bandwidth: is required with preemption swap",
    ),
    "link": (BOTH, {"transfer": {"link": "nvlnk"}}, r"transfer\.link: unknown link 'nvlnk'; did you mean nvlink"),
    "link type": (BOTH, {"transfer": {"link": 3}}, r"transfer\.link: expected the name of a link or \{bandwidth"),
    "bandwidth": (BOTH, {"transfer": {"link": {"bandwidth": 0}}}, r"link\.bandwidth: must be greater than 0, got 0"),
    "no bandwidth": (BOTH, {"transfer": {"link": {"latency": 0}}}, r"transfer\.link\.bandwidth: is required"),
    "granularity": (BOTH, {"transfer": {"granularity": "block"}}, r"'block' is not one of cache, layer"),
    "dtype": (BOTH, {"transfer": {"dtype": "fp9"}}, r"transfer\.dtype: 'fp9' is not one of auto, fp32"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case):
    pools, beside, message = REFUSED[case]
    with pytest.raises(InputError, match=message):
        disaggregated(pools, **beside)


def test_routers_by_role_without_pools():
    with pytest.raises(InputError, match=r"deployment\.router: routers by role are .*: add deployment\.pools"):
        disaggregated(None, router={"prefill": "random"})


MODELS = {
    "unknown": ({"llama-3.1-7b": 1}, r"workload\.models\.llama-3\.1-7b: unknown model 'llama-3\.1-7b'; did you mean"),
    "share": ({"qwen3-8b": -1}, r"workload\.models\.qwen3-8b: must be greater than 0, got -1"),
    "no share": ({"qwen3-8b": {}}, r"workload\.models\.qwen3-8b\.share: is required; keys of .*: share, lengths"),
    "lengths": ({"qwen3-8b": {"share": 1, "lengths": {"source": "fixd"}}}, r"qwen3-8b\.lengths\.source: .*mean fixed"),
    "key": ({"qwen3-8b": {"share": 1, "length": 3}}, r"qwen3-8b\.length: unknown key \(did you mean lengths\?\)"),
    "no mapping": (["qwen3-8b"], r"workload\.models: expected shares by model such as \{llama-3\.1-8b: 0\.7\}, got"),
    "empty": ({}, r"workload\.models: expected shares by model"),
}  # fmt: skip


def of_models(models: Any, lengths: Any = None) -> Scenario:
    workload = {"arrivals": {"process": "poisson", "rate_rps": 4}, "models": models, "lengths": lengths}
    return load_scenario({"workload": workload, "deployment": {"model": "llama-3.1-8b", "hardware": "h100-sxm"}})


@pytest.mark.parametrize("case", MODELS)
def test_models_that_are_refused(case):
    models, message = MODELS[case]
    with pytest.raises(InputError, match=message):
        of_models(models, FIXED)


FIXED = {"source": "fixed", "prompt_tokens": 100, "output_tokens": 10}


def test_lengths_may_be_those_of_each_model():
    own = {"share": 1, "lengths": FIXED}
    found = of_models({"llama-3.1-8b": own, "qwen3-8b": own}).workload
    assert [share.lengths.source for share in found.models.values()] == ["fixed", "fixed"]
    with pytest.raises(InputError, match=r"workload\.lengths: is required"):
        of_models({"llama-3.1-8b": own, "qwen3-8b": 1})
    again = written(found)
    assert (
        load_scenario({"workload": again, "deployment": written(of_models(None, FIXED).deployment)}).workload == found
    )


def test_a_step_of_a_pool_leaves_the_others_what_they_do_not_say():
    """The first step stands in for what must be there, such as the model, and for nothing else."""
    pool = "deployment.pools.p"
    raw = {
        "workload": {
            "arrivals": {"process": "poisson", "rate_rps": 1},
            "lengths": {"source": "fixed", "prompt_tokens": 10, "output_tokens": 10},
        },
        "deployment": {
            "hardware": "h100-sxm",
            "pools": {"p": {"role": "prefill"}, "d": {"role": "decode", "model": "llama-3.1-8b"}},
        },
        "sweep": {
            pool: {
                "zip": [{"tensor_parallel": 8, "model": "llama-3.1-8b"}, {"data_parallel": 8, "model": "llama-3.1-8b"}]
            }
        },
    }
    read = [deployment.pools["p"] for _, deployment, _ in expand(load_scenario(raw)).points]
    assert [(pool.tensor_parallel, pool.data_parallel) for pool in read] == [(8, None), (None, 8)]
