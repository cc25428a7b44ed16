"""The engine's prefix cache against the reference's on random replicas, request by request."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from tests.stations.engine.compare import TOLERANCE, assert_same
from tests.stations.engine.preemptive.build import POLICIES, Case, Kind, random_cases, run_engine, run_reference
from tests.thorough import THOROUGH, tried

CACHED = Kind(windowed=True, experts=True, cached=True)
KINDS = {"one rank": CACHED}
if THOROUGH:  # a program of its own, whose parts joint/test_caches.py has, too
    KINDS["two pipeline ranks"] = Kind(windowed=True, pipeline_ranks=2, cached=True)
CASES = tried(120)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_equal_to_the_reference(kind):
    cases = random_cases(kind, CASES)
    preemptions = hits = 0
    for given, result in zip(cases, run_engine(cases, kind), strict=True):
        expected = run_reference(given)
        assert_same(given.case, result, expected)
        found = [request.hit_tokens for request in expected.requests]
        np.testing.assert_array_equal(result.hit_tokens, found, err_msg=str(given.case))
        assert result.totals.preemptions == expected.preemptions, given.case
        np.testing.assert_allclose(result.totals.kv_unit_s, expected.kv_unit_s, rtol=TOLERANCE, err_msg=str(given.case))
        preemptions, hits = preemptions + expected.preemptions, hits + sum(hit > 0 for hit in found)
    assert preemptions > CASES // 2 and hits > 2 * CASES


def _features(given: Case) -> set[str]:
    """What a case has that another may lack."""
    limits, contents = given.case.limits, given.contents
    found = {
        "on demand": limits.admission == "on_demand",
        "reserved": limits.admission == "reserve",
        "closed loop": given.case.users is not None,
        "least work left": limits.packing == "least_work_left",
        "more is used than there is": given.case.kv_units.sum() > 2 * limits.kv_units,
        "content of outputs": any(
            len(content) > prompt // limits.block_tokens
            for content, prompt in zip(contents, given.case.prompt_tokens, strict=True)
        ),
        "prompts of whole blocks": (given.case.prompt_tokens % limits.block_tokens == 0).mean() > 0.2,
    }
    return {name for name, there in found.items() if there}


def test_the_cases_have_everything():
    cases = random_cases(CACHED, CASES)
    assert {given.case.policy for given in cases} == {*POLICIES}
    counts = Counter(feature for given in cases for feature in _features(given))
    assert len(counts) == 7 and min(counts.values()) >= CASES // 16, counts
