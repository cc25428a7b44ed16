"""Which calibration set serves a device and an engine: the one that is named, or the best that the catalog has."""

from __future__ import annotations

from dataclasses import replace

from evaluator.catalog.calibration import MEASURED_MAKER, TRANSFERRED, Calibration, named_set
from evaluator.catalog.engines import DEFAULT_ENGINE, serving_engine
from evaluator.catalog.hardware import Hardware
from evaluator.catalog.read_hardware import load_hardware
from evaluator.catalog.relatives import served_by_relative
from evaluator.catalog.served import as_served, with_host
from evaluator.catalog.store import has
from evaluator.catalog.transferred import nearest_measured, set_of_others

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
    its servers, is as in vLLM, and the set ``extrapolated``.

    ``transferred`` is the median of the kernels of other devices for this engine, with the host of their serving runs.
    """
    device = _device(hardware)
    of = hardware if device is None else device.name
    if name == AUTO:
        measured = _measured(str(of), serving_engine(engine).name)
        if measured is not None:
            return measured
        # A user's own set of this name goes before the one that is made of others.
        if device is not None and not has("calibrations", TRANSFERRED):
            of_engine = serving_engine(engine).name
            # Of other makers a device of the same architecture tells something, and the median of all GPUs nothing.
            if is_like_measured(device) or nearest_measured(device, of_engine):
                return set_of_others(device, of_engine, alike=True)
        name = TRANSFERRED if device is not None and is_like_measured(device) else SHEET
    # Other than under `auto`: who names `transferred` asks for all other devices.
    if name == TRANSFERRED and not has("calibrations", name):
        return set_of_others(str(of) if device is None else device, serving_engine(engine).name)
    return named_set(name, str(of), foreign)


def _device(hardware: Hardware | str) -> Hardware | None:
    if isinstance(hardware, Hardware):
        return hardware
    return load_hardware(hardware) if has("hardware", hardware) else None


def is_like_measured(device: Hardware) -> bool:
    """Whether a device is a GPU of the maker whose devices the sets are of: only of those are errors known."""
    return device.kind == "gpu" and device.maker == MEASURED_MAKER


def _measured(hardware: str, engine: str) -> Calibration | None:
    """The best set of a device's own measurements; None: there is none."""
    serving, kernels, host = f"{hardware}-{engine}.serving", f"{hardware}-{engine}", f"{engine}.serving"
    # The first of what is nearest to a server on this device: its own runs have kernels and host together.
    if has("calibrations", serving):
        return named_set(serving, hardware)
    if has("calibrations", kernels):
        # Kernels were timed alone. What a server makes of them is known of a relative; else its host alone is taken to
        # be alike on all devices.
        calibration = named_set(kernels, hardware)
        if engine == DEFAULT_ENGINE and (served := served_by_relative(calibration, hardware)) is not None:
            return served
        if has("calibrations", host):
            return with_host(calibration, named_set(host, hardware))
        return calibration if engine == DEFAULT_ENGINE else _served_as_default(calibration, hardware)
    return None if engine == DEFAULT_ENGINE else _standing_in(_measured(hardware, DEFAULT_ENGINE), engine)


def _served_as_default(kernels: Calibration, hardware: str) -> Calibration:
    """A set of kernels with what serving runs of the default engine say, on this hardware or at least of its host."""
    of_default = f"{hardware}-{DEFAULT_ENGINE}"
    if not has("calibrations", f"{of_default}.serving"):
        served = served_by_relative(kernels, hardware)
        if served is not None:
            return replace(served, provenance="extrapolated")
    if has("calibrations", of_default) and has("calibrations", f"{of_default}.serving"):
        serving = named_set(f"{of_default}.serving", hardware)
        served = with_host(as_served(kernels, named_set(of_default, hardware), serving), serving)
        return replace(served, name=f"{kernels.name}, served as {serving.name}", provenance="extrapolated")
    if has("calibrations", f"{DEFAULT_ENGINE}.serving"):
        serving = named_set(f"{DEFAULT_ENGINE}.serving", hardware)
        return replace(with_host(kernels, serving), provenance="extrapolated")
    return kernels


def _standing_in(of: Calibration | None, engine: str) -> Calibration | None:
    """A set for an engine of which nothing was measured on this hardware; a data sheet is one for any engine."""
    if of is None or of.provenance == SHEET:
        return of
    return replace(of, name=f"{of.name}, for {engine}", provenance="extrapolated")
