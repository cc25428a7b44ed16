"""Readers of measured serving runs: what was run (JSON), what was measured of it (CSV), under which names."""

from evaluator.experiments.experiment import Experiment, MeasuredMetrics
from evaluator.experiments.read import read_experiments
from evaluator.experiments.requests import read_requests

__all__ = ["Experiment", "MeasuredMetrics", "read_experiments", "read_requests"]
