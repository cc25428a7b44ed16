"""Requests -> what a run was like over time: arrivals, completions, requests in the system, latencies by window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    "lost_rps": ("1/s", "requests that are lost with a replica in the window / its length"),
    "output_tok_per_s": ("token/s", "output tokens of the requests that are completed in the window / its length"),
    "in_system": ("1", "requests that have arrived and not all their tokens, mean over the window"),
    "replicas": (
        "1",
        "replicas that are there, from the start of their start-up until they have gone, mean while a run is on",
    ),
    "replicas_up": ("1", "replicas that serve, of those that fail and come back, mean while a run is on"),
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
    alive_of_pools: Mapping[str, Sequence[np.ndarray]] | None = None,
    up: Sequence[np.ndarray] = (),
) -> xr.Dataset:
    """A run in windows of ``every`` (seconds, or text such as ``"10min"``), from its table of requests.

    Dimensions: ``time`` (the windows' beginnings, seconds) and ``quantile`` (``levels``). Warm-up and the end are
    there: a window tells what its clients saw. ``bounds_s``: the most of ``ttft_s``, ``tpot_s`` and ``e2e_s`` that an
    objective allows a request, ``class_bounds_s`` what it allows one of a class, beside that; without any there is no
    ``attainment``. Requests of no bound are left out of it. With a column ``class`` arrivals, latencies and attainment
    are there for each class, too. ``alive``: of each seed, of a fleet, from when until when every replica was there,
    (replica, 2); then the number of ``replicas`` is told, and of several pools ``pool_replicas``; ``up`` likewise of
    the times in which replicas that fail serve, as ``replicas_up``. Latencies of windows without arrivals are NaN.
    Errors: InputError for a width of none, beyond the run, or so small that there would be over MOST_WINDOWS.
    """
    import xarray as xr

    windows = _windows_of(requests, parse_quantity(every, "s", "the length of a window"))
    by_window = requests.assign(window=windows.of(requests["arrival_s"].to_numpy(np.float64)))
    bounds = {"": bounds_s or {}, **(class_bounds_s or {})}
    if any(bounds.values()):
        by_window["within"] = _within(by_window, bounds)
    values = _flows(by_window, windows)
    runs = _runs(requests, alive or up) if alive or up else np.empty((0, 2))
    if alive:
        values["replicas"] = ("time",), windows.there(alive, runs)
    if up:
        values["replicas_up"] = ("time",), windows.there(up, runs)
    if alive_of_pools:
        of_pools = [windows.there(spans, runs) for spans in alive_of_pools.values()]
        values["pool_replicas"] = ("time", "pool"), np.stack(of_pools, axis=1)
    seen = _of_arrivals(by_window, windows.count, levels)
    values |= {name: (("time", *dims), data) for name, (dims, data) in seen.items()}
    classes = sorted(set(by_window["class"])) if "class" in by_window else []
    if classes:
        values |= _of_classes([by_window[by_window["class"] == name] for name in classes], windows, levels)
    return xr.Dataset(
        {name: (dims, data, _described(name)) for name, (dims, data) in values.items()},
        coords=_coordinates(windows, levels, list(alive_of_pools or ()), classes),
        attrs={"window_s": windows.width_s, "seeds": windows.seeds},
    )


def _coordinates(
    windows: _Windows, levels: Sequence[float], pools: Sequence[str], classes: Sequence[str]
) -> dict[str, Any]:
    """``time`` and ``quantile``; ``pool`` and ``class`` where a run has several."""
    begins = f"beginning of a window of {windows.width_s:g} s"
    coords: dict[str, Any] = {
        "time": ("time", windows.edges[:-1], {"units": "s", "description": begins}),
        "quantile": ("quantile", np.asarray(levels, dtype=np.float64), {"units": "1"}),
    }
    if pools:
        coords["pool"] = ("pool", np.array(pools), {"units": "1", "description": "pool of replicas"})
    if classes:
        coords["class"] = ("class", np.array(classes), {"units": "1", "description": "class of requests"})
    return coords


@dataclass(frozen=True)
class _Windows:
    """Windows of the same length side by side, and how many runs are counted in each of them."""

    width_s: float
    count: int
    seeds: int

    @property
    def edges(self) -> np.ndarray:
        return self.width_s * np.arange(self.count + 1)

    def of(self, times_s: np.ndarray) -> np.ndarray:
        """The number of the window of each time."""
        # The last token may fall on the last edge, which is behind the last window.
        return np.minimum((times_s / self.width_s).astype(np.int64), self.count - 1)

    def rate(self, numbers: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
        """Events per second and run of each window; ``numbers``: of the window of every event."""
        return np.bincount(numbers, weights, self.count) / (self.width_s * self.seeds)

    def there(self, alive: Sequence[np.ndarray], runs: np.ndarray) -> np.ndarray:
        """How many replicas are, in the mean over the part of each window in which a run is on; NaN where none is.

        ``alive`` as of ``over_time``, ``runs``: of each seed from when until when, (seed, 2).
        """
        # Over the whole of the first and the last window, time before the run and behind it would pass for absence.
        there_s, on_s = self._passed(np.concatenate(alive)), self._passed(runs)
        # 1e-9: what is left of differences of large sums where no run is on.
        return np.divide(there_s, on_s, out=np.full(self.count, np.nan), where=on_s > 1e-9 * self.width_s)

    def present(self, spans: np.ndarray) -> np.ndarray:
        """How many are there, in the mean over each window; ``spans``: of each from when until when, (one, 2)."""
        return self._passed(spans) / (self.width_s * self.seeds)

    def _passed(self, spans: np.ndarray) -> np.ndarray:
        """Seconds of each window that are in the spans, in sum.

        Those that came up to a time, less those that went, integrated from 0 to each edge; of windows the differences.
        """
        came_s, went_s = np.sort(spans, axis=0).T
        passed = np.diff(_integral(came_s, self.edges) - _integral(went_s, self.edges))
        # Differences of large sums: with nobody there it may come out at -1e-12.
        return np.maximum(passed, 0.0)


def _runs(requests: pd.DataFrame, spans: Sequence[np.ndarray]) -> np.ndarray:
    """From when until when the run of each seed is on, (seed, 2), by the ``spans`` in which its replicas are there."""
    begins = np.array([of_seed[:, 0].min() for of_seed in spans])
    ends = np.array([of_seed[:, 1].max() for of_seed in spans])
    if "lost" in requests:
        # A run ends with all replicas down where its last requests are lost with them.
        lost_s = requests["last_token_s"].where(requests["lost"]).groupby(requests["seed"], sort=False).max()
        ends = np.fmax(ends, lost_s.to_numpy(np.float64))
    return np.stack([begins, ends], axis=1)


def _windows_of(requests: pd.DataFrame, width_s: float) -> _Windows:
    if not len(requests):
        raise InputError("there are no requests to tell over time")
    end = float(requests["last_token_s"].max())
    # In a window beyond the run everything would be less than it was, by as much as the run is shorter.
    if not width_s > 0 or not 1.0 <= end / width_s <= MOST_WINDOWS:
        raise InputError(
            f"windows of {width_s:g} s (--over-time): a run of {end:,.0f} s takes 1 to {MOST_WINDOWS:,} windows; use "
            f"{max(end / 100, 1e-3):.3g}s"
        )
    return _Windows(width_s, max(1, int(np.ceil(end / width_s))), requests["seed"].nunique())


def _flows(requests: pd.DataFrame, windows: _Windows) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
    """Rates of arrivals, completions, output tokens, refusals and losses, and the requests in the system, by window."""
    arrivals, ends = (requests[name].to_numpy(np.float64) for name in ("arrival_s", "last_token_s"))
    came, went = requests["window"].to_numpy(), windows.of(ends)
    # Who was refused goes at once, who is lost with its replica; neither has tokens, nor is completed.
    answered = ~_unanswered(requests)
    served, tokens = went[answered], requests["output_tokens"].to_numpy(np.float64)[answered]
    flows = {
        "arrivals_rps": windows.rate(came),
        "completions_rps": windows.rate(served),
        "output_tok_per_s": windows.rate(served, tokens),
        "in_system": windows.present(np.stack([arrivals, ends], axis=1)),
    }
    for name in ("refused", "lost"):
        if name in requests:
            flows[f"{name}_rps"] = windows.rate(went[requests[name].to_numpy()])
    return {name: (("time",), values) for name, values in flows.items()}


def _unanswered(requests: pd.DataFrame) -> np.ndarray:
    """Which requests were refused or lost, (request,)."""
    some = [requests[name].to_numpy(bool) for name in ("refused", "lost") if name in requests]
    return np.logical_or.reduce(some) if some else np.zeros(len(requests), dtype=bool)


def _of_classes(
    of_classes: Sequence[pd.DataFrame], windows: _Windows, levels: Sequence[float]
) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
    """Arrivals, latencies and attainment of each class, side by side behind time."""
    rates = [windows.rate(requests["window"].to_numpy()) for requests in of_classes]
    values: dict[str, tuple[tuple[str, ...], np.ndarray]] = {
        "class_arrivals_rps": (("time", "class"), np.stack(rates, axis=1))
    }
    seen = [_of_arrivals(requests, windows.count, levels) for requests in of_classes]
    for name, (dims, _) in seen[0].items():
        values[f"class_{name}"] = ("time", "class", *dims), np.stack([variables[name][1] for variables in seen], axis=1)
    return values


def _described(name: str) -> dict[str, str]:
    units, formula = _VARIABLES[name.removeprefix("class_").removeprefix("pool_")]
    of = next((f"; of the {kind}" for kind in ("class", "pool") if name.startswith(f"{kind}_")), "")
    return {"units": units, "description": formula + of}


def _within(requests: pd.DataFrame, bounds: Mapping[str, Mapping[str, float]]) -> np.ndarray:
    """1.0 where a request is within the bounds of all (under the empty name) and of its class, NaN without any."""
    values = {name: requests[name].to_numpy(np.float64)[None, None] for most in bounds.values() for name in most}
    objectives = tuple(
        Bounds(latency.removesuffix("_s"), "mean", np.array([bound_s]), name)
        for name, most in bounds.items()
        for latency, bound_s in most.items()
    )
    members = {name: (requests["class"] == name).to_numpy()[None, None] for name in bounds if name}
    within = within_objectives(values, objectives, members, _unanswered(requests)[None, None])
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
