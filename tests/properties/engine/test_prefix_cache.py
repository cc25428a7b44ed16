"""What holds for prefix caches on any requests, contents and limits: found and shrunk by hypothesis."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.stations.engine import LaneResult
from tests.properties.engine.test_preemptive import QUICK
from tests.properties.engine.test_preemptive import cases as preemptive_cases
from tests.stations.engine.compare import TOLERANCE, assert_same
from tests.stations.engine.preemptive.build import Case, Kind, run_engine, run_reference

CACHED = Kind(windowed=True, experts=True, cached=True)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """The cases without a cache, where each block is of one of two contents, as far as it is known."""
    one = draw(preemptive_cases((1,)))
    case, block = one.case, one.case.limits.block_tokens
    whole = (case.prompt_tokens + case.output_tokens - 1) // block
    few = st.lists(st.integers(0, 1), min_size=4, max_size=4)
    contents = tuple(tuple(draw(few) * int(count)) for count in whole)  # four blocks again and again
    known = (draw(st.integers(0, int(count))) for count in whole)
    contents = tuple(content[:count] for content, count in zip(contents, known, strict=True))
    units = -(-(case.prompt_tokens + case.output_tokens - 1) // block)
    limits = replace(case.limits, prefix_caching=True)
    policy = "chunked" if case.policy == "lightllm" else case.policy
    case = replace(
        case, policy=policy, limits=limits, kv_units=units, resident=False, compute_tokens=case.prompt_tokens
    )
    return Case(case, one.costs, 0 * units, None, contents)


def run(given: Case) -> LaneResult:
    """The engine, in the program of the random cases (``preemptive/test_prefix_cache.py``)."""
    (result,) = run_engine([given], CACHED)
    return result


@QUICK
@given(cases())
def test_the_engine_equals_the_reference(given):
    result, expected = run(given), run_reference(given)
    assert_same(given.case, result, expected)
    assert result.hit_tokens.tolist() == [request.hit_tokens for request in expected.requests]
    assert result.totals.preemptions == expected.preemptions
    assert result.totals.kv_unit_s == pytest.approx(expected.kv_unit_s, rel=TOLERANCE)


@QUICK
@given(cases())
def test_hits_are_whole_blocks_and_leave_a_token_to_compute(given):
    hits, case = run(given).hit_tokens, given.case
    assert (hits % case.limits.block_tokens == 0).all()
    assert ((hits >= 0) & (hits < case.prompt_tokens)).all()


@QUICK
@given(cases())
def test_nothing_is_found_where_nothing_is_shared(given):
    contents = tuple(tuple(range(100 * i, 100 * i + len(each))) for i, each in enumerate(given.contents))
    limits = replace(given.case.limits, kv_units=int(given.case.kv_units.sum()) + 20, watermark_units=0)
    result = run(replace(given, contents=contents, case=replace(given.case, limits=limits)))
    assert not result.hit_tokens.any() and result.totals.preemptions == 0
    assert np.isfinite(result.last_token_s).all()
