"""Serving experiments in, calibration sets out: physical parameters fitted through the engine itself."""

from evaluator.calibrate.serving.campaign import (
    PARTITIONS,
    described,
    fit_all,
    held_out,
    held_out_by_kernels,
    write_all,
)
from evaluator.calibrate.serving.fit import FitResult, fit_serving

__all__ = [
    "PARTITIONS",
    "FitResult",
    "described",
    "fit_all",
    "fit_serving",
    "held_out",
    "held_out_by_kernels",
    "write_all",
]
