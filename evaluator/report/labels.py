"""Axes, levels and layouts of designs in a reader's words; the keys that lay out a pool are one name: ``dp8 ep8``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluator.units import readable

if TYPE_CHECKING:
    import xarray as xr

SHORT = {
    "tensor_parallel": "tp",
    "prefill_context_parallel": "pcp",
    "decode_context_parallel": "dcp",
    "pipeline_parallel": "pp",
    "data_parallel": "dp",
    "expert_parallel": "ep",
}
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


def named_level(ds: xr.Dataset, name: str, row: int) -> str:
    """A design's level of one quantity among others: numbers and empty lists with their names, bytes with their unit
    (``offload bytes 40 GB``), text by itself."""
    variable = ds.variables[name]
    value = variable.values[row]
    if variable.dtype.kind not in "iuf":
        return f"no {title(name)}" if str(value) == "[]" else text(value)
    unit = str(variable.attrs.get("units", "1"))
    shown_unit, scale = readable(unit, abs(float(value)))
    # Names end in other units themselves: ``cooldown_s``.
    return f"{title(name)} {text(value)}" if shown_unit == unit else f"{title(name)} {text(value / scale)} {shown_unit}"


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
    parts += [named_level(ds, name, row) for name in names if name not in in_layouts]
    return ", ".join(parts)


# --- layouts of pools: ``tp2``, ``dp8 ep8``


def pool_of(name: str) -> str | None:
    """The pool, or ``""`` for all, whose devices a swept quantity lays out; None for a quantity of anything else."""
    for key in SHORT:
        if name == key or name.endswith(f"_{key}"):
            return name.removesuffix(key).removesuffix("_")
    return None


def laid_out(names: Sequence[str]) -> dict[str, list[str]]:
    """The swept quantities that lay out a pool, by pool, where a pool has several of them."""
    pools: dict[str, list[str]] = {}
    for name in names:
        if (pool := pool_of(name)) is not None:
            pools.setdefault(pool, []).append(name)
    # One quantity alone keeps its own column: ``tensor parallel 4`` says more than ``tp4``.
    return {pool: of_pool for pool, of_pool in pools.items() if len(of_pool) > 1}


def short_layout(ds: xr.Dataset, names: Sequence[str], row: int) -> str:
    """``dp8 ep8`` of these quantities of a pool; what is not set, or one, is left out (``tp1`` if all are)."""
    values = {key: ds.variables[name].values[row] for name in names for key in SHORT if name.endswith(key)}
    parts = [f"{SHORT[key]}{int(values[key])}" for key in SHORT if key in values and values[key] > 1]
    return " ".join(parts) or f"{SHORT[next(key for key in SHORT if key in values)]}1"
