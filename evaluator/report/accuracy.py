"""How far the numbers of a result are expected to be from a real system, in a line for each of what they rest on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from evaluator.accuracy import SHARE
from evaluator.accuracy.basis import has_host
from evaluator.results.growth import LatencyGrowth
from evaluator.results.texts import distinct
from evaluator.units import counted

if TYPE_CHECKING:
    import xarray as xr

_SHOWN = {"goodput_rps": "goodput", "ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "E2E"}
WITHIN = f"{100 * SHARE:.0f} % of measured means within"
"""What the error of a prediction says of the measured values."""
MOST = 3
"""Bases that are told one by one."""


def expected_errors(ds: xr.Dataset, rows: np.ndarray, most: int = MOST, grown: bool = True) -> list[str]:
    """What to expect of the designs at the positions ``rows``, by what they rest on, the ``most`` frequent first.

    Latencies have the error of the service times its ``LatencyGrowth``; where that is not known of designs that wait,
    it is said. Over many designs, up to saturation, its range tells little: ``grown`` False puts it in words. Saturated
    ones, whose waits are off by more, count only where all are. Nothing of a dataset without model errors, as those of
    a version before.
    """
    if "model_error_basis" not in ds or not rows.size:
        return []
    # The errors were measured on servers that keep up; a saturated design's latency tells how long the run was.
    calm = rows[~ds["saturated"].values[rows].astype(bool)]
    rows = calm if calm.size else rows
    # Errors are told by what they rest on and not as one range: a fitted device beside one of a data sheet
    # would get the latter's.
    bases, basis_of = distinct(ds["model_error_basis"].values[rows])
    counts = np.bincount(basis_of)
    order = np.argsort(-counts, kind="stable")
    growth = LatencyGrowth(ds) if grown else None
    within = f", {WITHIN}" if grown else f", {WITHIN} and more towards saturation"
    lines: list[str] = []
    for number in order[:most]:
        which = f" of {counted(int(counts[number]), 'design')}" if bases.size > 1 else ""
        errors = _errors(ds, growth, rows[basis_of == number])
        lines.append(
            f"expected error{which}{'' if lines or not errors else within}: {errors or 'not known'} ({bases[number]})"
        )
    others = bases.size - most
    lines += [f"and {others} other bas{'e' if others > 1 else 'i'}s (model_error_basis)"] if others > 0 else []
    waiting = growth.waiting(rows) if growth is not None else 0
    if waiting:
        who = "all wait" if waiting == rows.size else f"{waiting:,} of {rows.size:,} designs wait"
        lines.append(
            f"{who} for over a third of TTFT, where errors grow several times: a swept rate or --sensitivity tells"
        )
    return lines


def _errors(ds: xr.Dataset, growth: LatencyGrowth | None, rows: np.ndarray) -> str:
    """The expected errors of the designs at ``rows``, which rest on the same, in words."""
    by_label = {}
    for name, label in _SHOWN.items():
        if f"{name}_model_error" in ds:
            # Unknown growth counts as none; that it is not known is a line of its own (``waiting``).
            more = 1.0 if growth is None else np.nan_to_num(growth.of(name, rows), nan=1.0)
            by_label[label] = ds[f"{name}_model_error"].values[rows] * more
    return in_words(by_label)


_TOLD = {
    "calibrated": "fitted to measurements of the device",
    "extrapolated": "fitted to measurements of others",
    "transferred": "sets of other devices",
    "datasheet": "of data sheets",
}


def mixtures(ds: xr.Dataset, rows: np.ndarray) -> list[str]:
    """Where the designs at ``rows`` rest on figures of different kinds, a part of what sets them apart may be these."""
    lines = []
    kinds, kind_of = distinct(ds["provenance"].values[rows])
    if kinds.size > 1:
        counts = np.bincount(kind_of)
        tally = ", ".join(f"{count:,} {_TOLD.get(kind, kind)}" for kind, count in zip(kinds, counts, strict=True))
        lines.append(f"efficiencies of different kinds: {tally}; calibration: datasheet treats all alike")
    if "model_error_basis" in ds:
        bases, which = distinct(ds["model_error_basis"].values[rows])
        # Asked once per basis and spread over the rows: there are a handful of bases and 100,000 designs.
        without = np.count_nonzero(~np.array([has_host(basis) for basis in bases], dtype=bool)[which])
        if 0 < without < rows.size:
            lines.append(
                f"{without:,} of {rows.size:,} designs have no host's times of servers, as the others have: "
                "their TTFT is too short by some milliseconds and an iteration"
            )
    return lines


def in_words(errors: Mapping[str, np.ndarray]) -> str:
    """``TTFT ± 5 %, TPOT ± 2 to 3 %``: the range of the errors of each label that are known, up to UNKNOWN."""
    parts = []
    for label, values in errors.items():
        finite = np.asarray(values)[~np.isnan(values)]
        if not finite.size:
            continue
        low, high = (percent(error) if error <= UNKNOWN else _BEYOND for error in (finite.min(), finite.max()))
        parts.append(f"{label} ± {high if low == high else f'{low} to {high}'} %")
    return ", ".join(parts)


UNKNOWN = 1.0
"""Beyond this relative error its size says nothing but that the model does not know the value."""
_BEYOND = f"more than {100 * UNKNOWN:.0f}"


def percent(error: float) -> str:
    """A relative error in percent, two digits."""
    # 0.0995: from there two digits would round to 10 %, which is two digits without a decimal.
    return f"{100 * error:.0f}" if error >= 0.0995 else f"{100 * error:.2g}"
