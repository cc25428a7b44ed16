"""The fewest replicas with which each design serves a rate within its objectives, all designs in step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evaluator.metrics import OK
from evaluator.plan import Configuration, Plan
from evaluator.progress import ProgressReport
from evaluator.search.bisection import Bisection
from evaluator.search.designs import first_replicas
from evaluator.search.start import Starts
from evaluator.search.trials import Objectives, ReportedRuns, run, unsteady
from evaluator.units import counted

MET = "met"


@dataclass(frozen=True)
class Fewest:
    """``configurations`` (design,) have the fewest replicas that meet the objectives, or where none does the most
    there are.

    ``status`` begins with ``met``, or says which objective is missed; ``reported`` are the runs of the configurations.
    """

    configurations: list[Configuration]
    status: np.ndarray
    reported: ReportedRuns
    trials: int

    @property
    def undecided(self) -> np.ndarray:
        """The designs that serve the rate in a run that is not steady."""
        met = np.array([str(text).startswith(MET) for text in self.status], dtype=bool)
        # A run that misses is decided: a longer one would fill the queue further, not less.
        return np.flatnonzero(met & ~self.reported.values["steady"])

    def replaced(self, designs: np.ndarray, other: Fewest) -> Fewest:
        """These results, with those of another search in the rows of some designs."""
        configurations, status = list(self.configurations), self.status.copy()
        for design, configuration in zip(designs.tolist(), other.configurations, strict=True):
            configurations[design] = configuration
        status[designs] = other.status
        self.reported.keep(designs, other.reported.values, np.arange(designs.size))
        return Fewest(configurations, status, self.reported, self.trials + other.trials)


def fewest_replicas(
    whole: Plan,
    ladders: Sequence[list[Configuration]],
    rate_rps: float,
    levels: np.ndarray,
    watch: ProgressReport | None = None,
    before: int = 0,
) -> Fewest:
    """``ladders`` are the configurations of each design that can run, fewest replicas first. More replicas are taken to
    serve no worse. Every number of them is a run of its own, with the requests that the router gives to each replica:
    what n of them serve does not follow from one, whose arrivals a round robin makes more regular. ``before`` trials
    were done by a search with fewer requests.
    """
    objectives = Objectives.of(whole, [ladder[0] for ladder in ladders], levels)
    last = np.array([len(ladder) - 1 for ladder in ladders], dtype=np.int64)
    first = first_replicas(ladders, Starts(whole), rate_rps)
    # The search is for the largest number that holds; here it is the smallest that does, hence the sign.
    bisection = Bisection(-first, -last, np.zeros_like(last), 1)  # of places on the ladders, the fewest the largest
    runs, missed = ReportedRuns(len(ladders)), np.full(len(ladders), "", dtype=object)
    most, done = np.full(len(ladders), -1), before
    while (open_ := bisection.open).size:
        places = -bisection.next(open_)
        configurations = [ladders[design][rung] for design, rung in zip(open_, places, strict=True)]
        values, met = run(whole, configurations, np.full(open_.size, rate_rps), levels)
        # Until some number of replicas will do, the run with the most of them is the one to report.
        more = ~bisection.found[open_] & (places > most[open_])
        # Kept as they come: each that holds has fewer replicas than the one before, since the search goes down
        # from what holds.
        runs.keep(open_[met | more], values, np.flatnonzero(met | more))
        ratios, _ = objectives.ratios(values, open_)
        for row in np.flatnonzero(~met & more):
            missed[open_[row]] = objectives.missed(int(open_[row]), ratios[row])
        most[open_] = np.maximum(most[open_], places)
        bisection.tell(open_, -places, met)
        done += open_.size
        if watch is not None:
            watch.expect(done + bisection.left())
            watch.advance(open_.size)
    return _fewest(ladders, bisection, runs, missed, done - before)


def _fewest(
    ladders: Sequence[list[Configuration]], bisection: Bisection, runs: ReportedRuns, missed: np.ndarray, trials: int
) -> Fewest:
    # -1: the last rung of the ladder, which has the most replicas that were tried.
    places = np.where(bisection.found, -bisection.held, -1)
    configurations = [ladder[rung] for ladder, rung in zip(ladders, places.tolist(), strict=True)]
    steady = runs.values["steady"]
    statuses = [
        MET if steady[design] else f"{MET}, {unsteady(configuration)}"
        for design, configuration in enumerate(configurations)
    ]
    status = np.array(statuses, dtype=object)
    for design in np.flatnonzero(~bisection.found):
        replicas = sum(station.deployment.replicas for station in configurations[design].stations)
        if runs.values["status"][design] == OK:
            status[design] = f"missed with {counted(replicas, 'replica')}: {missed[design]}"
    return Fewest(configurations, status, runs, trials)
