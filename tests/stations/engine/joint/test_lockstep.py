"""Data-parallel ranks in lockstep, on random pools with everything at once, against the reference."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest

from tests.stations.engine.compare import TOLERANCE
from tests.stations.engine.joint.build import (
    in_lockstep,
    mostly_in_lockstep,
    random_cases,
    run_engine,
    run_reference,
)
from tests.stations.engine.joint.compare import assert_equal, preemptions
from tests.stations.engine.preemptive.build import Kind
from tests.thorough import THOROUGH, tried

KIND = Kind(windowed=True, experts=True, peaks=True)
PLAIN = Kind(windowed=True, experts=True, plain=True)
CASES = tried(240, 0.2)
FRONTEND = True
"""Users of closed loops get their answers later than the engine has them."""


def test_equal_to_the_reference():
    cases = mostly_in_lockstep(random_cases(KIND, CASES, FRONTEND))
    assert preemptions(assert_equal(cases, KIND)) > CASES // 20


def test_equal_where_what_no_case_needs_is_not_compiled_in():
    cases = mostly_in_lockstep(random_cases(PLAIN, 3 * CASES, FRONTEND))
    assert len(cases) > CASES // 4
    assert_equal(cases, PLAIN)


@pytest.mark.skipif(not THOROUGH, reason="a program of its own, whose parts the one with prefix caches has")
def test_ranks_of_a_pipeline_pass_it_together():
    """Each with a batch of its own or a dummy one, as many under way as there are pipeline ranks."""
    kind = Kind(windowed=True, experts=True, pipeline_ranks=3)
    cases = mostly_in_lockstep(random_cases(kind, CASES, FRONTEND))
    assert preemptions(assert_equal(cases, kind)) > CASES // 20


def test_answers_overtake_each_other_on_their_way_to_users():
    """Else a queue in front of the users would do as well as a heap."""
    overtaken = 0
    for given in random_cases(KIND, CASES, FRONTEND):
        if given.one.case.users is None or not given.frontend[1]:
            continue
        done = sorted(run_reference(given).requests, key=lambda request: request.last_token_s)
        delivered = np.array([request.last_token_s + given.delay_s(request) for request in done])
        overtaken += int((np.diff(delivered) < 0).sum())
    assert overtaken > CASES // 12


@pytest.mark.parametrize("kind", [PLAIN, KIND] if THOROUGH else [PLAIN])
def test_in_step_as_on_an_accelerator(kind):
    """All lanes advance together; those without requests, which fill up the call, go along.

    Of the cases the shortest: a trip of the loop computes all branches of the program for all lanes. By default without
    preemptions and orders by work, which ``preemptive/test_program.py`` has in step.
    """
    shortest = sorted(random_cases(kind, 3 * CASES, FRONTEND), key=lambda given: given.one.case.output_tokens.sum())
    cases = mostly_in_lockstep(shortest[:8])
    assert any(given.ranks > 1 for given in cases) and any(any(given.frontend) for given in cases)
    for one, other in zip(run_engine(cases, kind), run_engine(cases, kind, vectorise=True), strict=True):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), one, other)


def test_one_rank_is_a_replica_by_itself():
    """In the program for lockstep and, but for rounding, with the same times as in the one without."""
    plain = random_cases(KIND, 20)
    alone = run_engine(plain, KIND)
    late = next(in_lockstep(given) for given in random_cases(KIND, CASES, FRONTEND) if any(given.frontend))
    beside = run_engine([*plain, late], KIND)[:-1]
    for one, other in zip(alone, beside, strict=True):
        np.testing.assert_allclose(other.last_token_s, one.last_token_s, rtol=TOLERANCE)
        assert other.totals.iterations == one.totals.iterations


def test_all_ranks_are_busy_while_one_is():
    """One request at a time: a rank works and the others run dummy batches, which are none of its iterations."""
    cases = random_cases(KIND, CASES, FRONTEND)
    given = next(in_lockstep(one) for one in cases if one.one.case.users is None and any(one.frontend))
    case = given.one.case
    apart = replace(case, arrival_s=1e4 * np.arange(float(len(case.arrival_s))))
    given = replace(given, one=replace(given.one, case=apart), router="round_robin")
    served = run_engine([given], KIND)[0]
    worked_s = (served.last_token_s - served.scheduled_s).sum()
    np.testing.assert_allclose(served.totals.busy_s, given.ranks * worked_s, rtol=1e-6)
