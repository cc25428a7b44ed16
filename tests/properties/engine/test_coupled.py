"""What holds for replicas that run together, on any requests, limits and router: found and shrunk by hypothesis."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.device import configure
from evaluator.routing import HeavyLight, router_of
from evaluator.stations.engine.coupled import PoolResult, run_pools
from tests.properties.engine.test_any_order import KINDS, QUICK
from tests.properties.engine.test_any_order import cases as any_order_cases
from tests.properties.engine.test_in_order import SLOTS
from tests.reference.build import CHOICES
from tests.stations.engine.any_order.build import Kind
from tests.stations.engine.compare import TOLERANCE, assert_same
from tests.stations.engine.coupled.build import (
    MOST,
    Case,
    random_case,
    run_engine,
    run_reference,
    stacked,
    structure_of,
)

KIND = KINDS[1]
LOOKING = [choice for choice in CHOICES if router_of(choice).counts is not None]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Up to eight requests on up to eight replicas."""
    one = draw(any_order_cases((1,)))
    router = draw(st.sampled_from(CHOICES))
    if isinstance(router, HeavyLight):
        router = HeavyLight(draw(st.integers(1, 60)), draw(st.integers(1, MOST)))
    limits = replace(one.case.limits, packing="fcfs")
    return Case(replace(one, case=replace(one.case, limits=limits)), draw(st.integers(1, MOST)), router)


def run(given: Case) -> PoolResult:
    """The engine on SLOTS slots."""
    (result,) = run_engine([given], KIND, slots=SLOTS)
    return result


@QUICK
@given(cases())
def test_the_engine_equals_the_reference(given):
    (served, replica), expected = run(given), run_reference(given)
    assert replica.tolist() == [request.replica for request in expected.requests]
    assert_same(given.one.case, served, expected)
    assert served.preemptions == expected.preemptions
    assert served.kv_unit_s == pytest.approx(expected.kv_unit_s, rel=TOLERANCE)


@QUICK
@given(cases(), st.sampled_from(LOOKING))
def test_with_a_replica_for_each_a_router_that_looks_keeps_all_apart(given, router):
    """Whoever has a request has more than one that has none: requests that are there together have replicas alone."""
    case = replace(given.one.case, arrival_s=np.zeros(len(given.one.case.arrival_s)), users=None)
    served, replica = run(replace(given, one=replace(given.one, case=case), replicas=MOST, router=router))
    assert len(set(replica.tolist())) == len(replica)
    assert served.preemptions == 0


@QUICK
@given(cases())
def test_a_closed_loop_has_never_more_requests_than_users(given):
    case = replace(given.one.case, users=2, arrival_s=np.zeros(len(given.one.case.arrival_s)))
    served, _ = run(replace(given, one=replace(given.one, case=case)))
    left_s = np.sort(served.last_token_s)
    sent_s = np.concatenate([np.zeros(2), left_s])[: len(left_s)]
    assert (served.scheduled_s >= sent_s).all()
    inside = np.arange(1, len(left_s) + 1) - np.searchsorted(left_s, sent_s, side="right")
    assert inside.max() <= 2


def test_the_same_gives_the_same_result_to_the_bit():
    drawn = [random_case(seed, KIND) for seed in range(8)]
    runs = (run_engine(drawn, KIND) for _ in range(2))
    for one, other in zip(*runs, strict=True):
        jax.tree.map(np.testing.assert_array_equal, one, other)


def test_one_compilation_for_all_routers_and_numbers_of_replicas():
    configure()
    start, kind = run_pools._cache_size(), Kind()
    for seeds in (range(4), range(4, 8), range(8, 12)):
        run_pools(*stacked([random_case(seed, kind) for seed in seeds]), structure_of(kind))
    assert run_pools._cache_size() == start + 1
