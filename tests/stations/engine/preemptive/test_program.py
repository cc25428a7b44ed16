"""The engine against the plain loop over every token, on random replicas with everything at once."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pytest

from tests.stations.engine.compare import TOLERANCE
from tests.stations.engine.fcfs_reserved import build as fcfs_reserved
from tests.stations.engine.preemptive.build import (
    POLICIES,
    Case,
    Kind,
    assert_equal_to_the_plain_loop,
    random_cases,
    run_engine,
)
from tests.thorough import tried

CASES = tried(200, 0.24)
ALL = Kind(windowed=True, experts=True, peaks=True)
BLOCKS = Kind(blocks=True)
KINDS = {
    "all policies, windows, experts": ALL,
    "all policies, KV by blocks": BLOCKS,
    "three pipeline ranks, windows, experts": Kind(windowed=True, experts=True, pipeline_ranks=3, peaks=True),
}
"""Some programs, each with much in it: to compile one takes longer than to run its cases."""


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_equal_to_the_plain_loop(kind):
    cases = random_cases(kind, CASES)
    preemptions = 0
    for given, result in zip(cases, run_engine(cases, kind), strict=True):
        expected = assert_equal_to_the_plain_loop(given, result, kind)
        preemptions += expected.preemptions
    assert preemptions > CASES // 3


@pytest.mark.parametrize("kind", [ALL, KINDS["three pipeline ranks, windows, experts"]], ids=["one rank", "pipeline"])
def test_equal_where_what_no_case_needs_is_not_compiled_in(kind):
    cases = random_cases(replace(kind, plain=True), 2 * CASES)
    assert len(cases) > CASES // 4
    for given, result in zip(cases, run_engine(cases, replace(kind, plain=True)), strict=True):
        assert_equal_to_the_plain_loop(given, result, kind)


def _features(given: Case) -> set[str]:
    """What a case has that another may lack."""
    case, limits = given.case, given.case.limits
    on_demand = limits.admission == "on_demand"
    work_s = case.cost.token_s * case.prompt_tokens.sum()
    found = {
        "closed loop": case.users is not None,
        "cached prompts": not case.resident and (case.compute_tokens < case.prompt_tokens).any(),
        "resident, on demand": case.resident and on_demand,
        "least work left": limits.packing == "least_work_left",
        "long prompts in shares": limits.long_prefill_token_threshold > 0,
        "watermark": limits.watermark_units > 0,
        "hybrid KV, on demand": given.layout is not None and on_demand,
        "overload": case.users is None and work_s > 2 * np.ptp(case.arrival_s),
    }
    return {name for name, there in found.items() if there}


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_the_cases_have_everything(kind):
    cases = random_cases(kind, CASES)
    assert {given.case.policy for given in cases} == {*POLICIES, *(["lightllm"] if kind.peaks else [])}
    counts = Counter(feature for given in cases for feature in _features(given))
    assert len(counts) == 8 and min(counts.values()) >= CASES // 30, counts


def test_equal_to_the_program_for_arrivals_in_order():
    """Where both apply; the two share no code for queues."""
    cases = fcfs_reserved.random_cases(True, True, tried(100))
    general = run_engine([Case(case, (case.cost,), 0 * case.kv_units) for case in cases], ALL)
    for one, other in zip(fcfs_reserved.run_engine(cases), general, strict=True):
        # Leaps end elsewhere, and with them the means in the histogram; kv_unit_s counts only who was served. One of
        # the programs has no prefix cache.
        left_out = {"itl_histogram": 0, "hit_tokens": None}
        one, other = (
            result._replace(totals=result.totals._replace(kv_unit_s=0), **left_out) for result in (one, other)
        )
        jax.tree.map(partial(np.testing.assert_allclose, rtol=TOLERANCE), other, one)


def test_in_step_as_on_an_accelerator():
    """Lanes without requests, which fill up the call, go along."""
    cases = random_cases(ALL, 8)
    for one, other in zip(run_engine(cases, ALL), run_engine(cases, ALL, vectorise=True), strict=True):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), one, other)
