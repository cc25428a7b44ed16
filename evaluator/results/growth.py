"""By how much an error of the times of service grows in a latency, where batches and queues grow with the service.

The errors that rows carry are of servers that keep up easily. Near saturation an error of 1 % in the times of service
may be 10 % of a wait. A result tells by how much where its sensitivities to all inputs were asked for, or where the
rate of arrivals was swept: with all times of service, and the times between arrivals, (1 + e) times as long, a run is
the same in another unit of time. So a latency L(r, s) at the rate r and times of service s is s f(r s), and
d ln L / d ln s = 1 + d ln L / d ln r.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from evaluator.metrics.outcomes import OK
from evaluator.metrics.variables import INPUTS
from evaluator.results.schema import quantities

if TYPE_CHECKING:
    import xarray as xr

RATES = ("memory_bandwidth", "flops", "link_bandwidth")
"""The INPUTS that are rates; the others are times."""
ARRIVALS = ("swept: workload.arrivals.rate_rps", "swept: workload.arrivals.scale")
"""Descriptions of the axes that tell how a latency grows with the rate."""
MOST_ROWS = 20_000
"""Of designs at the same rates that are looked at together, which bounds memory (some 500 bytes a row)."""
WAITING = 1.0 / 3.0
"""Part of TTFT: where the wait for admission is more, a queue decides, in which errors of the service grow."""


class LatencyGrowth:
    """The growth of errors in the latencies of a dataset. Saturated designs have it in their errors: 1."""

    def __init__(self, ds: xr.Dataset) -> None:
        self._ds = ds
        self._saturated = ds["saturated"].values.astype(bool)
        self._rate = next((name for name in quantities(ds) if ds[name].attrs.get("description") in ARRIVALS), None)
        self._designs = None if self._rate is None else _designs(ds, self._rate)
        self._near = None if self._designs is None else _neighbours(ds.sizes["config"], *self._designs)

    def of(self, name: str, rows: np.ndarray) -> np.ndarray:
        """The growth of the latency ``name`` in the designs at positions ``rows``, (row,), at least 1; NaN: unknown."""
        # Sensitivities first: they are of the design itself, where neighbouring rates are as far apart as the axis.
        factor = self.by_inputs(name, rows)
        factor = np.where(np.isnan(factor), self._by_rate(name, rows), factor)
        # At least 1: an error of the service is one of the latency at any load, and a factor below is
        # chance between two runs.
        return np.where(self._saturated[rows], 1.0, np.maximum(factor, 1.0))

    def by_rates(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Designs that ran at several rates, those at the same ones together: the positions of their rows, (rate,
        design), and the logarithms of the rates, ascending."""
        if self._designs is None:
            return
        order, starts_design = self._designs
        rates = self._ds[self._rate].values.astype(float)
        alike: dict[bytes, list[np.ndarray]] = {}
        for design in np.split(order, np.flatnonzero(starts_design)[1:]):
            if design.size > 1 and rates[design[0]] > 0.0:
                alike.setdefault(rates[design].tobytes(), []).append(design)
        for designs in alike.values():
            log_rate = np.log(rates[designs[0]])
            step = max(1, MOST_ROWS // log_rate.size)
            for start in range(0, len(designs), step):
                yield np.stack(designs[start : start + step], axis=1), log_rate

    def by_inputs(self, name: str, rows: np.ndarray) -> np.ndarray:
        """The sum of the elasticities to all times less those to all rates; 1 for an idle design."""
        slopes = self._ds.get(f"{name}_mean_elasticity")
        # All inputs or none: with one missing, the sum is not that of all service by 1 %.
        if slopes is None or set(slopes["input"].values.tolist()) != set(INPUTS):
            return np.full(rows.size, np.nan)
        signs = np.where(np.isin(slopes["input"].values, RATES), -1.0, 1.0)
        # Times that are 1 % longer and rates that are 1 % lower are one change: that of all service by 1 %.
        return slopes.values[rows] @ signs

    def _by_rate(self, name: str, rows: np.ndarray) -> np.ndarray:
        """1 + d ln L / d ln r over the neighbouring rates of the same design.

        Beside a saturated neighbour, whose latency tells how long the run was, and at an end of the axis the one other
        neighbour tells: towards saturation 1 / L falls linearly in r, as the wait of M/G/1 does (Pollaczek-Khinchine).
        """
        if self._near is None or f"{name}_mean" not in self._ds:
            return np.full(rows.size, np.nan)
        rate, latency = self._ds[self._rate].values, self._ds[f"{name}_mean"].values
        below, above = (neighbours[rows] for neighbours in self._near)
        # The index -1 reads the last row where there is no neighbour; ``sides`` masks what comes of it.
        above = np.where((above >= 0) & self._saturated[above], -1, above)
        with np.errstate(divide="ignore", invalid="ignore"):
            between = np.log(latency[above] / latency[below]) / np.log(rate[above] / rate[below])
            # 1 / L falls linearly in r towards saturation (M/G/1): its slope from one neighbour gives d ln L / d ln r
            # here.
            from_below = (latency[rows] / latency[below] - 1.0) / (1.0 - rate[below] / rate[rows])
            to_above = (1.0 - latency[rows] / latency[above]) / (rate[above] / rate[rows] - 1.0)
        # ``select`` takes the first that holds: both neighbours, else the lower, else the higher one.
        sides = [(below >= 0) & (above >= 0), below >= 0, above >= 0]
        return 1.0 + np.select(sides, [between, from_below, to_above], np.nan)

    def waiting(self, rows: np.ndarray) -> int:
        """How many of the designs at ``rows`` wait for more than WAITING of TTFT while their growth is not known."""
        if "queue_wait_s_mean" not in self._ds:
            return 0
        wait, whole = (self._ds[f"{name}_mean"].values[rows] for name in ("queue_wait_s", "ttft_s"))
        return int(np.count_nonzero((wait > WAITING * whole) & np.isnan(self.of("ttft_s", rows))))


def _designs(ds: xr.Dataset, rate: str) -> tuple[np.ndarray, np.ndarray]:
    """The rows that ran, those that differ in the rate alone side by side, by their rates, (row,); and whether a row is
    the first of such a design, (row,)."""
    same = np.zeros(ds.sizes["config"], dtype=np.int64)
    for name in quantities(ds):
        if name != rate:
            # Texts by way of objects: those of a Zarr store that is not read yet have a type of their own.
            values = ds[name].values if ds[name].dtype.kind in "biuf" else ds[name].values.astype(object).astype(str)
            _, level = np.unique(values, return_inverse=True)
            # Renumbered with each axis, so that the numbers stay below the number of designs: the product of ten
            # axes' levels would overflow 64 bits.
            _, same = np.unique(same * (level.max() + 1) + level, return_inverse=True)
    rates = ds[rate].values.astype(float)
    rows = np.flatnonzero((ds["status"].values == OK) & np.isfinite(rates))
    # Designs that differ in the rate alone stand side by side, by their rates; then neighbours are the next entries.
    order = rows[np.lexsort((rates[rows], same[rows]))]
    # Equal rates are of rows that differ by what is no quantity, such as names of steps: no design at two rates.
    return order, (np.diff(same[order], prepend=-1) != 0) | (np.diff(rates[order], prepend=np.nan) == 0.0)


def _neighbours(rows: int, order: np.ndarray, starts_design: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The positions of the designs at the next lower and the next higher rate, (config,); -1: there is none."""
    lower, higher = order[:-1], order[1:]
    near = ~starts_design[1:]
    below, above = np.full((2, rows), -1)
    below[higher[near]], above[lower[near]] = lower[near], higher[near]
    return below, above
