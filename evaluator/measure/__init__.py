"""Micro-benchmarks of the operators on the user's own device: a table for ``evaluator calibrate``.

``run`` times ``points`` (which shapes) of ``operators`` (as JAX programs) by ``timing`` on a ``device``, and writes
``rows``; ``describe`` makes of them a description of a device that the catalog does not know.
"""

from __future__ import annotations

from evaluator.measure.describe import description
from evaluator.measure.device import Device, find_device
from evaluator.measure.points import CLASSES, DTYPES, FULL, QUICK, points
from evaluator.measure.rows import MeasuredRows
from evaluator.measure.run import measure
from evaluator.measure.timing import HASTY, THOROUGH, Effort

__all__ = ["CLASSES", "DTYPES", "FULL", "HASTY", "QUICK", "THOROUGH", "Device", "Effort", "MeasuredRows", "description",
           "find_device", "measure", "points"]  # fmt: skip
