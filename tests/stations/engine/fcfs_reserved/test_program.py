"""The engine, which leaps, against the plain loop over single iterations."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest

from evaluator.cost.dispatched import Dispatched
from evaluator.cost.iteration import decode_context_s
from evaluator.reference import PoolOutcome
from evaluator.stations.engine import LaneResult
from tests.reference.build import linear_cost
from tests.stations.engine.compare import assert_all_close, assert_same, assert_same_times
from tests.stations.engine.fcfs_reserved.build import (
    POLICIES,
    RING,
    Case,
    build,
    constant_cost,
    random_cases,
    random_cost,
    run_engine,
    run_reference,
)
from tests.thorough import THOROUGH, tried

CASES = tried(150, 0.75)  # of each structure
STRUCTURES = {"plain": (False, False), "both": (True, True)}
if THOROUGH:  # programs of their own, whose parts the one of both has
    STRUCTURES |= {"experts": (True, False), "windowed": (False, True)}


@pytest.fixture(scope="module", params=STRUCTURES)
def pairs(request: pytest.FixtureRequest) -> list[tuple[Case, LaneResult, PoolOutcome]]:
    """Random cases of one structure with what the engine and the plain loop make of them."""
    cases = random_cases(*STRUCTURES[request.param], CASES)
    return list(zip(cases, run_engine(cases), map(run_reference, cases), strict=True))


def test_every_time_and_total_equals_the_plain_loop(pairs):
    for case, result, expected in pairs:
        assert_same(case, result, expected)


def test_the_random_cases_cover_what_they_should():
    cases = [case for structure in STRUCTURES.values() for case in random_cases(*structure, CASES)]
    assert len(cases) >= 200
    for policy in POLICIES:
        for resident in (False, True):
            for closed in (False, True):
                found = [c for c in cases if (c.policy, c.resident, c.users is not None) == (policy, resident, closed)]
                assert len(found) >= 3, (policy, resident, closed)
    assert any(case.users is None and not case.arrival_s.any() for case in cases)
    assert any((case.output_tokens == 1).all() for case in cases)
    assert any((case.compute_tokens < case.prompt_tokens).any() and not case.resident for case in cases)
    assert any(case.limits.kv_units < 2 * case.kv_units.max() for case in cases)
    budgets = {case.limits.max_num_batched_tokens for case in cases}
    assert min(budgets) <= 2 and max(budgets) >= 2048


def test_limits_bind_in_some_of_the_random_cases(pairs):
    """Else agreement would say little: some requests must wait for room, others find it."""
    waits = [np.max(result.scheduled_s - case.arrival_s) for case, result, _ in pairs if case.users is None]
    assert np.mean(np.array(waits) > 0.1) > 0.2
    full = [result.totals.kv_units_max > 0.8 * case.limits.kv_units for case, result, _ in pairs]
    assert 0.2 < np.mean(full) < 1.0


@pytest.mark.skipif(not THOROUGH, reason="a program of its own, whose parts the one with branches has")
def test_lanes_in_step_give_the_same_numbers():
    """The program of accelerators, where all lanes advance together."""
    cases = random_cases(True, True, CASES)[:16]
    for one, other in zip(run_engine(cases), run_engine(cases, vectorise=True), strict=True):
        assert_all_close(one, other)


def test_a_lane_does_not_depend_on_its_neighbours_nor_on_padding():
    cases = random_cases(True, True, CASES)[:16]
    alone = run_engine(cases[:1] + cases[:15])[0]
    longer = replace_requests(cases[1], 2)
    beside = run_engine([cases[0], longer, *cases[2:]])
    jax.tree.map(np.testing.assert_array_equal, alone, beside[0])
    assert_same(longer, beside[1], run_reference(longer))


def replace_requests(case: Case, count: int) -> Case:
    """Only the first ``count`` requests."""
    names = ("arrival_s", "compute_tokens", "prompt_tokens", "output_tokens", "kv_units")
    return replace(case, measured_from=0, **{name: getattr(case, name)[:count] for name in names})


@pytest.fixture(scope="module")
def blocked() -> list[Case]:
    """One case of each policy whose request 7 needs more KV than there is."""
    cost = random_cost(np.random.default_rng(0), experts=False, windowed=False)
    arrival, prompt, output = np.linspace(0, 1, 30), np.full(30, 20), np.where(np.arange(30) == 7, 200, 20)
    return [build(cost, policy, arrival, prompt, output, kv_units=100) for policy in POLICIES]


def test_a_request_that_never_fits_stops_the_queue_behind_it(blocked):
    """What comes before it is served; it and all others keep infinite times, and the run ends."""
    for case, result in zip(blocked, run_engine(blocked), strict=True):
        assert_same_times(case, result, run_reference(case))
        assert np.isfinite(result.last_token_s[:7]).all()
        assert np.isinf(result.scheduled_s[7:]).all() and np.isinf(result.last_token_s[7:]).all()


def test_a_request_that_never_fits_takes_no_time(blocked):
    for case, result in zip(blocked, run_engine(blocked), strict=True):
        assert_same(case, result, run_reference(case))


def test_ties_between_arrivals_and_ends_of_iterations():
    """All times are multiples of 1/8 s: requests that arrive exactly when an iteration ends take part in the next."""
    rng = np.random.default_rng(4)
    cost = constant_cost(iteration_s=0.25, sequence_s=0.125)
    drawn = [
        (np.sort(rng.integers(0, 200, 30)) / 8, rng.integers(1, 9, 30), rng.integers(1, 20, 30)) for _ in range(20)
    ]
    cases = [
        build(cost, policy, *requests, max_num_seqs=4, max_num_batched_tokens=12, resident=resident)
        for policy in POLICIES
        for resident in (False, True)
        for requests in drawn
    ]
    for case, result in zip(cases, run_engine(cases), strict=True):
        expected = run_reference(case)
        assert result.last_token_s.tolist() == [request.token_s[-1] for request in expected.requests], case
        assert result.scheduled_s.tolist() == [request.scheduled_s for request in expected.requests], case


@pytest.mark.parametrize("resident", [False, True])
def test_outputs_that_just_fit_the_rings(resident):
    """The longest output that the plan allows for a ring, beside others that come and go around its end."""
    longest = RING - 2
    cost = random_cost(np.random.default_rng(2), experts=True, windowed=True)
    outputs = [longest, 5, longest, 1, longest - 1, 130, longest, 64, 65, longest]
    cases = [
        build(cost, policy, np.arange(10) * 0.4, np.full(10, 7), outputs, window=window, resident=resident)
        for policy in POLICIES
        for window in (2, longest, 10_000)
    ]
    for case, result in zip(cases, run_engine(cases), strict=True):
        assert_same(case, result, run_reference(case))


def test_a_lane_without_requests_does_nothing():
    case = random_cases(False, False, CASES)[0]
    empty, full = run_engine([replace_requests(case, 0), case])
    assert (empty.totals.busy_s, empty.totals.iterations, empty.itl_histogram.sum()) == (0, 0, 0)
    assert full.totals.iterations > 0


def test_decodes_alone_by_hand():
    """One prompt of 10 tokens, 4 outputs: one iteration with the prompt, then contexts of 11, 12 and 13 tokens."""
    cost = random_cost(np.random.default_rng(1), experts=False, windowed=False)
    case = build(cost, "chunked", [2.0], [10], [4])
    expected = run_reference(case)
    (result,) = run_engine([case])
    assert result.totals.iterations == expected.iterations == 4
    assert result.scheduled_s[0] == 2.0
    steps = np.diff(expected.requests[0].token_s)
    np.testing.assert_allclose(np.diff(steps), decode_context_s(cost, 1.0), rtol=1e-6)
    assert_same(case, result, expected)


def test_a_leap_ends_where_the_device_outgrows_the_host():
    """A prompt of 10 tokens, 400 outputs: decodes take as long as the host up to a context of 200, then more."""
    cost = Dispatched(linear_cost(1.0, context_s=0.01), np.float64(3.0))
    case = build(cost, "chunked", [0.0], [10], [400])
    expected = run_reference(case)
    (result,) = run_engine([case])
    contexts = np.arange(11, 410)
    np.testing.assert_allclose(np.diff(expected.requests[0].token_s), np.maximum(3.0, 1.0 + 0.01 * contexts))
    assert_same_times(case, result, expected)
    assert result.totals.iterations == expected.iterations == 400
