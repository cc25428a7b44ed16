"""Batches planned ahead, against the plain loop, on random replicas."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.stations.engine.preemptive.build import Kind, assert_equal_to_the_plain_loop, random_cases, run_engine
from tests.thorough import tried

CASES = tried(200, 0.3)
PLAIN = Kind(windowed=True, experts=True, asynchronous=True)
CACHED = replace(PLAIN, cached=True)
BLOCKS = Kind(asynchronous=True, blocks=True)
APART = Kind(experts=True, asynchronous=True, cached=True, blocks=True, apart=True)
KINDS = {"windows and experts": PLAIN, "KV by blocks": BLOCKS, "prefix cache": CACHED, "answers apart": APART}


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_equal_to_the_plain_loop(kind):
    cases = random_cases(kind, CASES)
    preemptions = 0
    for given, result in zip(cases, run_engine(cases, kind), strict=True):
        expected = assert_equal_to_the_plain_loop(given, result, kind)
        preemptions += expected.preemptions
    assert preemptions > CASES // 3
