"""What holds for requests on several branches, whatever they are: found and shrunk by hypothesis."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.device import configure
from evaluator.stations.engine import LaneResult
from evaluator.stations.engine.fcfs_reserved import Branches, Structure, run_lanes
from tests.properties.engine.test_fcfs_reserved import QUICK, run
from tests.properties.engine.test_fcfs_reserved import cases as plain_cases
from tests.stations.engine.compare import TOLERANCE, assert_same
from tests.stations.engine.fcfs_reserved.build import (
    LANES,
    RING,
    Case,
    branched,
    build,
    constant_cost,
    run_reference,
    stacked,
)

MOST = 4  # as of the random cases (``fcfs_reserved/test_branches.py``), whose compiled program this is


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """The cases of requests without branches, each with up to four, under limits from the least that serves all."""
    case = draw(plain_cases())
    count = len(case.arrival_s)
    rows = st.lists(st.integers(0, 40), min_size=MOST - 1, max_size=MOST - 1)
    others = np.array(draw(st.lists(rows, min_size=count, max_size=count)))
    lengths = np.sort(np.column_stack([others, case.output_tokens]), axis=1)
    block = draw(st.sampled_from([1, 16]))
    case = branched(case, lengths, block)
    capacity = int(case.kv_units.max()) + draw(st.integers(0, 100))
    limits = replace(
        case.limits, max_num_seqs=case.limits.max_num_seqs + MOST - 1, kv_units=capacity, block_tokens=block,
        max_num_batched_tokens=case.limits.max_num_batched_tokens + MOST - 1,
    )  # fmt: skip
    return replace(case, limits=limits)


@QUICK
@given(cases())
def test_the_engine_equals_the_plain_loop(case):
    result, expected = run(case), run_reference(case)
    assert_same(case, result, expected)
    assert result.totals.kv_unit_s == pytest.approx(expected.kv_unit_s, rel=TOLERANCE)


@QUICK
@given(cases())
def test_tokens_are_conserved(case):
    """Every token of a branch but its first ends one gap."""
    result = run(replace(case, measured_from=0))
    assert result.itl_histogram.sum() == np.maximum(case.branch_tokens - 1, 0).sum()
    assert (result.last_token_s >= result.first_token_s).all()
    assert ((result.last_token_s > result.first_token_s) == (case.output_tokens > 1)).all()
    assert case.kv_units.max() <= result.totals.kv_units_max <= case.limits.kv_units


def case_of_four() -> Case:
    """Where seats and KV are short, and decodes wait for prompts, so that first gaps differ from others."""
    case = build(
        constant_cost(iteration_s=1.0, sequence_s=0.01), "continuous", np.arange(4) * 1.5, [40, 30, 20, 10],
        [9, 8, 7, 6], max_num_seqs=6, max_num_batched_tokens=64, window=15,
    )  # fmt: skip
    case = branched(case, np.array([[0, 2, 4, 9], [0, 1, 8, 8], [0, 0, 3, 7], [0, 1, 2, 6]]))
    return replace(case, limits=replace(case.limits, kv_units=140))


def result_of(case: Case, branches: Branches) -> LaneResult:
    lanes, requests = stacked([case] * LANES)
    branches = jax.tree.map(lambda column: np.repeat(column, LANES, axis=0), branches)
    run = partial(run_lanes, structure=Structure(RING, True), vectorise=False)
    return jax.tree.map(np.asarray, run(lanes._replace(branches=branches), requests))


@pytest.mark.parametrize("name", Branches._fields)
def test_every_input_moves_some_output(name):
    configure()
    case = case_of_four()
    base = stacked([case])[0].branches
    more = {"tokens": 1, "kv_units": 1, "sequences": -1, "going": 1}[name]
    column = getattr(base, name)
    changed = base._replace(**{name: np.where(column > 1, column + more, column)})
    one, other = result_of(case, base), result_of(case, changed)
    assert any(not np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_one_compilation_for_as_many_branches():
    """Lengths are traced; only how many cells a request has is compiled in, and that it has any."""
    configure()
    start = run_lanes._cache_size()
    case = case_of_four()
    for factor in (1, 2):
        result_of(replace(case, branch_tokens=case.branch_tokens * factor), stacked([case])[0].branches)
    assert run_lanes._cache_size() <= start + 1
