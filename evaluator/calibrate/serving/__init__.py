"""Serving experiments in, calibration sets out: physical parameters fitted through the engine itself.

``campaign`` fits the GPUs of a set of experiments by ``fit``, ``own`` one server of the user's (``own_runs`` in,
``own_report`` out); ``parameters`` are what is fitted in both, ``write`` makes the YAML.
"""

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
