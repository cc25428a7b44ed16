"""Designs that differ in the speed of their devices alone: checked once, and as if each had been checked."""

from __future__ import annotations

import numpy as np
import pytest

from evaluator.plan import Configuration, plan, same_but_speed
from evaluator.scenario import load_scenario
from tests.scenario.build import scenario

SPEED = {
    "memory_bandwidth": ["2TB/s", "4TB/s"],
    "peak_flops.times": [1, 2],
    "peak_flops.bf16": [5e14, 1e15],
    "links.bandwidth.times": [1, 2],
    "links.nvlink.latency_s": [1e-6, 2e-6],
    "power_w": [500, 900],
    "usd_per_hour": [1, 5],
}
OTHER = {"memory_bytes": ["60GB", "90GB"], "links.nvlink.devices": [8, 72], "cores": [1, 2]}


def one_by_one(whole) -> list[Configuration]:
    """The members of a plan, each planned as if it were alone."""
    return [whole.of(np.array([one.config])).configurations[0] for one in whole.configurations]


def told(one: Configuration) -> tuple:
    """What is known of a member, apart from the objects that it is known by."""
    stations = [
        (station.name, station.deployment, station.extremes, station.max_num_batched_tokens, station.kept_units,
         station.devices, station.usd_per_device_hour, station.design.spec, station.design.hardware,
         station.design.provenance, station.design.memory, station.design.status)
        for station in one.stations
    ]  # fmt: skip
    return one.status, one.simulator, one.joint, one.joint_pools, one.phases, one.link, one.usd_per_hour, stations


def axis(key: str, values: list, *overrides: str):
    return scenario(*overrides, **{f"deployment__hardware__{key.replace('.', '__')}": values})


@pytest.mark.parametrize(("key", "values"), SPEED.items(), ids=SPEED.keys())
def test_how_fast_a_device_is_is_no_matter_of_checks(key, values):
    first, second = plan(axis(key, values)).configurations
    assert second.of_design.checked is first.of_design.checked and second.stations is not first.stations
    assert second.stations[0].design.ready.costing is first.stations[0].design.ready.costing
    assert second.stations[0].design.hardware != first.stations[0].design.hardware


@pytest.mark.parametrize(("key", "values"), OTHER.items(), ids=OTHER.keys())
def test_what_decides_whether_a_design_runs_is_checked_for_each(key, values):
    first, second = plan(axis(key, values)).configurations
    assert second.of_design.checked is not first.of_design.checked


@pytest.mark.parametrize("more", [(), ("deployment.model=llama-3.1-70b",), ("deployment.replicas=2",)], ids=str)
def test_members_are_those_that_are_planned_alone(more):
    whole = plan(
        scenario(
            *more,
            deployment__hardware__memory_bandwidth=[2e12, 3e12, 4e12],
            deployment__hardware__memory_bytes=[20e9, 60e9],
            deployment__tensor_parallel=[1, 2],
        )
    )
    assert [told(one) for one in whole.configurations] == [told(one) for one in one_by_one(whole)]
    assert len({id(one.of_design.checked) for one in whole.configurations}) == 4


def test_pools_have_devices_of_their_own():
    tree = {
        "workload": {
            "arrivals": {"process": "poisson", "rate_rps": 4},
            "lengths": {"source": "azure-conv-2023"},
            "requests": 60,
            "warmup_requests": 10,
        },
        "deployment": {
            "model": "llama-3.1-8b",
            "hardware": "h100-sxm",
            "pools": {"prefill": {"role": "prefill"}, "decode": {"role": "decode", "hardware": {"like": "h200-sxm"}}},
        },
        "sweep": {
            "deployment.hardware.peak_flops.times": [1, 2],
            "deployment.pools.decode.hardware.memory_bandwidth": ["3TB/s", "6TB/s"],
        },
    }
    whole = plan(load_scenario(tree))
    assert [told(one) for one in whole.configurations] == [told(one) for one in one_by_one(whole)]
    prefill, decode = zip(*(one.stations for one in whole.configurations), strict=True)
    assert [one.design.hardware.peak_flops["bf16"] / 989e12 for one in prefill] == pytest.approx([1, 1, 2, 2], rel=1e-3)
    assert [one.design.hardware.memory_bandwidth for one in decode] == [3e12, 6e12] * 2
    assert len(whole.groups) == 1


def test_prices_are_no_matter_of_checks():
    """Beside the pools and of one of them, above that of the catalog."""
    first, second = plan(scenario(deployment__usd_per_device_hour=[2, 3])).configurations
    assert second.of_design.checked is first.of_design.checked
    assert second.stations[0].design is first.stations[0].design
    assert (first.usd_per_hour, second.usd_per_hour) == (2, 3)
    tree = {
        "workload": {
            "arrivals": {"process": "poisson", "rate_rps": 4},
            "lengths": {"source": "azure-conv-2023"},
            "requests": 60,
            "warmup_requests": 10,
        },
        "deployment": {
            "model": "llama-3.1-8b",
            "hardware": "h100-sxm",
            "pools": {"prefill": {"role": "prefill"}, "decode": {"role": "decode"}},
        },
        "sweep": {"deployment.usd_per_device_hour": [2, 3], "deployment.pools.decode.usd_per_device_hour": [7, None]},
    }
    whole = plan(load_scenario(tree))
    assert [told(one) for one in whole.configurations] == [told(one) for one in one_by_one(whole)]
    assert [one.usd_per_hour for one in whole.configurations] == [9, 4, 10, 6]
    assert len({id(one.of_design.checked) for one in whole.configurations}) == 1


def test_rates_share_the_stations_of_a_device():
    whole = plan(scenario(deployment__hardware__memory_bandwidth=[2e12, 3e12], workload__arrivals__rate_rps=[1, 2, 4]))
    assert len({id(one.stations) for one in whole.configurations}) == 2


def test_a_plan_of_many_devices_makes_no_stations(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(same_but_speed, "_with_device", None)  # which makes them
        members = plan(axis("memory_bandwidth", [number * 1e12 for number in range(1, 51)])).configurations
    assert [one.stations[0].design.hardware.memory_bandwidth for one in members[:2]] == [1e12, 2e12]


def test_stations_that_somebody_else_makes_meanwhile_are_those_of_all(monkeypatch):
    (_, second), meanwhile = plan(axis("memory_bandwidth", ["2TB/s", "4TB/s"])).configurations, []
    made = same_but_speed._with_device

    def while_others_ask(*asked):
        if not meanwhile:
            meanwhile.append(None)
            meanwhile[0] = second.stations
        return made(*asked)

    monkeypatch.setattr(same_but_speed, "_with_device", while_others_ask)
    assert second.stations is second.stations is meanwhile[0]


def test_a_device_of_a_name_is_as_it_is():
    """Designs with devices of the catalog are checked one by one: the catalog has few."""
    first, second = plan(scenario(deployment__hardware=["h100-sxm", "h200-sxm"])).configurations
    assert second.stations is second.of_design.checked is not first.of_design.checked
