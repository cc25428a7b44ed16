"""Predictions against measured serving results: experiments of vLLM's kind, and single requests of a run.

``run`` compares experiments: each a server (``servers``) that ``simulate`` runs. ``results`` compares those of load
generators, ``requests`` a run request by request, both on a scenario's deployment. What is told of errors: ``report``;
what is kept of them: ``expected``.
"""

from evaluator.compare.report import described, headline, summarise
from evaluator.compare.requests import compare_requests
from evaluator.compare.run import compare_experiments

__all__ = ["compare_experiments", "compare_requests", "described", "headline", "summarise"]
