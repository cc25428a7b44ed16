"""The highest rate at which each design meets its objectives, all designs in step and on the same requests.

Rates are the points (1 + bracket)^k of one lattice that all designs share, so that a design is at the same rate under
the same arrivals as in a sweep over these rates, and the result is the neighbouring pair of points of which the lower
meets the objectives and the upper does not. Chance may let a run meet them at a rate above one that misses them; then
the search ends at one of the pairs (``Bisection``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evaluator.metrics import OK
from evaluator.metrics.latency import VARIABLE
from evaluator.plan import Configuration, Plan
from evaluator.progress import ProgressReport
from evaluator.search.bisection import Bisection
from evaluator.search.interpolation import guess, leaders_of
from evaluator.search.start import Starts
from evaluator.search.trials import Objectives, ReportedRuns, Values, headroom_of, run, unsteady

FIRST_STRIDE = 0.15
"""The first step away from the closed form's rate, in the logarithm."""
FIRST = 32
"""Designs at least that begin at the closed form's rate, before others begin at what these came to."""
LOWEST, HIGHEST = 1e-3, 1e6
"""Parts of the closed form's rate between which is searched: below requests are alone, above they all come at once."""
UNBOUNDED = 8.0
"""A design that meets its objectives at so many times its throughput meets them at any rate."""
SLOPE_SPAN = 0.05
"""How far apart from the goodput, relative to it, the rates are that its standard error takes the slope from."""

BRACKETED = "bracketed"
SATURATION = "saturation"
UNBOUNDED_STATUS = (
    "unbounded: the objectives hold however fast the requests come, and the throughput then is given; "
    "stricter objectives, or more requests, bound it"
)


@dataclass(frozen=True)
class Goodput:
    """``rate_rps`` (design,) is 0 where no rate meets the objectives, ``status`` why. ``high_rps`` is the lowest rate
    above it that misses them (infinite: none), ``reported`` the run at the rate, or of a design without one at the
    lowest. ``model_error`` is that of the rate, relative.
    """

    rate_rps: np.ndarray
    high_rps: np.ndarray
    stderr_rps: np.ndarray
    model_error: np.ndarray
    status: np.ndarray
    limit: np.ndarray  # the objective that the next higher rate misses by most, empty where none
    open_loop: np.ndarray
    reported: ReportedRuns
    trials: int

    @property
    def undecided(self) -> np.ndarray:
        """The designs with a rate whose run is not steady."""
        return np.flatnonzero(~self.reported.values["steady"] & (self.rate_rps > 0.0))

    @property
    def open_ended(self) -> np.ndarray:
        """The designs of an open loop that no rate makes miss their objectives: their run is too short to tell a rate.

        Their throughput is that of a burst, which takes as long to fill and to drain as to serve.
        """
        return np.flatnonzero(np.isinf(self.high_rps) & (self.rate_rps > 0.0) & self.open_loop)

    def replaced(self, designs: np.ndarray, other: Goodput) -> Goodput:
        """These results, with those of another search in the rows of some designs."""
        names = ("rate_rps", "high_rps", "stderr_rps", "model_error", "status", "limit", "open_loop")
        columns = {name: getattr(self, name).copy() for name in names}
        for name, column in columns.items():
            column[designs] = getattr(other, name)
        self.reported.keep(designs, other.reported.values, np.arange(designs.size))
        return Goodput(**columns, reported=self.reported, trials=self.trials + other.trials)


def goodput(
    whole: Plan,
    configurations: Sequence[Configuration],
    levels: np.ndarray,
    bracket: float,
    watch: ProgressReport | None = None,
    rates: np.ndarray | None = None,
    before: int = 0,
) -> Goodput:
    """Search the rates of designs that can run. Where all requests come at once there is no rate, and one run.

    ``rates`` (design,) are where the search begins, such as the result of one with fewer requests that took ``before``
    trials; the closed form says it where absent.
    """
    search = _Search(whole, configurations, levels, bracket, rates)
    search.run_at_once()
    done = before
    while (ready := search.ready).size:
        search.run_round(ready)
        done += ready.size
        if watch is not None:
            watch.expect(done + search.bisection.left())
            watch.advance(ready.size)
    above = search.run_above()
    if watch is not None:
        watch.expect(done + above)
        watch.advance(above)
    return search.result(done + above - before)


@dataclass
class Trial:
    """One run of one design: the point of the lattice, and of each objective, (objective,), the latency as a part of
    its bound, and what of that is the margin of a confidence."""

    point: int
    ratios: np.ndarray
    margins: np.ndarray
    saturated: bool


class _Search:
    """The state of a search; ``step`` is the distance of neighbouring rates in the logarithm."""

    def __init__(
        self,
        whole: Plan,
        configurations: Sequence[Configuration],
        levels: np.ndarray,
        bracket: float,
        rates: np.ndarray | None,
    ) -> None:
        self.whole, self.configurations, self.levels, self.bracket = whole, configurations, levels, bracket
        self.step = step = float(np.log1p(bracket))
        self.far = max(1, round(SLOPE_SPAN / step))
        count, starts = len(configurations), Starts(whole)
        self.objectives = Objectives.of(whole, configurations, levels)
        first = np.array([starts.rate(configuration) for configuration in configurations]) if rates is None else rates
        # The nearest point of the lattice. It does not depend on the design, so that designs meet at the same rates
        # and share the draws of their requests.
        start = np.rint(np.log(first) / step).astype(np.int64)
        floor, ceiling = start + round(np.log(LOWEST) / step), start + round(np.log(HIGHEST) / step)
        self.bisection = Bisection(start, floor, ceiling, max(1, round(FIRST_STRIDE / step)))
        self.reported, self.error = ReportedRuns(count), np.full((count, len(self.objectives.bounds)), np.nan)
        self.trials: list[list[Trial]] = [[] for _ in configurations]
        self.unbounded = np.zeros(count, dtype=bool)
        steps = np.array([whole.grid.steps(configuration.config) for configuration in configurations])
        # A search that is told where to begin knows better than any other design.
        self.leaders = leaders_of(steps, FIRST) if rates is None else np.full(count, -1)

    @property
    def ready(self) -> np.ndarray:
        """The designs to try next: not decided yet, and behind no design that is not."""
        open_ = self.bisection.open
        return open_[~np.isin(self.leaders[open_], open_)]

    def rates(self, points: np.ndarray) -> np.ndarray:
        """Requests per second at points of the lattice."""
        return (1.0 + self.bracket) ** points.astype(float)

    def run_at_once(self) -> None:
        """Designs whose requests all come at once serve what they serve, or miss their objectives."""
        designs = np.flatnonzero([not configuration.open_loop for configuration in self.configurations])
        if not designs.size:
            return
        values, met = run(self.whole, [self.configurations[int(design)] for design in designs], None, self.levels)
        self.reported.keep(designs, values, np.arange(designs.size))
        ratios, _ = self.objectives.ratios(values, designs)
        rest = self.objectives.margins(values), values["saturated"].astype(bool).tolist()
        for design, *of_design in zip(designs, ratios, *rest, strict=True):
            self.trials[design].append(Trial(0, *of_design))
        # With all requests at once there is one run and no lattice: the start stands for "holds", and what is
        # reported is the throughput of that run.
        self.bisection.held[designs[met]] = self.bisection.start[designs[met]]
        self.bisection.close(designs)
        self.unbounded[designs[met]] = True

    def run_round(self, designs: np.ndarray) -> None:
        """One trial of each of these designs."""
        points = self.bisection.next(designs, np.array([self._guess(int(design)) for design in designs]))
        # Of a design that meets its objectives at no rate the run at the lowest rate is reported: there it comes
        # closest.
        lower = np.array(
            [
                all(point < trial.point for trial in self.trials[design])
                for design, point in zip(designs, points, strict=True)
            ]
        )
        values, met, errors = self._run(designs, points)
        # What holds now is above all that held before, so that the last one kept is the run at the goodput.
        better = np.flatnonzero(met | (~self.bisection.found[designs] & lower))
        self.reported.keep(designs[better], values, better)
        self.error[designs[better]] = errors[better]
        self.bisection.tell(designs, points, met)
        # All requests come at once by now: a higher rate would change nothing, and the strides would go on to
        # ``HIGHEST``.
        endless = designs[met & (self.rates(points) > UNBOUNDED * values["throughput_rps"])]
        self.unbounded[endless] = True
        self.bisection.close(endless)

    def run_above(self) -> int:
        """One trial more of designs that were tried at no rate ``SLOPE_SPAN`` above their goodput, and how many these
        are: a good guess ends a search without one, and neither slopes nor headrooms can be told from its next
        neighbour alone."""
        points = self.bisection.held + 1 + self.far
        highest = np.array([max((trial.point for trial in trials), default=0) for trials in self.trials])
        designs = np.flatnonzero(self.bisection.found & ~self.unbounded & (highest < points))
        if designs.size:
            self._run(designs, points[designs])
        return designs.size

    def _run(self, designs: np.ndarray, points: np.ndarray) -> tuple[Values, np.ndarray, np.ndarray]:
        """The trials of designs at points: their statistics, whether they meet the objectives, and the standard errors
        of their latencies as parts of their bounds."""
        configurations = [self.configurations[design] for design in designs]
        values, met = run(self.whole, configurations, self.rates(points), self.levels)
        ratios, errors = self.objectives.ratios(values, designs)
        rest = self.objectives.margins(values), values["saturated"].astype(bool).tolist()
        for design, point, *of_design in zip(designs, points, ratios, *rest, strict=True):
            self.trials[design].append(Trial(int(point), *of_design))
        return values, met, errors

    def _guess(self, design: int) -> float:
        """About the highest point at which the design meets its objectives; NaN where nobody knows."""
        bisection, leader = self.bisection, int(self.leaders[design])
        if not self.trials[design] and leader >= 0:
            # Where nobody serves anything the floor is tried at once.
            return float(bisection.held[leader]) if bisection.found[leader] else float(bisection.floor[design])
        trials = sorted(self.trials[design], key=lambda trial: trial.point)
        places = (bisection.held[design], bisection.failed[design], bisection.floor[design], bisection.start[design])
        points, ratios = np.array([trial.point for trial in trials]), np.array([trial.ratios for trial in trials])
        return guess(points * self.step, ratios, *(place * self.step for place in places)) / self.step

    def result(self, trials: int) -> Goodput:
        """What came of all designs, after so many trials."""
        rate = np.where(self.bisection.found, self.rates(self.bisection.held), 0.0)
        high = self.rates(self.bisection.failed)
        # No rate was found, since none was missed: what is told is what the design served of a burst.
        rate[self.unbounded], high[self.unbounded] = self.reported.values["throughput_rps"][self.unbounded], np.inf
        stderr, model_error = np.full((2, len(self.configurations)), np.nan)
        status = np.full(len(self.configurations), UNBOUNDED_STATUS, dtype=object)
        limit = np.full(len(self.configurations), "", dtype=object)
        for design, configuration in enumerate(self.configurations):
            if not self.bisection.found[design]:
                status[design] = self._without(design)
            elif not self.unbounded[design]:
                steady = bool(self.reported.values["steady"][design])
                status[design] = BRACKETED if steady else f"{BRACKETED}, {unsteady(configuration)}"
                limit[design], relative, model_error[design] = self._limit(design)
                self._note_headroom(design)
                stderr[design] = rate[design] * relative
        open_loop = np.array([configuration.open_loop for configuration in self.configurations])
        return Goodput(rate, high, stderr, model_error, status, limit, open_loop, self.reported, trials)

    def _without(self, design: int) -> str:
        """Why no rate will do."""
        if self.reported.values["status"][design] != OK:
            return str(self.reported.values["status"][design])
        lowest = min(self.trials[design], key=lambda trial: trial.point)
        rate = f"{float(self.rates(np.array(lowest.point))):.3g} requests/s"
        when = f"at {rate}" if self.configurations[design].open_loop else "with all requests at once"
        return f"no rate meets the objectives: {when} {self.objectives.missed(design, lowest.ratios)}"

    def _limit(self, design: int) -> tuple[str, float, float]:
        """What limits the goodput of a design, its relative standard error by the delta method, and its model error.

        Where all times of service are 1 + e times as long, a latency L at a rate r is (1 + e) times that at the rate
        (1 + e) r, in another unit of time. With the slope s = d ln L / d ln r it stays at its bound at a rate that is
        lower by e (1 + 1 / s). At saturation the rate is one over the time of service.
        """
        trials_at = {trial.point: trial for trial in self.trials[design]}
        ends = self.bisection.held[design], self.bisection.failed[design]
        held, failed = (trials_at[int(point)].ratios for point in ends)
        # It missed no bound and failed all the same: the queue grows without bound.
        if not np.nanmax(failed, initial=0.0) > 1.0:
            return SATURATION, np.nan, self._model_error("e2e", design)
        worst = int(np.nanargmax(failed))
        bound = self.objectives.bounds[worst]
        points = np.array(list(trials_at))
        with np.errstate(divide="ignore", invalid="ignore"):  # a wait of nothing has no logarithm
            logs = np.log([trial.ratios[worst] / trial.margins[worst] for trial in trials_at.values()])
            slope = self._slope(points, logs, int(self.bisection.held[design]))
        # Chance: the latency fell with the rate. Neither error can be told from that.
        if not slope > 0.0:
            return bound.name, np.nan, np.nan
        # d ln r = d ln L / s: the error of the latency at the bound, over the slope.
        relative = self.error[design, worst] / held[worst] / slope
        model_error = self._model_error(bound.metric, design) * (1.0 + 1.0 / slope)
        return bound.name, float(relative), float(model_error)

    def _note_headroom(self, design: int) -> None:
        """What the rates around the goodput tell of the headroom of the objectives there."""
        columns, reported = self.objectives.columns, self.reported.values
        # With a confidence the run at the goodput was judged by others beside it.
        if np.isfinite(reported["objective_confidence"][design]).any():
            return
        trials = sorted(self.trials[design], key=lambda trial: trial.point)
        points, held = [trial.point for trial in trials], int(self.bisection.held[design])
        headroom, growth = headroom_of(
            np.array(points) * self.step,
            np.array([trial.ratios for trial in trials]),
            np.array([trial.saturated for trial in trials]),
        )
        reported["objective_headroom"][design, columns] = headroom[points.index(held)]
        reported["objective_growth"][design, columns] = growth[points.index(held)]

    def _model_error(self, metric: str, design: int) -> float:
        """The model error of a latency in the run at the goodput; a wait in the queue is as sure as the service."""
        name = f"{VARIABLE[metric]}_model_error"
        return float(self.reported.values.get(name, self.reported.values["e2e_s_model_error"])[design])

    def _slope(self, points: np.ndarray, log_ratios: np.ndarray, held: int) -> float:
        """d ln latency / d ln rate between the nearest trials that are ``SLOPE_SPAN`` or more below and above the
        goodput.

        ``points`` (trial,) of the lattice; ``held`` is that of the goodput, and it and its neighbour are among them.
        Where there is no trial so far away it is the farthest. NaN where one is not finite.
        """
        below, above = points[points <= held], points[points > held]
        # Far enough apart that chance between two runs does not decide the slope; the nearest such, as it changes
        # with the rate.
        first = below[below <= held - self.far].max(initial=below.min())
        last = above[above >= held + 1 + self.far].min(initial=above.max())
        ends = [log_ratios[np.flatnonzero(points == point)[0]] for point in (first, last)]
        return float((ends[1] - ends[0]) / ((last - first) * self.step))
