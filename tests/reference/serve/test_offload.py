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


SMALL = "deployment.kv.offload_bytes=1GB"  # what the device forgets it forgets soon
COUNTS = ("ttft_s", "prefix_hit_rate", "host_hit_rate", "storage_hit_rate", "shared_hit_rate")


def rates_of(*more: str) -> dict[str, float]:
    found = simulate(scenario(*TURNS, SMALL, *more), simulator="token").summary
    return {name: found[name].mean().item() for name in COUNTS}


def test_what_host_memory_forgot_is_found_behind_it_and_told_by_tier():
    host, nothing, disk, shared, endless = (
        rates_of(f"deployment.kv.offload_tiers={tiers}")
        for tiers in (
            "[]",
            "[{storage: nvme, capacity: 0}]",
            "[nvme]",
            "[{storage: nvme, shared_by: all}]",
            "[{bandwidth: 7GB/s, latency: 50us}]",
        )
    )
    assert nothing == host and host["storage_hit_rate"] == host["shared_hit_rate"] == 0.0
    assert disk["prefix_hit_rate"] > host["prefix_hit_rate"] + 0.1 and disk["shared_hit_rate"] == 0.0
    assert disk["host_hit_rate"] + disk["storage_hit_rate"] < disk["prefix_hit_rate"]
    assert disk["storage_hit_rate"] > 0.1
    assert shared == disk == endless  # one replica shares it with none, and a terabyte holds all that is asked


def test_replicas_find_in_a_shared_store_what_others_stored():
    """Sessions go round: three of four turns find what was said before with another replica."""
    pool = ("deployment.replicas=4", "deployment.router=round_robin", "workload.arrivals.rate_rps=3")
    own, shared = (
        rates_of(*pool, f"deployment.kv.offload_tiers=[{{storage: nvme, shared_by: {count}}}]") for count in (1, "all")
    )
    assert shared["shared_hit_rate"] > 0.3 and shared["storage_hit_rate"] == 0.0
    assert shared["prefix_hit_rate"] > own["prefix_hit_rate"] + 0.3
    note = sweep(scenario(*TURNS, *pool, SMALL, "deployment.kv.offload_tiers=[{storage: nvme, shared_by: all}]",
                          "workload.requests=20")).attrs["engine_note"]  # fmt: skip
    assert note == "1 of 1 configurations were computed token by token: kv.offload_bytes"


def test_when_blocks_are_written_decides_what_is_found():
    through, selective, back = (
        simulate(scenario(*TURNS, OFFLOAD, f"deployment.kv.offload_write={write}"), simulator="token").summary
        for write in ("write_through", "write_through_selective", "write_back")
    )
    # A turn that comes when the device has forgotten the one before is no second request for it.
    assert selective["prefix_hit_rate"].item() < through["prefix_hit_rate"].item() - 0.1
    # All is written that the device takes again, answers too, and the iteration that takes it waits.
    assert back["prefix_hit_rate"].item() > through["prefix_hit_rate"].item()


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
        (
            ("deployment.kv.offload_tiers=[{storage: nvme, capacity: 1000}]",),
            "infeasible: kv.offload_tiers: a tier has no room for a block of the KV cache; use more capacity",
        ),
    ],
)
def test_what_does_not_go_with_it_says_so(changes, reason):
    status = sweep(scenario(*TURNS, OFFLOAD, *changes))["status"].item()
    assert re.match(reason, status), status
