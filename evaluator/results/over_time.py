"""Requests -> what a run was like over time: arrivals, completions, requests in the system, latencies by window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluator.errors import InputError
from evaluator.metrics.latency import within_objectives
from evaluator.metrics.outcomes import Bounds
from evaluator.units import parse_quantity

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

MOST_WINDOWS = 100_000
LATENCIES = ("ttft_s", "tpot_s", "e2e_s")
_VARIABLES = {
    "arrivals_rps": ("1/s", "requests that arrive in the window / its length"),
    "completions_rps": ("1/s", "requests whose last token comes in the window / its length"),
    "refused_rps": ("1/s", "requests that are refused in the window / its length"),
    "output_tok_per_s": ("token/s", "output tokens of the requests that are completed in the window / its length"),
    "in_system": ("1", "requests that have arrived and not all their tokens, mean over the window"),
    "replicas": ("1", "replicas that are there, from the start of their start-up until they have gone, mean"),
    "ttft_s": ("s", "time to first token of the requests that arrive in the window"),
    "tpot_s": ("s", "time per output token of the requests that arrive in the window"),
    "e2e_s": ("s", "end-to-end latency of the requests that arrive in the window"),
    "attainment": ("1", "requests that arrive in the window and are within the bounds of all objectives / all of them"),
}
"""Unit and formula of each variable; rates and counts are means over the seeds, quantiles of all seeds' requests."""


def over_time(
    requests: pd.DataFrame,
    every: float | str,
    levels: Sequence[float] = (0.5, 0.9, 0.99),
    bounds_s: Mapping[str, float] | None = None,
    class_bounds_s: Mapping[str, Mapping[str, float]] | None = None,
    alive: Sequence[np.ndarray] = (),
) -> xr.Dataset:
    """A run in windows of ``every`` (seconds, or text such as ``"10min"``), from its table of requests.

    Dimensions: ``time`` (the windows' beginnings, seconds) and ``quantile`` (``levels``). Warm-up and the end are
    there: a window tells what its clients saw. ``bounds_s``: the most of ``ttft_s``, ``tpot_s`` and ``e2e_s`` that an
    objective allows a request, ``class_bounds_s`` what it allows one of a class, beside that; without any there is no
    ``attainment``. Requests of no bound are left out of it. With a column ``class`` arrivals, latencies and attainment
    are there for each class, too. ``alive``: of each seed, of a fleet, from when until when every replica was there,
    (replica, 2); then the number of ``replicas`` is told. Latencies of windows without arrivals are NaN.
    Errors: InputError for a width of none, or so small that there would be over MOST_WINDOWS.
    """
    import xarray as xr

    width = parse_quantity(every, "s", "the length of a window")
    if not len(requests):
        raise InputError("there are no requests to tell over time")
    end = float(requests["last_token_s"].max())
    if not width > 0 or not end / width <= MOST_WINDOWS:
        raise InputError(
            f"windows of {width:g} s: a run of {end:,.0f} s takes 1 to {MOST_WINDOWS:,} windows; use "
            f"{max(end / 100, 1e-3):.3g} s"
        )
    count = max(1, int(np.ceil(end / width)))
    edges = width * np.arange(count + 1)
    seeds = requests["seed"].nunique()
    arrivals, ends = (requests[name].to_numpy(np.float64) for name in ("arrival_s", "last_token_s"))
    # The last token may fall on the last edge, which is behind the last window.
    came, went = (np.minimum((times / width).astype(np.int64), count - 1) for times in (arrivals, ends))
    per_second = 1.0 / (width * seeds)
    # Who was refused goes at once, and neither has tokens nor is completed.
    refused = requests["refused"].to_numpy() if "refused" in requests else np.zeros(len(requests), dtype=bool)
    served = went[~refused]
    tokens = requests["output_tokens"].to_numpy(np.float64)[~refused]
    # Requests that came up to a time, less those that went, integrated from 0 to each edge; of windows the differences.
    waiting = np.diff(_integral(np.sort(arrivals), edges) - _integral(np.sort(ends), edges))
    values: dict[str, tuple[Any, np.ndarray]] = {
        "arrivals_rps": ("time", np.bincount(came, minlength=count) * per_second),
        "completions_rps": ("time", np.bincount(served, minlength=count) * per_second),
        "output_tok_per_s": (
            "time",
            np.bincount(served, weights=tokens, minlength=count) * per_second,
        ),
        # Differences of large sums: an empty system may come out at -1e-12.
        "in_system": ("time", np.maximum(waiting, 0.0) * per_second),
    }
    if alive:
        begins, gone = (np.sort(np.concatenate([spans[:, column] for spans in alive])) for column in (0, 1))
        values["replicas"] = "time", np.diff(_integral(begins, edges) - _integral(gone, edges)) * per_second
    if "refused" in requests:
        values["refused_rps"] = "time", np.bincount(came[refused], minlength=count) * per_second
    windows = requests.assign(window=came)
    bounds = {"": bounds_s or {}, **(class_bounds_s or {})}
    if any(bounds.values()):
        windows["within"] = _within(windows, bounds)
    values |= {name: (("time", *dims), data) for name, (dims, data) in _of_arrivals(windows, count, levels).items()}
    coords = {}
    if "class" in windows:
        names = sorted(set(windows["class"]))
        coords["class"] = ("class", np.array(names), {"units": "1", "description": "class of requests"})
        of_classes = [windows[windows["class"] == name] for name in names]
        by_class = [_of_arrivals(each, count, levels) for each in of_classes]
        for name, (dims, _) in by_class[0].items():
            stacked = np.stack([columns[name][1] for columns in by_class], axis=1)
            values[f"class_{name}"] = ("time", "class", *dims), stacked
        each_class = [np.bincount(each["window"], minlength=count) * per_second for each in of_classes]
        values["class_arrivals_rps"] = ("time", "class"), np.stack(each_class, axis=1)
    attributes = {name: _described(name) for name in values}
    return xr.Dataset(
        {name: (dims, data, attributes[name]) for name, (dims, data) in values.items()},
        coords={
            "time": ("time", edges[:-1], {"units": "s", "description": f"beginning of a window of {width:g} s"}),
            "quantile": ("quantile", np.asarray(levels, dtype=np.float64), {"units": "1"}),
            **coords,
        },
        attrs={"window_s": width, "seeds": seeds},
    )


def _described(name: str) -> dict[str, str]:
    units, formula = _VARIABLES[name.removeprefix("class_")]
    return {"units": units, "description": formula + ("; of the class" if name.startswith("class_") else "")}


def _within(requests: pd.DataFrame, bounds: Mapping[str, Mapping[str, float]]) -> np.ndarray:
    """1.0 where a request is within the bounds of all (under the empty name) and of its class, NaN without any."""
    values = {name: requests[name].to_numpy(np.float64)[None, None] for most in bounds.values() for name in most}
    objectives = tuple(
        Bounds(latency.removesuffix("_s"), "mean", np.array([bound_s]), name)
        for name, most in bounds.items()
        for latency, bound_s in most.items()
    )
    members = {name: (requests["class"] == name).to_numpy()[None, None] for name in bounds if name}
    refused = requests["refused"].to_numpy()[None, None] if "refused" in requests else None
    within = within_objectives(values, objectives, members, refused)
    assert within is not None
    return within[0, 0]


def _of_arrivals(
    requests: pd.DataFrame, count: int, levels: Sequence[float]
) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
    """What requests saw by the window in which they came: latencies, and how many were within their bounds; with the
    dimensions behind time."""
    by_window = requests.groupby("window")
    values: dict[str, tuple[tuple[str, ...], np.ndarray]] = {}
    for name in LATENCIES:
        # Windows without arrivals have no row in a table by window, and stay NaN.
        quantiles = np.full((count, len(levels)), np.nan)
        table = by_window[name].quantile(list(levels)).unstack()
        quantiles[table.index] = table[list(levels)].to_numpy()  # ``unstack`` has sorted them
        values[name] = ("quantile",), quantiles
    if "within" in requests:
        shares = np.full(count, np.nan)
        table = by_window["within"].mean()
        shares[table.index] = table.to_numpy()
        values["attainment"] = (), shares
    return values


def _integral(times: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The integral from 0 to each edge of the number of sorted ``times`` up to then: n(t) t - the sum of those n."""
    before = np.searchsorted(times, edges, side="right")
    sums = np.concatenate([[0.0], np.cumsum(times)])
    return before * edges - sums[before]
