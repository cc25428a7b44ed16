"""A prefix cache that spills to host memory, as a scenario says it."""

from __future__ import annotations

import re

import numpy as np
import pytest

from evaluator import simulate, sweep
from evaluator.errors import InputError
from tests.scenario.build import scenario

TURNS = (
    "workload.sessions={turns: 6, think_s: 10}",
    "workload.arrivals.rate_rps=1",
    "workload.lengths={source: fixed, prompt_tokens: 800, output_tokens: 40}",
    "deployment.kv={prefix_caching: true, admission: on_demand, capacity_tokens: 24000, offload_bandwidth: 25GB/s}",
    "deployment.batching.planning=at_once",
)
OFFLOAD = "deployment.kv.offload_bytes=16GB"


def test_what_the_device_evicted_is_found_in_host_memory_and_told_by_tier():
    alone, kept, answers = (
        simulate(scenario(*TURNS, *more), simulator="token")
        for more in ((), (OFFLOAD,), (OFFLOAD, "deployment.kv.offload_answers=true"))
    )
    assert alone.summary["host_hit_rate"].item() == 0
    rates = [each.summary["prefix_hit_rate"].item() for each in (alone, kept, answers)]
    assert rates[0] + 0.1 < rates[1] < rates[2]
    assert 0.1 < kept.summary["host_hit_rate"].item() < rates[1]
    assert kept.summary["ttft_s_mean"].item() < alone.summary["ttft_s_mean"].item()
    note = sweep(scenario(*TURNS, OFFLOAD, "workload.requests=20")).attrs["engine_note"]
    assert note == "1 of 1 configurations were computed token by token: kv.offload_bytes"


def test_iterations_say_who_begins_to_load_how_much():
    found = simulate(scenario(*TURNS, OFFLOAD), iterations=True)
    table, requests = found.iterations, found.requests
    assert table is not None
    loaded = np.concatenate([np.array(each) for each in table["loading_tokens"]])
    measured = requests["measured"].to_numpy()
    assert len(loaded) and (loaded > 0).all()
    if measured.all():
        prompts = requests["prompt_tokens"].sum()
        assert loaded.sum() >= found.summary["host_hit_rate"].item() * prompts * (1 - 1e-9)


def test_a_slower_link_makes_requests_wait():
    slow = scenario(*TURNS, OFFLOAD, "deployment.kv.offload_bandwidth=1GB/s")
    fast = scenario(*TURNS, OFFLOAD)
    waits = [simulate(each).summary["queue_wait_s_mean"].item() for each in (fast, slow)]
    assert waits[1] > 2 * waits[0]


AHEAD = "deployment.batching.planning=asynchronous"


def test_planned_asynchronously_it_finds_the_same_and_hides_the_time_of_planning():
    at_once, ahead = (simulate(scenario(*TURNS, OFFLOAD, *more)).summary for more in ((), (AHEAD,)))
    np.testing.assert_allclose(ahead["host_hit_rate"], at_once["host_hit_rate"], rtol=0.02)
    assert ahead["ttft_s_mean"].item() < at_once["ttft_s_mean"].item()


def test_where_vllm_gets_stuck_the_scenario_says_so():
    short = ("workload.arrivals.rate_rps=30", "deployment.kv.capacity_tokens=6000")
    threshold = "deployment.batching.long_prefill_token_threshold=7"
    stuck = (*TURNS, OFFLOAD, AHEAD, *short, threshold)
    with pytest.raises(InputError, match=r"infeasible: \d+ requests never end: .* no kv.offload_bytes"):
        simulate(scenario(*stuck))
    # One design that gets stuck is a row of a sweep, and the others are what they are.
    both = "sweep={deployment.batching.long_prefill_token_threshold: [7, 0]}"
    ds = sweep(scenario(*TURNS, OFFLOAD, AHEAD, *short, both))
    first, second = ds["status"].values
    assert re.match(r"infeasible: \d+ requests never end", first) and second == "ok"
    assert np.isnan(ds["ttft_s_mean"].values[0]) and np.isfinite(ds["ttft_s_mean"].values[1])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (("deployment.kv.prefix_caching=false",), "infeasible: kv.offload_bytes without a prefix cache by content"),
        (
            ("deployment.kv.admission=reserve",),
            "unsupported: kv.offload_bytes with kv.admission reserve; use on_demand",
        ),
        (
            ("deployment.batching.policy=continuous",),
            "unsupported: kv.offload_bytes with policy continuous; use policy",
        ),
        (
            ("deployment.batching.packing=least_work_left",),
            "unsupported: .* batching.packing least_work_left; use fcfs",
        ),
        (("deployment.pipeline_parallel=2",), "unsupported: kv.offload_bytes with pipeline_parallel; use tensor_par"),
        (("deployment.kv.offload_bytes=1000",), "infeasible: kv.offload_bytes has no room for a block"),
    ],
)
def test_what_does_not_go_with_it_says_so(changes, reason):
    status = sweep(scenario(*TURNS, OFFLOAD, *changes))["status"].item()
    assert re.match(reason, status), status
