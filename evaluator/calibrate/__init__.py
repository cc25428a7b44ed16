"""Measurement tables in, a calibration set out: efficiencies fitted by gradient, with their errors.

``run`` takes a ``table`` of ours or of ``sources/``, makes a ``selection``, and fits ``parameters`` by ``fit`` to what
``kernels`` (and ``iterations``, of whole ones) predict on ``devices``; ``document`` and ``picture`` tell of it,
``errors`` judge it. ``whole`` fits iterations as a whole, by ``forms/``; ``transfer`` makes the set of a device that
nobody measured; ``serving/`` fits to servers.
"""

from __future__ import annotations

from evaluator.calibrate.run import Calibrated, calibrate
from evaluator.calibrate.table import Table, read_tables
from evaluator.calibrate.whole import FittedIterations, fit_iterations

__all__ = ["Calibrated", "FittedIterations", "Table", "calibrate", "fit_iterations", "read_tables"]
