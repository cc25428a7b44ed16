"""KV on demand in the program for arrivals in order, on random replicas around the limit of their KV."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evaluator.reference import PoolOutcome
from tests.stations.engine.compare import TOLERANCE, assert_all_close, assert_same
from tests.stations.engine.fcfs_reserved.on_demand import POLICIES, in_order_cases, run_engine
from tests.stations.engine.preemptive.build import Case, Kind, run_reference
from tests.thorough import tried

CASES = tried(1000, 0.15)
KINDS = {"full attention, states": Kind(experts=True), "windows": Kind(windowed=True)}


def kept_waiting(given: Case, expected: PoolOutcome) -> bool:
    """Whether a lack of KV kept an admission waiting or preempted a request: without a limit all is otherwise."""
    if expected.preemptions:
        return True
    case = given.case
    limits = replace(case.limits, kv_units=1 << 30, watermark_units=0)
    free = run_reference(replace(given, case=replace(case, limits=limits)))
    pairs = zip(expected.requests, free.requests, strict=True)
    return any(one.scheduled_s != other.scheduled_s for one, other in pairs)


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_equal_to_the_plain_loop_where_kv_is_ample(kind):
    cases = in_order_cases(kind, CASES)
    short = 0
    for given, result in zip(cases, run_engine(cases, kind), strict=True):
        expected = run_reference(given)
        assert bool(result.ran_short) == kept_waiting(given, expected), given.case
        short += bool(result.ran_short)
        if not result.ran_short:
            assert_same(given.case, result, expected)
            np.testing.assert_allclose(
                result.totals.kv_unit_s, expected.kv_unit_s, rtol=TOLERANCE, err_msg=str(given.case)
            )
            np.testing.assert_allclose(result.totals.experts_touched, expected.experts_touched, rtol=TOLERANCE)
    assert len(cases) / 5 < short < len(cases) * 4 / 5, (short, len(cases))


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_the_cases_have_everything(kind):
    cases = in_order_cases(kind, CASES)
    assert {given.case.policy for given in cases} == set(POLICIES)
    found = {
        "a block for every token": [given.case.limits.block_tokens == 1 for given in cases],
        "watermark": [given.case.limits.watermark_units > 0 for given in cases],
        "full_prompt": [given.case.limits.full_prompt for given in cases],
        "resident": [given.case.resident for given in cases],
        "hybrid KV": [given.layout is not None for given in cases],
        "shared prefixes": [given.shared_units.any() for given in cases],
        "closed loop": [given.case.users is not None for given in cases],
        "leaps of more than a block": [given.case.output_tokens.max() > 50 for given in cases],
    }
    assert all(sum(column) >= 3 for column in found.values()), {name: sum(column) for name, column in found.items()}


def test_in_step_as_on_an_accelerator():
    """Lanes without requests, which fill up the call, go along."""
    kind = KINDS["full attention, states"]
    cases = in_order_cases(kind, 20)
    for one, other in zip(run_engine(cases, kind), run_engine(cases, kind, vectorise=True), strict=True):
        if not one.ran_short:  # such a lane is void
            assert_all_close(one, other)
        assert one.ran_short == other.ran_short
