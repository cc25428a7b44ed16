"""Predictions against measured serving results: experiments of vLLM's kind, and single requests of a run."""

from evaluator.compare.campaign import PARTITIONS, fit_all, held_out
from evaluator.compare.fit import FitResult, fit_serving
from evaluator.compare.report import described, headline, summarise
from evaluator.compare.requests import compare_requests
from evaluator.compare.run import compare_experiments
from evaluator.experiments.experiment import Experiment, Measured
from evaluator.experiments.read import read_experiments

__all__ = [
    "PARTITIONS",
    "Experiment",
    "FitResult",
    "Measured",
    "compare_experiments",
    "compare_requests",
    "described",
    "fit_all",
    "fit_serving",
    "headline",
    "held_out",
    "read_experiments",
    "summarise",
]
