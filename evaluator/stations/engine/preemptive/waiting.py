"""The waiting queue of a replica. Only its head is looked at: requests behind it wait, even where they would fit.

First come, first served: arrivals in a line, and in front of them a stack of preempted requests, the last preempted on
top (vLLM prepends a preempted request to the waiting queue). Least work left: all waiting requests go by the tokens
that are left to compute and to generate, ties by request number; by priority: by that of their classes, likewise.

So the queue has two parts, of which either may be empty: a *line*, a linked list to which arrivals are appended, and a
*heap* for those that go by a priority. A stack is a heap whose priorities fall, which costs nothing here: the heap is a
pairing heap, in which whoever goes to the top just takes the one that was there for a child. A binary heap would need
an array for each replica; links by request are shared by the queues of all replicas, each with a top of its own.

Where room in the KV is reserved before a request comes (``Structure.kv_reservation``), those that hold it go first and
the preempted, which lost theirs, come last. Else a preempted request that finds no KV would keep from running the very
requests that have it.

Retracted by SGLang's policy, a request comes as if it arrived anew: the heap has those in the order of their
retractions, and its top goes first when the line has come to those that arrived later (``NewTokens.behind``).

A replica with a loop of its own has its arrivals in the order of their numbers: its line is a range of numbers, which
begins at ``first``, and no links are written.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from evaluator.stations.engine.common.arrays import Flag, Float, Int
from evaluator.stations.engine.common.calendar import Calendar
from evaluator.stations.engine.common.rings import NONE, read, read_once, where, write
from evaluator.stations.engine.preemptive.lane import Given, Rules
from evaluator.stations.engine.preemptive.state import AwaitedAnswers, QueueEnds, QueueLinks, Sequences, State

_BEHIND_ALL = 1 << 30
"""Added to a priority: more than any request has to compute and to generate."""


class Queue(NamedTuple):
    """The waiting queue of one replica: where it begins, and the links of all queues."""

    ends: QueueEnds
    links: QueueLinks


def head(given: Given, state: State) -> Int:
    """The head of the waiting queue, if it is not empty."""
    ends = state.replica.queue
    if not given.structure.has_heap:
        return ends.first
    if state.new_tokens is not None:
        comes_back = (ends.top >= 0) & (ends.first >= read_once(state.new_tokens.behind, jnp.maximum(ends.top, 0)))
        return jnp.where(comes_back, ends.top, ends.first)
    if given.structure.kv_reservation:  # on a prefill side nobody holds room: the preempted are in front, as elsewhere
        holds_room = given.limits.prompts_resident & (ends.first >= 0)
        return jnp.where(holds_room | (ends.top < 0), ends.first, ends.top)
    return jnp.where(ends.top >= 0, ends.top, ends.first)


def any_waiting(given: Given, state: State) -> Flag:
    """The waiting queue is not empty."""
    ends = state.replica.queue
    return (ends.top >= 0) | (next_arrival(given, state) <= state.clock if given.structure.alone else ends.first >= 0)


def arrival_goes_first(given: Given, line: Flag, heap: Flag) -> Flag:
    """Whoever arrives may get before those that wait, or nobody does: a leap that keeps it waiting has to end.

    ``line``, ``heap``: somebody waits there. Those in the heap who lost their room go behind arrivals that have theirs.
    """
    if given.structure.kv_reservation:
        heap = heap & ~given.limits.prompts_resident
    return given.by_work() | ~(line | heap)


def pop(given: Given, state: State, i: Int, preempted: Flag) -> State:
    """The state without the head of the waiting queue, which is ``i``; it waits there again if it was ``preempted``."""
    ends, links = state.replica.queue, state.queue_links
    after = ends.first + 1 if given.structure.alone else read_once(links.next, i)
    if not given.structure.has_heap:
        return state.at_replica(queue=ends._replace(first=after))
    # ``after`` is never less than NONE. Without that condition the heap's writes would not depend on what was read
    # here, and XLA would copy the links for each admission (``common.rings``); so it is in the loops below.
    from_heap = (ends.top >= 0) & (i == ends.top) & (after >= NONE)
    # Most requests come from the line: the heap is looked at only for those that were preempted or go by their work.
    links, top = where(from_heap, lambda heap: _without_top(*heap, from_heap), (links, ends.top))
    ends = ends._replace(first=jnp.where(from_heap, ends.first, after), top=top)
    if ends.preempted is not None:
        ends = ends._replace(preempted=ends.preempted - preempted)
    return state.at_replica(queue=ends)._replace(queue_links=links)


def go_back(given: Given, state: State, i: Int, on: Flag | bool = True) -> State:
    """A preempted request waits again, if ``on``: in front of all others, or by its work.

    The number of preemptions so far, which counts this one already, makes the priority of a stack.
    """
    ends, links = state.replica.queue, state.queue_links
    work = _work(given, state.sequences, i)
    if given.structure.kv_reservation:
        work = work + jnp.where(given.limits.prompts_resident, _BEHIND_ALL, 0)
    priority: Int = jnp.where(given.by_work(), work, -state.totals.preemptions)
    if state.new_tokens is not None:  # SGLang ``_add_request_to_queue``: behind all that wait
        priority = state.totals.preemptions
        behind = write(state.new_tokens.behind, i, state.new_tokens.arrived)
        state = state._replace(new_tokens=state.new_tokens._replace(behind=behind))
    if on is True:
        links, top = _pushed(links, ends.top, i, priority)
    else:  # the padding cell becomes the top of an empty heap, which is then forgotten
        padding = links.next.shape[0] - 1
        links, top = _pushed(links, jnp.where(on, ends.top, NONE), jnp.where(on, i, padding), priority)
        top = jnp.where(on, top, ends.top)
    ends = ends._replace(top=top)
    if ends.preempted is not None:
        ends = ends._replace(preempted=ends.preempted + 1)
    return state.at_replica(queue=ends)._replace(queue_links=links)


def come_in(given: Given, sequences: Sequences, queue: Queue, i: Int) -> Queue:
    """The queue with an arrival: behind all others, or by its work."""
    (ends, links), least_work = queue, given.by_work()
    empty, padding = ends.first < 0, links.next.shape[0] - 1
    following = write(links.next, jnp.where(empty | least_work, padding, ends.last), i)
    following = write(following, jnp.where(least_work, padding, i), NONE)
    ends = ends._replace(first=jnp.where(empty & ~least_work, i, ends.first), last=jnp.where(least_work, ends.last, i))
    if not given.structure.by_work:
        return Queue(ends, links._replace(next=following))

    work = _work(given, sequences, i)

    def push(carry: tuple[Flag, Int, QueueLinks]) -> tuple[Flag, Int, QueueLinks]:
        _, top, links = carry
        links, top = _pushed(links, top, i, work)
        return ~least_work, top, links

    # A loop of one trip or none, because most lanes go first come, first served.
    start = (least_work, ends.top, links._replace(next=following))
    _, top, links = lax.while_loop(lambda carry: carry[0], push, start)
    return Queue(ends._replace(top=top), links)


# --- a replica with a loop of its own


def next_arrival(given: Given, state: State) -> Float:
    """When the next request arrives that is not here yet; infinite if none will before another has finished."""
    first = state.replica.queue.first
    comes = first < jnp.minimum(state.released, given.limits.requests)
    return jnp.where(comes, read(given.requests.arrival_s, first), jnp.inf)


def arrive(given: Given, state: State) -> State:
    """Under least work left, requests that have arrived by now leave the line for their places in the heap."""

    if not given.structure.by_work:
        return state

    def arrived(state: State) -> Flag:
        return given.rules.least_work & (next_arrival(given, state) <= state.clock)

    def enter(state: State) -> State:
        ends = state.replica.queue
        links, top = _pushed(state.queue_links, ends.top, ends.first, _work(given, state.sequences, ends.first))
        return state.at_replica(queue=ends._replace(first=ends.first + 1, top=top))._replace(queue_links=links)

    return lax.while_loop(arrived, enter, state)


# --- the pairing heap


def _pushed(links: QueueLinks, top: Int, i: Int, priority: Int) -> tuple[QueueLinks, Int]:
    """The heap with ``i``: it becomes the first child of the top, or the top with the former one for its child."""
    links = links._replace(
        priority=write(links.priority, i, priority),
        child=write(links.child, i, NONE),
    )
    return _melded(links, i, top)


def _melded(links: QueueLinks, first: Int, second: Int) -> tuple[QueueLinks, Int]:
    """Of two heaps, the second of which may be empty, a single one, and its top."""
    both, padding = second >= 0, links.next.shape[0] - 1
    before = read_once(links.priority, first), read_once(links.priority, jnp.where(both, second, first))
    # Ties go by request number, as in the reference: "first come, first served".
    leads = ~both | (before[0] < before[1]) | ((before[0] == before[1]) & (first < second))
    top, below = jnp.where(leads, first, second), jnp.where(leads, second, first)
    child = read_once(links.child, top)
    return links._replace(
        next=write(links.next, jnp.where(both, below, padding), child),
        child=write(links.child, top, jnp.where(both, below, child)),
    ), top


def _without_top(links: QueueLinks, top: Int, on: Flag) -> tuple[QueueLinks, Int]:
    """The heap without its top, if ``on``: its children are melded in pairs from the left, the pairs from the right.

    Two passes make it logarithmic in the mean over all that are taken out (Fredman, Sedgewick, Sleator, Tarjan 1986).
    """

    def pair(carry: tuple[QueueLinks, Int, Int]) -> tuple[QueueLinks, Int, Int]:
        links, current, pairs = carry
        following = read_once(links.next, current)
        rest = jnp.where(following >= 0, read_once(links.next, jnp.maximum(following, 0)), NONE)
        links, first = _melded(links, jnp.where(rest >= NONE, current, 0), following)
        return links._replace(next=write(links.next, first, pairs)), rest, first

    def meld(carry: tuple[QueueLinks, Int, Int]) -> tuple[QueueLinks, Int, Int]:
        links, pairs, whole = carry
        rest = read_once(links.next, pairs)
        links, whole = _melded(links, jnp.where(rest >= NONE, pairs, 0), whole)
        return links, rest, whole

    first = jnp.where(on, read_once(links.child, jnp.maximum(top, 0)), NONE)
    links, _, pairs = lax.while_loop(lambda carry: carry[1] >= 0, pair, (links, first, top * 0 + NONE))
    links, _, whole = lax.while_loop(lambda carry: carry[1] >= 0, meld, (links, pairs, top * 0 + NONE))
    return links, jnp.where(on, whole, top)


def _work(given: Given, sequences: Sequences, i: Int) -> Int:
    """Tokens left to compute and to generate, or in their place the priority."""
    if given.priorities is not None:
        return read(given.priorities, i)
    target = read_once(sequences.target, i)
    computed = jnp.minimum(read_once(sequences.computed, i), target)
    return target - computed + read(given.requests.output_tokens, i) - read_once(sequences.generated, i)


# --- users who wait for answers


def release_next(given: Given, state: State, i: Int, end_s: Float, on: Flag) -> State:
    """Request ``i`` is done, if ``on``: its user may send another, at once or when the answer has been delivered."""
    if given.session_turns is None and not given.structure.frontend:
        return state._replace(released=state.released + on)
    first_s = read_once(state.sequences.first_token_s, i)
    return answered(given, state, i, seen_s(given.rules, first_s, end_s, read(given.requests.output_tokens, i)), on)


def answered(given: Given, state: State, i: Int, at_s: Float, on: Flag) -> State:
    """The answer to request ``i`` reaches its user ``at_s``, if ``on``, who sends another then or thinks before."""
    assert state.answers is not None
    turns = given.session_turns
    if turns is None:
        return state._replace(answers=state.answers.enter(at_s, jnp.int32(0), on))
    if turns.calls is None:
        following = read(turns.following, i)
        due = on & ((following >= 0) | _opens(given, state))
        return state._replace(answers=state.answers.enter(at_s + read(turns.pause_s, i), following, due))
    first, stop = read(turns.calls.first_entry, i), read(turns.calls.first_entry, i + 1)

    def hand_on(carry: tuple[Int, Calendar, AwaitedAnswers]) -> tuple[Int, Calendar, AwaitedAnswers]:
        entry, answers, awaited = carry
        return entry + 1, *_handed_on(given, answers, awaited, entry, at_s, _opens(given, state))

    assert state.awaited is not None
    start = (first, state.answers, state.awaited)
    _, answers, awaited = lax.while_loop(lambda carry: on & (carry[0] < stop), hand_on, start)
    return state._replace(answers=answers, awaited=awaited)


def _opens(given: Given, state: State) -> Flag:
    """The last answer of a session makes its user open another one."""
    # NONE in the calendar stands for a session that opens then; which one it is the order of openings says, so that it
    # makes no difference in which order answers of one time are handed out. In an open loop, and when all sessions have
    # been opened, the last answer of one releases nobody.
    turns = given.session_turns
    assert turns is not None
    return (turns.openings < turns.sessions) & (state.released < turns.sessions)


def _handed_on(
    given: Given, answers: Calendar, awaited: AwaitedAnswers, entry: Int, at_s: Float, opens: Flag
) -> tuple[Calendar, AwaitedAnswers]:
    """An answer that is there ``at_s`` reaches who waits for it as ``entry`` says; the last one sets the time."""
    turns = given.session_turns
    assert turns is not None
    following = read(turns.following, entry)
    waits = following >= 0
    # Who opens a session waits for this answer alone: what is written in the padding cell nobody reads as data.
    cell = jnp.where(waits, following, given.padding())
    missing = read_once(awaited.missing, cell) - 1
    seen_s = jnp.where(waits, jnp.maximum(read_once(awaited.seen_s, cell), at_s), at_s)
    due = jnp.where(waits, missing == 0, opens)
    answers = answers.enter(seen_s + read(turns.pause_s, entry), following, due)
    return answers, AwaitedAnswers(write(awaited.missing, cell, missing), write(awaited.seen_s, cell, seen_s))


def seen_s(rules: Rules, first_s: Float, end_s: Float, output: Int) -> Float:
    """When an answer of ``output`` tokens, which the engine has given from ``first_s`` to ``end_s``, is with its user.

    The frontend takes some time, and iterations of the request's mean length (``cost.frontend``).
    """
    return end_s + delivery_s(rules, first_s, end_s, output)


def delivery_s(rules: Rules, first_s: Float, end_s: Float, output: Int) -> Float:
    """How long after its last token it is with its user."""
    gap_s = (end_s - first_s) / jnp.maximum(output - 1, 1)
    return rules.frontend_s + rules.lookahead_steps * gap_s
