"""Batches and admission as SGLang has them, against the plain loop, on random replicas."""

from __future__ import annotations

from tests.stations.engine.preemptive.build import Kind, assert_equal_to_the_plain_loop, random_cases, run_engine
from tests.thorough import tried

CASES = tried(300, 0.3)
KIND = Kind(experts=True, blocks=True, token_ratio=True)


def test_equal_to_the_plain_loop():
    cases = random_cases(KIND, CASES)
    retracted = cut = 0
    for given, result in zip(cases, run_engine(cases, KIND), strict=True):
        expected = assert_equal_to_the_plain_loop(given, result, KIND)
        retracted += expected.preemptions
        cut += given.case.limits.max_num_batched_tokens < given.case.prompt_tokens.max()
    assert retracted > CASES // 2 and cut > CASES // 4
