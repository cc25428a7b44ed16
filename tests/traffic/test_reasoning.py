"""Outputs of reasoning: so many times as long, and drawn for each branch by the seed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evaluator.scenario import Lengths, Reasoning
from evaluator.traffic.jobs import Demand
from evaluator.traffic.requests import request_tokens
from evaluator.traffic.roles import ROLES
from tests.traffic.test_requests import LOGNORMAL, workload

COUNT = 2000


def tokens(seed=0, count=COUNT, lengths=LOGNORMAL, **reasoning):
    return request_tokens(replace(workload(lengths=lengths), reasoning=Reasoning(**reasoning)), seed, count)


def test_a_path_is_so_many_times_as_long():
    plain, longer = tokens(), tokens(scale=8.0)
    np.testing.assert_array_equal(longer.output_tokens, 8 * plain.output_tokens)
    np.testing.assert_array_equal(longer.prompt_tokens, plain.prompt_tokens)
    assert longer.branch_tokens is None
    assert tokens(scale=0.001).output_tokens.min() == 1


@pytest.mark.parametrize("lengths", [LOGNORMAL, Lengths("azure-conv-2023")], ids=["formula", "catalog"])
def test_each_branch_draws_its_own_length(lengths):
    plain, found = tokens(lengths=lengths), tokens(lengths=lengths, branches=4)
    np.testing.assert_array_equal(found.prompt_tokens, plain.prompt_tokens)
    branches = found.branch_tokens
    assert branches.shape == (COUNT, 4) and (np.diff(branches, axis=1) >= 0).all()
    assert (branches == plain.output_tokens[:, None]).any(axis=1).all()  # the first branch is the request's own
    assert branches.mean() == pytest.approx(plain.output_tokens.mean(), rel=0.05)
    np.testing.assert_array_equal(found.output_tokens, branches[:, -1])


def test_all_branches_may_be_the_same():
    found = tokens(branches=3, branch_lengths="same", scale=2.0)
    assert (found.branch_tokens == 2 * tokens().output_tokens[:, None]).all()


def test_the_others_stop_with_the_first_so_many():
    whole, cut = tokens(branches=5), tokens(branches=5, first=2)
    second = whole.branch_tokens[:, 1:2]
    np.testing.assert_array_equal(cut.branch_tokens, np.minimum(whole.branch_tokens, second))
    np.testing.assert_array_equal(cut.output_tokens, second[:, 0])


def test_draws_are_common():
    """A branch is the same beside more branches, of more requests; another seed draws others."""
    few, many = tokens(branches=2, count=100), tokens(branches=6)
    assert all(set(few.branch_tokens[row]) <= set(many.branch_tokens[row]) for row in range(100))
    assert not np.array_equal(tokens(seed=1, branches=2).branch_tokens, tokens(branches=2).branch_tokens)


def test_what_each_side_of_a_disaggregation_gives():
    """The prefill side one token of each branch, the decode side the others; a branch of one token is done before."""
    found = tokens(branches=3, lengths=Lengths("uniform", {
        "prompt_min": 5, "prompt_max": 9, "output_min": 1, "output_max": 3}))  # fmt: skip
    prefill = Demand.of(found, ROLES["prefill"])
    on, decode = prefill.after_prefill
    assert prefill.branch_tokens is None and (prefill.made_tokens == 3).all() and (prefill.output_tokens == 1).all()
    np.testing.assert_array_equal(on, np.flatnonzero(found.output_tokens > 1))
    np.testing.assert_array_equal(decode.branch_tokens, found.branch_tokens[on] - 1)
    np.testing.assert_array_equal(decode.branches, (found.branch_tokens[on] > 1).sum(axis=1))
    whole = Demand.of(found, ROLES["mixed"])
    assert whole.made_tokens.sum() == prefill.made_tokens.sum() + decode.made_tokens.sum()
    assert decode.extremes.branches == 3 and prefill.extremes.branches == 1
