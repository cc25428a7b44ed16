"""Replicas that run together against the reference, request by request, on random pools with everything at once."""

from __future__ import annotations

from collections import Counter

import pytest

from evaluator.routing import HeavyLight, name_of
from tests.reference.build import CHOICES
from tests.stations.engine.joint.build import Case, random_cases
from tests.stations.engine.joint.compare import assert_equal, preemptions
from tests.stations.engine.preemptive.build import POLICIES, Kind
from tests.thorough import THOROUGH, tried

CASES = tried(250, 0.192)
KINDS = {"all policies, windows and experts": Kind(windowed=True, experts=True, peaks=True)}
"""Few programs, each with much in it: to compile one takes longer than to run its cases."""
if THOROUGH:  # replicas that are pipelines are among those of test_lockstep.py, too
    KINDS["two pipeline ranks, windows"] = Kind(windowed=True, pipeline_ranks=2)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_equal_to_the_reference(kind):
    assert preemptions(assert_equal(random_cases(kind, CASES), kind)) > CASES // 4


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
        "least work left": limits.packing == "least_work_left",
    }
    return {name for name, there in found.items() if there}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_the_cases_have_everything(kind):
    cases = random_cases(kind, CASES)
    assert {given.one.case.policy for given in cases} == {*POLICIES, *(["lightllm"] if kind.peaks else [])}
    assert {given.replicas for given in cases} == set(range(1, 9))
    counts = Counter(feature for given in cases for feature in _features(given))
    assert len(counts) == len(CHOICES) + 8 and min(counts.values()) >= CASES // 50, counts
