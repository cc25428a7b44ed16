"""Each policy by hand: what the engine and the plain loop both must mean by it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.stations.engine.compare import assert_same
from tests.stations.engine.fcfs_reserved.build import build, constant_cost, run_engine, run_reference

# Iterations of one second and six tokens; prompts of four, sent at 0, 0 and 1.5 s, with 3, 2 and 1 output tokens.
BY_HAND = {
    # policy: scheduled, first token, last token
    "static": ([0, 3, 5], [1, 4, 6], [3, 5, 6]),  # the batch of one runs to its end before the next enters
    "continuous": ([0, 1, 2], [1, 2, 3], [5, 4, 3]),  # three iterations of prompts first, then the decodes
    "chunked": ([0, 0, 2], [1, 2, 3], [3, 3, 3]),  # half of the second prompt goes with the first
    "mixed": ([0, 1, 2], [1, 2, 3], [3, 3, 3]),  # whole prompts, beside the decodes
}


@pytest.mark.parametrize(("policy", "times"), BY_HAND.items(), ids=list(BY_HAND))
def test_three_requests(policy, times):
    case = build(constant_cost(iteration_s=1.0), policy, [0, 0, 1.5], [4, 4, 4], [3, 2, 1], max_num_batched_tokens=6)
    (result,) = run_engine([case])
    assert_same(case, result, run_reference(case))
    assert (result.scheduled_s.tolist(), result.first_token_s.tolist(), result.last_token_s.tolist()) == times


def test_a_request_waits_for_its_whole_kv():
    """Two of three requests of 6 units fit into 13; the third enters when they leave, not when units are unused."""
    case = build(constant_cost(iteration_s=1.0), "mixed", [0, 0, 0], [4, 4, 4], [3, 3, 3], kv_units=13)
    (result,) = run_engine([case])
    assert result.scheduled_s.tolist() == [0, 0, 3]
    assert result.totals.kv_units_max == 12


def test_a_decode_only_replica_gives_its_first_token_after_one_iteration():
    case = build(constant_cost(iteration_s=1.0), "chunked", [0, 0.5], [40, 40], [3, 2], resident=True)
    (result,) = run_engine([case])
    assert result.first_token_s.tolist() == [1, 2]
    assert result.last_token_s.tolist() == [3, 3]


def test_a_decode_only_replica_admits_the_next_when_the_token_budget_is_free_again():
    """Under a policy whose decodes take none of the budget, only those that come in do, each for an iteration."""
    case = build(
        constant_cost(iteration_s=1.0), "continuous", [0, 0, 0, 0.5, 9], [40] * 5, [9, 9, 9, 9, 1],
        max_num_batched_tokens=2, resident=True,
    )  # fmt: skip
    (result,) = run_engine([case])
    assert_same(case, result, run_reference(case))
    assert result.scheduled_s.tolist() == [0, 0, 1, 1, 9]


def test_a_closed_loop_sends_when_a_request_is_done():
    outputs = [3, 1, 2, 2]
    case = build(constant_cost(iteration_s=1.0), "mixed", np.zeros(4), [4] * 4, outputs, users=2)
    (result,) = run_engine([case])
    assert result.scheduled_s.tolist() == [0, 0, 1, 3]
    assert result.last_token_s.tolist() == [3, 1, 3, 5]


def test_the_cached_prefix_of_a_prompt_takes_no_tokens_but_is_attended_to():
    cost = constant_cost(token_s=1.0)
    cases = [build(cost, "chunked", [0], [100], [1], cached_tokens=cached) for cached in (0, 90)]
    joined, cached = run_engine(cases)
    assert (joined.last_token_s[0], cached.last_token_s[0]) == (100, 10)
    area = constant_cost()._replace(prefill_rows=type(cost.prefill_rows)(np.ones(1), *np.zeros((7, 1))))
    joined, cached = run_engine([build(area, "chunked", [0], [100], [1], cached_tokens=cached) for cached in (0, 90)])
    assert joined.last_token_s[0] == pytest.approx(100 * 101 / 2)
    assert cached.last_token_s[0] == pytest.approx(100 * 101 / 2 - 90 * 91 / 2)
