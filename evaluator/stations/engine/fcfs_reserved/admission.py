"""Admission: prompts are taken from the head of the waiting queue as far as the policy and the limits allow."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from evaluator.stations.engine.common.arrays import (
    Flag,
    Float,
    FloatPerRequest,
    Int,
    IntPerBranch,
    StepBits,
    StepCounts,
    StepLists,
)
from evaluator.stations.engine.common.prompts import PromptSums
from evaluator.stations.engine.common.rings import NONE, in_ring, mark, read, tagged_add, write
from evaluator.stations.engine.common.speculation import AT_ONCE, AcceptedTokens, Gains, over_gains
from evaluator.stations.engine.fcfs_reserved.lane import Given
from evaluator.stations.engine.fcfs_reserved.state import State


class Intake(NamedTuple):
    """The part of the state that admission changes, and what it has gathered for the iteration."""

    waits: Flag  # the last candidate would go in, but has not arrived, or waits for who leaves with the batch under way
    budget_left: Flag  # token budget was left for the last candidate
    next_arrival: Float
    head: Int
    progress: Float
    kv: Float
    prompts: PromptSums
    joined: Float  # sequences that get their first token in this iteration
    joined_context: Float
    joined_window_context: Float
    joined_growing: Float
    resident_window_context: Float  # windowed context, in this iteration, of sequences that decode at once
    events: StepBits
    leaving: StepLists
    crossing: StepCounts
    next_leaving: IntPerBranch
    scheduled_s: FloatPerRequest
    accepted: AcceptedTokens | None  # None without drafts


class PromptCandidate(NamedTuple):
    """The request at the head of the waiting queue, and what the iteration takes of it."""

    taken: Flag  # it goes in, whole or in part
    arrival_s: Float
    waits: Flag  # it does not go in, but would if it had arrived and nobody were about to leave
    has_budget: Flag  # the iteration has token budget for it
    tokens: Float  # prompt tokens computed, if it goes in


def _head(given: Given, i: Int) -> tuple[Float, Float, Float, Float]:
    """Of a request: prompt tokens to compute and in all, output tokens, KV units."""
    requests = given.requests
    columns = requests.compute_tokens, requests.prompt_tokens, requests.output_tokens, requests.kv_units
    compute, prompt, output, kv = (read(column, i).astype(jnp.float64) for column in columns)
    return compute, prompt, output, kv


def _sequences(given: Given, i: Int) -> Float | float:
    """Branches of a request, 1 where there are none."""
    return 1.0 if given.branches is None else read(given.branches.sequences, i).astype(jnp.float64)


def admit(given: Given, state: State, now: Float, start_s: Float) -> Intake:
    """Fill the iteration that starts at ``start_s``, one request after the other until one does not go in completely.

    Arrivals are looked at ``now``: planned ahead, that is earlier.
    """
    zero = jnp.zeros((), jnp.float64)
    intake = Intake(
        *(jnp.zeros((), bool),) * 2, zero, state.head, state.progress, state.kv, PromptSums.empty(), *(zero,) * 5,
        state.events, state.leaving, state.crossing, state.next_leaving, state.scheduled_s,
        state.accepted,
    )  # fmt: skip

    def take_and_look(carry: tuple[Intake, PromptCandidate]) -> tuple[Intake, PromptCandidate]:
        intake = _take(given, state, start_s, *carry)
        # After a part of a prompt the head is the same, for which no budget is left.
        return intake, _candidate(given, state, now, intake)

    # Looked at before the loop, so that a trip in which nobody goes in, as most of them, writes nothing.
    start = intake, _candidate(given, state, now, intake)
    intake, last = lax.while_loop(lambda carry: carry[1].taken, take_and_look, start)
    return intake._replace(waits=last.waits, budget_left=last.has_budget, next_arrival=last.arrival_s)


def _candidate(given: Given, state: State, now: Float, intake: Intake) -> PromptCandidate:
    """The head of the waiting queue against the token budget, the KV, ``max_num_seqs`` and the policy."""
    limits, i = given.limits, intake.head
    arrival = read(given.requests.arrival_s, i)
    (compute, _, _, kv), sequences = _head(given, i), _sequences(given, i)
    rest = compute - intake.progress
    budget = (
        limits.max_num_batched_tokens
        - jnp.where(limits.policy.prefill_alone, 0.0, given.rows(state.decodes))
        - intake.prompts.tokens
        - jnp.where(limits.prompts_resident, given.rows(intake.joined), 0.0)
    )
    share = jnp.where(limits.policy.whole_prompts, jnp.where(rest <= budget, rest, 0.0), jnp.minimum(rest, budget))
    started = intake.progress > 0
    has_budget = jnp.where(limits.prompts_resident, budget >= given.rows(sequences), share > 0)

    def has_room(seats: Float, units: Float, released: Int) -> Flag:
        """For what is taken of seats and KV, and for the requests that were sent."""
        # On demand it is counted and limits nobody (``kv_on_demand``). A prompt that was begun has the KV of its whole
        # request since its first chunk.
        has_kv = True if given.on_demand is not None else started | (units + kv <= limits.kv_units)
        has_seat = seats + intake.joined + sequences <= limits.max_num_seqs
        drains = limits.policy.drain_first & (seats > 0)
        return has_kv & has_seat & ~drains & (i < jnp.minimum(released, limits.requests))

    planned = state.planned
    if planned is None:
        fits = would_fit = has_budget & has_room(state.decodes, intake.kv, state.released)
    else:
        would_fit = has_budget & has_room(state.decodes, intake.kv - planned.kv, state.released + planned.requests)
        # ``AsyncScheduler``: who has the last token with the batch under way is gone only when that has ended.
        fits = has_budget & has_room(state.decodes + planned.sequences, intake.kv, state.released)
    taken = fits & (arrival <= now)
    return PromptCandidate(taken, arrival, would_fit & ~taken, has_budget, share)


def _take(given: Given, state: State, start_s: Float, intake: Intake, candidate: PromptCandidate) -> Intake:
    """Take what the policy and the limits allow of the head of the waiting queue."""
    i, tokens = intake.head, candidate.tokens
    # Read again and not carried from trip to trip of the loop, which takes longer.
    (compute, prompt, output, kv), sequences = _head(given, i), _sequences(given, i)
    starts, complete = intake.progress == 0, tokens == compute - intake.progress
    # The first token comes at the end of this iteration, the last one ``output - 1`` steps later.
    # An iteration of prompts alone is no step: their first tokens count as of the step before it.
    alone = given.limits.policy.prefill_alone & ~given.limits.prompts_resident
    first_step = state.step + jnp.where(alone, 0, 1)
    attends = prompt + 1.0  # in the step after its first token
    if given.speculation is None:
        attends = attends + given.limits.prompts_resident
    taken = intake._replace(
        head=i + complete,
        progress=jnp.where(complete, 0.0, intake.progress + tokens),
        kv=intake.kv if given.on_demand is not None else intake.kv + jnp.where(starts, kv, 0.0),
        prompts=intake.prompts.add_chunk(prompt - compute + intake.progress, tokens, given.window()),
        joined=intake.joined + jnp.where(complete, sequences, 0.0),
        joined_context=intake.joined_context + jnp.where(complete, sequences * attends, 0.0),
        scheduled_s=write(intake.scheduled_s, i, jnp.where(starts, start_s, read(intake.scheduled_s, i))),
    )
    if given.branches is not None:
        return _branch_out(given, complete, attends, first_step, i, taken)
    if given.speculation is not None:
        return _speculate(given, complete, output, attends, first_step, i, taken)
    taken = _ends(given, output, first_step, i, complete, taken)
    if not given.structure.windowed:
        return taken
    return _windowed(given, output, attends, first_step, complete, taken)


def _ends(given: Given, output: Float, first_step: Int, i: Int, complete: Flag, taken: Intake) -> Intake:
    """With a request's place among those that leave at the step of its last token."""
    return _leaves(given, first_step + output.astype(jnp.int32) - 1, i, complete, taken)


def _leaves(given: Given, last_step: Int, i: Int, complete: Flag, taken: Intake) -> Intake:
    """The same where the step is known."""
    ring = given.structure.ring
    last = in_ring(last_step, ring)
    next_leaving = write(taken.next_leaving, i, jnp.where(complete, read(taken.leaving, last), NONE))
    leaving_at = jnp.where(complete, last, ring)
    # What is written to the padding cell depends on ``next_leaving``, too, so that XLA sees the list's head written
    # after it was read (rule 2 of ``common.rings``).
    return taken._replace(
        events=mark(taken.events, last, complete),
        leaving=write(taken.leaving, leaving_at, jnp.where(complete, i, read(next_leaving, i))),
        next_leaving=next_leaving,
    )


def _speculate(
    given: Given, complete: Flag, output: Float, attends: Float, first_step: Int, i: Int, taken: Intake
) -> Intake:
    """With what a request gains in each of its decode iterations, and its place among those that leave.

    The first of them is the step after its first token; of a resident prompt, whose first token is there, the step in
    which it is admitted. ``attends`` is what it attends to in that step.
    """
    speculation, accepted, ring = given.speculation, taken.accepted, given.structure.ring
    assert speculation is not None and accepted is not None
    resident = given.limits.prompts_resident
    begin = first_step + 1 - resident
    left = jnp.where(complete, output.astype(jnp.int32) - 1 + resident, 0)

    def enter(gains: Gains, accepted: AcceptedTokens) -> AcceptedTokens:
        step = begin + gains.ahead[0]
        return accepted.enter(gains, in_ring(step, ring), step, attends, given.window())

    lead = begin & (AT_ONCE - 1)
    iterations, entered = over_gains(speculation, i, jnp.int32(0), left, enter, accepted, lead)
    taken = _leaves(given, begin + iterations - 1, i, complete, taken._replace(accepted=entered))
    if not given.structure.windowed:
        return taken
    windowed = jnp.where(complete, jnp.minimum(attends, given.limits.window), 0.0)
    return taken._replace(
        joined_window_context=taken.joined_window_context + windowed,
        resident_window_context=taken.resident_window_context + jnp.where(resident, windowed, 0.0),
    )


def _branch_out(given: Given, complete: Flag, attends: Float, first_step: Int, i: Int, taken: Intake) -> Intake:
    """With the places of all branches of a request whose prompt is complete.

    Every branch has tokens; the condition is there so that the write of a list's head depends on its old head, which is
    the second rule of ``common.rings``.
    """
    assert given.branches is not None
    tokens = given.branches.tokens
    until = (i + 1) * given.cells
    start = jnp.where(complete, until - read(given.branches.sequences, i), until)

    def enter(carry: tuple[Int, Intake]) -> tuple[Int, Intake]:
        branch, taken = carry
        output = read(tokens, branch).astype(jnp.float64)
        exists = output > 0
        taken = _ends(given, output, first_step, branch, exists, taken)
        if given.structure.windowed:
            taken = _windowed(given, output, attends, first_step, exists, taken)
        return branch + 1, taken

    return lax.while_loop(lambda carry: carry[0] < until, enter, (start, taken))[1]


def _windowed(given: Given, output: Float, attends: Float, first_step: Int, complete: Flag, taken: Intake) -> Intake:
    """What the windowed layers add: the windowed context, and the step at which the window is full."""
    window, ring = given.limits.window, given.structure.ring
    grows = complete & (attends < window) & (output > 1)
    full = first_step + jnp.minimum(window - attends, output - 1.0).astype(jnp.int32)
    slot = in_ring(full, ring)
    cell = jnp.where(grows, slot, ring)
    resident = complete & given.limits.prompts_resident
    return taken._replace(
        joined_window_context=taken.joined_window_context + jnp.where(complete, jnp.minimum(attends, window), 0.0),
        joined_growing=taken.joined_growing + grows,
        resident_window_context=taken.resident_window_context
        + jnp.where(resident, jnp.minimum(attends - 1.0, window), 0.0),
        events=mark(taken.events, slot, grows),
        crossing=tagged_add(taken.crossing, cell, full),
    )
