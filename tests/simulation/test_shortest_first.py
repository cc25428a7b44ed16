"""``batching.packing: shortest_first``: against theory on one seat, with predictions that are off, and with aging."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import evaluator
from evaluator.plan import plan
from evaluator.scenario import load_scenario

pytestmark = pytest.mark.usefixtures("as_users_run")


def scenario(requests=1200, rate_rps=0.9, deployment=(), **batching):
    lengths = {"prompt_mean": 20, "prompt_cv": 0.1, "output_mean": 100, "output_cv": 0.8, "output_max": 1000}
    return {
        "workload": {
            "arrivals": {"process": "poisson", "rate_rps": rate_rps},
            "lengths": {"source": "lognormal", **lengths},
            "requests": requests,
            "seeds": [0, 1],
            "find_warmup": False,
        },
        "deployment": {
            "model": "llama-3.1-8b",
            "hardware": "h100-sxm",
            "batching": {"max_num_seqs": 1, "planning": "at_once"} | batching,
            **dict(deployment),
        },
    }


@cache
def requests_of(**keys):
    return evaluator.simulate(scenario(**keys), simulator="token").requests


def mean_wait(**batching):
    return requests_of(**batching)["queue_wait_s"].mean()


def test_waits_on_one_seat_are_those_of_phipps():
    """W0 / (1 - load of all that are shorter)^2, in the mean over service times.

    Phipps, Machine repair as a priority waiting-line problem, Operations Research 4 (1956), from Cobham's formula.
    """
    requests = requests_of(packing="shortest_first")
    # Of the same outputs the same services, whose mean load and second moment are those that came.
    took_s = np.sort((requests["last_token_s"] - requests["scheduled_s"]).to_numpy())
    rate = 0.9
    residual_s = rate * (took_s**2).mean() / 2
    load = rate * np.cumsum(took_s) / len(took_s)
    assert 0.5 < load[-1] < 0.8
    shortest_first, first_come = (residual_s / (1 - load) ** 2).mean(), residual_s / (1 - load[-1])
    assert shortest_first < 0.7 * first_come
    # Against the same arrivals first come, first served, which chance has moved alike.
    found = mean_wait(packing="shortest_first") / mean_wait()
    assert found == pytest.approx(shortest_first / first_come, rel=0.1)
    assert mean_wait(packing="shortest_first") == pytest.approx(shortest_first, rel=0.2)


def test_predictions_that_tell_nothing_are_first_come_first_served_in_the_mean():
    waits = [mean_wait(packing="shortest_first", prediction_error=error) for error in (0, 0.5, 10)]
    assert waits[0] < waits[1] < waits[2]
    # An order that has nothing to do with the services leaves their mean wait as it is, and spreads the single ones.
    assert waits[2] == pytest.approx(mean_wait(), rel=0.05)
    spread = requests_of(packing="shortest_first", prediction_error=10)["queue_wait_s"].std()
    assert spread > 1.2 * requests_of()["queue_wait_s"].std()


def test_who_ages_is_not_passed_for_ever():
    longest = {}
    for aging in (0.0, 5.0, 1e6):
        requests = requests_of(requests=300, rate_rps=1.4, packing="shortest_first", aging_tokens_per_s=aging)
        longest[aging] = requests["queue_wait_s"].max()
    assert longest[0.0] > longest[5.0] > longest[1e6]
    # So many tokens a second that it is the order of arrival.
    assert longest[1e6] == pytest.approx(requests_of(requests=300, rate_rps=1.4)["queue_wait_s"].max())


def test_what_predictions_are_off_by_is_of_the_seed():
    plain = scenario(requests=60, packing="shortest_first", prediction_error=1.0)
    one, again = (evaluator.simulate(plain, simulator="token").requests for _ in range(2))
    np.testing.assert_array_equal(one["scheduled_s"], again["scheduled_s"])


@pytest.mark.parametrize(
    ("batching", "deployment", "message"),
    [
        ({"policy": "continuous"}, {}, "policy continuous; use policy chunked"),
        ({}, {"role": "decode"}, "role decode; use role mixed"),
        ({}, {"pools": {"a": {"role": "mixed"}, "b": {"role": "mixed"}}}, "several pools or stages; use one pool"),
    ],
)
def test_what_it_does_not_go_with(batching, deployment, message):
    design = scenario(20, 1.0, deployment.items(), packing="shortest_first", **batching)
    with pytest.raises(evaluator.InputError, match=f"unsupported: (pool a: )?packing shortest_first with {message}"):
        evaluator.simulate(design)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"prediction_error": -1}, r"batching\.prediction_error: must be at least 0"),
        ({"prediction_error": 11}, r"batching\.prediction_error: must be at most 10, got 11"),
        ({"aging_tokens_per_s": -1}, r"batching\.aging_tokens_per_s: must be at least 0"),
    ],
)
def test_numbers_out_of_range_are_told_with_their_place(keys, message):
    with pytest.raises(evaluator.InputError, match=message):
        evaluator.simulate(scenario(20, packing="shortest_first", **keys))


@pytest.mark.parametrize("key", ["prediction_error", "aging_tokens_per_s"])
def test_what_no_other_packing_goes_by_is_refused_there(key):
    for packing in ("fcfs", "priority"):
        (idle,) = plan(load_scenario(scenario(20, packing=packing, **{key: 0.5}))).configurations
        assert idle.status == (
            f"infeasible: batching.{key} with packing {packing}, which predicts no answers; use packing "
            f"shortest_first, or {key}: 0"
        )
    (zero,) = plan(load_scenario(scenario(20, packing="fcfs", **{key: 0}))).configurations
    assert zero.status == "ok"


def test_how_long_users_have_waited_is_known_to_the_reference_alone():
    design = scenario(20, packing="shortest_first", aging_tokens_per_s=3)
    design["workload"]["arrivals"] = {"process": "closed_loop", "users": 4}
    (configuration,) = plan(load_scenario(design), simulator="iteration").configurations
    assert configuration.lacking == ("batching.aging_tokens_per_s with users who wait for answers",)
    run = evaluator.simulate(design)
    assert (run.requests["last_token_s"] > 0).all()
