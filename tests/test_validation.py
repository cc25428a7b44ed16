"""``validate``: what is sampled, what is compared, and the gate."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from evaluator import validation
from evaluator.errors import InputError
from evaluator.plan import plan
from evaluator.validation import HISTOGRAM, REPLICA, SUMMARIES, TIMES, TOTALS, stratified, validate
from tests.scenario.build import scenario

POLICIES = ["static", "continuous", "chunked", "mixed", "orca"]
AXES = {"deployment__batching__policy": POLICIES, "workload__arrivals__rate_rps": [1, 10, 40]}


def test_both_engines_agree_on_every_metric():
    result = validate(scenario(**AXES), sample=6)
    assert (result.compared, result.able, result.beyond, result.infeasible, result.apart) == (6, 15, 0, 0, 0)
    assert set(result.table["metric"]) == {*TIMES, *TOTALS, REPLICA, *SUMMARIES, HISTOGRAM}
    assert len(result.table) == 6 * 15 and set(result.table["policy"]) == set(POLICIES)
    assert set(result.table["rate_rps"]) == {1, 10, 40} and result.axes == ("policy", "rate_rps")
    assert result.worst <= 1e-9
    summary = result.summary()
    assert (summary["largest"] >= summary["typical"]).all() and summary["largest"][HISTOGRAM] < 0.01


def test_the_sample_is_spread_over_policies_load_and_kv():
    whole = plan(scenario(**AXES, deployment__batching__max_num_seqs=[8, 64, 512]))
    able = whole.configurations
    chosen = stratified(whole, able, 10, seed=0)
    points = [whole.grid.points[configuration.config] for configuration in chosen]
    assert Counter(deployment.batching.policy for _, deployment, _ in points) == dict.fromkeys(POLICIES, 2)
    assert [configuration.config for configuration in chosen] == sorted(
        {configuration.config for configuration in chosen}
    )
    assert len({workload.arrivals.rate_rps for workload, _, _ in points}) >= 2
    assert len({deployment.batching.max_num_seqs for _, deployment, _ in points}) >= 2
    assert stratified(whole, able, 10, seed=0) == chosen and stratified(whole, able, 99, seed=0) == able


def test_a_closed_loop_has_a_load_too():
    users = "workload.arrivals={process: closed_loop, users: 2}"
    assert validate(scenario(users, deployment__batching__policy=["chunked", "static"]), sample=1).compared == 1


def test_a_difference_is_found(monkeypatch):
    """One engine's last tokens late by 1e-6 of the clock."""
    simulated = validation.simulate_configurations

    def late(whole, configurations):
        outcomes = simulated(whole, configurations)
        if whole.group_of(configurations[0]).simulator == "iteration":
            outcomes.times.last_token_s[...] *= 1 + 1e-6
        return outcomes

    monkeypatch.setattr(validation, "simulate_configurations", late)
    result = validate(scenario())
    assert (result.apart, result.compared) == (1, 1)
    assert result.summary()["largest"]["last_token_s"] == pytest.approx(1e-6)
    assert result.summary()["largest"]["first_token_s"] < 1e-9
    assert result.farthest() == ("configuration 0", "e2e_s")
    assert validate(scenario(), tolerance=1.0).apart == 0
    swept = validate(scenario(workload__arrivals__rate_rps=[4]))
    assert swept.farthest() == ("configuration 0 (rate_rps 4.0)", "e2e_s")


def test_where_requests_go_and_when_they_are_sent_is_compared(monkeypatch):
    simulated = validation.simulate_configurations

    def elsewhere(whole, configurations):
        outcomes = simulated(whole, configurations)
        if whole.group_of(configurations[0]).simulator == "iteration":
            outcomes.times.replica[..., 3] ^= 1
            outcomes.times.arrival_s[..., 3] *= 1 + 1e-6
        return outcomes

    monkeypatch.setattr(validation, "simulate_configurations", elsewhere)
    largest = validate(scenario("deployment.replicas=2")).summary()["largest"]
    assert largest["replica"] == 1.0 and largest["arrival_s"] == pytest.approx(1e-6)


def test_what_does_not_fit_is_counted_and_the_progress_expects_only_what_is_compared():
    expected = []
    progress = SimpleNamespace(expect=expected.append, advance=lambda: expected.append("one"))
    devices = scenario(
        deployment__hardware=["h100-sxm", "rtx-4090"], deployment__model=["llama-3.1-8b", "llama-3.1-70b"]
    )
    result = validate(devices, progress=progress)
    assert (result.compared, result.infeasible) == (2, 2) and expected == [2, "one", "one"]


def test_nothing_to_compare():
    with pytest.raises(InputError, match="both engines can run; the first is computed by the reference alone"):
        validate(scenario("deployment.batching.planning=queued", "deployment.pipeline_parallel=2"))


def test_what_only_one_knows_is_infinitely_apart():
    fast, exact = np.array([1.0, np.nan, np.nan, 0.0, 1.0]), np.array([1.0, np.nan, 2.0, 0.0, 0.0])
    assert validation._apart(fast, exact).tolist() == [0.0, np.inf, 0.0, np.inf]
