"""Instances that compute prompts and decode, prompts first: BestServe, algorithms 4 to 7.

A trip of the loop is one event: a batch of prompts starts (its instance suspends its decodes), an instance resumes its
decodes, or a request starts to decode. All three are computed in every trip, and only what belongs to the event of the
trip is kept: on lanes that run in step there is nothing to branch on.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from evaluator.cost.iteration import Array
from evaluator.stations.request_level.decode import busy_boxes, pseudo_batch
from evaluator.stations.request_level.lane import (
    Departures,
    RequestLane,
    RequestLevelStructure,
    ServedRequests,
    draw_one,
    least_at,
    prompt_batch,
    when_idle,
)
from evaluator.stations.request_level.prefill import padded, spread, window


class _State(NamedTuple):
    clock: Array
    head: Array  # first request whose prompt waits: the queue P
    # (instance,): the batch of prompts of each, and when its decodes resume: the queue S
    resume_s: Array  # inf: it computes no prompts
    first: Array  # of the batch
    count: Array
    # Requests with their first token: the queue Q, in the order in which they got it
    waiting: Array  # (request + prompt,) request numbers
    taken: Array
    landed: Array
    # (instance, box)
    idle_s: Array
    holder: Array  # the request that is, or was last, in the box
    # (request + prompt,)
    scheduled_s: Array
    first_token_s: Array
    last_token_s: Array
    instance: Array


class _Next(NamedTuple):
    """The next event; exactly one of the flags is set."""

    now: Array
    prefill: Array
    resume: Array
    decode: Array


def _initial(lane: RequestLane, slots: int, structure: RequestLevelStructure) -> _State:
    none, wide = jnp.zeros((), jnp.int32), slots + structure.prompts
    boxes = structure.instances, structure.boxes
    never = jnp.full(wide, jnp.inf)
    return _State(
        clock=jnp.zeros(()),
        head=none,
        resume_s=jnp.full(structure.instances, jnp.inf),
        first=jnp.zeros(structure.instances, jnp.int32),
        count=jnp.zeros(structure.instances, jnp.int32),
        waiting=jnp.zeros(wide, jnp.int32),
        taken=none,
        landed=none,
        idle_s=when_idle(boxes, lane.instances, lane.max_decodes),
        holder=jnp.full(boxes, wide - 1, jnp.int32),
        scheduled_s=never,
        first_token_s=never,
        last_token_s=never,
        instance=jnp.zeros(wide, jnp.int32),
    )


def _next_event(lane: RequestLane, given: ServedRequests, state: _State) -> _Next:
    """The earliest event; at the same time prompts come before resumption, and that before decodes.

    A prompt can start on every instance that does not compute prompts, a decode where a box of such an instance is
    free.
    """
    prefilling = state.resume_s < jnp.inf
    exists = jnp.arange(prefilling.shape[0]) < lane.instances
    able_s = jnp.min(jnp.where(prefilling, state.resume_s, jnp.where(exists, 0.0, jnp.inf)))
    arrival = jnp.where(state.head < lane.requests, given.arrival_s[state.head], jnp.inf)
    prefill_s = jnp.maximum(jnp.maximum(arrival, able_s), state.clock)
    resume_s = jnp.min(state.resume_s)
    box_s = jnp.min(jnp.where(prefilling[:, None], jnp.inf, state.idle_s))
    single = given.output_tokens[state.waiting[state.taken]] <= 1.0
    decode_s = jnp.maximum(jnp.where(single, 0.0, box_s), state.clock)
    decode_s = jnp.where(state.taken < state.landed, decode_s, jnp.inf)
    prefill = (prefill_s <= resume_s) & (prefill_s <= decode_s)
    resume = ~prefill & (resume_s <= decode_s)
    now = jnp.where(prefill, prefill_s, jnp.where(resume, resume_s, decode_s))
    return _Next(now, prefill, resume, ~prefill & ~resume)


def _prompts(
    lane: RequestLane, given: ServedRequests, structure: RequestLevelStructure, state: _State, event: _Next
) -> _State:
    """A batch of prompts starts (algorithm 6) or an instance goes back to its decodes; else nothing changes.

    Either way the prompts that the instance computed before are there. Decodes that are not finished on an instance
    that starts prompts take so much longer: they are suspended, or suspended further.
    """
    size, now, head = structure.prompts, event.now, state.head
    exists = jnp.arange(structure.instances) < lane.instances
    able = jnp.where(state.resume_s < jnp.inf, state.resume_s <= now, exists)
    drawn = draw_one(able, given.prefill_draw[head])
    chosen = jnp.where(event.prefill, drawn, least_at(state.resume_s))
    batch = prompt_batch(lane, window(given.arrival_s, head, size), window(given.prompt_tokens, head, size), now)
    took_s = lane.cost.prompts_s(batch)
    started = jnp.where(event.prefill, batch.requests.astype(jnp.int32), 0)
    lands = (event.prefill | event.resume) & (state.resume_s[chosen] < jnp.inf)
    row = state.idle_s[chosen]
    # The queue is written before what it is written from changes; behind its end the window holds nothing yet.
    queue = lax.dynamic_update_slice(
        state.waiting, state.first[chosen] + jnp.arange(size, dtype=jnp.int32), (state.landed,)
    )
    again = jnp.where(event.prefill, now + took_s, jnp.where(event.resume, jnp.inf, state.resume_s[chosen]))
    return state._replace(
        clock=now,
        head=head + started,
        resume_s=state.resume_s.at[chosen].set(again),
        waiting=queue,
        landed=state.landed + jnp.where(lands, state.count[chosen], 0),
        first=state.first.at[chosen].set(jnp.where(event.prefill, head, state.first[chosen])),
        count=state.count.at[chosen].set(jnp.where(event.prefill, started, state.count[chosen])),
        idle_s=state.idle_s.at[chosen].set(jnp.where(event.prefill & (row > now), row + took_s, row)),
        # Without a start this writes behind the last batch, where the next one writes again.
        scheduled_s=spread(state.scheduled_s, now, head, size),
        first_token_s=spread(state.first_token_s, now + took_s, head, size),
        instance=spread(state.instance, chosen, head, size),
    )


def _decode(lane: RequestLane, given: ServedRequests, state: _State, event: _Next) -> _State:
    """A request gets a box (algorithm 7); one without more tokens to come leaves. Else nothing changes.

    When a box is free for good is known only once it is taken again: until then its request may be suspended. That is
    when its last token is written, or at the end.
    """
    now, padding = event.now, state.last_token_s.shape[0] - 1
    request = state.waiting[jnp.where(event.decode, state.taken, 0)]
    output = given.output_tokens[request]
    able = (state.resume_s == jnp.inf) & jnp.any(state.idle_s <= now, axis=1)
    chosen = draw_one(able, given.decode_draw[request])
    row = state.idle_s[chosen]
    box = least_at(row)
    together = pseudo_batch(busy_boxes(row, now), lane.tau)
    took_s = lane.cost.decodes_s(together, given.prompt_tokens[request], output)
    enters = event.decode & (output > 1.0)
    leaves = event.decode & (output <= 1.0)
    before = state.holder[chosen, box]
    written = jnp.where(enters, before, jnp.where(leaves, request, padding))
    value = jnp.where(enters, row[box], state.first_token_s[request])
    return state._replace(
        taken=state.taken + event.decode.astype(jnp.int32),
        last_token_s=state.last_token_s.at[written].set(value),
        holder=state.holder.at[chosen, box].set(jnp.where(enters, request, before)),
        idle_s=state.idle_s.at[chosen, box].set(jnp.where(enters, now + took_s, row[box])),
    )


def collocated(lane: RequestLane, requests: ServedRequests, structure: RequestLevelStructure) -> Departures:
    """The requests of a lane."""
    slots = requests.arrival_s.shape[0]
    given = padded(requests, structure.prompts)

    def trip(state: _State) -> _State:
        event = _next_event(lane, given, state)
        return _decode(lane, given, _prompts(lane, given, structure, state, event), event)

    def unfinished(state: _State) -> Array:
        return (state.head < lane.requests) | jnp.any(state.resume_s < jnp.inf) | (state.taken < state.landed)

    final = lax.while_loop(unfinished, trip, _initial(lane, slots, structure))
    last_token_s = final.last_token_s.at[final.holder.ravel()].set(final.idle_s.ravel())
    real = jnp.arange(slots) < lane.requests
    times = final.scheduled_s, final.first_token_s, last_token_s
    scheduled_s, first_token_s, last_token_s = (jnp.where(real, each[:slots], jnp.inf) for each in times)
    return Departures(scheduled_s, first_token_s, last_token_s, final.instance[:slots])
