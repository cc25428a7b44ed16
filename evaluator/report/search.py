"""The designs of a search: which serve something, and which come first."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluator.errors import InputError
from evaluator.metrics.outcomes import OK

if TYPE_CHECKING:
    import xarray as xr

GOODPUT = "goodput"
RANKS = {
    GOODPUT: ("goodput_rps", "goodput"),
    "gpu": ("goodput_rps_per_gpu", "goodput per GPU"),
    "usd": ("goodput_per_usd", "requests per dollar"),
    "joule": ("tok_per_joule", "output tokens per joule"),
}
"""What designs are ranked by, the larger the better: variable and words."""

PRICE_KEYS = "deployment.usd_per_device_hour; of a stage's pool deployment.pools.NAME.usd_per_device_hour"

_FEWEST = {"gpu": ("devices", "fewest devices"), "usd": ("usd_per_hour", "lowest price per hour")}


def question_of(ds: xr.Dataset) -> dict[str, Any]:
    """What was searched: ``rate_rps`` (None: the goodput), ``bracket``, and the budget."""
    return json.loads(ds.attrs["search"])


_IN_LAYOUT = re.compile(
    r"swept: deployment\.(pools\.\w+\.)?(role|replicas|(tensor|pipeline|data|expert)_parallel)|swept: deployment\.pools"
)


def in_layout(ds: xr.Dataset, name: str) -> bool:
    """Whether ``pool_layout`` tells a swept coordinate."""
    return _IN_LAYOUT.fullmatch(str(ds[name].attrs.get("description", ""))) is not None


def serves(ds: xr.Dataset) -> np.ndarray:
    """Which designs serve some rate, or the one that was asked for, (config,)."""
    able = ds["status"].values == OK
    if question_of(ds)["rate_rps"] is not None:
        # The status goes on behind the word, with what the search found odd of the run.
        return able & np.char.startswith(ds["search_status"].values.astype(str), "met")
    return able & (ds["goodput_rps"].values > 0.0)


def check_rank(by: str) -> None:
    """InputError for what is no rule."""
    if by not in RANKS:
        raise InputError(f"designs cannot be ranked by {by!r}; use {', '.join(RANKS)}")


def ranking(ds: xr.Dataset, by: str | None = None) -> tuple[np.ndarray, str]:
    """The rows that serve something, best first, and the rule in words; ``by`` None: as the search did.

    Where a rate was asked for designs are ranked by what they take: price, or devices where not all prices are known.
    Errors: InputError for an unknown rule, and where no design has what it needs.
    """
    if by is None:
        try:
            return ranking(ds, str(ds.attrs.get("ranked_by", GOODPUT)))
        except InputError:  # it could not, for want of a price or of a power
            return ranking(ds, GOODPUT)
    check_rank(by)
    rows = np.flatnonzero(serves(ds))
    if not rows.size:
        return rows, ""
    name, words = RANKS[by]
    sign = -1.0
    # All serve the same rate then: what tells them apart is what they take. Joules per token do so in either question.
    if question_of(ds)["rate_rps"] is not None and by != "joule":
        priced = bool(np.isfinite(ds["usd_per_hour"].values[rows]).all())
        name, words = _FEWEST["usd" if by == "usd" or (by == "goodput" and priced) else "gpu"]
        sign = 1.0
    values = ds[name].values[rows]
    if not np.isfinite(values).any():
        missing = f"price ({PRICE_KEYS})" if "usd" in name else "power"
        raise InputError(f"designs cannot be ranked by {by}: no {missing} of their hardware is known")
    # Unknown comes last, whichever way the measure is sorted.
    first = np.where(np.isnan(values), np.inf, sign * values)
    # A search's bracket makes many goodputs equal: of those the one with fewer devices comes first.
    second = -ds["goodput_rps_per_gpu"].values[rows] if "goodput_rps_per_gpu" in ds else ds["devices"].values[rows]
    return rows[np.lexsort((second, first))], words
