"""Efficiency sets: which part of a device's peaks each class of operator reaches, and what the host costs."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluator.catalog.fields import Fields
from evaluator.catalog.store import find
from evaluator.errors import InputError
from evaluator.yaml import load_yaml

COMPUTE_CLASSES = ("gemm", "grouped_gemm", "attention_prefill", "attention_decode", "elementwise")
COLLECTIVE_CLASSES = ("all_reduce", "all_to_all", "p2p")
OPERATOR_CLASSES = COMPUTE_CLASSES + COLLECTIVE_CLASSES
PROVENANCES = ("datasheet", "calibrated")
_OPTIONAL_SOURCES = ("frontend_s", "lookahead_steps")


@dataclass(frozen=True)
class OperatorEfficiency:
    """Fractions of peak in (0, 1], roofline knee in [0, 1] (0: the classic maximum), launch seconds per call.

    For a collective ``bandwidth_efficiency`` is relative to what the link reaches (``Calibration.link_efficiency``),
    and ``flops_efficiency`` and ``knee`` mean nothing (1 and 0).
    """

    flops_efficiency: float
    bandwidth_efficiency: float
    knee: float
    launch_s: float


@dataclass(frozen=True)
class Calibration:
    """One efficiency set. ``hardware`` is a catalog name or ``any``; ``sources`` has one entry per figure or class."""

    name: str
    hardware: str
    provenance: str  # datasheet | calibrated
    efficiencies: Mapping[str, OperatorEfficiency]
    link_efficiency: float  # of a link's bandwidth in one direction, large messages
    step_overhead_s: float  # host, per engine iteration
    sequence_overhead_s: float  # host, per sequence in the batch and iteration
    sources: Mapping[str, str]
    frontend_s: float = 0.0  # per request, outside the engine: HTTP, tokenising, hops between processes, streaming
    lookahead_steps: float = 0.0  # iterations that a request waits because they are planned ahead when it comes


def load_calibration(name: str, hardware: str) -> Calibration:
    """The set ``name`` (a catalog name or a path to a YAML), of ``hardware`` or of any; else InputError."""
    calibration = _load(find("calibrations", name).resolve())
    if calibration.hardware not in ("any", hardware):
        raise InputError(f"calibration '{name}' is of {calibration.hardware}, not of {hardware}")
    return calibration


@functools.cache
def _load(path: Path) -> Calibration:
    return read_calibration(load_yaml(path), path.name, expected_name=path.stem)


def read_calibration(document: Any, where: str, expected_name: str | None = None) -> Calibration:
    """A Calibration from the content of its YAML; ``where`` is the file's name in messages."""
    given = Fields(document, where)
    name = given.text("name")
    if expected_name is not None and name != expected_name:
        raise InputError(f"{given.place('name')}: '{name}' is not the file's name '{expected_name}'")
    classes = given.inner("efficiencies")
    efficiencies = {name: _compute(classes.inner(name)) for name in COMPUTE_CLASSES}
    efficiencies |= {name: _collective(classes.inner(name)) for name in COLLECTIVE_CLASSES}
    classes.finish()
    calibration = Calibration(
        name=name,
        hardware=given.text("hardware"),
        provenance=given.choice("provenance", PROVENANCES),
        efficiencies=efficiencies,
        link_efficiency=_fraction(given, "link_efficiency"),
        step_overhead_s=given.quantity("step_overhead_s", "s", zero=True),
        sequence_overhead_s=given.quantity("sequence_overhead_s", "s", zero=True),
        sources=_sources(given),
        frontend_s=given.quantity("frontend_s", "s", 0.0, zero=True),
        lookahead_steps=given.number("lookahead_steps", 0.0),
    )
    given.finish()
    return calibration


def _compute(given: Fields) -> OperatorEfficiency:
    efficiency = OperatorEfficiency(
        flops_efficiency=_fraction(given, "flops_efficiency"),
        bandwidth_efficiency=_fraction(given, "bandwidth_efficiency"),
        knee=given.number("knee", high=1.0),
        launch_s=given.quantity("launch_s", "s", zero=True),
    )
    given.finish()
    return efficiency


def _collective(given: Fields) -> OperatorEfficiency:
    efficiency = OperatorEfficiency(
        flops_efficiency=1.0,
        bandwidth_efficiency=_fraction(given, "bandwidth_efficiency"),
        knee=0.0,
        launch_s=given.quantity("launch_s", "s", zero=True),
    )
    given.finish()
    return efficiency


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
