"""Batches and admission as SGLang has them, against the plain loop, on random replicas."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.stations.engine.preemptive.build import Kind, assert_equal_to_the_plain_loop, random_cases, run_engine
from tests.thorough import tried

CASES = tried(300, 0.12)
KIND = Kind(experts=True, blocks=True, token_ratio=True)
KINDS = {"at once": KIND, "overlapped": replace(KIND, asynchronous=True)}


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_equal_to_the_plain_loop(kind):
    cases = random_cases(kind, CASES)
    retracted = cut = 0
    for given, result in zip(cases, run_engine(cases, kind), strict=True):
        expected = assert_equal_to_the_plain_loop(given, result, kind)
        retracted += expected.preemptions
        cut += given.case.limits.max_num_batched_tokens < given.case.prompt_tokens.max()
    assert retracted > CASES // 2 and cut > CASES // 4
