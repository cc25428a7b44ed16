"""Calibration sets fitted to whole measured iterations: what each of their fits is of, and what the file says of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from evaluator.catalog.fields import Fields
from evaluator.errors import InputError

FORMS = ("polynomial", "table")
BEYOND = ("refuse", "extend")
"""What a configuration is that leaves the measured range: refused, or computed and said to be extrapolated."""

AXES = {"prefill": ("prefill_tokens", "past_tokens", "decodes", "context"), "decode": ("decodes", "context")}
"""What tables have axes of: see ``evaluator.cost.quantities``."""
RANGES = {phase: (*axes, "decode_context") for phase, axes in AXES.items()}
"""What has a measured range: the same and the context of all decodes together, which ends where the KV cache does."""

TERMS = {
    "prefill": ("constant", "prefill_tokens", "prompts", "past_tokens", "area", "decodes", "context"),
    "decode": ("constant", "decodes", "decodes_squared", "context"),
}
"""Terms of polynomials (``evaluator.cost.polynomial``)."""


@dataclass(frozen=True)
class MeasuredPhase:
    """Iterations with prompts, or without. ``ranges`` (low, high) are those of the measurements, by quantity.

    A polynomial has seconds per unit of each of ``TERMS``; a table has knots of each quantity (one alone where it does
    not depend on it) and seconds, the last quantity running fastest.
    """

    ranges: Mapping[str, tuple[float, float]]
    coefficients: tuple[float, ...] = ()
    knots: tuple[tuple[float, ...], ...] = ()
    seconds: tuple[float, ...] = ()


@dataclass(frozen=True)
class Iterations:
    """One fit: of a model, split and precision. A phase of which nothing was measured is absent."""

    model: str
    tensor_parallel: int
    expert_parallel: int
    precision: tuple[str, str, str]  # weights, activations, kv
    phases: Mapping[str, MeasuredPhase]


def read_iterations(given: Fields, form: str) -> tuple[Iterations, ...]:
    """The fits below the key ``iterations`` of a set."""
    fits_place = given.place("iterations")
    fits: dict[tuple, Iterations] = {}
    for index, section in enumerate(given.sequence("iterations")):
        fit = _one(Fields(section, f"{fits_place}[{index}]"), form)
        key = (fit.model, fit.tensor_parallel, fit.expert_parallel, fit.precision)
        if key in fits:
            raise InputError(f"{fits_place}[{index}]: a second fit of the same model, split and precision")
        fits[key] = fit
    return tuple(fits.values())


def _one(given: Fields, form: str) -> Iterations:
    dtypes = given.inner("precision", {})
    iterations = Iterations(
        model=given.text("model"),
        tensor_parallel=given.integer("tensor_parallel"),
        expert_parallel=given.integer("expert_parallel", 1),
        precision=(
            dtypes.text("weights", "checkpoint"), dtypes.text("activations", "bf16"), dtypes.text("kv", "bf16"),
        ),
        phases={
            phase: (_polynomial if form == "polynomial" else _table)(given.inner(phase), phase)
            for phase in AXES
            if given.raw(phase, None) is not None
        },
    )  # fmt: skip
    dtypes.finish()
    given.finish()
    if not iterations.phases:
        raise InputError(f"{given.where}: neither prefill nor decode is there")
    return iterations


def _polynomial(given: Fields, phase: str) -> MeasuredPhase:
    factors = given.inner("coefficients")
    coefficients = tuple(factors.quantity(term, "s", 0.0, zero=True) for term in TERMS[phase])
    factors.finish()
    # Terms that are 0 are left out of a file (`calibrate.whole`), so that each alone may be.
    if not any(coefficients):
        raise InputError(f"{factors.where}: all of them are 0, so an iteration would take no time")
    phase_fit = MeasuredPhase(_ranges(given, phase), coefficients=coefficients)
    given.finish()
    return phase_fit


def _table(given: Fields, phase: str) -> MeasuredPhase:
    axes = given.inner("axes")
    # One knot where a table has no such axis: `cost.table.interpolated` passes it by.
    knots = tuple(_numbers(axes, name) if axes.raw(name, None) is not None else (0.0,) for name in AXES[phase])
    axes.finish()
    for name, values in zip(AXES[phase], knots, strict=True):
        if list(values) != sorted(set(values)):
            raise InputError(f"{axes.place(name)}: the knots must ascend")
    seconds = _numbers(given, "seconds")
    shape = tuple(map(len, knots))
    if len(seconds) != np.prod(shape):
        raise InputError(
            f"{given.place('seconds')}: expected {np.prod(shape)} numbers, one for each combination of the knots "
            f"({' x '.join(map(str, shape))}), got {len(seconds)}"
        )
    if min(seconds) <= 0:
        raise InputError(f"{given.place('seconds')}: must be above 0")
    for axis, name in enumerate(AXES[phase]):
        # A fall is noise of the measurements, and a search would prefer the larger batch for being faster: who writes
        # the set has to smooth it.
        if (np.diff(np.reshape(seconds, shape), axis=axis) < 0).any():
            raise InputError(f"{given.place('seconds')}: fall where {name} grow; more work must not take less time")
    phase_fit = MeasuredPhase(_ranges(given, phase), knots=knots, seconds=seconds)
    for name, values in zip(AXES[phase], knots, strict=True):
        # Beyond its last knot a table has no slope: only where it does not depend on a quantity may the range go on.
        if len(values) > 1 and phase_fit.ranges[name][1] > values[-1]:
            raise InputError(f"{given.where}.ranges.{name}: ends beyond the last knot, {values[-1]:g}")
    given.finish()
    return phase_fit


def _numbers(given: Fields, key: str) -> tuple[float, ...]:
    values = given.sequence(key)
    inner = Fields(dict(enumerate(values)), given.place(key))
    return tuple(inner.number(index) for index in range(len(values)))  # type: ignore[arg-type]


def _ranges(given: Fields, phase: str) -> dict[str, tuple[float, float]]:
    inner = given.inner("ranges")
    ranges = {}
    for name in RANGES[phase]:
        ends = _numbers(inner, name)
        if len(ends) != 2 or ends[0] > ends[1]:
            raise InputError(f"{inner.place(name)}: expected the smallest and the largest measured, got {list(ends)}")
        ranges[name] = (ends[0], ends[1])
    inner.finish()
    return ranges
