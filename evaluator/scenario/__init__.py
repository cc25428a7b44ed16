"""Scenarios: what a YAML file asks, checked, with the points of its sweep."""

from evaluator.scenario.grid import Grid, expand
from evaluator.scenario.load import load_scenario
from evaluator.scenario.scenario import (
    Arrivals,
    Axis,
    Batching,
    Budget,
    Demand,
    Deployment,
    KvCache,
    Lengths,
    LinkFigures,
    ModelShare,
    Objective,
    Scenario,
    Transfer,
    Workload,
)

__all__ = [
    "Arrivals",
    "Axis",
    "Batching",
    "Budget",
    "Demand",
    "Deployment",
    "Grid",
    "KvCache",
    "Lengths",
    "LinkFigures",
    "ModelShare",
    "Objective",
    "Scenario",
    "Transfer",
    "Workload",
    "expand",
    "load_scenario",
]
