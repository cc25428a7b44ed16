"""Which requests are the turns of which sessions, and when they are sent: from random numbers common to all rates."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from evaluator.errors import InputError
from evaluator.records import kept_with_record
from evaluator.scenario import Arrivals, Exponential, Geometric, Sessions
from evaluator.scenario.trace import Ragged, Trace, ragged
from evaluator.traffic.agents import AgentGraph, Calls, agents_drawn, calls_of
from evaluator.traffic.arrivals import arrival_times, drawn_for, stream

_TURNS, _THINK, _SYSTEM = 3, 4, 5  # random streams
MOST_SESSIONS = 100_000_000
"""Sessions whose turns are drawn, most of them before the run begins; each takes some tens of bytes."""
_SPARE = 16  # sessions drawn beyond those that are expected to be needed
_PASSED = 5.0  # mean durations of a session that have passed when the run begins: 0.7 % of exponential ones last longer


@dataclass(frozen=True, eq=False)
class Turns:
    """The requests of sessions, (request,), in the order in which they would be sent if answers took no time: the first
    so many that are sent at all.

    Users of a closed loop hold one session after the other, whichever is the next when they are done with one. Their
    requests are in the order in which they would be sent if all answers took the same time, and nobody thought.

    ``place`` is among all turns of all sessions, session after session, whether they are requests or not.
    """

    session: NDArray[np.int64]  # sessions are numbered in the order in which they start
    place: NDArray[np.int64]
    first: NDArray[np.int64]  # the place of the first turn of the session
    previous: NDArray[np.int64]  # the row of the turn before; -1: there is none, or it was before the run
    think_s: NDArray[np.float64]  # after the turn before; 0 for the first
    sent_s: NDArray[np.float64]  # if answers take no time; 0 in a closed loop, where nobody knows before the run
    last: NDArray[np.bool_]  # it ends its session
    arrivals: Arrivals  # by which sessions start, at the rate of their requests
    rest_s: NDArray[np.float64] | None = None  # closed loop: after the last turn, until the user begins another session
    graph: AgentGraph | None = None  # None: each turn waits for the one before and for nothing else

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
    if sessions.agents is not None:
        return _calls_of_agents(arrivals, sessions, seed, count)
    if arrivals.process == "closed_loop":
        return _turns_of_users(arrivals, sessions, seed, count)
    begins = _begins_s(sessions, arrivals)
    # Sessions that start before the run has had ``count`` requests, and some for chance; doubled below where it was
    # bad luck.
    number = math.ceil((count + begins * (arrivals.rate_rps or 0.0)) / sessions.mean_turns) + _SPARE
    if number > MOST_SESSIONS:
        raise InputError(
            f"workload.sessions: at {arrivals.rate_rps:g} requests/s {number:,} sessions begin before the last "
            f"request, more than {MOST_SESSIONS:,}; use a lower rate_rps, fewer turns or a shorter think_s"
        )
    while (drawn := _drawn_turns(arrivals, sessions, seed, number, begins)).complete < count:
        number *= 2
    session, first, last, think_s, sent_s = drawn[:5]
    # Turns that were sent before the run are no requests, but what was said in them is in the prompts.
    chosen = np.arange(count) if arrivals.rate_rps is None else np.flatnonzero(sent_s >= 0.0)
    # By time, of one time by session.
    chosen = chosen[np.lexsort((chosen, sent_s[chosen]))][:count]
    row = np.full(len(session), -1)
    row[chosen] = np.arange(count)
    # Turns of a session are next to one another among all turns; row -1 where the one before is no request.
    previous = np.where(chosen > first[chosen], row[chosen - 1], -1)
    return Turns(
        session[chosen], chosen, first[chosen], previous, think_s[chosen], sent_s[chosen], last[chosen], arrivals
    )


class _DrawnTurns(NamedTuple):
    """All turns of the first sessions, (turn,), session after session."""

    session: NDArray[np.int64]
    first: NDArray[np.int64]  # the first turn of its session
    last: NDArray[np.bool_]
    think_s: NDArray[np.float64]  # before it
    sent_s: NDArray[np.float64]  # from the beginning of the run on; below 0 before it
    complete: int  # requests of the run before the first that a session which was not drawn might send


def _drawn_turns(arrivals: Arrivals, sessions: Sessions, seed: int, number: int, begins: float) -> _DrawnTurns:
    """The turns of the first ``number`` sessions, of which the run misses those before ``begins``, in seconds."""
    starts = session_starts(arrivals, sessions, seed, number + 1)
    session, first, last = _in_sessions(turn_counts(sessions, seed, number))
    # Nobody thinks before the first turn of a session, which comes when the session starts.
    think_s = np.where(np.arange(len(first)) == first, 0.0, _think_s(sessions, seed, len(first)))
    passed = np.cumsum(think_s)
    sent_s = starts[session] + (passed - passed[first]) - begins
    if arrivals.rate_rps is None:
        return _DrawnTurns(session, first, last, think_s, sent_s, len(session))
    complete = int(((sent_s >= 0.0) & (sent_s < starts[number] - begins)).sum())
    return _DrawnTurns(session, first, last, think_s, sent_s, complete)


def turns_of_trace(trace: Trace, arrivals: Arrivals, seed: int, count: int) -> Turns:
    """The first ``count`` requests of a trace that says for whose answers each waits."""
    assert trace.wait_for is not None and trace.wait_s is not None and trace.session is not None
    rows = [trace.wait_for[row] for row in range(count)]
    session, whole = trace.session[:count], np.ones(int(trace.session.max()) + 1, dtype=bool)
    whole[trace.session[count:]] = False
    last = whole[session]
    for waited, of in zip(rows, session, strict=True):
        # A session ends with the last of the answers that nobody in it waits for: another session may go on from there.
        last[waited[session[waited] == of]] = False
    # Which request of its session it is: in a stable sort by session the rows of each stand together, in their order.
    order = np.argsort(session, kind="stable")
    turn = np.empty(count, dtype=np.int64)
    turn[order] = np.arange(count) - np.searchsorted(session[order], session[order])
    return Turns(
        session,
        turn,
        np.zeros_like(turn),
        previous=np.array([waited[0] if len(waited) else -1 for waited in rows], dtype=np.int64),
        think_s=trace.wait_s[:count],
        sent_s=arrival_times(arrivals, seed, count),
        last=last,
        arrivals=arrivals,
        graph=AgentGraph(session, ragged([waited[1:].tolist() for waited in rows])),
    )


def _turns_of_users(arrivals: Arrivals, sessions: Sessions, seed: int, count: int) -> Turns:
    """The sessions of the users of a closed loop, whole but for the last, as many as have ``count`` turns in all.

    So load generators have it that send a given set of conversations from so many clients, such as vLLM's
    benchmark_serving_multi_turn: who is done with one takes the next, and in the end fewer and fewer are under way.
    """
    assert arrivals.users is not None
    number = math.ceil(count / sessions.mean_turns) + _SPARE
    while int((counts := turn_counts(sessions, seed, number)).sum()) < count:
        number *= 2
    counts = counts[: int(np.searchsorted(np.cumsum(counts), count)) + 1]
    session, first, last = _in_sessions(counts)
    drawn = _think_s(sessions, seed, len(first))
    place = np.arange(count)
    order = np.lexsort((place, _begins(counts, arrivals.users)[session[:count]] + place - first[:count]))
    row = np.empty(count, dtype=np.int64)
    row[order] = place
    opens = order == first[order]
    return Turns(
        session[order],
        order,
        first[order],
        previous=np.where(opens, -1, row[order - 1]),
        think_s=np.where(opens, 0.0, drawn[order]),
        sent_s=np.zeros(count),
        last=last[order],
        arrivals=arrivals,
        # What is drawn for the first turn of a session nobody needs before it: it is what comes after the last one.
        rest_s=drawn[first[order]],
    )


def _begins(steps: NDArray[np.int64], users: int) -> NDArray[np.int64]:
    """When sessions of so many steps begin, (session,), if all steps take as long as each other.

    The user who is done first, and of several the one with the session that began first, begins the next session.
    """
    begins, free = [], [0] * min(users, len(steps))
    for number in steps.tolist():
        begins.append(free[0])
        heapq.heapreplace(free, free[0] + number)
    return np.array(begins, dtype=np.int64)


def _calls_of_agents(arrivals: Arrivals, sessions: Sessions, seed: int, count: int) -> Turns:
    """The calls of the tasks of agents, whole but for the last, as many as have ``count`` calls in all.

    None is under way when the run begins. They are in the order in which they would be made if answers took no time, in
    a closed loop if all of them took the same time.
    """
    assert sessions.agents is not None
    drawn = turn_counts(sessions, seed, agents_drawn(sessions, count)).tolist()
    while True:
        try:
            calls = calls_of(sessions.agents, iter(drawn), count)
            break
        except StopIteration:
            drawn = turn_counts(sessions, seed, 2 * len(drawn)).tolist()
    task, first, before = (np.array(column) for column in (calls.task, calls.first, calls.before))
    tools_s, place = _think_s(sessions, seed, len(calls)), np.arange(count)
    opens = before < 0
    think_s = np.where(opens, 0.0, tools_s)
    made_at: NDArray[np.int64] | NDArray[np.float64]
    if arrivals.process == "closed_loop":
        sent_s, made_at = np.zeros(len(calls)), _steps_of_users(calls, task, arrivals)
    else:
        starts = session_starts(arrivals, sessions, seed, int(task[-1]) + 1)
        sent_s = _sent_without_answers(calls, starts[task], think_s)
        made_at = sent_s
    order = np.lexsort((place, made_at[:count]))
    row = np.empty(count, dtype=np.int64)
    row[order] = place
    joins = [row[calls.joins[number]] for number in order.tolist()]
    return Turns(
        task[order],
        order,
        first[order],
        previous=np.where(opens[order], -1, row[before[order]]),
        think_s=think_s[order],
        sent_s=sent_s[order],
        last=np.array(calls.last)[order],
        arrivals=arrivals,
        rest_s=tools_s[first[order]] if arrivals.process == "closed_loop" else None,
        graph=AgentGraph(
            np.array(calls.agent)[order],
            Ragged(np.concatenate([np.zeros(0, dtype=np.int64), *joins]), np.cumsum([0, *map(len, joins)])),
        ),
    )


def _steps_of_users(calls: Calls, task: NDArray[np.int64], arrivals: Arrivals) -> NDArray[np.int64]:
    """When calls are made in a closed loop, (call,), if all of them take one step."""
    assert arrivals.users is not None
    steps = calls.steps()
    longest = np.zeros(task[-1] + 1, dtype=np.int64)
    np.maximum.at(longest, task, steps + 1)
    return _begins(longest, arrivals.users)[task] + steps


def _sent_without_answers(
    calls: Calls, starts: NDArray[np.float64], think_s: NDArray[np.float64]
) -> NDArray[np.float64]:
    """When calls are made in an open loop, (call,), if answers take no time; ``starts``: of the task of each."""
    sent_s = np.zeros(len(calls))
    for number in range(len(calls)):  # a call comes behind those that it waits for
        ready = (sent_s[parent] for parent in calls.parents(number))
        sent_s[number] = max(ready, default=starts[number]) + think_s[number]
    return sent_s


def _in_sessions(counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Of all turns of sessions with so many: the session, the place of its first turn, and whether it is its last."""
    ends = np.cumsum(counts)
    session = np.repeat(np.arange(len(counts)), counts)
    return session, np.repeat(ends - counts, counts), np.arange(len(session)) == ends[session] - 1


def _begins_s(sessions: Sessions, arrivals: Arrivals) -> float:
    """When the run begins after the first session: so long that hardly any of the first sessions are under way."""
    if arrivals.rate_rps is None or sessions.agents is not None:
        return 0.0
    return _PASSED * (sessions.mean_turns - 1.0) * sessions.mean_think_s


def turn_counts(sessions: Sessions, seed: int, number: int) -> NDArray[np.int64]:
    """Turns of the first sessions, int64 (session,), each at least 1, by inverse transform."""
    turns = sessions.turns
    if not isinstance(turns, Geometric):
        return np.full(number, turns, dtype=np.int64)
    if turns.mean == 1.0:
        return np.ones(number, dtype=np.int64)
    return _geometric_counts(sessions, seed, drawn_for(number))[:number]


@kept_with_record(8)
def _geometric_counts(sessions: Sessions, seed: int, number: int) -> NDArray[np.int64]:
    turns = sessions.turns
    assert isinstance(turns, Geometric)
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
        arrivals = replace(arrivals, rate_rps=arrivals.rate_rps / sessions.mean_turns)
    return arrival_times(arrivals, seed, number)


def _think_s(sessions: Sessions, seed: int, turns: int) -> NDArray[np.float64]:
    """One draw for each turn of all sessions."""
    if isinstance(sessions.think_s, Exponential):
        return sessions.think_s.mean * _thoughts(sessions, seed, drawn_for(turns))[:turns]
    return np.full(turns, sessions.think_s)


@kept_with_record(8)
def _thoughts(sessions: Sessions, seed: int, number: int) -> NDArray[np.float64]:
    """Times to think with a mean of 1, the same of all rates that have these sessions."""
    return stream(seed, _THINK).standard_exponential(number)
