"""Scenario -> plan: what every configuration costs, whether it can run, and which configurations run together."""

from evaluator.plan.groups import Group, StationGroup, station_group
from evaluator.plan.member import Member, Rate, StationPlan
from evaluator.plan.plan import Plan, plan
from evaluator.replica import Design, design

__all__ = [
    "Design",
    "Group",
    "Member",
    "Plan",
    "Rate",
    "StationGroup",
    "StationPlan",
    "design",
    "plan",
    "station_group",
]
