"""Replicas that plan their next batch while one runs and depend on one another: equal to the reference."""

from __future__ import annotations

import numpy as np
import pytest

from evaluator.plan import plan
from tests.scenario.build import scenario
from tests.simulation.engines import Designs
from tests.thorough import THOROUGH

# The warm-up ends while batches are under way: until then nobody knows whose gaps between tokens count.
AHEAD = (
    "workload.lengths={source: uniform, prompt_min: 20, prompt_max: 300, output_min: 1, output_max: 120}",
    "workload.requests=200",
    "workload.warmup_requests=60",
    "workload.arrivals.rate_rps=40",
    "deployment.batching.planning=asynchronous",
)
THREE = (*AHEAD, "deployment.replicas=3")
SHORT = "deployment.kv={prefix_caching: false, capacity_tokens: 800, admission: on_demand}"
USERS = "workload.arrivals={process: closed_loop, users: 25, rate_rps: null}"
MIXED = "{pools: {a: {role: mixed, replicas: 1}, b: {role: mixed, hardware: l40s, replicas: 2}}, replicas: null}"
APART = "{{pools: {{p: {{role: prefill{}}}, d: {{role: decode}}}}, replicas: null, transfer: {{backpressure: {}}}}}"
AT_ONCE = ", batching: {planning: at_once}"
DESIGNS = {
    "least of the KV, short of it": (*THREE, SHORT, "deployment.router=least_kv"),
    "least context, all reserved": (*THREE, "deployment.kv.admission=reserve", "deployment.router=least_context"),
    "users, least work": (*THREE, SHORT, USERS, "deployment.router=least_work"),
}
if THOROUGH:  # programs of their own, whose parts other tests have
    cached = "deployment.kv={prefix_caching: true, capacity_tokens: 9600, admission: on_demand}"
    talks = "workload.sessions={turns: {mean: 4}, think_s: {mean: 3}, system_prompts: 2, system_tokens: 500}"
    agents = "workload.sessions={turns: 2, think_s: 1, agents: {fan_out: 3, share: 0.7}}"
    DESIGNS |= {
        "conversations, by prefix": (*THREE, cached, talks, "deployment.router=prefix_aware"),
        "users with conversations": (*AHEAD, cached, talks, USERS),
        "agents": (*THREE, cached, agents, "deployment.router=least_context"),
    }
    scales = "deployment.autoscaling={metric: waiting, target: 2, every_s: 0.3, start_up_s: 0.5}"
    DESIGNS["a fleet"] = (*THREE, SHORT, scales, "deployment.router=least_outstanding")
    refuses = "deployment.batching.max_queued_requests=2"
    DESIGNS["who comes to two that wait is refused"] = (*THREE, SHORT, refuses, "deployment.router=least_work")
    DESIGNS["pools side by side"] = (*THREE, SHORT, "deployment.router=least_work", f"deployment={MIXED}")
BOTH = Designs(DESIGNS)


@pytest.mark.parametrize("name", DESIGNS)
def test_both_engines_compute_the_same(name):
    found = BOTH.both(name)
    np.testing.assert_array_equal(*found.column("replica"))
    np.testing.assert_array_equal(*found.summed("preemptions"))
    assert found.summed("preemptions")[0].item() > 20 or SHORT not in DESIGNS[name]


@pytest.mark.parametrize(
    ("pools", "why"),
    [
        (APART.format("", "false"), ""),
        (APART.format("", "true"), "and transfer.backpressure"),
        (APART.format(AT_ONCE, "false"), "in some pools"),
    ],
)
def test_what_goes_to_the_reference_of_several(pools, why):
    (configuration,) = plan(scenario(*AHEAD, USERS, f"deployment={pools}")).configurations
    asynchronous = "closed loop over several pools with batching.planning asynchronous"
    assert configuration.lacking == ((f"{asynchronous} {why}",) if why else ())
