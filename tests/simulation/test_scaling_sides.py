"""Prefill and decode whose replicas come and go, each side by an autoscaler of its own, or both under one budget."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import evaluator
from evaluator.errors import InputError
from evaluator.plan import plan
from evaluator.plan.scaling import scaling_target
from evaluator.reference.stations.fleet import DeviceBudget
from evaluator.scenario import load_scenario
from evaluator.simulation import simulate_configurations
from tests.simulation.build import on_s
from tests.thorough import THOROUGH

WAVES = {"process": "varying", "rate_rps": 30, "period_s": "40s", "profile": [["0s", 1], ["20s", 9]]}
LOGNORMAL = {"source": "lognormal", "prompt_mean": 2000, "prompt_cv": 1, "prompt_max": 8000}
OFTEN = {"every_s": "2s", "window_s": "6s", "cooldown_s": "8s", "start_up_s": "3s"}
PLANNER = {"metric": "prompt_rate", "within_s": "0.06s"}, {"metric": "output_rate", "within_s": "7ms"}
BY_LOAD = {"metric": "prompt_tokens", "target": 4000, "lower": 500}, {"metric": "kv", "target": 0.01}


def scenario(prefill, decode, requests=400, **deployment):
    pools = {"p": {"role": "prefill", "replicas": 4}, "d": {"role": "decode", "replicas": 4}}
    for name, policy in (("p", prefill), ("d", decode)):
        pools[name] |= {"autoscaling": OFTEN | policy} if policy else {}
    lengths = LOGNORMAL | {"output_mean": 80, "output_cv": 1, "output_max": 300}
    return {
        "workload": {"arrivals": WAVES, "lengths": lengths, "requests": requests, "seeds": [0], "find_warmup": False},
        "deployment": {
            "model": "llama-3.1-8b", "hardware": "h100-sxm", "router": "least_outstanding", "pools": pools,
            "batching": {"max_num_seqs": 16}, "usd_per_device_hour": 2.0, **deployment,
        },
    }  # fmt: skip


def planned(tree, simulator="token"):
    whole = plan(load_scenario(tree), simulator=simulator)
    (configuration,) = whole.configurations
    return whole, configuration


def outcomes(tree, simulator="token"):
    whole, configuration = planned(tree, simulator)
    assert (configuration.status, configuration.simulator) == ("ok", simulator)
    return simulate_configurations(whole, [configuration])


def alive(found):
    return {use.name: use.alive[0][0] for use in found.stations if use.alive is not None}


def same(found, expected):
    for name in ("scheduled_s", "first_token_s", "last_token_s"):
        np.testing.assert_allclose(getattr(found.times, name), getattr(expected.times, name), rtol=1e-9)
    for name, spans in alive(expected).items():
        np.testing.assert_allclose(alive(found)[name], spans, rtol=1e-9)


def there(spans, times):
    return ((spans[:, :1] <= times) & (times < spans[:, 1:])).sum(axis=0)


@pytest.mark.parametrize("policies", [PLANNER, BY_LOAD])
def test_sides_in_one_loop_scale_as_those_in_a_chain(policies):
    chain = outcomes(scenario(*policies))
    assert min(map(len, alive(chain).values())) > 1
    whole, configuration = planned(scenario(*policies, autoscaling_devices=8))  # more than they ever want
    assert configuration.joint_pools and configuration.lacking == (
        "deployment.autoscaling with several pools in one loop",
    )
    same(simulate_configurations(whole, [configuration]), chain)


@pytest.mark.skipif(not THOROUGH, reason="programs of their own, which take long to compile")
@pytest.mark.parametrize("policies", [PLANNER, BY_LOAD])
def test_a_chain_of_programs_scales_as_the_reference_does(policies):
    same(outcomes(scenario(*policies), "iteration"), outcomes(scenario(*policies)))


def test_what_is_told_of_each_pool_sums_up_to_the_whole():
    run = evaluator.simulate(scenario(None, BY_LOAD[1]), simulator="token")
    ds, windows = run.summary.isel(config=0), run.over_time("2s")
    assert ds.pool.values.tolist() == ["p", "d"] and ds.pool_replicas_mean.sel(pool="p") == pytest.approx(4)
    assert ds.pool_replicas_mean.sum().item() == pytest.approx(ds.replicas_mean.item())
    assert ds.pool_device_hours.sum().item() == pytest.approx(ds.device_hours.item())
    np.testing.assert_allclose(windows.pool_replicas.sum("pool"), windows.replicas)
    # The run is on as long as the four prefill replicas are there.
    first_s = run.requests["arrival_s"].min()
    end_s = first_s + ds.pool_device_hours.sel(pool="p").item() * 3600 / 4
    weights_s = on_s(np.append(windows["time"], np.inf), [np.array([[first_s, end_s]])])
    held = (windows.pool_replicas.sel(pool="d").values * weights_s).sum() / 3600
    assert held == pytest.approx(ds.pool_device_hours.sel(pool="d").item())
    assert 1 < ds.pool_replicas_mean.sel(pool="d") < 4
    paid = ds.replicas_mean.item() * 2.0 / 3600 * 1e6 / ds.output_tok_per_s.item()
    assert ds.usd_per_mtok.item() == pytest.approx(paid)


def test_each_side_has_the_replicas_that_littles_law_asks_for():
    # Slowly: a look every second and no start-up, against a load that takes minutes to change.
    slow = {"every_s": "1s", "window_s": "10s", "cooldown_s": 0, "start_up_s": 0, "tolerance": 0}
    policies = {"metric": "prompt_rate", "target": 4500}, {"metric": "outstanding", "target": 1.5}
    tree = scenario(*(policy | slow for policy in policies), requests=1800)
    tree["workload"]["arrivals"] = {"process": "varying", "rate_rps": 6, "period_s": "10min",
                                    "profile": [["0s", 1], ["5min", 3]]}  # fmt: skip
    tree["workload"]["lengths"] = {"source": "fixed", "prompt_tokens": 2000, "output_tokens": 100}
    found = outcomes(tree)
    came = found.times.arrival_s[0, 0]
    times = np.arange(60.0, 300.0, 5.0)
    rate = np.array([np.sum((came > time - 20) & (came <= time)) / 20 for time in times])
    left = found.times.last_token_s[0, 0] - found.times.first_token_s[0, 0]
    asked = {"p": rate * 2000 / 4500, "d": rate * left.mean() / 1.5}
    for name, spans in alive(found).items():
        number = there(spans, times)
        # Rounded up to whole replicas, which are half a one more on the mean; a look sees ten seconds of chance.
        assert number.max() > number.min()
        assert np.mean(number - asked[name]) == pytest.approx(0.5, abs=0.3)


def test_a_prefill_replica_bears_what_keeps_the_mean_ttft():
    # One prompt after the other, as Pollaczek and Khinchine have it: at the rate of the target TTFT is what was said.
    tree = scenario({"metric": "prompt_rate", "within_s": "0.12s"}, None, requests=3000, batching={"max_num_seqs": 1})
    prefill = planned(tree)[1].stations[0]
    target, lengths = scaling_target(prefill), np.array(prefill.lengths.prompts)
    tree["workload"]["arrivals"] = {"process": "poisson", "rate_rps": target / lengths.mean()}
    tree["workload"]["lengths"] |= {"output_mean": 2, "output_cv": 0.01, "output_max": 2}
    tree["deployment"]["pools"]["p"] = {"role": "prefill", "replicas": 1}
    times = outcomes(tree).times
    assert (times.first_token_s - times.arrival_s).mean() == pytest.approx(0.12, rel=0.1)


def test_a_decode_replica_bears_what_keeps_the_pace():
    targets = []
    for within_s in (0.0001, 0.0072, 0.0085, 10):
        tree = scenario(None, {"metric": "outstanding", "within_s": within_s}, batching={"max_num_seqs": 64})
        decode = planned(tree)[1].stations[1]
        targets.append(scaling_target(decode))
    # One sequence in any case, and no more than have seats.
    assert targets[0] == 1 < targets[1] < targets[2] < targets[3] == 64
    with pytest.raises(
        InputError, match=r"pool d: autoscaling\.within_s 0\.0001 s, and a sequence by itself has a token"
    ):
        evaluator.simulate(scenario(None, {"metric": "outstanding", "within_s": 0.0001}))


def test_a_budget_is_never_gone_beyond_and_is_shared_by_what_is_wanted():
    budget = DeviceBudget(10, (1, 4))
    budget.fleets = [SimpleNamespace(policy=SimpleNamespace(least=1)) for _ in range(2)]
    assert budget._shared([2, 2]) == [2, 2]
    for wanted in np.ndindex(12, 12):
        p, d = budget._shared([number + 1 for number in wanted])
        assert 1 <= p <= wanted[0] + 1 and 1 <= d <= wanted[1] + 1 and p + 4 * d <= 10
    assert budget._shared([6, 3]) == [3, 1]  # 18 are wanted: of prefill 6 x 10 / 18, and what is left for decode


def test_sides_share_devices():
    free, bound = (outcomes(scenario(*BY_LOAD, autoscaling_devices=devices)) for devices in (8, 4))
    times = np.linspace(0, free.makespan_s.item(), 400)
    most = [sum(there(spans, times) for spans in alive(found).values()).max() for found in (free, bound)]
    assert most[1] <= 4 < most[0]


def test_a_prefill_replica_that_drains_is_there_until_its_kv_is_sent():
    transfer = {"link": {"bandwidth": "1GB/s"}, "backpressure": True}
    found = outcomes(scenario(*BY_LOAD, transfer=transfer))
    spans, times = alive(found)["p"], found.times
    gone = spans[spans[:, 1] < times.last_token_s.max()][:, 1]
    # KV of 2,000 tokens takes a quarter of a second: replicas go when a transfer ends, and not with a first token.
    assert len(gone) > 2
    assert not np.isin(np.round(gone, 9), np.round(times.first_token_s.ravel(), 9)).all()


def test_fleets_behind_users_who_wait():
    tree = scenario({"metric": "ttft", "target": 0.1}, {"metric": "tpot", "target": 0.006}, requests=200)
    tree["workload"]["arrivals"] = {"process": "closed_loop", "users": 40}
    found = outcomes(tree)
    assert np.isfinite(found.times.last_token_s).all() and min(map(len, alive(found).values())) > 1


@pytest.mark.parametrize(
    ("devices", "policies", "message"),
    [
        (1, BY_LOAD, "autoscaling_devices 1 are fewer than the 2 of min_replicas"),
        (4, (BY_LOAD[0], None), "are shared by two pools with autoscaling, of which there are 1; lower replicas"),
        (4, (BY_LOAD[0] | {"every_s": "9s"}, BY_LOAD[1]), "look at the same times; .* the same every_s"),
    ],
)
def test_budgets_that_are_refused(devices, policies, message):
    with pytest.raises(InputError, match=message):
        evaluator.simulate(scenario(*policies, autoscaling_devices=devices))


def test_whether_a_latency_can_be_kept_is_asked_of_each_device():
    tree = scenario(None, {"metric": "output_rate", "within_s": "20ms"})
    tree["deployment"]["hardware"] = {"like": "h100-sxm"}
    tree["sweep"] = {"deployment.hardware.memory_bandwidth": ["0.1TB/s", "3TB/s"]}
    slow, fast = plan(load_scenario(tree)).configurations
    assert slow.status.startswith("infeasible: pool d: autoscaling.within_s 0.02 s") and fast.status == "ok"
