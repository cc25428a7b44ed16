"""Efficiency sets: which part of a device's peaks each class of operator reaches, and what the host costs."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from evaluator.catalog.fields import Fields
from evaluator.catalog.iterations import BEYOND, FORMS, Iterations, read_iterations
from evaluator.catalog.store import find, names
from evaluator.errors import InputError
from evaluator.yaml import load_yaml

COMPUTE_CLASSES = ("gemm", "grouped_gemm", "attention_prefill", "attention_decode", "elementwise")
COLLECTIVE_CLASSES = ("all_reduce", "all_to_all", "p2p")
OPERATOR_CLASSES = COMPUTE_CLASSES + COLLECTIVE_CLASSES
OPTIONAL_CLASSES = {"gemm_8bit": "gemm", "grouped_gemm_8bit": "grouped_gemm", "expert_elementwise": "elementwise"}
"""Classes that a set may have, and whose figures they take where it has not: products in 8 bits and less, and what
permutes, activates and sums what the routed experts make."""
SORT = "sort"
"""One more: ordering the logits for top-p and top-k. An engine whose set has none does not order them."""
PROVENANCES = ("datasheet", "calibrated", "extrapolated")
ENGINES = ("vllm",)
"""Engines whose sets ``auto`` looks for, the default engine first: ``calibration/HARDWARE-ENGINE.yaml``."""

HOST = (
    "step_overhead_s",
    "sequence_overhead_s",
    "dispatch_s",
    "frontend_s",
    "lookahead_steps",
    "warm_up_s",
    "graph_tokens",
    "expert_skew",
)
"""Figures of the engine and its load, of which measurements of kernels know nothing; the class SORT is one more."""
_OPTIONAL_SOURCES = (SORT, "expert_skew", "dispatch_s", "frontend_s", "lookahead_steps", "warm_up_s", "graph_tokens")

_OPTIONAL = {
    "gemm": ("activation_efficiency", "prologue", "wave_share", "wave_tiles"),
    "grouped_gemm": ("activation_efficiency",),
    "attention_prefill": (
        "score_flops", "score_knee", "fill", "tile", "packed_tile", "diagonal", "head_token_s", "cache_bytes",
        "store_s",
    ),
    "attention_decode": (
        "head_sequence_s", "kv_head_sequence_s", "join_s", "spread", "unsplit_s", "window_rows",
    ),
    "elementwise": (),
}  # fmt: skip
"""What a class may state beyond the roofline; the optional classes as the ones they stand in for."""


@dataclass(frozen=True)
class GroupEfficiency:
    """An all-reduce among so many devices of a node: launch + volume / bandwidth + ramp m / (m + half) + handover."""

    launch_s: float
    bandwidth_efficiency: float  # of the link's bandwidth; above 1 where the switch reduces
    ramp_s: float = 0.0  # what a message much larger than ``half_bytes`` takes on top
    half_bytes: float = 1.0
    handover_s: float = 0.0  # on top, for messages so large that the engine leaves them to NCCL


@dataclass(frozen=True)
class OperatorEfficiency:
    """Fractions of peak in (0, 1], roofline knee in [0, 1] (0: the classic maximum), launch seconds per call.

    For a collective ``bandwidth_efficiency`` is relative to what the link reaches (``Calibration.link_efficiency``),
    and ``flops_efficiency`` and ``knee`` mean nothing (1 and 0). The other figures leave the plain roofline where they
    are at their defaults; ``evaluator.cost.unit_times`` says what each does.
    """

    flops_efficiency: float
    bandwidth_efficiency: float
    knee: float
    launch_s: float
    activation_efficiency: float = 0.0  # of the bandwidth, for activations (0: the same as for weights)
    prologue: float = 0.0  # elements of the inner dimension that a tile costs on top
    wave_share: float = 0.0  # how much of the FLOPs is done in whole waves of tiles
    wave_tiles: float = 1.0  # tiles in a wave: one per multiprocessor
    score_flops: float = 0.0  # FLOPs that an attention score takes beside its products
    score_knee: float = 1.0  # 0: the longer of both counts, 1: their sum
    fill: float = 0.0  # query rows x heads that fill the device
    tile: float = 0.0  # query rows that a prompt takes at least, per head
    packed_tile: float = 0.0  # the same per KV head
    diagonal: float = 0.0  # attended tokens lost per query row, head size 128
    head_token_s: float = 0.0  # seconds per query row and head
    cache_bytes: float = 0.0  # traffic of a call's own tokens that stays in the cache
    store_s: float = 0.0  # seconds per prompt token and element of its keys
    head_sequence_s: float = 0.0  # seconds per sequence and head
    kv_head_sequence_s: float = 0.0  # seconds per sequence and KV head
    join_s: float = 0.0  # seconds per layer in iterations with decodes
    spread: float = 0.0  # KV heads' worth of context that a call waits for on top
    unsplit_s: float = 0.0  # seconds per token of the mean context where it is not split, head size 128
    window_rows: float = 1.0  # query rows computed for one in windowed layers
    devices: Mapping[int, GroupEfficiency] = field(default_factory=dict)  # all-reduce: by devices in the group

    def __post_init__(self) -> None:
        if self.activation_efficiency == 0.0:
            object.__setattr__(self, "activation_efficiency", self.bandwidth_efficiency)

    def among(self, size: int) -> GroupEfficiency:
        """The figures among ``size`` devices: those stated, else those of the class."""
        return self.devices.get(size, GroupEfficiency(self.launch_s, self.bandwidth_efficiency))


@dataclass(frozen=True)
class Calibration:
    """One efficiency set. ``hardware`` is a catalog name or ``any``; ``sources`` has one entry per figure or class.

    ``fit`` is what a fitted set says of itself (data, errors, what was not identified); nothing computes with it.
    A set of another form than ``roofline`` has fits of whole ``iterations`` instead of efficiencies.
    """

    name: str
    hardware: str
    provenance: str  # datasheet | calibrated | extrapolated
    efficiencies: Mapping[str, OperatorEfficiency]
    link_efficiency: float  # of a link's bandwidth in one direction, large messages
    step_overhead_s: float  # host, per engine iteration
    sequence_overhead_s: float  # host, per sequence in the batch and iteration
    sources: Mapping[str, str]
    expert_skew: float = 0.0  # variance of the experts' popularity (mean 1)
    engine: str = "any"
    engine_version: str = "any"
    fit: Mapping[str, Any] = field(default_factory=dict)
    dispatch_s: float = 0.0  # host, per iteration while the device works on the one before: it takes no less
    frontend_s: float = 0.0  # per request, outside the engine: HTTP, tokenising, hops between processes, streaming
    lookahead_steps: float = 0.0  # iterations that a request waits because they are planned ahead when it comes
    warm_up_s: float = 0.0  # that the first request waits for kernels of experts to be compiled; of single runs alone
    graph_tokens: float = 0.0  # batches are padded to multiples of so many tokens, of which graphs are kept (0: none)
    form: str = "roofline"  # roofline | polynomial | table
    beyond: str = "refuse"  # refuse | extend: configurations that leave the range of the measured iterations
    iterations: tuple[Iterations, ...] = ()

    def of(self, op_class: str) -> OperatorEfficiency:
        """The efficiencies of a class; for an optional one that the set has not, of the class it stands in for."""
        if op_class in self.efficiencies:
            return self.efficiencies[op_class]
        return _FREE if op_class == SORT else self.efficiencies[OPTIONAL_CLASSES[op_class]]


_FREE = OperatorEfficiency(1.0, math.inf, 0.0, 0.0)


def load_calibration(name: str, hardware: str, foreign: bool = False) -> Calibration:
    """The set ``name`` (a catalog name or a path to a YAML), of ``hardware`` or of any; else InputError.

    ``foreign`` lets a set of other hardware pass.

    ``auto`` is the first there is of: fitted to serving runs of this hardware (HARDWARE-ENGINE.serving); fitted to its
    kernels (HARDWARE-ENGINE), with the host of serving runs on any hardware (ENGINE.serving); ``datasheet``.
    """
    if name == "auto":
        return _best(hardware)
    calibration = _load(find("calibrations", name).resolve())
    if not foreign and calibration.hardware not in ("any", hardware):
        raise InputError(f"calibration '{name}' is of {calibration.hardware}, not of {hardware}")
    return calibration


def _best(hardware: str) -> Calibration:
    there = names("calibrations")
    for engine in ENGINES:
        serving, kernels, anywhere = f"{hardware}-{engine}.serving", f"{hardware}-{engine}", f"{engine}.serving"
        if serving in there:
            return load_calibration(serving, hardware)
        if kernels in there:
            found = load_calibration(kernels, hardware)
            return with_host(found, load_calibration(anywhere, hardware)) if anywhere in there else found
    return load_calibration("datasheet", hardware)


def with_host(kernels: Calibration, serving: Calibration) -> Calibration:
    """A set of kernels with the host's figures of one fitted to serving runs."""
    figures: dict[str, Any] = {name: getattr(serving, name) for name in HOST}
    sort = {SORT: serving.efficiencies[SORT]} if SORT in serving.efficiencies else {}
    classes = {**kernels.efficiencies, **sort}
    return replace(kernels, name=f"{kernels.name}, host of {serving.name}", efficiencies=classes, **figures)


@functools.cache
def _load(path: Path) -> Calibration:
    return read_calibration(load_yaml(path), path.name, expected_name=path.stem)


def read_calibration(document: Any, where: str, expected_name: str | None = None) -> Calibration:
    """A Calibration from the content of its YAML; ``where`` is the file's name in messages."""
    given = Fields(document, where)
    name = given.text("name")
    if expected_name is not None and name != expected_name:
        raise InputError(f"{given.place('name')}: '{name}' is not the file's name '{expected_name}'")
    form = given.choice("form", ("roofline", *FORMS), "roofline")
    calibration = Calibration(
        name=name,
        hardware=given.text("hardware"),
        provenance=given.choice("provenance", PROVENANCES),
        **(_roofline(given) if form == "roofline" else _fitted(given, form)),
        engine=given.text("engine", "any"),
        engine_version=given.text("engine_version", "any"),
        fit=given.inner("fit", {}).values,
        dispatch_s=given.quantity("dispatch_s", "s", 0.0, zero=True),
        frontend_s=given.quantity("frontend_s", "s", 0.0, zero=True),
        lookahead_steps=given.number("lookahead_steps", 0.0),
        warm_up_s=given.quantity("warm_up_s", "s", 0.0, zero=True),
        graph_tokens=given.number("graph_tokens", 0.0),
    )
    given.finish()
    return calibration


def _roofline(given: Fields) -> dict[str, Any]:
    return {
        "efficiencies": _efficiencies(given.inner("efficiencies")),
        "link_efficiency": _fraction(given, "link_efficiency"),
        "step_overhead_s": given.quantity("step_overhead_s", "s", zero=True),
        "sequence_overhead_s": given.quantity("sequence_overhead_s", "s", zero=True),
        "sources": _sources(given),
        "expert_skew": given.number("expert_skew", 0.0),
    }


def _fitted(given: Fields, form: str) -> dict[str, Any]:
    """Iterations were measured with their host and collectives: nothing comes on top."""
    figures = {"efficiencies": {}, "link_efficiency": 1.0, "step_overhead_s": 0.0, "sequence_overhead_s": 0.0}
    fits = {"iterations": read_iterations(given, form), "beyond": given.choice("beyond", BEYOND, "refuse")}
    return figures | fits | {"form": form, "sources": {}}


def _efficiencies(classes: Fields) -> dict[str, OperatorEfficiency]:
    efficiencies = {name: _compute(classes.inner(name), _OPTIONAL[name]) for name in COMPUTE_CLASSES}
    efficiencies |= {name: _collective(classes.inner(name)) for name in COLLECTIVE_CLASSES}
    for name, base in {**OPTIONAL_CLASSES, SORT: "elementwise"}.items():
        if classes.raw(name, None) is not None:
            efficiencies[name] = _compute(classes.inner(name), _OPTIONAL[base])
    classes.finish()
    return efficiencies


def _compute(given: Fields, optional: tuple[str, ...]) -> OperatorEfficiency:
    efficiency = OperatorEfficiency(
        flops_efficiency=_fraction(given, "flops_efficiency"),
        bandwidth_efficiency=_fraction(given, "bandwidth_efficiency"),
        knee=given.number("knee", high=1.0),
        launch_s=given.quantity("launch_s", "s", zero=True),
    )
    more = {name: _optional(given, name) for name in optional if given.raw(name, None) is not None}
    given.finish()
    return replace(efficiency, **more)  # type: ignore[arg-type]


def _optional(given: Fields, name: str) -> float:
    if name.endswith(("_s", "_bytes")):
        return given.quantity(name, "s" if name.endswith("_s") else "byte", zero=True)
    if name == "activation_efficiency":
        return _fraction(given, name)
    return given.number(name, high=1.0) if name in ("wave_share", "score_knee") else given.number(name)


def _collective(given: Fields) -> OperatorEfficiency:
    efficiency = OperatorEfficiency(
        flops_efficiency=1.0,
        bandwidth_efficiency=_fraction(given, "bandwidth_efficiency"),
        knee=0.0,
        launch_s=given.quantity("launch_s", "s", zero=True),
        devices=_groups(given),
    )
    given.finish()
    return efficiency


def _groups(given: Fields) -> dict[int, GroupEfficiency]:
    listed = given.inner("devices", {})
    groups = {}
    for size in listed.values:
        inner = listed.inner(size)
        if not isinstance(size, int) or isinstance(size, bool) or size < 2:
            raise InputError(f"{listed.where}: {size!r} is no number of devices (2 or more)")
        groups[size] = GroupEfficiency(
            launch_s=inner.quantity("launch_s", "s", zero=True),
            bandwidth_efficiency=inner.number("bandwidth_efficiency", low=1e-6),
            ramp_s=inner.quantity("ramp_s", "s", 0.0, zero=True),
            half_bytes=inner.quantity("half_bytes", "byte", 1.0),
            handover_s=inner.quantity("handover_s", "s", 0.0, zero=True),
        )
        inner.finish()
    return groups


def _fraction(given: Fields, key: str) -> float:
    value = given.number(key, high=1.0)
    if value == 0.0:
        raise InputError(f"{given.place(key)}: must be above 0 (a fraction of the peak)")
    return value


def _sources(given: Fields) -> dict[str, str]:
    needed = (*OPERATOR_CLASSES, "link_efficiency", "step_overhead_s", "sequence_overhead_s")
    inner = given.inner("sources")
    sources = {key: inner.text(key) for key in needed}
    sources |= {key: inner.text(key) for key in _OPTIONAL_SOURCES if inner.raw(key, None) is not None}
    inner.finish()
    return sources


FIGURES = tuple(each.name for each in fields(OperatorEfficiency) if each.name != "devices")
"""The figures of a class, in the order in which files state them."""
