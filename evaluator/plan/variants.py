"""Configurations with something changed: an input of the hardware, or the rate at which requests come."""

from __future__ import annotations

from dataclasses import replace

from evaluator.metrics.outcomes import OK
from evaluator.plan.member import Member, Rate
from evaluator.plan.station import StationPlan
from evaluator.replica import Change, varied
from evaluator.traffic.traffics import Traffics


def variant(member: Member, change: Change | Rate, traffics: Traffics) -> Member:
    """The member with the change; the member itself where the change makes no difference to it.

    No check is made anew: neither the memory nor the lengths of the requests change. So a variant runs in the group of
    its configuration, with the programs that were compiled for it.
    """
    changes = (*member.changes, change)
    if isinstance(change, Rate):
        return replace(member, workload=traffics.at_rate(member.workload, change.rate_rps), changes=changes)
    if member.status != OK:
        return member
    stations = tuple(_varied(station, change) for station in member.stations)
    link = None if member.link is None else member.link.changed(change)
    pipeline = None if member.pipeline is None else member.pipeline.changed(change)
    same = link is member.link and pipeline is member.pipeline
    same = same and all(one is other for one, other in zip(stations, member.stations, strict=True))
    return member if same else replace(member, stations=stations, link=link, pipeline=pipeline, changes=changes)


def _varied(station: StationPlan, change: Change) -> StationPlan:
    deployment = station.deployment
    linked = station.design.devices > 1 or deployment.kv.preemption == "swap"
    if change.input.startswith("link_") and not linked:
        return station
    return replace(station, design=varied(station.design, change))
