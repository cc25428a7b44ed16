"""Batches planned ahead in the program for arrivals in order, against the plain loop, on random replicas."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from evaluator.device import configure
from evaluator.stations.engine import LaneResult
from evaluator.stations.engine.fcfs_reserved import Lane, Structure, run_lanes
from tests.stations.engine.compare import TOLERANCE, assert_same
from tests.stations.engine.fcfs_reserved import build as fcfs_reserved
from tests.stations.engine.fcfs_reserved import on_demand
from tests.stations.engine.fcfs_reserved.build import LANES, RING, cut, in_calls
from tests.stations.engine.preemptive.build import Case, Kind, random_case, run_reference, stacked
from tests.thorough import THOROUGH, tried

CASES = tried(400, 0.12)
FULL, WINDOWED = Kind(experts=True, asynchronous=True), Kind(windowed=True, asynchronous=True)
KINDS = {"full attention, states": FULL, "windows": WINDOWED}
RESERVING, ON_DEMAND = (KINDS, KINDS) if THOROUGH else ({"windows": WINDOWED}, {"full attention, states": FULL})
"""Four programs. By default each way to give KV and each form of attention has one of them; without planning ahead
``test_program.py`` and ``test_kv_on_demand.py`` have the others."""


def reserving_cases(kind: Kind, count: int) -> list[Case]:
    """Random cases that reserve their KV and admit in the order of arrival."""
    cases = []
    for seed in range(count):
        given = random_case(seed, kind)
        limits = replace(
            given.case.limits, packing="fcfs", long_prefill_token_threshold=0, admission="reserve", watermark_units=0
        )
        cases.append(replace(given, case=replace(given.case, limits=limits)))
    return cases


def run_reserving(cases: list[Case], kind: Kind) -> list[LaneResult]:
    """The engine's results, one per case, cut to the case's requests."""
    configure()
    general, requests = stacked(cases)
    lanes = Lane(general.pipeline_ranks[0], general.limits)
    run = partial(run_lanes, structure=Structure(RING, kind.windowed, asynchronous=True))
    found = in_calls(run, (lanes, requests), len(cases), LANES)
    return [cut(result, len(given.case.arrival_s)) for result, given in zip(found, cases, strict=True)]


@pytest.mark.parametrize("kind", RESERVING.values(), ids=list(RESERVING))
def test_reserved_kv_equals_the_plain_loop(kind):
    cases = reserving_cases(kind, CASES)
    for given, result in zip(cases, run_reserving(cases, kind), strict=True):
        expected = run_reference(given)
        assert_same(given.case, result, expected)
        np.testing.assert_allclose(result.totals.kv_unit_s, expected.kv_unit_s, rtol=TOLERANCE, err_msg=str(given.case))
        np.testing.assert_allclose(result.totals.experts_touched, expected.experts_touched, rtol=TOLERANCE)


@pytest.mark.parametrize("kind", ON_DEMAND.values(), ids=list(ON_DEMAND))
def test_kv_on_demand_equals_the_plain_loop_where_it_is_ample(kind):
    cases = on_demand.in_order_cases(kind, CASES)
    short = 0
    for given, result in zip(cases, on_demand.run_engine(cases, kind), strict=True):
        expected = run_reference(given)
        if expected.preemptions:
            assert result.ran_short, given.case
        short += bool(result.ran_short)
        if not result.ran_short:
            assert_same(given.case, result, expected)
            np.testing.assert_allclose(
                result.totals.kv_unit_s, expected.kv_unit_s, rtol=TOLERANCE, err_msg=str(given.case)
            )
    assert len(cases) / 5 < short < len(cases) * 4 / 5, (short, len(cases))


def test_the_cases_have_everything():
    cases = [given.case for kind in KINDS.values() for given in reserving_cases(kind, CASES)]
    found = {
        "closed loop": [case.users is not None for case in cases],
        "resident": [case.resident for case in cases],
        "few seats": [case.limits.max_num_seqs < 4 for case in cases],
        "a small budget": [case.limits.max_num_batched_tokens <= 16 for case in cases],
        "little KV": [case.limits.kv_units < 2 * case.kv_units.max() for case in cases],
        "one token": [(case.output_tokens == 1).any() for case in cases],
        "long leaps": [case.output_tokens.max() > 50 for case in cases],
    }
    assert all(sum(column) >= 3 for column in found.values()), {name: sum(column) for name, column in found.items()}


def test_a_seat_comes_free_one_iteration_after_the_last_token():
    """Two requests and one seat, an iteration a second: the second one's is planned while nobody is there to leave.

    The first has its tokens at 1, 2 and 3 s. The batch planned at 2 s still finds the seat taken and is empty; the next
    one is planned at 3 s, as the third ends.
    """
    case = fcfs_reserved.build(
        fcfs_reserved.constant_cost(iteration_s=1.0), "chunked", [0.0, 0.5], [4, 4], [3, 2], max_num_seqs=1
    )
    limits = replace(case.limits, batch_queue=True, asynchronous=True)
    given = Case(replace(case, limits=limits), (case.cost,), np.zeros(2, int))
    result = run_reserving([given], Kind(asynchronous=True))[0]
    np.testing.assert_allclose(result.scheduled_s, [0.0, 3.0])
    np.testing.assert_allclose(result.last_token_s, [3.0, 5.0])
    assert_same(given.case, result, run_reference(given))
