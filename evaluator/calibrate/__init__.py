"""Measurement tables in, a calibration set out: efficiencies fitted by gradient, with their errors."""

from __future__ import annotations

from evaluator.calibrate.run import Calibrated, calibrate
from evaluator.calibrate.table import Table, read_tables

__all__ = ["Calibrated", "Table", "calibrate", "read_tables"]
