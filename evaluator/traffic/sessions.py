"""Which requests are the turns of which sessions, and when they are sent: from random numbers common to all rates."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from evaluator.errors import InputError
from evaluator.scenario import Arrivals, Exponential, Geometric, Sessions
from evaluator.traffic.arrivals import arrival_times, stream

_TURNS, _THINK, _SYSTEM = 3, 4, 5  # random streams
MOST_SESSIONS = 100_000_000
"""Sessions whose turns are drawn, most of them before the run begins; each takes some tens of bytes."""
_SPARE = 16  # sessions drawn beyond those that are expected to be needed
_PASSED = 5.0  # mean durations of a session that have passed when the run begins: 0.7 % of exponential ones last longer


@dataclass(frozen=True, eq=False)
class Turns:
    """The requests of sessions that have several turns, (request,), in the order in which they would be sent if answers
    took no time: the first so many that are sent at all.

    ``place`` is among all turns of all sessions, session after session, whether they are requests or not.
    """

    session: NDArray[np.int64]  # sessions are numbered in the order in which they start
    place: NDArray[np.int64]
    first: NDArray[np.int64]  # the place of the first turn of the session
    previous: NDArray[np.int64]  # the row of the turn before; -1: there is none, or it was before the run
    think_s: NDArray[np.float64]  # after the turn before; 0 for the first
    sent_s: NDArray[np.float64]  # if answers take no time
    arrivals: Arrivals  # by which sessions start, at the rate of their requests

    def sent_under(self, arrivals: Arrivals, sessions: Sessions, seed: int) -> NDArray[np.float64]:
        """When the same requests are sent if answers take no time, (request,), under another rate of the arrivals.

        Sessions that are under way at the beginning go on as they do; the others start at the other rate.
        """
        if arrivals == self.arrivals:
            return self.sent_s
        number = int(self.session.max()) + 1
        starts, other = (session_starts(process, sessions, seed, number) for process in (self.arrivals, arrivals))
        begins = _begins_s(sessions, self.arrivals)
        # Sessions that are under way when the run begins are the same at every rate, or their requests would not be.
        new = int(np.searchsorted(starts, begins))
        if new == number:
            # No new session among the requests: nothing depends on the rate.
            return self.sent_s
        # New sessions move as their starts do, counted from the first of them.
        moved = (other - other[new]) - (starts - starts[new])
        return self.sent_s + np.where(self.session < new, 0.0, moved[self.session])


def turns_of(arrivals: Arrivals, sessions: Sessions, seed: int, count: int) -> Turns:
    """The first ``count`` requests of sessions that start by a process of arrivals.

    Sessions start at the rate of the arrivals over the mean number of turns, so that requests come at the rate of the
    arrivals. They have done so for long when the run begins: of sessions that are under way then, the turns to come are
    requests, with all that was said before. Where all sessions start at once they are taken whole, one after the other:
    the first so many requests would else be first turns only.

    Errors: InputError where so many sessions begin before the run that memory would not do.
    """
    begins = _begins_s(sessions, arrivals)
    # Sessions that start before the run has had ``count`` requests, and some for chance; doubled below where it was
    # bad luck.
    number = math.ceil((count + begins * (arrivals.rate_rps or 0.0)) / mean_turns(sessions)) + _SPARE
    if number > MOST_SESSIONS:
        raise InputError(
            f"workload.sessions: at {arrivals.rate_rps:g} requests/s {number:,} sessions begin before the last "
            f"request, more than {MOST_SESSIONS:,}; use a lower rate_rps, fewer turns or a shorter think_s"
        )
    while True:
        counts = turn_counts(sessions, seed, number)
        starts = session_starts(arrivals, sessions, seed, number + 1)
        session = np.repeat(np.arange(number), counts)
        first = np.repeat(np.cumsum(counts) - counts, counts)
        think_s = _think_s(sessions, seed, first)
        passed = np.cumsum(think_s)
        sent_s = starts[session] + (passed - passed[first]) - begins
        at_once = arrivals.rate_rps is None
        # Requests of sessions that start later than all that were drawn are missing, so that only those before count.
        complete = len(session) if at_once else int(((sent_s >= 0.0) & (sent_s < starts[number] - begins)).sum())
        if complete >= count:
            break
        number *= 2
    # Turns that were sent before the run are no requests, but what was said in them is in the prompts.
    chosen = np.arange(count) if at_once else np.flatnonzero(sent_s >= 0.0)
    # By time, of one time by session.
    chosen = chosen[np.lexsort((chosen, sent_s[chosen]))][:count]
    row = np.full(len(session), -1)
    row[chosen] = np.arange(count)
    # Turns of a session are next to one another among all turns; row -1 where the one before is no request.
    previous = np.where(chosen > first[chosen], row[chosen - 1], -1)
    return Turns(session[chosen], chosen, first[chosen], previous, think_s[chosen], sent_s[chosen], arrivals)


def _begins_s(sessions: Sessions, arrivals: Arrivals) -> float:
    """When the run begins after the first session: so long that hardly any of the first sessions are under way."""
    if arrivals.rate_rps is None:
        return 0.0
    think = sessions.think_s
    mean_s = think.mean if isinstance(think, Exponential) else think
    return _PASSED * (mean_turns(sessions) - 1.0) * mean_s


def mean_turns(sessions: Sessions) -> float:
    """Of a session. Geometric with the clip m: sum over n < m of P(more than n) = mean (1 - (1 - 1/mean)^m)."""
    turns = sessions.turns
    if not isinstance(turns, Geometric):
        return float(turns)
    return turns.mean if turns.max is None else turns.mean * (1.0 - (1.0 - 1.0 / turns.mean) ** turns.max)


def turn_counts(sessions: Sessions, seed: int, number: int) -> NDArray[np.int64]:
    """Turns of the first sessions, int64 (session,), each at least 1, by inverse transform."""
    turns = sessions.turns
    if not isinstance(turns, Geometric):
        return np.full(number, turns, dtype=np.int64)
    if turns.mean == 1.0:
        return np.ones(number, dtype=np.int64)
    # Inverse transform, so that the same draw means more turns where the mean is larger.
    drawn = np.log1p(-stream(seed, _TURNS).random(number)) / math.log1p(-1.0 / turns.mean)
    return np.minimum(1 + np.floor(drawn), turns.max or np.inf).astype(np.int64)


def system_prompts(sessions: Sessions, seed: int, session: NDArray[np.int64]) -> NDArray[np.int64]:
    """Which system prompt the sessions with these numbers begin with: any, with equal probability."""
    if sessions.system_prompts <= 1:
        return np.zeros_like(session)
    drawn = stream(seed, _SYSTEM).random(int(session.max()) + 1)
    return np.floor(drawn * sessions.system_prompts).astype(np.int64)[session]


def session_starts(arrivals: Arrivals, sessions: Sessions, seed: int, number: int) -> NDArray[np.float64]:
    """When the first sessions start, float64 (session,)."""
    if arrivals.rate_rps is not None:
        arrivals = replace(arrivals, rate_rps=arrivals.rate_rps / mean_turns(sessions))
    return arrival_times(arrivals, seed, number)


def _think_s(sessions: Sessions, seed: int, first: NDArray[np.int64]) -> NDArray[np.float64]:
    """Before each turn of all sessions; 0 before the first of each."""
    think = sessions.think_s
    if isinstance(think, Exponential):
        drawn = think.mean * stream(seed, _THINK).standard_exponential(len(first))
    else:
        drawn = np.full(len(first), think)
    return np.where(np.arange(len(first)) == first, 0.0, drawn)
