"""Axes and levels in a reader's words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluator.report.layouts import laid_out, short_layout

if TYPE_CHECKING:
    import xarray as xr

_NAMES = {"rate_rps": "arrival rate (requests/s)", "users": "concurrent users"}


def title(name: str) -> str:
    """An axis as a reader would write it."""
    return name.replace("_", " ")


def name_and_unit(ds: xr.Dataset, name: str) -> tuple[str, str]:
    """An axis as it stands before a value, and the unit after it: ``arrival rate``, ``requests/s``."""
    if name in _NAMES:
        words, _, unit = _NAMES[name].partition(" (")
        return words, unit.rstrip(")")
    unit = str(ds[name].attrs.get("units", "1"))
    return title(name), "" if unit == "1" else unit


def text(value: Any) -> str:
    """A level as short text."""
    return f"{value:.6g}" if isinstance(value, float | np.floating) else str(value)


def axis_title(ds: xr.Dataset, name: str) -> str:
    """An axis with its unit, as it stands below a panel."""
    unit = str(ds[name].attrs.get("units", "1"))
    return _NAMES.get(name, title(name) if unit == "1" else f"{title(name)} ({unit})")


def in_words(ds: xr.Dataset, row: int, names: Sequence[str]) -> str:
    """A configuration by the quantities ``names``: numbers with their names, text (hardware, policy) by itself, and
    several that lay out a pool together as one (``dp8 ep8``)."""
    layouts = laid_out(names)
    in_layouts = {name for of_pool in layouts.values() for name in of_pool}
    parts = [f"{pool} {short_layout(ds, of_pool, row)}".strip() for pool, of_pool in layouts.items()]
    parts += [
        f"{title(name)} {text(ds[name].values[row])}" if ds[name].dtype.kind in "iuf" else text(ds[name].values[row])
        for name in names
        if name not in in_layouts
    ]
    return ", ".join(parts)
