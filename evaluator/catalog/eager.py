"""Calibration sets of the eager operator set: what unfused PyTorch modules reach of a device, and their host."""

from __future__ import annotations

import math
from dataclasses import dataclass

from evaluator.catalog.fields import Fields

EAGER = "eager"
TABLES = ("corrected", "as_printed")
"""Works and traffic of the operators as they are, or as BestServe prints them, slips included."""
COPIES = ("update", "repeat_kv", "upcast")


@dataclass(frozen=True)
class EagerPhase:
    """Parts of the device's peaks that the operators of a phase reach.

    ``copies`` are those of the memory bandwidth that operators which only copy reach: the update of the KV cache, the
    repetition of KV heads, and upcasting. Infinite: they take no time.
    """

    flops_efficiency: float
    bandwidth_efficiency: float
    link_efficiency: float
    copies: tuple[float, ...] = (math.inf,) * len(COPIES)


@dataclass(frozen=True)
class EagerFigures:
    """One set. The host dispatches module after module, seconds each; it does not run ahead of a layer unless said."""

    prefill: EagerPhase
    decode: EagerPhase
    norm_s: float
    attention_s: float
    feed_forward_s: float
    message_s: float  # that a transmission takes at least
    runs_ahead: bool
    tables: str  # corrected | as_printed


def read_eager(given: Fields) -> EagerFigures:
    """The figures of a set of ``form: eager``, and ``sources`` with a text for each section."""
    host = given.inner("dispatch")
    figures = EagerFigures(
        prefill=_phase(given.inner("prefill")),
        decode=_phase(given.inner("decode")),
        norm_s=host.quantity("norm_s", "s", zero=True),
        attention_s=host.quantity("attention_s", "s", zero=True),
        feed_forward_s=host.quantity("feed_forward_s", "s", zero=True),
        runs_ahead=host.flag("runs_ahead", False),
        message_s=given.quantity("message_s", "s", 0.0, zero=True),
        tables=given.choice("tables", TABLES, TABLES[0]),
    )
    host.finish()
    return figures


def read_sources(given: Fields) -> dict[str, str]:
    """Where each section of a set is from."""
    inner = given.inner("sources")
    sources = {key: inner.text(key) for key in ("prefill", "decode", "dispatch")}
    sources |= {key: inner.text(key) for key in ("message_s", "tables") if inner.raw(key, None) is not None}
    inner.finish()
    return sources


def _phase(given: Fields) -> EagerPhase:
    copies = given.inner("copies", {})
    phase = EagerPhase(
        flops_efficiency=given.number("flops_efficiency", low=1e-6, high=1.0),
        bandwidth_efficiency=given.number("bandwidth_efficiency", low=1e-6, high=1.0),
        link_efficiency=given.number("link_efficiency", low=1e-6, high=1.0),
        copies=tuple(copies.number(name, math.inf, low=1e-6, high=1.0) for name in COPIES),
    )
    copies.finish()
    given.finish()
    return phase
