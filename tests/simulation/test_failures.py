"""``deployment.failures`` in scenarios: keys, metrics, results over time, and what it does not go with."""

from __future__ import annotations

import numpy as np
import pytest

import evaluator
from evaluator.plan import plan
from evaluator.scenario import load_scenario
from tests.simulation.build import on_s

pytestmark = pytest.mark.usefixtures("as_users_run")

DRAWN = {"mtbf_s": "20s", "mttr_s": "5s", "start_up_s": "1s", "noticed_after_s": "500ms"}


def scenario(failures, **deployment):
    return {
        "workload": {
            "arrivals": {"process": "poisson", "rate_rps": 8},
            "lengths": {"source": "lognormal", "prompt_mean": 400, "prompt_cv": 1, "output_mean": 60, "output_cv": 1},
            "classes": {"chat": {"share": 2, "slo": {"ttft": {"p99": "1h"}}}, "batch": {"share": 1}},
            "requests": 500,
            "seeds": [0, 1],
            "find_warmup": False,
        },
        "deployment": {
            "model": "llama-3.1-8b",
            "hardware": "h100-sxm",
            "replicas": 3,
            "router": "least_outstanding",
            "usd_per_device_hour": 2.0,
            **({"failures": failures} if failures else {}),
            **deployment,
        },
    }


CLOSED = {"arrivals": {"process": "closed_loop", "users": 4}}
TALKS = {"sessions": {"turns": 2, "think_s": 1}}


@pytest.fixture(scope="module")
def lost():
    return evaluator.simulate(scenario(DRAWN), simulator="token")


@pytest.fixture(scope="module")
def resent():
    return evaluator.simulate(scenario(DRAWN | {"requests": "resent", "max_tries": 50}), simulator="token")


def test_the_lost_have_no_latency_and_miss_their_objectives(lost):
    ds, measured = lost.summary.isel(config=0), lost.requests[lost.requests["measured"]]
    assert ds.engine == "token" and 0.01 < ds.lost_share < 0.5
    assert ds.lost_share.item() == pytest.approx(measured.groupby("seed")["lost"].mean().mean())
    gone = measured[measured["lost"]]
    assert gone[["ttft_s", "tpot_s", "e2e_s", "queue_wait_s"]].isna().all().all()
    assert (gone["last_token_s"] >= gone["arrival_s"]).all() and (measured["tries"] <= 1).all()
    answered = measured[~measured["lost"]]
    assert ds.ttft_s_mean.item() == pytest.approx(answered.groupby("seed")["ttft_s"].mean().mean())
    # An objective that any latency meets is met by those who are answered.
    of_chat = measured[measured["class"] == "chat"].groupby("seed")["lost"].mean().mean()
    assert ds.class_lost_share.sel({"class": "chat"}).item() == pytest.approx(of_chat)
    assert ds.class_slo_attainment.sel({"class": "chat"}).item() == pytest.approx(1 - of_chat)
    assert ds.refused_share == 0 and not ds.slo_met  # more than 1 % of them miss p99


def test_availability_and_what_is_paid_for(lost):
    ds = lost.summary.isel(config=0)
    took = lost.requests.groupby("seed").agg({"arrival_s": "min", "last_token_s": "max"})
    makespan_s = (took["last_token_s"] - took["arrival_s"]).to_numpy()
    up_s = np.array([(spans[:, 1] - spans[:, 0]).sum() for spans in lost.up])
    # Frontends answer later than engines, which are done by then.
    assert ds.availability.item() == pytest.approx((up_s / (3 * makespan_s)).mean(), rel=0.01)
    assert 0.5 < ds.availability < 0.95  # 20 / 26 in the long run
    # The devices are there all the time, repaired or not.
    assert ds.replicas_mean == 3 and ds.device_hours.item() == pytest.approx(3 * makespan_s.mean() / 3600, rel=0.01)


def test_windows_tell_who_is_lost_and_how_many_serve(lost):
    windows = lost.over_time("10s")
    parts = windows.completions_rps.sum() + windows.lost_rps.sum()
    assert parts.item() == pytest.approx(windows.arrivals_rps.sum().item())
    assert windows.replicas_up.max() <= 3 and windows.replicas_up.min() < 2.5 and "replicas" not in windows
    whole = np.mean([(spans[:, 1] - spans[:, 0]).sum() for spans in lost.up])
    weights_s = on_s(np.append(windows["time"], np.inf), lost.up)
    assert (windows.replicas_up * weights_s).sum().item() == pytest.approx(whole)


def test_who_is_sent_again_waits_longer_and_is_answered(resent):
    ds, requests = resent.summary.isel(config=0), resent.requests
    assert ds.lost_share == 0 and not requests["lost"].any() and requests["tries"].max() > 1
    again = requests["tries"] > 1
    # From the arrival to the first token of the answer that came to its end: the time that was lost is in it.
    assert requests[again]["ttft_s"].min() > requests[~again]["ttft_s"].median()
    static = evaluator.simulate(scenario(None), simulator="token").summary.isel(config=0)
    assert static.availability == 1 and static.ttft_s_mean < ds.ttft_s_mean
    assert static.tpot_s_mean.item() == pytest.approx(ds.tpot_s_mean.item(), rel=0.2)
    # The gap between what a user had before the failure and what comes after it is none of an answer.
    assert ds.itl_s.sel(quantile=0.99) < 0.3


def test_a_known_outage_is_where_it_is_said():
    outage = {"outages": [{"replica": 1, "at_s": "20s", "for_s": "30s"}], "start_up_s": "10s"}
    run = evaluator.simulate(scenario(outage), simulator="token")
    for spans in run.up:
        assert sorted(spans[:, 0].round(6).tolist())[-1] == 60.0 and 20.0 in spans[:, 1]
    requests = run.requests[~run.requests["lost"]]
    inside = requests[(requests["scheduled_s"] > 20) & (requests["scheduled_s"] < 60)]
    assert set(inside["replica"]) == {0, 2} and set(requests["replica"]) == {0, 1, 2}


def test_failures_are_of_the_seed_and_of_no_design():
    """Designs differ by what they do with a failure, and not by their luck with it."""
    rows = evaluator.simulate(scenario(DRAWN | {"noticed_after_s": 0}), simulator="token")
    other = evaluator.simulate(scenario(DRAWN | {"noticed_after_s": 0}, router="round_robin"), simulator="token")
    for one, two in zip(rows.up, other.up, strict=True):
        # Without the last of each replica, which the end of the run cuts.
        one, two = (spans[spans[:, 1] < 45] for spans in (one, two))
        np.testing.assert_allclose(one, two)
        assert len(one) > 1


def test_a_fleet_that_scales_has_what_it_replaces():
    scaling = {"target": 3, "every_s": "2s", "window_s": "4s", "cooldown_s": "10s", "start_up_s": "1s"}
    run = evaluator.simulate(scenario(DRAWN | {"requests": "resent"}, autoscaling=scaling), simulator="token")
    ds, windows = run.summary.isel(config=0), run.over_time("10s")
    assert ds.replicas_mean < 3 and ds.availability < 1
    assert (windows.replicas_up <= windows.replicas + 1e-9).all()


@pytest.mark.parametrize(
    ("failures", "message"),
    [
        ({"start_up_s": "1s"}, r"deployment\.failures: says of no failure; use \{mtbf_s: 720h, mttr_s: 10min\}"),
        ({"mtbf_s": "24h"}, r"failures\.mttr_s: is required beside mtbf_s"),
        ({"mtbf_s": 0, "mttr_s": 1}, r"failures\.mtbf_s: must be greater than 0"),
        ({"outages": 3}, r"failures\.outages: expected a list such as"),
        ({"outages": [{"at_s": 3}]}, r"failures\.outages\[0\]\.for_s: is required"),
        (
            {"outages": [{"at_s": 3, "for_s": 2}, {"at_s": 4, "for_s": 9}]},
            r"outages\[1\]: replica 0 is down from 3 to 5",
        ),
        ({"outages": [{"at_s": 3, "for_s": 2}], "mtbf_s": 3, "mttr_s": 1}, r"excludes mtbf_s .* set mtbf_s: null and"),
        ({"outages": [{"replica": 3, "at_s": 3, "for_s": 2}]}, r"names replica 3, and there are 3, from 0 on"),
        (DRAWN | {"requests": "forgotten"}, r"failures\.requests: 'forgotten' is not one of lost, resent"),
        (DRAWN | {"max_tries": 0}, r"failures\.max_tries: must be "),
    ],
)
def test_bad_input_is_told_with_its_place(failures, message):
    with pytest.raises(evaluator.InputError, match=message):
        evaluator.simulate(scenario(failures))


@pytest.mark.parametrize(
    ("workload", "deployment", "message"),
    [
        (CLOSED, {}, "requests lost and users who wait for answers; use requests: resent"),
        (TALKS, {}, "requests lost and users who wait for answers; use requests: resent"),
        ({}, {"role": "prefill"}, "role prefill; use role mixed"),
        ({}, {"data_parallel": 2}, "data_parallel; use replicas"),
        (
            {"sessions": {"turns": 2, "think_s": 1, "think_from": "arrival"}},
            {"kv": {"prefix_caching": True, "offload_bytes": "1GB", "offload_bandwidth": "1GB/s"}},
            "kv.offload_bytes; use a prefix cache without host memory",
        ),
        ({}, {"pools": {"a": {"role": "mixed"}, "b": {"role": "mixed"}}}, "several pools or stages; use one pool"),
    ],
)
def test_what_it_does_not_go_with(workload, deployment, message):
    design = scenario(DRAWN, **deployment)
    design["workload"] |= workload
    with pytest.raises(
        evaluator.InputError, match=f"unsupported: (pool a: )?failures with {message}.*, or leave it out"
    ):
        evaluator.simulate(design)


def test_a_row_of_a_table_says_when_they_fail():
    def said(failures):
        (configuration,) = plan(load_scenario(scenario(failures))).configurations
        return str(configuration.stations[0].deployment.failures)

    assert said({"mtbf_s": "30s", "mttr_s": 5}) == "every 30 s for 5 s"
    more = {"start_up_s": 3, "noticed_after_s": 2, "requests": "resent"}
    outages = {"outages": [{"at_s": 5, "for_s": 5}, {"replica": 1, "at_s": 9, "for_s": 2.5}]}
    downs = "replica 0 down at 5 s for 5 s, replica 1 down at 9 s for 2.5 s"
    assert said(outages | more) == f"{downs}; 3 s of start-up; noticed after 2 s; resent up to 2 tries"


def test_outages_are_swept_with_the_section_around_them():
    outages = [[{"at_s": 5, "for_s": 5}], [{"at_s": 9, "for_s": 1}, {"replica": 1, "at_s": 9, "for_s": 1}]]
    whole = scenario(None) | {"sweep": {"deployment.failures": [{"outages": known} for known in outages]}}
    swept = [
        configuration.stations[0].deployment.failures for configuration in plan(load_scenario(whole)).configurations
    ]
    assert [len(failures.outages) for failures in swept] == [1, 2]
    alone = scenario({"outages": outages[0]}) | {"sweep": {"deployment.failures.outages": outages}}
    with pytest.raises(evaluator.InputError, match="sweep the section around it as a whole, such"):
        load_scenario(alone)


def test_the_reference_computes_them_and_the_request_level_engine_does_not():
    (configuration,) = plan(load_scenario(scenario(DRAWN)), simulator="iteration").configurations
    assert configuration.simulator == "token" and configuration.lacking == ("deployment.failures",)
    design = scenario(DRAWN, batching={"policy": "continuous"}, kv={"prefix_caching": False, "admission": "reserve"})
    with pytest.raises(evaluator.InputError, match=r"deployment\.failures; leave it out"):
        evaluator.simulate(design, simulator="request")


@pytest.mark.parametrize("users", [CLOSED, TALKS])
def test_users_who_wait_for_answers_take_an_error_for_one(users):
    often = {"mtbf_s": "4s", "mttr_s": "2s", "noticed_after_s": "200ms", "requests": "resent", "max_tries": 1}
    design = scenario(often, replicas=2, kv={"prefix_caching": users is TALKS})
    design["workload"] |= users | {"requests": 200, "seeds": [0], "warmup_requests": 0}
    requests = evaluator.simulate(design, simulator="token").requests
    assert requests["lost"].any() and (requests["tries"] >= 1).all()
    assert np.isfinite(requests[["arrival_s", "last_token_s"]].to_numpy()).all()
    if users is CLOSED:  # nobody has two requests at a time
        came, left = (np.sort(requests[name].to_numpy()) for name in ("arrival_s", "last_token_s"))
        assert (came[4:] >= left[:-4] - 1e-9).all()
    else:  # who was lost in one turn asks the next one
        second = requests[requests["turn"] == 1].set_index("session")
        first = requests[requests["turn"] == 0].set_index("session")
        asked = first[first["lost"] & first.index.isin(second.index)]
        assert len(asked) and (second.loc[asked.index, "arrival_s"] > asked["last_token_s"]).all()


def test_they_are_swept_like_any_key():
    design = scenario(DRAWN) | {"sweep": {"deployment.failures.mtbf_s": ["10s", "100s"]}}
    design["workload"] |= {"requests": 200, "seeds": [0]}
    ds = evaluator.sweep(design)
    assert ds.lost_share.values[0] > ds.lost_share.values[1]
