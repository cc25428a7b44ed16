"""The keys of ``workload.reasoning``, and what is said of those that do not go together."""

from __future__ import annotations

import pytest

from evaluator.errors import InputError
from evaluator.scenario import Reasoning, expand
from tests.scenario.build import scenario


def test_the_keys():
    assert scenario().workload.reasoning == Reasoning(1.0, 1, None, "drawn")
    found = scenario("workload.reasoning={scale: 8, branches: 8, first: 3, branch_lengths: same}").workload.reasoning
    assert found == Reasoning(8.0, 8, 3, "same")
    assert found.several and not Reasoning(8.0).several


def test_each_key_may_be_an_axis():
    grid = expand(scenario(workload__reasoning__scale=[1, 8], workload__reasoning__branches=[1, 4]))
    found = [(point[0].reasoning.scale, point[0].reasoning.branches) for point in grid.points]
    assert found == [(1, 1), (1, 4), (8, 1), (8, 4)]


def test_an_axis_is_checked_with_the_rest_of_the_workload():
    turns = "workload.sessions={turns: {mean: 2}}"
    scales = expand(scenario(turns, workload__reasoning__scale=[1, 8]))
    assert [point[0].reasoning for point in scales.points] == [Reasoning(1.0), Reasoning(8.0)]
    place = r"workload.sessions.turns \(sweep.workload.reasoning.branches, value 2 of 2\)"
    with pytest.raises(InputError, match=place):
        scenario(turns, workload__reasoning__branches=[1, 2])


ERRORS = {
    "{branches: 2, first: 3}": r"workload.reasoning.first: must be at most branches = 2, got 3",
    "{branches: 0}": r"workload.reasoning.branches: must be an integer from 1 to 256, got 0",
    "{branches: 257}": r"workload.reasoning.branches: must be an integer from 1 to 256, got 257",
    "{scale: 0}": r"workload.reasoning.scale: must be greater than 0, got 0",
    "{branch_lengths: other}": r"workload.reasoning.branch_lengths: 'other' is not one of drawn, same",
    "{paths: 2}": r"workload.reasoning.paths: unknown key",
}


@pytest.mark.parametrize(("value", "message"), ERRORS.items())
def test_errors_name_the_key(value, message):
    with pytest.raises(InputError, match=message):
        scenario(f"workload.reasoning={value}")


def test_sessions_of_several_turns_have_one_branch():
    with pytest.raises(InputError, match=r"workload.sessions.turns: several turns with workload.reasoning.branches"):
        scenario("workload.sessions={turns: 3}", "workload.reasoning={branches: 2}")
    assert scenario("workload.sessions={turns: 3}", "workload.reasoning={scale: 2}").workload.reasoning.scale == 2
