"""How far the numbers of a result are expected to be from a real system, in a line for each of what they rest on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import xarray as xr

_SHOWN = {"goodput_rps": "goodput", "ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "E2E"}
MOST = 3
"""Bases that are told one by one."""


def expected_errors(ds: xr.Dataset, rows: np.ndarray) -> list[str]:
    """What to expect of the designs at the positions ``rows``, by what they rest on, the most frequent first.

    Nothing of a dataset without model errors, as those of a version before.
    """
    if "model_error_basis" not in ds or not rows.size:
        return []
    bases, counts = np.unique(ds["model_error_basis"].values[rows].astype(str), return_counts=True)
    order = np.argsort(-counts, kind="stable")
    lines = [_line(ds, rows, str(bases[at]), int(counts[at]), bases.size) for at in order[:MOST]]
    lines += [f"and {bases.size - MOST} other bases (model_error_basis)"] if bases.size > MOST else []
    return [line for line in lines if line]


def _line(ds: xr.Dataset, rows: np.ndarray, basis: str, count: int, bases: int) -> str:
    mine = rows[ds["model_error_basis"].values[rows].astype(str) == basis]
    found = {
        label: ds[f"{name}_model_error"].values[mine] for name, label in _SHOWN.items() if f"{name}_model_error" in ds
    }
    which = f" of {count:,} designs" if bases > 1 else ""
    told = in_words(found)
    return f"expected error{which}: {told} ({basis})" if told else f"expected error{which}: not known ({basis})"


def in_words(errors: Mapping[str, np.ndarray]) -> str:
    """``TTFT ± 5 %, TPOT ± 2 to 3 %``: the range of the errors of each label that are known."""
    parts = []
    for label, values in errors.items():
        known = np.asarray(values)[np.isfinite(values)]
        if known.size:
            low, high = percent(known.min()), percent(known.max())
            parts.append(f"{label} ± {high if low == high else f'{low} to {high}'} %")
    return ", ".join(parts)


def percent(error: float) -> str:
    """A relative error in percent, two digits."""
    return f"{100 * error:.0f}" if error >= 0.0995 else f"{100 * error:.2g}"
