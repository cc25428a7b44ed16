"""Configurations with something changed: what changes with it, and what stays the same object."""

from __future__ import annotations

import pytest

from evaluator.plan import RateChange, plan
from evaluator.replica import Change
from tests.scenario.build import scenario
from tests.simulation.build import plan_of_pools

FASTER = Change("memory_bandwidth", 1.1)


def test_another_rate_changes_the_arrivals_and_nothing_else():
    whole = plan(scenario(deployment__tensor_parallel=[1, 2]))
    one, two = whole.at_rates(whole.configurations, [3.0, 5.0])
    assert (one.workload.arrivals.rate_rps, two.workload.arrivals.rate_rps) == (3.0, 5.0)
    for variant, configuration in zip((one, two), whole.configurations, strict=True):
        assert variant.stations is configuration.stations and variant.workload.lengths is configuration.workload.lengths
        assert whole.group_of(variant) is whole.group_of(configuration) is whole.groups[0]
    assert one.changes == (RateChange(3.0),)
    assert whole.at_rates(whole.configurations, [5.0, 5.0])[0].workload is two.workload


def test_changes_add_up():
    whole = plan(scenario())
    (configuration,) = whole.configurations
    both = whole.changed(whole.changed(configuration, FASTER), RateChange(9.0))
    assert both.changes == (FASTER, RateChange(9.0)) and both.workload.arrivals.rate_rps == 9.0
    hardware = (configuration.stations[0].design.hardware, both.stations[0].design.hardware)
    assert hardware[1].memory_bandwidth == pytest.approx(1.1 * hardware[0].memory_bandwidth)


def test_an_input_that_makes_no_difference_leaves_the_member():
    whole = plan(scenario(deployment__model=["llama-3.1-8b", "llama-3.1-405b"]))
    able, unable = whole.configurations
    assert whole.changed(able, Change("link_bandwidth", 1.1)) is able  # of one device
    assert whole.changed(unable, FASTER) is unable
    assert whole.changed(able, FASTER) is not able


def test_every_pool_gets_the_change():
    whole = plan_of_pools()
    (configuration,) = whole.configurations
    changed = whole.changed(configuration, FASTER)
    assert [one.design.change for one in changed.stations] == [FASTER, FASTER]


def test_a_closed_loop_has_no_rate():
    whole = plan(scenario("workload.arrivals={process: closed_loop, users: 4}"))
    with pytest.raises(ValueError, match="closed_loop arrivals have no rate"):
        whole.at_rates(whole.configurations, [2.0])
