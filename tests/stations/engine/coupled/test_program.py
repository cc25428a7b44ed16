"""Replicas that run together against the reference, request by request, on random pools with everything at once."""

from __future__ import annotations

from collections import Counter

import jax
import numpy as np
import pytest

from evaluator.routing import HeavyLight, name_of
from tests.reference.build import CHOICES
from tests.stations.engine.any_order.build import POLICIES, Kind
from tests.stations.engine.compare import TOLERANCE, assert_same
from tests.stations.engine.coupled.build import Case, random_cases, run_engine, run_reference

CASES = 250
KINDS = {
    "all policies": Kind(peaks=True),
    "windows and experts": Kind(windowed=True, experts=True),
    "two pipeline ranks, windows": Kind(windowed=True, pipeline_ranks=2),
}


@pytest.mark.parametrize(
    ("kind", "frontend"),
    [*((kind, False) for kind in KINDS.values()), (Kind(), True)],
    ids=[*KINDS, "frontend"],
)
def test_equal_to_the_reference(kind, frontend):
    cases = random_cases(kind, CASES, frontend)
    preemptions = ties = 0
    for given, (served, replica) in zip(cases, run_engine(cases, kind), strict=True):
        expected = run_reference(given)
        if _ties_but_for_rounding(expected.requests):
            ties += 1
            continue
        assert replica.tolist() == [request.replica for request in expected.requests], given
        assert_same(given.one.case, served, expected)
        assert served.preemptions == expected.preemptions, given
        np.testing.assert_allclose(served.kv_unit_s, expected.kv_unit_s, rtol=TOLERANCE, err_msg=str(given))
        np.testing.assert_allclose(served.experts_touched, expected.experts_touched, rtol=TOLERANCE)
        preemptions += expected.preemptions
    assert preemptions > 60 and ties <= 2


def _ties_but_for_rounding(requests):
    """Whether two requests are sent at times that differ by rounding alone: which of them a router sees first is then
    nobody's to say (two replicas that computed the same batches in another order end at the same time)."""
    gaps = np.diff(sorted(request.arrival_s for request in requests))
    return bool(((gaps > 0) & (gaps < 1e-14)).any())


def test_answers_overtake_each_other_on_their_way_to_users():
    """Else a queue in front of the users would do as well as a heap."""
    overtaken = 0
    for given in random_cases(Kind(), CASES, True):
        if given.one.case.users is None or not given.frontend[1]:
            continue
        done = sorted(run_reference(given).requests, key=lambda request: request.last_token_s)
        delivered = np.array([request.last_token_s + given.delay_s(request) for request in done])
        overtaken += int((np.diff(delivered) < 0).sum())
    assert overtaken > 20


def _features(given: Case) -> set[str]:
    """What a case has that another may lack."""
    case, limits = given.one.case, given.one.case.limits
    on_demand = limits.admission == "on_demand"
    found = {
        f"router {name_of(given.router)}": given.replicas > 1,
        "several heavy replicas": isinstance(given.router, HeavyLight) and given.router.heavy_replicas > 1,
        "closed loop": case.users is not None,
        "fewer users than replicas": case.users is not None and case.users < given.replicas,
        "everything at whole seconds": case.cost.token_s == 0,
        "resident, on demand": case.resident and on_demand,
        "least_kv on demand": given.router == "least_kv" and on_demand and given.replicas > 1,
        "warm-up": case.measured_from > 0,
    }
    return {name for name, there in found.items() if there}


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_the_cases_have_everything(kind):
    cases = random_cases(kind, CASES)
    assert {given.one.case.policy for given in cases} == {*POLICIES, *(["lightllm"] if kind.peaks else [])}
    assert {given.replicas for given in cases} == set(range(1, 9))
    counts = Counter(feature for given in cases for feature in _features(given))
    assert len(counts) == len(CHOICES) + 7 and min(counts.values()) >= 5, counts


def test_in_step_as_on_an_accelerator():
    """Lanes without requests, which fill up the call, go along."""
    kind = KINDS["windows and experts"]
    cases = random_cases(kind, 8)
    for one, other in zip(run_engine(cases, kind), run_engine(cases, kind, vectorise=True), strict=True):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), one, other)
