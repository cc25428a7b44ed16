"""Configurations of several pools: their checks, their groups, and which of them are coupled."""

from __future__ import annotations

import pytest

from evaluator.metrics import OK
from evaluator.plan import plan
from evaluator.plan.groups import groups_of
from tests.scenario.build import scenario
from tests.simulation.build import plan_of_pools

CLOSED = "workload.arrivals={process: closed_loop, users: 7}"
LEAST = ("deployment.replicas=2", "deployment.router=least_work")


def test_pools_have_roles_and_limits_of_their_own():
    (member,) = plan_of_pools("workload.lengths={source: fixed, prompt_tokens: 100, output_tokens: 30}").members
    prefill, decode = member.stations
    assert (prefill.name, decode.name, member.status, member.engine) == ("prefill", "decode", OK, "iteration")
    assert (prefill.extremes.prompt, prefill.extremes.output, prefill.extremes.kv_tokens) == (100, 1, 100)
    assert (decode.extremes.prompt, decode.extremes.output, decode.extremes.kv_tokens) == (0, 29, 129)


def test_what_does_not_fit_says_in_which_pool():
    (member,) = plan_of_pools("deployment.model=llama-3.1-70b").members
    assert member.status.startswith("infeasible: pool prefill: does not fit: 141.1 GB of weights")


def test_pools_share_the_program_of_their_structure():
    """A prefill side and a decode side of one model are compiled once, with shapes that hold both."""
    whole = plan_of_pools("workload.lengths={source: fixed, prompt_tokens: 100, output_tokens: 700}")
    (group,) = whole.groups
    assert len(group.stations) == 2 and group.stations[0] == group.stations[1]
    assert group.stations[0].ring == 1024


def test_a_group_is_of_one_sequence_of_structures():
    one, two = plan_of_pools(), plan_of_pools("deployment.kv.admission=on_demand")
    (single,) = plan(scenario()).members
    groups = groups_of([*one.members, *two.members, single, *one.members], (0,))
    assert [len(group.members) for group in groups] == [2, 1, 1]
    assert [len(group.stations) for group in groups] == [2, 2, 1]


@pytest.mark.parametrize(
    ("overrides", "coupled", "lacking"),
    [
        ((), False, ()),
        (("deployment.replicas=2", "deployment.router=random"), False, ()),
        (LEAST, True, ()),
        ((CLOSED,), True, ("closed loop over several pools",)),
    ],
)
def test_pools_that_look_at_each_other_are_coupled(overrides, coupled, lacking):
    (member,) = plan_of_pools(*overrides).members
    assert (member.coupled, member.lacking) == (coupled, lacking)
    assert member.engine == ("token" if lacking else "iteration")
    if overrides == (CLOSED,):
        assert member.status == "unsupported: a closed loop over several pools; use arrivals with a rate"
    else:
        assert member.status == OK


@pytest.mark.parametrize(
    ("overrides", "coupled"),
    [((CLOSED,), False), (LEAST, True), ((CLOSED, "deployment.replicas=2"), True), (("deployment.replicas=2",), False)],
)
def test_replicas_run_together_where_one_decides_what_comes_to_another(overrides, coupled):
    (member,) = plan(scenario(*overrides)).members
    assert (member.coupled, member.status, member.engine) == (coupled, OK, "iteration")


def test_numbers_of_replicas_that_run_together_share_a_program():
    axes = {"deployment__replicas": [2, 3, 5, 8, 9], "deployment__router": ["least_work", "least_kv"]}
    groups = plan(scenario(**axes)).groups
    assert [(len(group.members), group.stations[0].program.replicas) for group in groups] == [(8, 8), (2, 16)]
    assert {group.stations[0].lane_requests for group in groups} == {64}  # all requests of a pool, a power of two
