"""The highest rate at which each design meets its objectives, all designs in step and on the same requests.

Rates are the points (1 + bracket)^k of one lattice that all designs share, so that a design is at the same rate under
the same arrivals as in a sweep over these rates, and the result is the neighbouring pair of points of which the lower
meets the objectives and the upper does not. Chance may let a run meet them at a rate above one that misses them; then
the search ends at one of the pairs (``Bisection``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from evaluator.metrics import OK
from evaluator.plan import Member, Plan
from evaluator.search.bisection import Bisection
from evaluator.search.start import Starts
from evaluator.search.trials import Kept, Objectives, run

FIRST_STRIDE = 0.15
"""Of the first step away from the closed form's rate, in the logarithm."""
LOWEST = 1e-3
"""Part of the closed form's rate below which requests are alone, so that a lower rate changes nothing."""
UNBOUNDED = 8.0
"""A design that meets its objectives at so many times its throughput meets them at any rate."""
SLOPE_SPAN = 0.05
"""How far apart from the goodput, relative to it, the rates are that its standard error takes the slope from."""

SHORT = 3.0
"""A run in which requests come for fewer mean end-to-end latencies than this has hardly filled its batches."""

BRACKETED = "bracketed"
SATURATION = "saturation"
UNBOUNDED_STATUS = (
    "unbounded: the objectives hold however fast the requests come, and the throughput then is given; "
    "stricter objectives, or more requests, bound it"
)


class Watch(Protocol):
    """What is told how much has been done and how much is left, in runs of a design."""

    def expect(self, units: int) -> None: ...
    def advance(self, units: int = 1) -> None: ...


@dataclass
class History:
    """Every trial of every design: the lattice point and each latency as a part of its bound."""

    points: list[np.ndarray]  # of each round, (design,); a point of a design without a trial is meaningless
    ratios: list[np.ndarray]  # of each round, (design, objective); NaN without a trial

    def add(self, designs: np.ndarray, points: np.ndarray, ratios: np.ndarray, count: int) -> None:
        """A round of trials of some designs, of ``count`` in all."""
        all_points, all_ratios = np.zeros(count, dtype=np.int64), np.full((count, ratios.shape[1]), np.nan)
        all_points[designs], all_ratios[designs] = points, ratios
        self.points.append(all_points)
        self.ratios.append(all_ratios)


@dataclass(frozen=True)
class Goodput:
    """``rate_rps`` (design,) is 0 where no rate meets the objectives, ``status`` why. ``high_rps`` is the lowest rate
    above it that misses them (infinite: none), ``kept`` the run at the rate, or of a design without one at the lowest.
    """

    rate_rps: np.ndarray
    high_rps: np.ndarray
    stderr_rps: np.ndarray
    status: np.ndarray
    limit: np.ndarray  # the objective that the next higher rate misses by most, empty where none
    kept: Kept


def goodput(
    whole: Plan, members: Sequence[Member], levels: np.ndarray, bracket: float, watch: Watch | None = None
) -> Goodput:
    """Search the rates of designs that can run and whose arrivals have a rate."""
    count = len(members)
    objectives, starts = Objectives.of(members, levels), Starts(whole)
    step = np.log1p(bracket)
    start = np.array([round(np.log(starts.rate(member)) / step) for member in members], dtype=np.int64)
    bisection = Bisection(
        start,
        start + round(np.log(LOWEST) / step),
        start + round(np.log(1e6) / step),
        max(1, round(FIRST_STRIDE / step)),
    )
    kept, history = Kept(count), History([], [])
    lowest, unbounded = np.full(count, np.iinfo(np.int64).max), np.zeros(count, dtype=bool)
    error = np.full((count, len(objectives.bounds)), np.nan)  # of the ratios of the kept run
    done = 0
    while (open_ := bisection.open).size:
        points = bisection.next(open_)
        rates = (1.0 + bracket) ** points.astype(float)
        found, met = run(whole, [members[design] for design in open_], rates, levels)
        ratios, errors = objectives.ratios(found, open_)
        history.add(open_, points, ratios, count)
        better = np.flatnonzero(met | (~bisection.found[open_] & (points < lowest[open_])))
        kept.keep(open_[better], found, better)
        error[open_[better]] = errors[better]
        lowest[open_] = np.minimum(lowest[open_], points)
        bisection.tell(open_, points, met)
        endless = open_[met & (rates > UNBOUNDED * found["throughput_rps"])]
        unbounded[endless] = True
        bisection.close(endless)
        done += open_.size
        if watch is not None:
            watch.expect(done + bisection.left())
            watch.advance(open_.size)
    return _found(members, objectives, bisection, unbounded, history, error, kept, bracket)


def _found(
    members: Sequence[Member],
    objectives: Objectives,
    bisection: Bisection,
    unbounded: np.ndarray,
    history: History,
    error: np.ndarray,
    kept: Kept,
    bracket: float,
) -> Goodput:
    some = bisection.found
    rate = np.where(some, (1.0 + bracket) ** bisection.held.astype(float), 0.0)
    high = (1.0 + bracket) ** bisection.failed.astype(float)
    rate[unbounded], high[unbounded] = kept.values["throughput_rps"][unbounded], np.inf
    status = np.array([_bracketed(*one) for one in zip(members, rate, kept.values["e2e_s_mean"], strict=True)])
    status = status.astype(object)
    status[unbounded] = UNBOUNDED_STATUS
    limit = np.full(len(members), "", dtype=object)
    stderr = np.full(len(members), np.nan)
    points, ratios = np.array(history.points), np.array(history.ratios)
    for design in range(len(members)):
        tried = ~np.isnan(ratios[:, design]).all(axis=-1)
        place, ratio = points[tried, design], ratios[tried, design]
        if not some[design]:
            if kept.values["status"][design] == OK and ratio.size:
                missed = objectives.told(design, ratio[int(np.argmin(place))])
                status[design] = f"no rate meets the objectives: at {high[design]:.3g} requests/s {missed}"
            continue
        above = ratio[place == bisection.failed[design]]
        if unbounded[design] or not above.size or not np.isfinite(above[0]).any():
            continue
        if np.nanmax(above[0]) <= 1.0:
            limit[design] = SATURATION
            continue
        worst = int(np.nanargmax(above[0]))
        limit[design] = f"{objectives.bounds[worst].metric} {objectives.bounds[worst].statistic}"
        slope = _slope(place, np.log(ratio[:, worst]), int(bisection.held[design]), np.log1p(bracket))
        at = ratio[place == bisection.held[design], worst]
        if slope > 0.0 and at.size:
            stderr[design] = rate[design] * error[design, worst] / at[0] / slope
    return Goodput(rate, high, stderr, status, limit, kept)


def _bracketed(member: Member, rate_rps: float, e2e_s: float) -> str:
    """The status of a search that has found a bracket; it says where the run is too short to be relied on."""
    requests = member.workload.requests
    lifetimes = requests / (rate_rps * e2e_s) if rate_rps > 0.0 else np.inf
    if not lifetimes < SHORT:
        return BRACKETED
    return (
        f"{BRACKETED} in a short run: all {requests:,} requests come within {lifetimes:.2g} mean end-to-end latencies, "
        "so that the batches hardly fill; use more workload.requests"
    )


def _slope(points: np.ndarray, log_ratios: np.ndarray, held: int, step: float) -> float:
    """d ln latency / d ln rate between the nearest trials that are ``SLOPE_SPAN`` or more below and above the goodput.

    ``points`` (trial,) of the lattice are ``step`` apart in the logarithm; ``held`` is that of the goodput, and it and
    its neighbour are among them. Where there is no trial so far away it is the farthest. NaN where one is not finite.
    """
    far = max(1, round(SLOPE_SPAN / step))
    below, above = points[points <= held], points[points > held]
    first = below[below <= held - far].max(initial=below.min())
    last = above[above >= held + 1 + far].min(initial=above.max())
    ends = [log_ratios[np.flatnonzero(points == point)[0]] for point in (first, last)]
    return float((ends[1] - ends[0]) / ((last - first) * step))
