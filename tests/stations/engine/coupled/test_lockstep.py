"""Data-parallel ranks in lockstep, on random pools with everything at once, against the reference."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest

from tests.stations.engine.any_order.build import Kind
from tests.stations.engine.compare import TOLERANCE, assert_same
from tests.stations.engine.coupled.build import Case, in_lockstep, random_cases, run_engine, run_reference

CASES = 100


def assert_equal(cases: list[Case], kind: Kind) -> int:
    """Both engines agree; how many preemptions there were."""
    preemptions = 0
    for given, (served, replica) in zip(cases, run_engine(cases, kind), strict=True):
        expected = run_reference(given)
        assert replica.tolist() == [request.replica for request in expected.requests], given
        assert_same(given.one.case, served, expected)
        assert served.preemptions == expected.preemptions, given
        np.testing.assert_allclose(served.kv_unit_s, expected.kv_unit_s, rtol=TOLERANCE, err_msg=str(given))
        np.testing.assert_allclose(served.experts_touched, expected.experts_touched, rtol=TOLERANCE)
        preemptions += expected.preemptions
    return preemptions


@pytest.mark.parametrize(
    ("kind", "frontend"),
    [(Kind(windowed=True, experts=True, peaks=True), False), (Kind(experts=True), True)],
    ids=["all policies, windows", "frontend"],
)
def test_equal_to_the_reference(kind, frontend):
    cases = [in_lockstep(given) for given in random_cases(kind, CASES, frontend)]
    assert assert_equal(cases, kind) > 5


def test_prefix_caches_and_a_host_that_runs_ahead():
    kind = Kind(experts=True, cached=True)
    cases = [in_lockstep(given, dispatch_s=3e-2) for given in random_cases(kind, 40)]
    assert assert_equal(cases, kind) > 0


def test_vectorised_is_the_same():
    """All lanes in step, some without requests among them, as on an accelerator."""
    kind = Kind(windowed=True, experts=True, peaks=True)
    cases = [in_lockstep(given) for given in random_cases(kind, 8)]
    for one, other in zip(run_engine(cases, kind), run_engine(cases, kind, vectorise=True), strict=True):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), one, other)


def test_one_rank_is_a_replica_by_itself():
    """In the same program and, but for rounding, with the same times as without lockstep."""
    kind = Kind(windowed=True, experts=True, peaks=True)
    plain = random_cases(kind, 20)
    alone = run_engine(plain, kind)
    beside = run_engine([*plain, in_lockstep(plain[0])], kind)[:-1]
    for one, other in zip(alone, beside, strict=True):
        np.testing.assert_allclose(other.served.last_token_s, one.served.last_token_s, rtol=TOLERANCE)
        assert other.served.iterations == one.served.iterations


def test_all_ranks_are_busy_while_one_is():
    """One request at a time: a rank works and the others run dummy batches, which are none of its iterations."""
    kind = Kind(windowed=True, experts=True, peaks=True)
    given = next(one for one in map(in_lockstep, random_cases(kind, CASES)) if one.one.case.users is None)
    case = given.one.case
    apart = replace(case, arrival_s=1e4 * np.arange(float(len(case.arrival_s))))
    given = replace(given, one=replace(given.one, case=apart), router="round_robin")
    served = run_engine([given], kind)[0].served
    worked_s = (served.last_token_s - served.scheduled_s).sum()
    np.testing.assert_allclose(served.busy_s, given.ranks * worked_s, rtol=1e-6)
