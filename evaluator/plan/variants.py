"""Configurations with something changed: an input of the hardware, or the rate at which requests come."""

from __future__ import annotations

from dataclasses import replace

from evaluator.metrics.outcomes import OK
from evaluator.plan.configuration import Configuration, RateChange
from evaluator.plan.station import StationPlan
from evaluator.replica import Change, varied
from evaluator.traffic.request_sampler import RequestSampler


def variant(configuration: Configuration, change: Change | RateChange, sampler: RequestSampler) -> Configuration:
    """The member with the change; the member itself where the change makes no difference to it.

    No check is made anew: neither the memory nor the lengths of the requests change. So a variant runs in the group of
    its configuration, with the programs that were compiled for it.
    """
    changes = (*configuration.changes, change)
    if isinstance(change, RateChange):
        return replace(
            configuration, workload=sampler.at_rate(configuration.workload, change.rate_rps), changes=changes
        )
    if configuration.status != OK:
        return configuration
    stations = tuple(_varied(station, change) for station in configuration.stations)
    link = None if configuration.link is None else configuration.link.changed(change)
    pipeline = None if configuration.pipeline is None else configuration.pipeline.changed(change)
    same = link is configuration.link and pipeline is configuration.pipeline
    same = same and all(one is other for one, other in zip(stations, configuration.stations, strict=True))
    return (
        configuration
        if same
        else replace(configuration, stations=stations, link=link, pipeline=pipeline, changes=changes)
    )


def _varied(station: StationPlan, change: Change) -> StationPlan:
    deployment = station.deployment
    linked = station.design.devices > 1 or deployment.kv.preemption == "swap"
    if change.input.startswith("link_") and not linked:
        return station
    return replace(station, design=varied(station.design, change))
