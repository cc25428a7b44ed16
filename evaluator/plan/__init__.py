"""Scenario -> plan: what every configuration costs, whether it can run, and which configurations run together."""

from evaluator.plan.groups import Group, StationGroup, station_group
from evaluator.plan.link import LinkPlan
from evaluator.plan.member import Member, Rate
from evaluator.plan.plan import Plan, plan
from evaluator.plan.request_level import RequestGroup, request_sizes
from evaluator.plan.station import StationPlan
from evaluator.replica import Design, design

__all__ = [
    "Design",
    "Group",
    "LinkPlan",
    "Member",
    "Plan",
    "Rate",
    "RequestGroup",
    "StationGroup",
    "StationPlan",
    "design",
    "plan",
    "request_sizes",
    "station_group",
]
