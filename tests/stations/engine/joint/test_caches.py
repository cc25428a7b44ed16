"""Prefix caches of replicas that run together, and the router that knows them, against the reference.

Their hosts run ahead of the devices; some of the replicas are in lockstep.
"""

from __future__ import annotations

from collections import Counter

import jax
import pytest

from evaluator.routing import PREFIX_APPROXIMATE, PREFIX_AWARE, name_of
from evaluator.stations.engine.joint import run_lanes
from tests.stations.engine.copies import copied_on_a_trip
from tests.stations.engine.fcfs_reserved.build import LANES
from tests.stations.engine.joint.build import dispatched, mostly_in_lockstep, random_cases, stacked, structure_of
from tests.stations.engine.joint.compare import assert_equal, preemptions
from tests.stations.engine.preemptive.build import Kind
from tests.thorough import THOROUGH, tried

CACHED = Kind(experts=True, cached=True)
PIPELINED = Kind(windowed=True, pipeline_ranks=2, cached=True)
DRAFTING = Kind(experts=True, cached=True, speculating=True)
APART = Kind(experts=True, cached=True, apart=True)
CASES = tried(120)


def test_equal_to_the_reference_where_blocks_of_answers_get_their_names_late():
    outcomes = assert_equal(mostly_in_lockstep(random_cases(APART, CASES)), APART)
    hits = sum(request.hit_tokens > 0 for outcome in outcomes for request in outcome.requests)
    assert preemptions(outcomes) > CASES // 4 and hits > 2 * CASES


def test_equal_to_the_reference():
    cases = [dispatched(given, 3e-2) for given in mostly_in_lockstep(random_cases(CACHED, CASES))]
    routers = Counter((name_of(given.router), given.ranks > 1) for given in cases if given.replicas > 1)
    by_prefixes = (PREFIX_AWARE.name, PREFIX_APPROXIMATE.name)
    assert min(routers[name, lockstep] for name in by_prefixes for lockstep in (False, True)) >= CASES // 15
    outcomes = assert_equal(cases, CACHED)
    hits = sum(request.hit_tokens > 0 for outcome in outcomes for request in outcome.requests)
    assert preemptions(outcomes) > CASES // 4 and hits > 2 * CASES


def test_equal_to_the_reference_in_a_pipeline():
    """Users get their answers later, too: the ranks of a pipeline have all that replicas have that run together."""
    around = mostly_in_lockstep(random_cases(PIPELINED, CASES, frontend=True))
    outcomes = assert_equal([dispatched(given, 3e-2) for given in around], PIPELINED)
    hits = sum(request.hit_tokens > 0 for outcome in outcomes for request in outcome.requests)
    assert preemptions(outcomes) > CASES // 4 and hits > 2 * CASES


def test_no_array_is_copied_on_a_trip():
    """In the program of the test above: XLA copies an array where it does not know that a write comes behind a read."""
    around = mostly_in_lockstep(random_cases(PIPELINED, CASES, frontend=True))
    lanes, requests = jax.tree.map(
        lambda values: values[:LANES], stacked([dispatched(given, 3e-2) for given in around])
    )
    structure = structure_of(PIPELINED, frontend=True, lockstep=True)
    program = run_lanes.lower(lanes, requests, structure=structure, vectorise=False).compile().as_text()
    assert copied_on_a_trip(program, requests.arrival_s.shape[1]) == []


@pytest.mark.skipif(not THOROUGH, reason="a program of its own, whose parts others have")
def test_equal_to_the_reference_with_drafts():
    cases = mostly_in_lockstep(random_cases(DRAFTING, CASES))
    assert preemptions(assert_equal(cases, DRAFTING)) > CASES // 4
