"""Scenarios: what a YAML file asks, checked, with the points of its sweep and the requests of its workload."""

from evaluator.scenario.grid import Grid, expand
from evaluator.scenario.load import load_scenario
from evaluator.scenario.scenario import (
    Arrivals,
    Axis,
    Batching,
    Deployment,
    KvCache,
    Lengths,
    Objective,
    Precision,
    Scenario,
    Workload,
)
from evaluator.scenario.traffic import Traffic, traffic

__all__ = [
    "Arrivals",
    "Axis",
    "Batching",
    "Deployment",
    "Grid",
    "KvCache",
    "Lengths",
    "Objective",
    "Precision",
    "Scenario",
    "Traffic",
    "Workload",
    "expand",
    "load_scenario",
    "traffic",
]
