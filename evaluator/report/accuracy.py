"""How far the numbers of a result are expected to be from a real system, in a line for each of what they rest on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from evaluator.metrics.variables import INPUTS

if TYPE_CHECKING:
    import xarray as xr

_SHOWN = {"goodput_rps": "goodput", "ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "E2E"}
RATES = ("memory_bandwidth", "flops", "link_bandwidth")
"""The INPUTS that are rates; the others are times."""
MOST = 3
"""Bases that are told one by one."""


def expected_errors(ds: xr.Dataset, rows: np.ndarray, most: int = MOST) -> list[str]:
    """What to expect of the designs at the positions ``rows``, by what they rest on, the ``most`` frequent first.

    Saturated ones, whose waits are off by more, count only where all are. Nothing of a dataset without model errors, as
    those of a version before.
    """
    if "model_error_basis" not in ds or not rows.size:
        return []
    calm = rows[~ds["saturated"].values[rows].astype(bool)]
    rows = calm if calm.size else rows
    bases, counts = np.unique(ds["model_error_basis"].values[rows].astype(str), return_counts=True)
    order = np.argsort(-counts, kind="stable")
    lines = [_line(ds, rows, str(bases[at]), int(counts[at]), bases.size) for at in order[:most]]
    lines += [f"and {bases.size - most} other bases (model_error_basis)"] if bases.size > most else []
    return [line for line in lines if line]


def _line(ds: xr.Dataset, rows: np.ndarray, basis: str, count: int, bases: int) -> str:
    mine = rows[ds["model_error_basis"].values[rows].astype(str) == basis]
    found = {
        label: ds[f"{name}_model_error"].values[mine] * _growth(ds, name, mine)
        for name, label in _SHOWN.items()
        if f"{name}_model_error" in ds
    }
    which = f" of {count:,} design{'s' * (count > 1)}" if bases > 1 else ""
    told = in_words(found)
    return f"expected error{which}: {told} ({basis})" if told else f"expected error{which}: not known ({basis})"


def _growth(ds: xr.Dataset, name: str, rows: np.ndarray) -> np.ndarray:
    """By what an error of the times of service grows in a latency, (row,): 1 where the elasticities do not tell.

    It is the sum of the elasticities to all times less those to all rates: 1 for an idle design, more where batches and
    queues grow with the service. Saturated designs have it in their errors.
    """
    slopes = ds.get(f"{name}_mean_elasticity")
    if slopes is None or set(slopes["input"].values.tolist()) != set(INPUTS):
        return np.ones(rows.size)
    signs = np.where(np.isin(slopes["input"].values, RATES), -1.0, 1.0)
    total = np.nan_to_num(slopes.values[rows] @ signs, nan=1.0)
    return np.where(ds["saturated"].values[rows].astype(bool), 1.0, np.maximum(total, 1.0))


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
