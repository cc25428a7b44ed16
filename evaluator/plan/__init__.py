"""Scenario -> plan: what every configuration costs, whether it can run, and which configurations run together."""

from evaluator.plan.plan import Group, Plan, plan
from evaluator.replica import Design, design

__all__ = ["Design", "Group", "Plan", "design", "plan"]
