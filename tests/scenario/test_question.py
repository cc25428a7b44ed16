"""What a search is asked: budget, demand and relaxed objectives, as a file says them."""

from __future__ import annotations

import pytest

from evaluator.errors import InputError
from evaluator.scenario import Budget, Demand, expand, load_scenario


def test_a_budget_and_a_demand(base):
    found = load_scenario(base | {"budget": {"devices": 8, "usd_per_hour": "40USD/h"}, "demand": {"rate_rps": "50/s"}})
    assert (found.budget, found.demand) == (Budget(8, 40.0), Demand(50.0))
    assert load_scenario(base).budget == Budget() and load_scenario(base).demand == Demand()
    assert load_scenario(base, ("budget.devices=4",)).budget.devices == 4


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"budget": {"devices": 0}}, r"budget\.devices: must be an integer from 1"),
        ({"budget": {"usd": 8}}, r"budget\.usd: unknown key"),
        ({"budget": {"fill": True}}, r"budget\.fill: needs something to fill"),
        ({"budget": 8}, r"budget: expected"),
        ({"demand": {"rate_rps": -1}}, r"demand\.rate_rps: must be greater than 0"),
        ({"slo": {"relax": 0.1}}, r"slo\.relax: relaxes bounds, and there is none"),
        ({"slo": {"ttft": {"p90": 1}, "relax": "10%"}}, r"slo\.relax: expected a number"),
        ({"slo": {"confidence": 0.9}}, r"slo\.confidence: is asked of bounds, and there is none; add one such as ttft"),
        ({"slo": {"ttft": {"p90": 1}, "confidence": "high"}}, r"slo\.confidence: expected a number"),
        (
            {"slo": {"ttft": {"p90": 1}, "confidence": 90}},
            r"slo\.confidence: must be above 0.5 and .*, got 90; write 0.9$",
        ),
        (
            {"slo": {"ttft": {"p90": 1}, "confidence": 0.5}},
            r"must be above 0.5 and below 1, got 0.5; leave it out for objectives that .*, and use relax for",
        ),
        ({"slo": {"ttft": {"p90": 1}, "confidence": 1.0}}, r"slo\.confidence: must be above 0.5 and below 1, got 1"),
    ],
)
def test_what_is_refused(base, section, message):
    with pytest.raises(InputError, match=message):
        load_scenario(base | section)


def test_relaxed_bounds_are_larger_for_all_that_follows(base):
    found = load_scenario(
        base | {"slo": {"ttft": {"p90": "1s"}, "relax": 0.1, "tpot": {"p90": "50ms", "mean": "40ms"}}}
    )
    bounds = {(one.metric, one.statistic): one.bound_s for one in found.slo}
    expected = {("ttft", "p90"): 1.1, ("tpot", "p90"): 0.055, ("tpot", "mean"): 0.044}
    assert bounds == pytest.approx(expected)


def test_a_swept_bound_is_relaxed_as_well(base):
    slo = {"ttft": {"p90": "1s"}, "tpot": {"p90": "50ms"}, "relax": 0.1}
    found = load_scenario(base | {"slo": slo, "sweep": {"slo.ttft.p90": ["1s", "2s"], "slo.relax": [0.1, 0.5]}})
    bounds = [[one.bound_s for one in point[2]] for point in expand(found).points]
    assert bounds == [pytest.approx(each) for each in ([1.1, 0.055], [1.5, 0.075], [2.2, 0.055], [3.0, 0.075])]


def test_a_confidence_is_asked_of_every_bound_and_may_be_swept(base):
    slo = {"ttft": {"p90": "1s"}, "tpot": {"p90": "50ms"}, "confidence": 0.9}
    found = load_scenario(base | {"slo": slo, "sweep": {"slo.confidence": [0.8, 0.95], "slo.ttft.p90": ["1s", "2s"]}})
    assert [one.confidence for one in found.slo] == [0.9, 0.9]
    points = [[(one.bound_s, one.confidence) for one in point[2]] for point in expand(found).points]
    assert points[0] == [(1.0, 0.8), (0.05, 0.8)] and points[-1] == [(2.0, 0.95), (0.05, 0.95)]
    assert all(one.confidence is None for one in load_scenario(base | {"slo": {"ttft": {"p90": 1}}}).slo)
