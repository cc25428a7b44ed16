"""Admission: requests are taken from the head of the queue as far as the policy and the limits allow."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from evaluator.cost.iteration import Array
from evaluator.stations.engine.common.lane import Lane, Requests
from evaluator.stations.engine.common.rings import mark, read, tagged_add, write
from evaluator.stations.engine.in_order.state import NOBODY, State, Structure


class Intake(NamedTuple):
    """The part of the state that admission changes, and what it has gathered for the iteration."""

    more: Array  # the last candidate went in completely: look at the next
    waits: Array  # the last candidate would go in, but has not arrived
    next_arrival: Array
    head: Array
    progress: Array
    kv: Array
    tokens: Array
    sequences: Array
    area: Array
    window_area: Array
    prefill_context: Array
    prefill_window_context: Array
    joined: Array  # sequences that get their first token in this iteration
    joined_context: Array
    joined_window_context: Array
    joined_growing: Array
    resident_window_context: Array  # windowed context, in this iteration, of sequences that decode at once
    events: Array
    leaving: Array
    crossing: Array
    next_leaving: Array
    scheduled_s: Array


class Candidate(NamedTuple):
    """The request at the head of the queue, and what the iteration takes of it."""

    arrival_s: Array
    prompt: Array
    output: Array
    kv: Array
    waits: Array  # it would go in, but has not arrived
    starts: Array  # it is scheduled for the first time
    complete: Array  # the rest of its prompt goes in
    tokens: Array  # prompt tokens computed
    low: Array  # they are low + 1 .. high of the prompt
    high: Array


def _candidate(lane: Lane, requests: Requests, state: State, now: Array, intake: Intake) -> Candidate:
    i = intake.head
    arrival = read(requests.arrival_s, i)
    compute, prompt, output, kv = (read(field, i).astype(jnp.float64) for field in requests[1:])
    rest = compute - intake.progress
    budget = (
        lane.max_num_batched_tokens
        - jnp.where(lane.policy.prefill_alone, 0.0, state.decodes)
        - intake.tokens
        - jnp.where(lane.prompts_resident, intake.joined, 0.0)
    )
    share = jnp.where(lane.policy.whole_prompts, jnp.where(rest <= budget, rest, 0.0), jnp.minimum(rest, budget))
    started = intake.progress > 0
    fits = (
        jnp.where(lane.prompts_resident, budget >= 1, share > 0)
        & (started | (intake.kv + kv <= lane.kv_units))
        & (state.decodes + intake.joined < lane.max_num_seqs)
        & ~(lane.policy.drain_first & (state.decodes > 0))
        & (i < jnp.minimum(state.released, lane.requests))
    )
    taken = fits & (arrival <= now)
    tokens = jnp.where(taken, share, 0.0)
    low = prompt - compute + intake.progress
    return Candidate(
        arrival, prompt, output, kv, fits & ~taken, taken & ~started, taken & (share == rest), tokens, low, low + tokens
    )


def _consider(lane: Lane, requests: Requests, structure: Structure, state: State, now: Array, intake: Intake) -> Intake:
    """Look at the request at the head of the queue and take what the policy and the limits allow of it."""
    one = _candidate(lane, requests, state, now, intake)
    i, complete, computes = intake.head, one.complete, one.tokens > 0

    # The first token comes at the end of this iteration, the last one ``output - 1`` steps later.
    alone = lane.policy.prefill_alone & ~lane.prompts_resident
    first_step = state.step + jnp.where(alone, 0, 1)
    last = (first_step + one.output.astype(jnp.int32) - 1) % structure.ring
    next_leaving = write(intake.next_leaving, i, jnp.where(complete, read(intake.leaving, last), NOBODY))
    leaving_at = jnp.where(complete, last, structure.ring)
    attends = one.prompt + 1.0 + lane.prompts_resident  # in the step after its first token
    taken = intake._replace(
        more=complete,
        waits=one.waits,
        next_arrival=one.arrival_s,
        head=i + complete,
        progress=jnp.where(complete, 0.0, intake.progress + one.tokens),
        kv=intake.kv + jnp.where(one.starts, one.kv, 0.0),
        tokens=intake.tokens + one.tokens,
        sequences=intake.sequences + computes,
        area=intake.area + triangle(one.high) - triangle(one.low),
        prefill_context=intake.prefill_context + jnp.where(computes, one.high, 0.0),
        joined=intake.joined + complete,
        joined_context=intake.joined_context + jnp.where(complete, attends, 0.0),
        events=mark(intake.events, last, complete),
        leaving=write(intake.leaving, leaving_at, jnp.where(complete, i, read(next_leaving, i))),
        next_leaving=next_leaving,
        scheduled_s=write(intake.scheduled_s, i, jnp.where(one.starts, now, read(intake.scheduled_s, i))),
    )
    return _windowed(lane, structure, one, attends, first_step, taken) if structure.windowed else taken


def _windowed(
    lane: Lane, structure: Structure, one: Candidate, attends: Array, first_step: Array, taken: Intake
) -> Intake:
    """What the windowed layers add: their area and context, and the step at which the window is full."""
    window, complete = lane.window, one.complete
    grows = complete & (attends < window) & (one.output > 1)
    full = first_step + jnp.minimum(window - attends, one.output - 1.0).astype(jnp.int32)
    at = jnp.where(grows, full % structure.ring, structure.ring)
    context = jnp.where(one.tokens > 0, jnp.minimum(one.high, one.tokens + window - 1.0), 0.0)
    resident = complete & lane.prompts_resident
    return taken._replace(
        window_area=taken.window_area + window_triangle(one.high, window) - window_triangle(one.low, window),
        prefill_window_context=taken.prefill_window_context + context,
        joined_window_context=taken.joined_window_context + jnp.where(complete, jnp.minimum(attends, window), 0.0),
        joined_growing=taken.joined_growing + grows,
        resident_window_context=taken.resident_window_context
        + jnp.where(resident, jnp.minimum(attends - 1.0, window), 0.0),
        events=mark(taken.events, full % structure.ring, grows),
        crossing=tagged_add(taken.crossing, at, full),
    )


def admit(lane: Lane, requests: Requests, structure: Structure, state: State, now: Array) -> Intake:
    """Fill the iteration that starts at ``now``, one request after the other until one does not go in completely."""
    zero = jnp.zeros((), jnp.float64)
    false = jnp.zeros((), bool)
    intake = Intake(
        ~false, false, zero, state.head, state.progress, state.kv, *(zero,) * 11,
        state.events, state.leaving, state.crossing, state.next_leaving, state.scheduled_s,
    )  # fmt: skip
    return lax.while_loop(
        lambda intake: intake.more,
        lambda intake: _consider(lane, requests, structure, state, now, intake),
        intake,
    )


def triangle(n: Array) -> Array:
    """Tokens attended to by positions 1 .. n, summed."""
    return 0.5 * n * (n + 1.0)


def window_triangle(n: Array, window: Array) -> Array:
    """Sum over 1 .. n of the windowed context."""
    inside = jnp.minimum(n, window)
    return triangle(inside) + (n - inside) * window
