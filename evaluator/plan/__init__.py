"""Scenario -> plan: what every configuration costs, whether it can run, and which configurations run together."""

from evaluator.plan.design import Design, design
from evaluator.plan.plan import Group, Plan, plan

__all__ = ["Design", "Group", "Plan", "design", "plan"]
