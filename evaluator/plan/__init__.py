"""Scenario -> plan: what every configuration costs, whether it can run, and which configurations run together.

``plan`` makes a ``configuration`` of each point. What it is of: ``station`` (a pool), ``phases`` (its sides) and their
``link``, ``pipeline`` with the ``route`` of requests, ``scaling``. Whether it can run: ``feasibility`` by ``checks``,
``kv_checks`` and ``stage_checks``, once for those that are the ``same_but_speed``. What runs it: ``simulators``,
``joint_pools``, ``request_level``; ``groups`` are of one sequence of compiled structures; ``labels`` name
what comes out.
"""

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
