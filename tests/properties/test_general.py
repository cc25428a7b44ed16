"""What holds for the general program on any requests, limits and rules: found and shrunk by hypothesis."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evaluator.reference import Limits
from evaluator.stations.engine import LaneResult
from tests.properties.test_engine import SLOTS, cases
from tests.reference.build import random_cost
from tests.stations.compare import TOLERANCE, assert_same
from tests.stations.general import CHUNKING, POLICIES, GeneralCase, Kind, run_general, run_tokens

QUICK = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
KINDS = {stages: Kind(windowed=True, experts=True, stages=stages, peaks=stages == 1) for stages in (1, 2)}


@st.composite
def general_cases(draw: st.DrawFn) -> GeneralCase:
    """The cases of the other program under any policy, KV on demand or reserved, from barely enough of it on."""
    case, stages = draw(cases()), draw(st.sampled_from(list(KINDS)))
    policy = draw(st.sampled_from([*POLICIES, "lightllm"] if stages == 1 else POLICIES))
    on_demand = policy == "lightllm" or (policy not in ("static", "orca") and draw(st.booleans()))
    block = 1 if policy == "lightllm" else draw(st.sampled_from([1, 3, 16]))
    units = -(-(case.prompt_tokens + case.output_tokens - 1 + case.resident) // block)
    whole = int((case.prompt_tokens + case.output_tokens).max())
    seats = case.limits.max_num_seqs
    least = seats if policy in CHUNKING else whole + seats * (policy in ("mixed", "orca"))
    limits = Limits(
        seats, least + draw(st.integers(0, 40)), int(units.max()) + draw(st.integers(0, 60)),
        admission="on_demand" if on_demand else "reserve", block_tokens=block,
        long_prefill_token_threshold=draw(st.sampled_from([0, 1, 20])) if policy in CHUNKING else 0,
        packing=draw(st.sampled_from(["fcfs", "least_work_left"])), max_wait_iterations=draw(st.integers(1, 5)),
    )  # fmt: skip
    watermark = draw(st.integers(0, limits.kv_units - int(units.max()))) if on_demand else 0
    limits = replace(limits, watermark_units=watermark)
    more = (random_cost(np.random.default_rng(number), experts=True, windowed=True) for number in range(1, stages))
    return GeneralCase(replace(case, policy=policy, limits=limits, kv_units=units), (case.cost, *more), 0 * units)


def run(given: GeneralCase) -> LaneResult:
    """The general program on SLOTS slots."""
    (result,) = run_general([given], KINDS[len(given.costs)], slots=SLOTS)
    return result


@QUICK
@given(general_cases())
def test_the_general_program_equals_the_plain_loop(given):
    result, expected = run(given), run_tokens(given)
    assert_same(given.case, result, expected)
    assert result.preemptions == expected.preemptions
    assert result.kv_unit_s == pytest.approx(expected.kv_unit_s, rel=TOLERANCE)


@QUICK
@given(general_cases())
def test_causes_come_first_and_nothing_is_lost(given):
    case, result = given.case, run(replace(given, case=replace(given.case, measured_from=0)))
    assert (result.scheduled_s >= case.arrival_s).all()
    assert (result.first_token_s > result.scheduled_s).all()
    assert ((result.last_token_s > result.first_token_s) == (case.output_tokens > 1)).all()
    # Every token but the first of a request ends a gap, but those that came before the first of request 0.
    first = result.first_token_s[0]
    if first <= result.first_token_s.min():
        assert result.itl_histogram.sum() == (case.output_tokens - 1).sum()
    assert result.iterations >= case.output_tokens.max()
    assert result.busy_s <= result.last_token_s.max() * (1 + 1e-12)
    assert case.kv_units.max() <= result.kv_units_max <= case.limits.kv_units
    if case.limits.admission == "reserve":
        held_s = result.last_token_s - result.scheduled_s
        assert result.preemptions == 0
        if len(given.costs) == 1:  # in a pipeline KV is taken when a batch is put together, before its first stage
            assert result.kv_unit_s == pytest.approx((case.kv_units * held_s).sum(), rel=TOLERANCE)


@QUICK
@given(general_cases())
def test_with_kv_for_all_it_makes_no_difference_when_it_is_given(given):
    """Nobody is preempted, and admissions are the same as if all KV were reserved."""
    case = given.case
    plenty = replace(case.limits, kv_units=int(case.kv_units.sum()) + 20, watermark_units=0)
    reserved = replace(plenty, admission="reserve")
    one, other = (run(replace(given, case=replace(case, limits=limits))) for limits in (plenty, reserved))
    assert one.preemptions == 0
    if case.policy != "lightllm":
        np.testing.assert_allclose(one.last_token_s, other.last_token_s, rtol=TOLERANCE)
