"""What is known of a model on every device and engine: measured, transferred, a data sheet, or refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import nan

from evaluator.accuracy import load_errors
from evaluator.accuracy.basis import design_basis, of_release
from evaluator.catalog import names
from evaluator.catalog.engines import ENGINES, ServingEngine
from evaluator.catalog.hardware import Hardware, load_hardware
from evaluator.catalog.model import Model
from evaluator.cost.dtypes import PEAK_FALLBACKS, compute_dtype, weight_dtypes
from evaluator.cost.parallel import Parallel
from evaluator.cost.precision import Precision
from evaluator.errors import InputError
from evaluator.replica import ReplicaBuild, ReplicaSpec, build, default_budget

REFUSED = "refused"
KNOWN_BY = {
    "calibrated": "measured",
    "extrapolated": "extrapolated",
    "transferred": "transferred",
    "datasheet": "data sheet",
}
"""Where the figures of a set are from -> how a table calls it. Extrapolated: a fit beyond what was measured, as of this
device for another engine."""
LAYOUTS = (1, 2, 4, 8)
"""Devices of a replica, which share its tensors: the fewest that hold it are taken."""
_PROMPT_TOKENS = 2048  # that an iteration has room for where an engine computes prompts whole, as in `estimate`
_WEIGHTS = ("attention", "feed_forward", "experts")


@dataclass(frozen=True)
class Support:
    """One device and engine. ``devices`` share a replica; 0: it is ``refused``, for the ``reason``.

    ``known_by`` is a value of KNOWN_BY or ``refused``, ``basis`` says in words what a prediction rests on, and the
    ``errors`` are those that are expected of the mean TTFT, TPOT and E2E of a server, relative; NaN: not known.
    ``widened`` are dtypes of weights for which the device has no units, so that their products run in a wider dtype.
    """

    hardware: str
    engine: str
    known_by: str
    devices: int
    errors: tuple[float, ...]
    calibration: str
    basis: str
    widened: tuple[str, ...]
    reason: str


def support(model: Model, hardware: Sequence[Hardware] = (), precision: Precision | None = None) -> list[Support]:
    """Of every engine on these devices (none: all of the catalog). InputError of a model that gives no tokens."""
    if not model.gives_tokens:
        raise InputError(f"{model.name}: gives a vector and no tokens, so that no engine serves it by itself")
    devices = hardware or [load_hardware(name) for name in names("hardware")]
    formats = precision or Precision()
    return [_support(model, device, engine, formats) for device in devices for engine in ENGINES.values()]


def _support(model: Model, hardware: Hardware, engine: ServingEngine, precision: Precision) -> Support:
    refused: list[ReplicaBuild] = []
    # From the fewest devices on, and the first that holds the model is taken.
    for tensor in LAYOUTS:
        built = build(_spec(model, hardware, engine, precision, tensor))
        if built.problem is None:
            return _known(built, hardware, engine)
        refused.append(built)
    # That weights are too large says more than that some split is impossible, and of the largest split the most.
    largest = next((built for built in reversed(refused) if built.memory is not None), refused[0])
    return Support(hardware.name, engine.name, REFUSED, 0, (nan, nan, nan), "", "", (), largest.reason)


def _spec(model: Model, hardware: Hardware, engine: ServingEngine, precision: Precision, tensor: int) -> ReplicaSpec:
    usual = engine.defaults(hardware, tensor, 1)
    budget = default_budget(usual.policy, usual.max_num_batched_tokens, usual.max_num_seqs, _PROMPT_TOKENS)
    return ReplicaSpec(
        model,
        hardware,
        precision=precision,
        parallel=replace(Parallel(), tensor=tensor),
        memory_fraction=usual.memory_fraction,
        block_tokens=usual.block_tokens,
        max_num_batched_tokens=budget,
        max_num_seqs=usual.max_num_seqs,
        engine=engine.name,
    )


def _known(built: ReplicaBuild, hardware: Hardware, engine: ServingEngine) -> Support:
    errors, basis = load_errors(), of_release(design_basis(built), built, None)
    return Support(
        hardware.name,
        engine.name,
        KNOWN_BY[built.provenance],
        built.devices,
        basis.bands(errors),
        built.calibration.name,
        basis.text(errors),
        _widened(built.model, hardware, built.spec.precision),
        "",
    )


def _widened(model: Model, hardware: Hardware, precision: Precision) -> tuple[str, ...]:
    """Such as ``fp8 in bf16``: formats of weights whose products the device has no units for."""
    stored = weight_dtypes(model, precision)
    # A part that no layer has says nothing: dense models have no experts.
    parts = [part for part in _WEIGHTS if part != "experts" or model.has_experts]
    widened = {}
    for dtype in dict.fromkeys(stored[part] for part in parts):
        wanted = compute_dtype(dtype, precision.activations)
        runs_in = next((peak for peak in PEAK_FALLBACKS[wanted] if peak in hardware.peak_flops), wanted)
        if runs_in != wanted:
            widened[dtype] = f"{dtype} in {runs_in}"
    return tuple(widened.values())
