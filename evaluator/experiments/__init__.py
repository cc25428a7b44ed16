"""Readers of measured serving runs: what was run (JSON), what was measured of it (CSV), under which names.

An ``experiment`` is of ``specifications`` and ``actuals``, which ``read`` joins (``entry`` reads a JSON object key by
key, ``names`` and ``precisions`` are those of files); ``traffic`` has its requests. ``requests`` is a run request by
request; ``generators/`` has a file for each load generator.
"""

from evaluator.experiments.experiment import Experiment, MeasuredMetrics
from evaluator.experiments.read import read_experiments
from evaluator.experiments.requests import read_requests

__all__ = ["Experiment", "MeasuredMetrics", "read_experiments", "read_requests"]
