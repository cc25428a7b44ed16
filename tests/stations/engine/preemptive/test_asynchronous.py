"""Batches planned ahead, against the plain loop, on random replicas."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.stations.engine.preemptive.build import Kind, assert_equal_to_the_plain_loop, random_cases, run_engine
from tests.thorough import THOROUGH, tried

CASES = tried(200, 0.3)
CACHED = Kind(windowed=True, experts=True, asynchronous=True, cached=True)
BLOCKS = Kind(asynchronous=True, blocks=True)
APART = Kind(experts=True, asynchronous=True, cached=True, blocks=True, apart=True)
KINDS = {"KV by blocks": BLOCKS, "prefix cache": CACHED, "answers apart": APART}
if THOROUGH:  # a program of its own, whose parts the first two have
    KINDS["windows and experts"] = replace(CACHED, cached=False)


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_equal_to_the_plain_loop(kind):
    cases = random_cases(kind, CASES)
    preemptions = 0
    for given, result in zip(cases, run_engine(cases, kind), strict=True):
        expected = assert_equal_to_the_plain_loop(given, result, kind)
        preemptions += expected.preemptions
    assert preemptions > CASES // 3
