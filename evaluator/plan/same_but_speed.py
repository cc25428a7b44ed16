"""Configurations that differ in the speed or price of devices alone: what was checked of one holds for all of them.

A sweep over the bandwidth of a device, its peaks, links, power or price has a deployment of its own in every design. No
check looks at any of these: whether a design can run depends on the memory of its devices, on which of them are linked
and on the dtypes that they compute in. So the first design is checked, and the others take what was found, with their
own devices and prices in the place of its, when somebody asks for their stations.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable
from dataclasses import dataclass, fields
from functools import cached_property
from operator import attrgetter
from typing import TypeVar

from evaluator.catalog.hardware import Hardware
from evaluator.catalog.what_if import WhatIf, device
from evaluator.plan.station import StationPlan
from evaluator.records import with_fields
from evaluator.replica import on_device
from evaluator.scenario import Deployment, Pool

NOT_COMPARED = ("hardware", "usd_per_device_hour", "pools", "pipeline")
"""Fields that are not compared by their identity; a deployment with a pipeline is like no other."""

_OTHERS = {
    record: attrgetter(*(entry.name for entry in fields(record) if entry.name not in NOT_COMPARED))
    for record in (Deployment, Pool)
}

_Described = TypeVar("_Described", Deployment, Pool)


@dataclass(frozen=True, eq=False)
class DesignStations:
    """The stations of a design: those that were ``checked``, or with the devices and prices of the ``deployment``,
    where another one that is like it was checked."""

    checked: tuple[StationPlan, ...]
    deployment: Deployment | None = None

    @cached_property
    def stations(self) -> tuple[StationPlan, ...]:
        """Made when they are asked for, as when a chunk runs: five records each, which no plan looks at."""
        if self.deployment is None:
            return self.checked
        made = tuple(_with_device(station, self.deployment) for station in self.checked)
        # Threads may make them at the same time, and ``variant`` compares by identity: the first ones hold for all.
        return self.__dict__.setdefault("stations", made)


def likeness(deployment: Deployment) -> Hashable | None:
    """Equal for deployments that differ in the speed of described devices and in prices alone; None: no other can be
    like this one.

    Points of a sweep share the objects of parts that they do not vary, so parts are compared by identity (``id``).
    Stages of a pipeline ask more of devices than the engine does, and whether any replica keeps the latency that an
    autoscaler is to go by is a question of speed.
    """
    if deployment.pipeline or _keeps_latency(deployment):
        return None
    return _parts(deployment), tuple((name, _parts(pool)) for name, pool in (deployment.pools or {}).items())


def _keeps_latency(deployment: Deployment) -> bool:
    pools = deployment, *(deployment.pools or {}).values()
    return any(pool.autoscaling is not None and pool.autoscaling.within_s is not None for pool in pools)


def _parts(of: _Described) -> Hashable:
    hardware = of.hardware
    named = outline(device(hardware)) if isinstance(hardware, WhatIf) else hardware
    # As bytes, since a plan keeps this of each design that is checked: 40 integers are 1.6 kB.
    return named, array("Q", [*map(id, _OTHERS[type(of)](of))]).tobytes()


def outline(hardware: Hardware) -> Hashable:
    """What of a device decides whether a design can run: all but how fast it is, its power and its price."""
    links = tuple((link.name, link.devices, link.mesh) for link in hardware.links)
    same = hardware.name, hardware.kind, hardware.memory_bytes, hardware.cores, hardware.hypothetical
    # Which dtypes have a peak decides what products fall back to; how high the peaks are decides no check.
    return *same, tuple(hardware.peak_flops), links


def _with_device(station: StationPlan, deployment: Deployment) -> StationPlan:
    """The station with the device and the price that it has in a deployment which is like its own."""
    pool, before = (deployment.pools or {}).get(station.name), station.deployment
    said = [deployment] if pool is None else [pool, deployment]
    price = next((of.usd_per_device_hour for of in said if of.usd_per_device_hour is not None), None)
    hardware = next(of.hardware for of in said if of.hardware is not None)
    # Equal descriptions describe the same device: a pool that is not swept keeps its object, and its cached figures.
    design = on_device(station.design, hardware) if hardware != before.hardware else station.design
    if design is station.design and price == before.usd_per_device_hour:
        return station
    changed = with_fields(before, hardware=hardware, usd_per_device_hour=price)
    return with_fields(station, deployment=changed, design=design)
