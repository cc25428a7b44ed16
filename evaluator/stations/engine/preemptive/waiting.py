"""The waiting queue. Only its head is looked at: requests behind it wait, even where they would fit.

First come, first served: arrivals in order, and in front of them a stack of preempted requests, the last preempted on
top (vLLM prepends a preempted request to the waiting queue). Least work left: all waiting requests are in the heap, by
the tokens that are left to compute and to generate, ties by request number.

The heap is a binary one in an array; an entry is ``priority << 32 | request``, and the smallest entry goes first.

Of several replicas that run together, a router puts the arrivals into a queue of each (``state.QueueList``), which is a
linked list: arrivals come in behind, preempted requests in front.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from evaluator.stations.engine.common.arrays import Flag, Float, Int
from evaluator.stations.engine.common.calendar import Calendar
from evaluator.stations.engine.common.rings import NONE, read, read_once, write
from evaluator.stations.engine.preemptive.heap import enter, replace_first
from evaluator.stations.engine.preemptive.lane import Given, Rules
from evaluator.stations.engine.preemptive.state import QueueHeap, QueueList, Sequences, State


def next_arrival(given: Given, waiting: QueueHeap | QueueList) -> Float:
    """When the next request arrives that is not here yet; infinite if none will before another has finished."""
    assert isinstance(waiting, QueueHeap)
    comes = waiting.arrived < jnp.minimum(waiting.released, given.limits.requests)
    return jnp.where(comes, read(given.requests.arrival_s, waiting.arrived), jnp.inf)


def head(waiting: QueueHeap | QueueList) -> Int:
    """The head of the waiting queue, if it is not empty."""
    if isinstance(waiting, QueueList):
        return waiting.first if waiting.lost_kv is None else _holders_first(waiting, waiting.lost_kv)
    first = read_once(waiting.heap, jnp.minimum(waiting.size, 0))
    return jnp.where(waiting.size > 0, first.astype(jnp.int32), waiting.arrived)


def any_waiting(given: Given, state: State) -> Flag:
    """The waiting queue is not empty."""
    if isinstance(state.waiting, QueueList):
        return head(state.waiting) >= 0
    return (state.waiting.size > 0) | (next_arrival(given, state.waiting) <= state.clock)


def arrive(given: Given, state: State) -> State:
    """Under least work left, requests that have arrived by now take their place in the heap."""
    assert isinstance(state.waiting, QueueHeap)

    def arrived(waiting: QueueHeap) -> Flag:
        return given.rules.least_work & (next_arrival(given, waiting) <= state.clock)

    def enter(waiting: QueueHeap) -> QueueHeap:
        i = waiting.arrived
        return _push(waiting, _work(given, state.sequences, i), i)._replace(arrived=i + 1)

    return state._replace(waiting=lax.while_loop(arrived, enter, state.waiting))


def go_back(given: Given, state: State, i: Int) -> State:
    """A preempted request waits again: in front of all others, or by its work.

    The number of preemptions so far, which counts this one already, makes the priority of a stack.
    """
    waiting = state.waiting
    if isinstance(waiting, QueueList):
        if waiting.lost_kv is not None:
            return state._replace(waiting=_lose_room(given, waiting, waiting.lost_kv, i))
        last = jnp.where(waiting.first < 0, i, waiting.last)
        return state._replace(
            waiting=waiting._replace(first=i, last=last, next=write(waiting.next, i, waiting.first)),
        )
    work = _work(given, state.sequences, i)
    priority = jnp.where(given.rules.least_work, work, -state.preemptions)
    return state._replace(waiting=_push(waiting, priority, i))


def _holders_first(waiting: QueueList, lost_kv: Int) -> Int:
    """The head where rooms are reserved: those that hold KV go before those that lost theirs in a preemption.

    Else a preempted request that finds no KV would keep from running the very requests that have it.
    """
    return jnp.where(waiting.first >= 0, waiting.first, lost_kv)


def _lose_room(given: Given, waiting: QueueList, lost_kv: Int, i: Int) -> QueueList:
    """A preempted request waits where rooms are reserved; on a prefill side, which has none, in front of all others."""
    kv_reservation, empty = given.limits.prompts_resident, waiting.first < 0
    return waiting._replace(
        first=jnp.where(kv_reservation, waiting.first, i),
        last=jnp.where(~kv_reservation & empty, i, waiting.last),
        lost_kv=jnp.where(kv_reservation, i, lost_kv),
        next=write(waiting.next, i, jnp.where(kv_reservation, lost_kv, waiting.first)),
    )


def come_in(waiting: QueueList, i: Int) -> QueueList:
    """The queue of one of several replicas with an arrival behind all others."""
    empty = waiting.first < 0
    padding = waiting.next.shape[0] - 1
    return waiting._replace(
        first=jnp.where(empty, i, waiting.first),
        last=i,
        next=write(write(waiting.next, jnp.where(empty, padding, waiting.last), i), i, NONE),
    )


def pop(waiting: QueueHeap | QueueList, i: Int) -> QueueHeap | QueueList:
    """The waiting queue without its head, which is ``i``."""
    if isinstance(waiting, QueueList):
        if waiting.lost_kv is None:
            return waiting._replace(first=read_once(waiting.next, i))
        holds, after = waiting.first >= 0, read_once(waiting.next, i)
        first, lost_kv = jnp.where(holds, after, NONE), jnp.where(holds, waiting.lost_kv, after)
        return waiting._replace(first=first, lost_kv=lost_kv)
    in_heap = waiting.size > 0
    heap, size = waiting.heap, waiting.size - in_heap
    moved = read_once(heap, size + jnp.minimum(i, 0))  # with ``i``, so that it is read after the head was

    heap = replace_first(heap, size, moved)
    return waiting._replace(heap=heap, size=size, arrived=waiting.arrived + ~in_heap)


def _push(waiting: QueueHeap, priority: Int, i: Int) -> QueueHeap:
    """With ``i`` in the heap at its priority; ties by request number."""
    entry = (priority.astype(jnp.int64) << 32) | i.astype(jnp.int64)
    return waiting._replace(heap=enter(waiting.heap, waiting.size, entry), size=waiting.size + 1)


def deliver(waiting: QueueList, at_s: Float, on: Flag) -> QueueList:
    """Of a closed loop, if ``on``: a user gets an answer at ``at_s``, and sends the next request then.

    Answers may overtake each other on the way, so that their times are in a heap.
    """
    entered = jnp.where(on, at_s, jnp.inf)  # behind all others, where the size will not count it
    return waiting._replace(due=enter(waiting.due, waiting.due_size, entered), due_size=waiting.due_size + on)


def seen_s(rules: Rules, first_s: Float, end_s: Float, output: Int) -> Float:
    """When an answer of ``output`` tokens, which the engine has given from ``first_s`` to ``end_s``, is with its user.

    The frontend takes some time, and iterations of the request's mean length (``cost.frontend``).
    """
    gap_s = (end_s - first_s) / jnp.maximum(output - 1, 1)
    return end_s + (rules.frontend_s + rules.lookahead_steps * gap_s)


def answer(given: Given, calendar: Calendar, i: Int, first_s: Float, end_s: Float, on: Flag) -> Calendar:
    """Of users who think about answers, if ``on``: when the one of request ``i`` sends the next, if there is one."""
    assert given.session_turns is not None
    following = read(given.session_turns.following, i)
    on = on & (following >= 0)
    output = read(given.requests.output_tokens, i)
    due_s = seen_s(given.rules, first_s, end_s, output) + read(given.session_turns.think_s, jnp.where(on, following, i))
    return calendar.enter(due_s, following, on)


def take_due(waiting: QueueList, on: Flag) -> QueueList:
    """Without the next answer, if ``on``."""
    size = waiting.due_size - on
    moved = jnp.where(on, read_once(waiting.due, size), read_once(waiting.due, size * 0))
    return waiting._replace(due=replace_first(waiting.due, size, moved), due_size=size)


def _work(given: Given, sequences: Sequences, i: Int) -> Int:
    """Tokens left to compute and to generate."""
    target = read_once(sequences.target, i)
    computed = jnp.minimum(read_once(sequences.computed, i), target)
    return target - computed + read(given.requests.output_tokens, i) - read_once(sequences.generated, i)
