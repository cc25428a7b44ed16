"""Configurations that differ in the speed of their devices alone: what was checked of one holds for all of them.

A sweep over the bandwidth of a device, its peaks, links, power or price has a deployment of its own in every design. No
check looks at any of these: whether a design can run depends on the memory of its devices, on which of them are linked
and on the dtypes that they compute in. So the first design is checked, and the others take what was found, with their
own devices in the place of its.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import fields
from operator import attrgetter
from typing import TypeVar

from evaluator.catalog.hardware import Hardware
from evaluator.catalog.what_if import WhatIf, device
from evaluator.plan.station import StationPlan
from evaluator.records import with_fields
from evaluator.replica import on_device
from evaluator.scenario import Deployment, Pool

COMPARED = ("hardware", "pools", "pipeline")
"""Fields that are not compared by their identity; a deployment with a pipeline is like no other."""

_OTHERS = {
    record: attrgetter(*(entry.name for entry in fields(record) if entry.name not in COMPARED))
    for record in (Deployment, Pool)
}

_Described = TypeVar("_Described", Deployment, Pool)


def likeness(deployment: Deployment) -> Hashable | None:
    """Equal for deployments that differ in the speed of described devices alone; None: no other can be like this one.

    Points of a sweep share the objects of parts that they do not vary, so parts are compared by identity (``id``).
    Stages of a pipeline ask more of devices than the engine does, and whether any replica keeps the latency that an
    autoscaler is to go by is a question of speed.
    """
    pools = deployment.pools or {}
    hardware = [deployment.hardware, *(pool.hardware for pool in pools.values())]
    if (
        deployment.pipeline
        or _keeps_latency(deployment)
        or not any(isinstance(device_of_pool, WhatIf) for device_of_pool in hardware)
    ):
        return None
    return _parts(deployment), tuple((name, _parts(pool)) for name, pool in pools.items())


def _keeps_latency(deployment: Deployment) -> bool:
    scaling = [of.autoscaling for of in (deployment, *(deployment.pools or {}).values())]
    return any(policy is not None and policy.within_s is not None for policy in scaling)


def _parts(of: _Described) -> Hashable:
    hardware = of.hardware
    named = outline(device(hardware)) if isinstance(hardware, WhatIf) else hardware
    return named, tuple(map(id, _OTHERS[type(of)](of)))


def outline(hardware: Hardware) -> Hashable:
    """What of a device decides whether a design can run: all but how fast it is, its power and its price."""
    links = tuple((link.name, link.devices, link.mesh) for link in hardware.links)
    same = hardware.name, hardware.kind, hardware.memory_bytes, hardware.cores, hardware.hypothetical
    # Which dtypes have a peak decides what products fall back to; how high the peaks are decides no check.
    return *same, tuple(hardware.peak_flops), links


def with_devices(stations: tuple[StationPlan, ...], deployment: Deployment) -> tuple[StationPlan, ...]:
    """The stations of a deployment that is like the one that these are of, on its own devices."""
    return tuple(_with_device(station, deployment) for station in stations)


def _with_device(station: StationPlan, deployment: Deployment) -> StationPlan:
    pool = (deployment.pools or {}).get(station.name)
    hardware = deployment.hardware if pool is None or pool.hardware is None else pool.hardware
    before = station.deployment
    # Equal descriptions describe the same device: a pool that is not swept keeps its object, and its cached figures.
    if not isinstance(hardware, WhatIf) or hardware == before.hardware:
        return station
    changed = with_fields(before, hardware=hardware)
    return with_fields(station, deployment=changed, design=on_device(station.design, hardware))
