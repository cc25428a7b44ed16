"""Scenario -> plan: what every configuration costs, whether it can run, and which configurations run together."""

from evaluator.plan.configuration import Configuration, RateChange
from evaluator.plan.groups import Group, StationGroup, station_group
from evaluator.plan.link import LinkPlan
from evaluator.plan.plan import Plan, plan
from evaluator.plan.request_level import request_sizes
from evaluator.plan.station import StationPlan
from evaluator.replica import ReplicaBuild, design

__all__ = [
    "Configuration",
    "Group",
    "LinkPlan",
    "Plan",
    "RateChange",
    "ReplicaBuild",
    "StationGroup",
    "StationPlan",
    "design",
    "plan",
    "request_sizes",
    "station_group",
]
