"""The engine's prefix cache against the reference's on random replicas, request by request."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from tests.stations.engine.compare import TOLERANCE, assert_same
from tests.stations.engine.preemptive.build import POLICIES, Case, Kind, random_cases, run_engine, run_reference
from tests.thorough import THOROUGH, tried

CACHED = Kind(windowed=True, experts=True, cached=True)
APART = Kind(experts=True, cached=True, blocks=True, apart=True)
KINDS = {"one rank": CACHED, "answers apart": APART}
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


def test_a_block_that_the_first_step_after_a_transfer_fills_is_found_with_it():
    """Those of the reference's test of this name, as one more case of the program of the random ones."""
    drawn = random_cases(CACHED, CASES)[0]
    limits = replace(drawn.case.limits, max_num_seqs=8, max_num_batched_tokens=64, kv_units=100, block_tokens=4,
                     admission="reserve", packing="fcfs", watermark_units=0)  # fmt: skip
    some = len(drawn.case.arrival_s) - 2  # who come after them, and share nothing
    case = replace(
        drawn.case, policy="chunked", limits=limits, users=None, resident=True,
        arrival_s=np.array([0.0, 0.0, *[1e6] * some]), compute_tokens=np.zeros(some + 2, int),
        prompt_tokens=np.array([7, 9, *[1] * some]), output_tokens=np.array([6, 2, *[1] * some]),
        kv_units=np.array([4, 3, *[1] * some]),
    )  # fmt: skip
    (result,) = run_engine([Case(case, drawn.costs, 0 * case.kv_units, None, ((1, 2), (1, 2), *[()] * some))], CACHED)
    assert result.hit_tokens.tolist() == [0, 8, *[0] * some]


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
