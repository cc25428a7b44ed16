"""Predictions against measured serving results: experiments of vLLM's kind, and single requests of a run."""

from evaluator.compare.report import described, headline, summarise
from evaluator.compare.requests import compare_requests
from evaluator.compare.run import compare_experiments

__all__ = ["compare_experiments", "compare_requests", "described", "headline", "summarise"]
