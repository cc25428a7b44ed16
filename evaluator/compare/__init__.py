"""Predictions against measured serving results: experiments of vLLM's kind, and single requests of a run."""

from evaluator.compare.experiments import Experiment, Measured, read_experiments
from evaluator.compare.fit import FitResult, cross_validate, fit_serving
from evaluator.compare.report import described, headline, summarise
from evaluator.compare.requests import compare_requests
from evaluator.compare.run import compare_experiments

__all__ = [
    "Experiment",
    "FitResult",
    "Measured",
    "compare_experiments",
    "compare_requests",
    "cross_validate",
    "described",
    "fit_serving",
    "headline",
    "read_experiments",
    "summarise",
]
