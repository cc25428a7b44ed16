"""The fewest replicas with which each design serves a rate within its objectives, all designs in step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evaluator.metrics import OK
from evaluator.plan import Member, Plan
from evaluator.search.bisection import Bisection
from evaluator.search.designs import first_replicas
from evaluator.search.goodput import Watch
from evaluator.search.start import Starts
from evaluator.search.trials import Kept, Objectives, run

MET = "met"


@dataclass(frozen=True)
class Fewest:
    """``members`` (design,) have the fewest replicas that meet the objectives, or where none does the most there are.

    ``status`` is ``met``, or which objective is missed; ``kept`` are the runs of the members.
    """

    members: list[Member]
    status: np.ndarray
    kept: Kept


def fewest_replicas(
    whole: Plan, ladders: Sequence[list[Member]], rate_rps: float, levels: np.ndarray, watch: Watch | None = None
) -> Fewest:
    """``ladders`` are the members of each design that can run, fewest replicas first. More replicas are taken to serve
    no worse; every number of them is a run of its own, with the requests that the router gives to each replica.
    """
    count = len(ladders)
    objectives, starts = Objectives.of([ladder[0] for ladder in ladders], levels), Starts(whole)
    last = np.array([len(ladder) - 1 for ladder in ladders], dtype=np.int64)
    first = first_replicas(ladders, starts, rate_rps)
    bisection = Bisection(-first, -last, np.zeros(count, dtype=np.int64), 1)
    kept, most = Kept(count), np.full(count, -1)
    missed = np.full(count, "", dtype=object)
    done = 0
    while (open_ := bisection.open).size:
        places = -bisection.next(open_)
        members = [ladders[design][place] for design, place in zip(open_, places, strict=True)]
        found, met = run(whole, members, np.full(open_.size, rate_rps), levels)
        ratios, _ = objectives.ratios(found, open_)
        more = ~bisection.found[open_] & (places > most[open_])
        better = np.flatnonzero(met | more)
        kept.keep(open_[better], found, better)
        for row in np.flatnonzero(~met & more):
            missed[open_[row]] = objectives.told(int(open_[row]), ratios[row])
        most[open_] = np.maximum(most[open_], places)
        bisection.tell(open_, -places, met)
        done += open_.size
        if watch is not None:
            watch.expect(done + bisection.left())
            watch.advance(open_.size)
    chosen = [
        ladder[-int(held)] if found else ladder[-1]
        for ladder, held, found in zip(ladders, bisection.held, bisection.found, strict=True)
    ]
    status = np.full(count, MET, dtype=object)
    for design in np.flatnonzero(~bisection.found):
        replicas = sum(station.deployment.replicas for station in chosen[design].stations)
        if kept.values["status"][design] == OK:
            status[design] = f"missed with {replicas:,} replicas: {missed[design]}"
    return Fewest(chosen, status, kept)
