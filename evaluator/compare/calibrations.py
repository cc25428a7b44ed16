"""Which calibration set serves the experiments of a GPU."""

from __future__ import annotations

from evaluator.catalog import load_calibration
from evaluator.catalog.calibration import Calibration
from evaluator.catalog.store import names, suggestion
from evaluator.errors import InputError

ANY_GPU = "vllm.serving"
"""The set fitted to the serving runs of all GPUs; with a GPU's name in front, of that one."""


def calibration_for(wanted: str, hardware: str) -> Calibration:
    """The set ``wanted`` for this hardware. Raises InputError where it is of other hardware or unknown.

    ``auto`` is what the catalog holds best for it, and serving runs of any GPU before the data sheet. In a name GPU
    stands for the hardware (``GPU-vllm``), and where only other hardware has a set of that name the data sheet does.
    """
    set_names = names("calibrations")
    if wanted == "auto":
        # The set of all GPUs is a fit to servers, which a data sheet is not: its host's times hold for a device
        # that nobody measured, too.
        best = load_calibration("auto", hardware)
        return load_calibration(ANY_GPU, hardware) if best.name == "datasheet" and ANY_GPU in set_names else best
    name = wanted.replace("GPU", hardware)
    # "GPU" in a name stands for each experiment's device, some of which may have no such set.
    exists = "GPU" not in wanted or name in set_names
    if not exists and not any(wanted.replace("GPU", device) in set_names for device in names("hardware")):
        raise InputError(f"no hardware has a calibration set {wanted}{suggestion(name, set_names)}")
    return load_calibration(name if exists else "datasheet", hardware)
