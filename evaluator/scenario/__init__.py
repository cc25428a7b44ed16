"""Scenarios: what a YAML file asks, checked, with the points of its sweep and the requests of its workload."""

from evaluator.scenario.arrivals import arrival_times
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
from evaluator.scenario.traffic import Tokens, Traffic, request_tokens, traffic

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
    "Tokens",
    "Traffic",
    "Workload",
    "arrival_times",
    "expand",
    "load_scenario",
    "request_tokens",
    "traffic",
]
