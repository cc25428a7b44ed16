"""Costs fitted to measured iterations, and a host that runs ahead, in the engine, which leaps, against the plain loop
over single iterations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evaluator.cost.dispatched import Dispatched
from evaluator.cost.polynomial import PolynomialCost
from evaluator.cost.quantities import PEAKS
from evaluator.cost.table import MeasuredGrid, TableCost
from evaluator.reference import PoolOutcome, Request, simulate
from evaluator.stations.engine import LaneResult
from tests.stations.engine.compare import TOLERANCE, assert_same_times
from tests.stations.engine.fcfs_reserved.build import Case, random_case, random_cost, run_engine, run_reference
from tests.stations.engine.preemptive import build as preemptive
from tests.stations.engine.preemptive.build import Kind
from tests.thorough import THOROUGH, tried

CASES = tried(80)


def random_polynomial(rng: np.random.Generator) -> PolynomialCost:
    prefill = rng.uniform(0.2, 1.0, 7) * [5e-3, 3e-5, 1e-4, 1e-8, 3e-9, 1e-5, 3e-8]
    decode = rng.uniform(0.2, 1.0, 4) * [5e-3, 1e-5, 1e-6, 3e-8]
    return PolynomialCost(prefill, decode, np.float64(0.0), np.float64(0.0))


def random_grid(rng: np.random.Generator, *knots: np.ndarray) -> MeasuredGrid:
    """Seconds that grow along every axis, at random."""
    seconds = rng.uniform(0.0, 1e-3, tuple(map(len, knots)))
    for axis in range(len(knots)):
        seconds = np.cumsum(seconds, axis=axis)
    return MeasuredGrid(knots, 2e-3 + seconds.ravel())


def random_table(rng: np.random.Generator) -> TableCost:
    """Knots in the middle of what the cases do, so that batches are below, between and beyond them."""
    prompts, past = np.sort(rng.uniform(1.0, 500.0, (2, 4)))
    decodes, context = np.array([1.0, 3.0, 7.5, 20.0]), np.sort(rng.integers(5, 600, 5) + rng.random(5).round(1))
    context = np.unique(context)
    context = np.interp(np.linspace(0, 1, 5), np.linspace(0, 1, len(context)), context)
    prefill = random_grid(rng, prompts, past, np.array([0.0, 4.0]), np.zeros(1))
    return TableCost(prefill, random_grid(rng, decodes, context), np.float64(0.0), np.float64(0.0))


def random_dispatched(rng: np.random.Generator) -> Dispatched:
    """A host now slower than any iteration, now than some."""
    return Dispatched(random_cost(rng, experts=False, windowed=False), np.float64(rng.uniform(2e-3, 2e-2)))


COSTS = (random_polynomial, random_table, random_dispatched)
ONE_RANK, RANKS = Kind(peaks=True), Kind(pipeline_ranks=2)


@pytest.fixture(scope="module", params=COSTS)
def pairs(request: pytest.FixtureRequest) -> list[tuple[Case, LaneResult, PoolOutcome]]:
    cases = [
        replace(random_case(seed, False, False), cost=request.param(np.random.default_rng(seed)))
        for seed in range(CASES)
    ]
    return list(zip(cases, run_engine(cases), map(run_reference, cases), strict=True))


def test_every_time_and_total_equals_the_plain_loop(pairs):
    for case, result, expected in pairs:
        assert_same_times(case, result, expected)
        np.testing.assert_allclose(result.totals.busy_s, expected.busy_s, rtol=TOLERANCE, err_msg=str(case))
        assert (result.totals.iterations, result.totals.kv_units_max) == (expected.iterations, expected.kv_units_max), (
            case
        )


def test_the_largest_quantities_are_those_of_the_plain_loop(pairs):
    for case, result, expected in pairs:
        np.testing.assert_allclose(result.totals.peaks, expected.peaks, rtol=1e-12, err_msg=str(case))
    largest = np.max([expected.peaks for _, _, expected in pairs], axis=0)
    assert (largest > 0).all() and len(largest) == len(PEAKS)


QUEUES = {"one rank-table": (ONE_RANK, random_table)}
if THOROUGH:  # programs of their own, whose parts others have; hosts that launch for ranks: joint/test_caches.py
    QUEUES["two ranks-dispatched"] = (RANKS, random_dispatched)
    QUEUES["two ranks-polynomial"] = (RANKS, random_polynomial)


@pytest.mark.parametrize(("kind", "draw"), QUEUES.values(), ids=QUEUES)
def test_preemptive_equals_the_plain_loop(kind, draw):
    cases = []
    for seed, given in enumerate(preemptive.random_cases(kind, 20)):
        costs = tuple(
            draw(np.random.default_rng([seed, pipeline_rank])) for pipeline_rank in range(kind.pipeline_ranks)
        )
        cases.append(replace(given, case=replace(given.case, cost=costs[0]), costs=costs))
    for given, result in zip(cases, preemptive.run_engine(cases, kind), strict=True):
        expected = preemptive.run_reference(given)
        assert_same_times(given.case, result, expected)
        np.testing.assert_allclose(result.totals.busy_s, expected.busy_s, rtol=TOLERANCE, err_msg=str(given.case))
        assert (result.totals.iterations, result.totals.kv_units_max) == (expected.iterations, expected.kv_units_max), (
            given.case
        )
        assert result.totals.preemptions == expected.preemptions, given.case
        if kind.pipeline_ranks == 1:  # fitted costs are of whole iterations: no run needs the peaks of a rank
            np.testing.assert_allclose(result.totals.peaks, expected.peaks, rtol=1e-12, err_msg=str(given.case))


def test_leaps_of_the_reference_equal_its_single_iterations(pairs):
    for case, _, expected in pairs[:30]:
        requests = [Request(*row) for row in _rows(case)]
        options = {"users": case.users, "window": case.window or None}
        leaping = simulate(case.cost, case.policy, case.limits, requests, **options)
        for name in ("first_token_s", "last_token_s"):
            found = [getattr(request, name) for request in leaping.requests]
            np.testing.assert_allclose(found, [getattr(request, name) for request in expected.requests], rtol=1e-9)
        np.testing.assert_allclose(leaping.peaks, expected.peaks, rtol=1e-12)


def _rows(case: Case):
    columns = (case.arrival_s, case.compute_tokens, case.prompt_tokens, case.output_tokens, case.kv_units)
    return [(at, *row) for at, row in enumerate(zip(*(column.tolist() for column in columns), strict=True))]
