"""Measurement tables in, a calibration set out: efficiencies fitted by gradient, with their errors."""

from __future__ import annotations

from evaluator.calibrate.run import Calibrated, calibrate
from evaluator.calibrate.table import Table, read_tables
from evaluator.calibrate.whole import FittedIterations, fit_iterations

__all__ = ["Calibrated", "FittedIterations", "Table", "calibrate", "fit_iterations", "read_tables"]
