"""What the request-level engine can run, and what it says of the rest."""

from __future__ import annotations

from typing import Any

import pytest

from evaluator.metrics import OK
from evaluator.plan import Configuration, plan, request_sizes
from evaluator.plan.request_level import RequestSizes
from evaluator.scenario import Scenario, load_scenario

POOLS = {"p": {"role": "prefill"}, "d": {"role": "decode", "batching": {"max_num_seqs": 64}}}


def scenario(*overrides: str, **sweep: Any) -> Scenario:
    """A configuration that the engine can run."""
    tree = {
        "workload": {
            "arrivals": {"process": "poisson", "rate_rps": 4},
            "lengths": {"source": "fixed", "prompt_tokens": 1000, "output_tokens": 10},
            "requests": 20,
        },
        "deployment": {
            "model": "llama-3.1-8b",
            "hardware": "h100-sxm",
            "batching": {"policy": "continuous", "max_num_seqs": 16, "max_num_batched_tokens": 4000},
        },
        "sweep": {path.replace("__", "."): values for path, values in sweep.items()} or None,
    }
    return load_scenario(tree, overrides)


def configuration(*overrides: str, simulator: str = "request") -> Configuration:
    (found,) = plan(scenario(*overrides), simulator=simulator).configurations
    return found


UNSUPPORTED = {
    "a closed loop; use arrivals with a rate": ("workload.arrivals={process: closed_loop, users: 4}",),
    "batching.policy chunked; use continuous": ("deployment.batching={policy: chunked}",),
    "batching.policy static; use continuous": ("deployment.batching.policy=static",),
    "kv.admission on_demand; use reserve": ("deployment.kv.admission=on_demand",),
    "pipeline_parallel; use tensor_parallel": ("deployment.pipeline_parallel=2",),
    "batching.packing least_work_left; use fcfs": ("deployment.batching.packing=least_work_left",),
    "router least_work; use shared_queue or round_robin": ("deployment.replicas=2", "deployment.router=least_work"),
    "cached prompt tokens; leave out cached_tokens and prefix_caching": ("workload.cached_tokens=100",),
    "slo.itl; use tpot": ("slo={itl: {p90: 50ms}}",),
}


@pytest.mark.parametrize("what", UNSUPPORTED)
def test_what_it_cannot_run_says_so_and_what_to_do(what):
    found = configuration(*UNSUPPORTED[what])
    assert found.status == f"unsupported: simulator request does not cover {what}, or simulator iteration"
    assert found.simulator == "request"
    assert configuration(*UNSUPPORTED[what], simulator="iteration").status == OK


def test_windows_are_left_to_other_engines():
    found = configuration("deployment.model=gpt-oss-20b")
    assert found.status == (
        "unsupported: simulator request does not cover the windowed layers of gpt-oss-20b; use simulator iteration"
    )


def test_the_pool_is_named_where_there_are_two():
    found = configuration("deployment.pools={p: {role: prefill, batching: {policy: chunked}}, d: {role: decode}}")
    assert found.status.startswith("unsupported: pool p: simulator request does not cover batching.policy chunked")


def test_a_decode_pool_has_no_prompts_to_cut():
    pools = "deployment.pools={p: {role: prefill}, d: {role: decode, batching: {policy: chunked}}}"
    assert configuration(pools).status == OK


@pytest.mark.parametrize("simulator", ["iteration", "token"])
def test_no_other_engine_has_a_queue_before_the_replicas(simulator):
    shared = ("deployment.replicas=2", "deployment.router=shared_queue")
    assert configuration(*shared, simulator=simulator).status == (
        "unsupported: router shared_queue: only simulator request lets requests wait before the replicas; use router "
        "least_outstanding, or simulator request"
    )
    assert configuration(*shared).status == OK
    assert configuration(shared[1], simulator=simulator).status == OK  # one replica: nothing to choose


def test_sizes():
    """Four prompts of 1,000 tokens are 4,000; KV holds some 400,000 tokens, hence all 16 sequences."""
    (station,) = configuration("deployment.replicas=3").stations
    assert request_sizes(station) == RequestSizes(instances=1, prompts=4, boxes=16)
    (station,) = configuration("deployment.replicas=3", "deployment.router=shared_queue").stations
    assert request_sizes(station) == RequestSizes(instances=3, prompts=4, boxes=16)
    prefill, decode = (request_sizes(each) for each in configuration(f"deployment.pools={POOLS}").stations)
    assert (prefill, decode) == (RequestSizes(1, 4, 1), RequestSizes(1, 1, 64))


def test_no_more_decodes_than_fit_into_the_kv_cache():
    lengths = "workload.lengths={source: fixed, prompt_tokens: 60000, output_tokens: 1000}"
    (station,) = configuration(lengths, "deployment.batching={policy: continuous}").stations
    kv = station.design.ready.kv
    boxes = request_sizes(station).boxes
    assert boxes == kv.capacity_tokens // 61_008 < 16  # blocks of 16 tokens; the last token is never computed


def test_nothing_is_compiled_for_it():
    axes = {"deployment__model": ["llama-3.1-8b", "qwen3-30b-a3b"], "deployment__batching__max_num_seqs": [4, 16]}
    (group,) = plan(scenario(**axes), simulator="request").groups
    assert (len(group.configurations), group.stations) == (4, ())
