"""How a design is laid out, in short: ``tp2``, ``dp8 ep8``; several quantities that were swept are one name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

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
