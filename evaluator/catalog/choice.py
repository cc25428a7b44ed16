"""Which calibration set serves a device and an engine: the one that is named, or the best that the catalog has."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from evaluator.catalog.calibration import MEASURED_MAKER, TRANSFERRED, Calibration, named_set
from evaluator.catalog.engines import DEFAULT_ENGINE, serving_engine
from evaluator.catalog.hardware import Hardware, load_hardware
from evaluator.catalog.store import has
from evaluator.catalog.transferred import nearest_measured, set_of_device, set_of_others
from evaluator.records import Same

AUTO, SHEET = "auto", "datasheet"
"""The best set there is for a device; the set of data sheets, for any device."""
CHOSEN = (AUTO, TRANSFERRED)
"""Names of sets that are in no file: what they stand for is chosen or made for each device."""


def load_calibration(
    name: str, hardware: Hardware | str, foreign: bool = False, engine: str = DEFAULT_ENGINE
) -> Calibration:
    """The set ``name`` (a catalog name or a path to a YAML), of ``hardware`` or of any; else InputError.

    ``hardware`` is a device, or the name of one; of a name that is not in the catalog (a device of a user's own file)
    nothing is known beside the sets that bear it. ``foreign`` lets a set of other hardware pass.

    ``auto`` is the first there is of: fitted to serving runs of this hardware (HARDWARE-ENGINE.serving); fitted to its
    kernels (HARDWARE-ENGINE), served as a device of its architecture, or with the host of serving runs on any hardware
    (ENGINE.serving) where no such device was; ``transferred``, from the nearest device of its architecture, or for a
    GPU of NVIDIA from all others; ``datasheet``. What was not measured of an engine, its kernels on this hardware or
    its servers, is as in vLLM, and the set ``extrapolated``; but kernels of vLLM alone, without servers of the device,
    give way to the engine's own on the nearest device of its architecture.

    ``transferred`` is the median of the kernels of other devices for this engine, with the host of their serving runs.
    """
    device = _device(hardware)
    of = hardware if device is None else device.name
    if name == AUTO:
        best = _best(str(of), device, serving_engine(engine).name)
        if best is not None:
            return best
        name = TRANSFERRED if device is not None and is_like_measured(device) else SHEET
    # Other than under `auto`: who names `transferred` asks for all other devices.
    if name == TRANSFERRED and not has("calibrations", name):
        return set_of_others(str(of) if device is None else device, serving_engine(engine).name)
    return named_set(name, str(of), foreign)


def _best(hardware: str, device: Hardware | None, engine: str) -> Calibration | None:
    """The set of ``auto``, of measurements of the device or of others; None: there is none."""
    of_device = set_of_device(hardware, engine)
    if of_device is not None:
        return of_device
    of_default = None if engine == DEFAULT_ENGINE else set_of_device(hardware, DEFAULT_ENGINE)
    # A user's own set of others goes before the one that is made here.
    others = None if has("calibrations", TRANSFERRED) else device
    relative = "" if others is None else nearest_measured(others, engine)
    # An engine's own kernels on a relative are nearer to it than vLLM's on this device. Kernels of a library that no
    # engine has for itself, and servers of this device, tell more than the relative does.
    if of_default is not None and (
        not relative or of_default.engine == "any" or has("calibrations", f"{hardware}-{DEFAULT_ENGINE}.serving")
    ):
        return _standing_in(of_default, engine)
    if others is None:
        return None
    if relative:
        return set_of_others(others, engine, relative)
    if engine != DEFAULT_ENGINE and (of_default_engine := nearest_measured(others, DEFAULT_ENGINE)):
        return _standing_in(set_of_others(others, DEFAULT_ENGINE, of_default_engine), engine)
    # Of other makers a device of the same architecture tells something, and the median of all GPUs nothing.
    return set_of_others(others, engine) if is_like_measured(others) else None


def _device(hardware: Hardware | str) -> Hardware | None:
    if isinstance(hardware, Hardware):
        return hardware
    return load_hardware(hardware) if has("hardware", hardware) else None


def is_like_measured(device: Hardware) -> bool:
    """Whether a device is a GPU of the maker whose devices the sets are of: only of those are errors known."""
    return device.kind == "gpu" and device.maker == MEASURED_MAKER


def _standing_in(of: Calibration, engine: str) -> Calibration:
    """A set for an engine of which nothing was measured on this hardware; a data sheet is one for any engine."""
    return of if of.provenance == SHEET else _for_engine(Same(of), engine)


@lru_cache(maxsize=64)
def _for_engine(of: Same[Calibration], engine: str) -> Calibration:
    """The set for another engine, made once: a sweep over devices asks often, and caches of rates go by identity."""
    return replace(of.of, name=f"{of.of.name}, for {engine}", provenance="extrapolated")
