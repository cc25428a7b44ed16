"""What holds for replicas that run together, on any requests, limits and router: found and shrunk by hypothesis."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.device import configure
from evaluator.reference import Limits
from evaluator.routing import HeavyLight, router_of
from evaluator.stations.engine import LaneResult
from evaluator.stations.engine.joint import run_lanes
from tests.properties.engine.test_preemptive import KINDS, QUICK
from tests.properties.engine.test_preemptive import cases as preemptive_cases
from tests.reference.build import CHOICES, random_cost
from tests.stations.engine.compare import TOLERANCE, assert_same
from tests.stations.engine.fcfs_reserved.build import LANES, build
from tests.stations.engine.joint.build import (
    MOST,
    Case,
    random_case,
    run_engine,
    run_reference,
)
from tests.stations.engine.preemptive import build as preemptive

KIND = KINDS[1]
LOOKING = [choice for choice in CHOICES if router_of(choice).counts is not None]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Up to eight requests on up to eight replicas."""
    one = draw(preemptive_cases((1,)))
    router = draw(st.sampled_from(CHOICES))
    if isinstance(router, HeavyLight):
        router = HeavyLight(draw(st.integers(1, 60)), draw(st.integers(1, MOST)))
    return Case(one, draw(st.integers(1, MOST)), router)


def run(given: Case) -> LaneResult:
    """The engine, in the program of the random cases (``joint/test_program.py``)."""
    (result,) = run_engine([given], KIND)
    return result


@QUICK
@given(cases())
def test_the_engine_equals_the_reference(given):
    served, expected = run(given), run_reference(given)
    assert served.replica.tolist() == [request.replica for request in expected.requests]
    assert_same(given.one.case, served, expected)
    assert served.totals.preemptions == expected.preemptions
    assert served.totals.kv_unit_s == pytest.approx(expected.kv_unit_s, rel=TOLERANCE)


@QUICK
@given(cases(), st.sampled_from(LOOKING))
def test_with_a_replica_for_each_a_router_that_looks_keeps_all_apart(given, router):
    """Whoever has a request has more than one that has none: requests that are there together have replicas alone."""
    case = replace(given.one.case, arrival_s=np.zeros(len(given.one.case.arrival_s)), users=None)
    served = run(replace(given, one=replace(given.one, case=case), replicas=MOST, router=router))
    assert len(set(served.replica.tolist())) == len(served.replica)
    assert served.totals.preemptions == 0


@QUICK
@given(cases())
def test_a_closed_loop_has_never_more_requests_than_users(given):
    case = replace(given.one.case, users=2, arrival_s=np.zeros(len(given.one.case.arrival_s)))
    served = run(replace(given, one=replace(given.one, case=case)))
    left_s = np.sort(served.last_token_s)
    sent_s = np.concatenate([np.zeros(2), left_s])[: len(left_s)]
    assert (served.scheduled_s >= sent_s).all()
    inside = np.arange(1, len(left_s) + 1) - np.searchsorted(left_s, sent_s, side="right")
    assert inside.max() <= 2


FREE = random_cost(np.random.default_rng(0), experts=True, windowed=True, scale=0.0)
SECOND = FREE._replace(iteration_s=1.0)
"""Every iteration takes one second."""


def by_hand(requests: list[tuple[float, int, int]], replicas: int, router: str, kv_units: int) -> LaneResult:
    """Requests (arrival, prompt, output) with KV on demand in blocks of four tokens, checked against the reference."""
    arrival_s, prompt, output = (np.array(column) for column in zip(*requests, strict=True))
    case = build(SECOND, "chunked", arrival_s, prompt, output, block_tokens=4, window=1000)
    limits = Limits(8, 64, kv_units, admission="on_demand", block_tokens=4)
    one = preemptive.Case(replace(case, limits=limits), (SECOND,), 0 * prompt)
    given = Case(one, replicas, router)
    found, expected = run(given), run_reference(given)
    assert found.replica.tolist() == [request.replica for request in expected.requests]
    assert_same(one.case, found, expected)
    return found


def test_a_router_that_looks_at_the_kv_sees_into_a_leap():
    """At 52.5 s request 0 has 14 blocks, though it had 2 when its leap began, and request 1 has 7."""
    found = by_hand([(0.0, 4, 200), (50.0, 24, 50), (52.5, 1, 1)], 2, "least_kv", 100)
    assert found.replica.tolist() == [0, 1, 1]


def test_an_arrival_waits_behind_one_that_was_preempted():
    """Request 1 is preempted when request 2 has left, and waits for the end of request 0; then request 3 comes."""
    found = by_hand([(0.0, 8, 30), (0.0, 8, 30), (2.0, 1, 1), (20.0, 8, 4)], 1, "least_work", 10)
    assert found.totals.preemptions == 1
    assert found.scheduled_s[3] >= found.last_token_s[0] > 20.0


def test_the_same_gives_the_same_result_to_the_bit():
    drawn = [random_case(seed, KIND) for seed in range(8)]
    runs = (run_engine(drawn, KIND) for _ in range(2))
    for one, other in zip(*runs, strict=True):
        jax.tree.map(np.testing.assert_array_equal, one, other)


def test_one_compilation_for_all_routers_and_numbers_of_replicas():
    configure()
    sizes = set()
    for first in range(0, 3 * LANES, LANES):
        run_engine([random_case(seed, KIND) for seed in range(first, first + LANES)], KIND)
        sizes.add(run_lanes._cache_size())
    assert len(sizes) == 1
