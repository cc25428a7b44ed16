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
from tests.stations.engine.joint.build import (
    Case,
    dispatched,
    mostly_in_lockstep,
    random_cases,
    stacked,
    structure_of,
)
from tests.stations.engine.joint.compare import assert_equal, preemptions
from tests.stations.engine.preemptive.build import Kind
from tests.thorough import THOROUGH, tried

CACHED = Kind(experts=True, cached=True)
PIPELINED = Kind(windowed=True, pipeline_ranks=2, cached=True)
DRAFTING = Kind(experts=True, cached=True, speculating=True)
APART = Kind(experts=True, cached=True, apart=True)
CASES = tried(120)


def running_ahead(kind: Kind, frontend: bool = False) -> list[Case]:
    """Random cases whose hosts run ahead, with each router by prefixes in lockstep and without."""
    cases = [dispatched(given, 3e-2) for given in mostly_in_lockstep(random_cases(kind, CASES, frontend))]
    routers = Counter((name_of(given.router), given.ranks > 1) for given in cases if given.replicas > 1)
    by_prefixes = (PREFIX_AWARE.name, PREFIX_APPROXIMATE.name)
    assert min(routers[name, lockstep] for name in by_prefixes for lockstep in (False, True)) >= CASES // 15
    return cases


def assert_equal_with_hits(cases: list[Case], kind: Kind) -> None:
    """Equal to the reference where many are preempted and many find what is kept."""
    outcomes = assert_equal(cases, kind)
    hits = sum(request.hit_tokens > 0 for outcome in outcomes for request in outcome.requests)
    assert preemptions(outcomes) > CASES // 4 and hits > 2 * CASES


def test_equal_to_the_reference_where_blocks_of_answers_get_their_names_late():
    assert_equal_with_hits(mostly_in_lockstep(random_cases(APART, CASES)), APART)


def test_equal_to_the_reference_in_a_pipeline():
    """Users get their answers later, too: the ranks of a pipeline have all that replicas have that run together."""
    assert_equal_with_hits(running_ahead(PIPELINED, frontend=True), PIPELINED)


def test_no_array_is_copied_on_a_trip():
    """In the program of the test above: XLA copies an array where it does not know that a write comes behind a read."""
    lanes, requests = jax.tree.map(lambda values: values[:LANES], stacked(running_ahead(PIPELINED, frontend=True)))
    structure = structure_of(PIPELINED, frontend=True, lockstep=True)
    program = run_lanes.lower(lanes, requests, structure=structure, vectorise=False).compile().as_text()
    assert copied_on_a_trip(program, requests.arrival_s.shape[1]) == []


@pytest.mark.skipif(not THOROUGH, reason="a program of its own, whose parts the one in a pipeline has")
def test_equal_to_the_reference():
    assert_equal_with_hits(running_ahead(CACHED), CACHED)


@pytest.mark.skipif(not THOROUGH, reason="a program of its own, whose parts others have")
def test_equal_to_the_reference_with_drafts():
    cases = mostly_in_lockstep(random_cases(DRAFTING, CASES))
    assert preemptions(assert_equal(cases, DRAFTING)) > CASES // 4
