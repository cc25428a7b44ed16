"""Drafts where KV is taken on demand, in pipelines and with queues in any order, against the plain loop."""

from __future__ import annotations

import pytest

from tests.stations.engine.preemptive.build import (
    POLICIES,
    Kind,
    assert_equal_to_the_plain_loop,
    random_cases,
    run_engine,
)
from tests.thorough import THOROUGH, tried

CASES = tried(100)
KINDS = {
    "two pipeline ranks": Kind(pipeline_ranks=2, speculating=True),
    "prefix cache": Kind(cached=True, speculating=True),
}
if THOROUGH:  # a program of its own, whose parts joint/test_speculation.py has, too
    KINDS["windows and experts"] = Kind(windowed=True, experts=True, speculating=True)


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_equal_to_the_plain_loop(kind):
    cases = random_cases(kind, CASES)
    preemptions = 0
    for given, result in zip(cases, run_engine(cases, kind), strict=True):
        expected = assert_equal_to_the_plain_loop(given, result, kind)
        assert (result.totals.decoded, result.totals.decoded_tokens) == (expected.decoded, expected.decoded_tokens), (
            given.case
        )
        preemptions += expected.preemptions
    assert preemptions > CASES // 5
    assert {given.case.policy for given in cases} == set(POLICIES)


def test_equal_to_the_plain_loop_where_all_kv_is_reserved():
    kind = Kind(speculating=True, plain=True)
    cases = random_cases(kind, 2 * CASES)
    assert len(cases) > CASES // 4
    for given, result in zip(cases, run_engine(cases, kind), strict=True):
        assert_equal_to_the_plain_loop(given, result, kind)
