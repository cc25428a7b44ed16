"""Who takes part in the next iteration: the policies, put together from the moves that the reference has, too."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from evaluator.cost.iteration import Array
from evaluator.stations.engine.any_order.groups import join
from evaluator.stations.engine.any_order.lane import GeneralLane, GeneralStructure
from evaluator.stations.engine.any_order.peak import enter_end, peak_units
from evaluator.stations.engine.any_order.preemption import grow_decodes, make_room, own_units
from evaluator.stations.engine.any_order.state import State
from evaluator.stations.engine.any_order.waiting import anybody, head, pop
from evaluator.stations.engine.common.lane import Requests
from evaluator.stations.engine.common.rings import load, read, write
from evaluator.stations.engine.in_order.admission import triangle, window_triangle


def put_together(
    given: GeneralLane, requests: Requests, structure: GeneralStructure, state: State, start_s: Array, on: Array
) -> State:
    """The next batch, which will start at ``start_s``, in ``state.batch``; its decodes are the group at rest.

    Where prompts are computed alone, the waiting come first, and then, if none came, a token for everybody. Elsewhere a
    token for everybody, prompts under way, and the waiting if nobody was short of KV.
    """
    policy, rules = given.lane.policy, given.rules
    alone = policy.prefill_alone
    looks = jnp.where(rules.look_every > 0, _looks(given, state), ~policy.drain_first | (state.running_count == 0))
    any_kind = policy.drain_first | (rules.look_every > 0)
    first = on & alone & looks
    state = _admit(given, requests, structure, state, start_s, first, computing=first, resident=first & any_kind)
    state = state._replace(looked_at=jnp.where(state.batch.admitted > 0, state.decode_iterations, state.looked_at))
    decodes = on & (~alone | (state.batch.tokens == 0))
    state = grow_decodes(given, requests, structure, state, decodes)
    beside = jnp.where(alone, 0.0, read(state.groups.decodes, state.at_rest))
    state = state._replace(batch=state.batch._replace(decodes=beside))
    state = _continue_prompts(given, requests, structure, state, decodes & ~policy.whole_prompts)
    last = decodes & ~state.batch.short & ~any_kind
    return _admit(given, requests, structure, state, start_s, last, computing=last & ~alone, resident=last)


def _looks(given: GeneralLane, state: State) -> Array:
    """LightLLM looks at who waits if nobody runs, and every so many decode iterations."""
    waited = state.decode_iterations - state.looked_at
    due = (waited > 0) & (waited % jnp.maximum(given.rules.look_every, 1) == 0)
    return (state.running_count == 0) | due


class Candidate(NamedTuple):
    """A prompt that waits or is under way, int32: what the next iteration computes of it."""

    start: Array  # tokens computed so far
    rest: Array
    tokens: Array  # of the next chunk; below 0 if it has to wait


def _candidate(given: GeneralLane, state: State, i: Array) -> Candidate:
    lane, batch, whole = given.lane, state.batch, given.lane.policy.whole_prompts
    start, target = load(state.sequences.computed, i), load(state.sequences.target, i)
    rest = jnp.maximum(target - start, 0)
    room = lane.max_num_batched_tokens - batch.decodes - batch.tokens
    bound = jnp.minimum(room, given.rules.long_prefill_tokens)
    chunk = jnp.where(whole, jnp.where(rest <= room, rest, -1.0), jnp.minimum(rest, bound))
    return Candidate(start, rest, jnp.where(room > 0, chunk, -1.0).astype(jnp.int32))


def _needed_units(given: GeneralLane, requests: Requests, i: Array, one: Candidate) -> Array:
    """KV units that a request takes on admission: for what it computes now, or with reserved KV for all of it."""
    rules = given.rules
    slots = jnp.maximum(one.start + jnp.maximum(one.tokens, 1), jnp.where(rules.whole_kv, one.start + one.rest, 0))
    reserved = read(requests.kv_units, i).astype(jnp.float64)
    return jnp.where(rules.on_demand, own_units(given, i, slots.astype(jnp.float64)), reserved)


def _admit(
    given: GeneralLane,
    requests: Requests,
    structure: GeneralStructure,
    state: State,
    start_s: Array,
    on: Array,
    computing: Array,
    resident: Array,
) -> State:
    """Admit who waits, in turn, as long as the first fits into all limits: those with a prompt to compute if
    ``computing``, those without if ``resident``."""
    lane, rules = given.lane, given.rules

    def fits(state: State) -> Array:
        i = head(state.waiting)
        one = _candidate(given, state, i)
        kept = jnp.where(rules.on_demand, rules.watermark_units, 0.0)
        fits = jnp.where(one.rest > 0, computing & (one.tokens > 0), resident & (one.tokens >= 0)) & (
            _needed_units(given, requests, i, one) + kept <= lane.kv_units - state.kv
        )
        if structure.peaks:
            fits = fits & (~(rules.look_every > 0) | (peak_units(given, requests, state, i, fits) <= lane.kv_units))
        return fits

    def next_fits(state: State) -> Array:
        looks = on & (state.running_count < lane.max_num_seqs) & anybody(given, requests, state)
        return lax.cond(looks, fits, lambda _: jnp.zeros((), bool), state)

    def take(state: State) -> State:
        i = head(state.waiting)
        one = _candidate(given, state, i)
        state = state._replace(
            kv=state.kv + _needed_units(given, requests, i, one),
            waiting=pop(state.waiting, i),
            running=state.running.append(i, True),
            prompts=state.prompts.append(i, one.rest > 0),
            running_count=state.running_count + 1,
            admissions=state.admissions + 1,
            batch=state.batch._replace(
                admitted=state.batch.admitted + 1, decodes=state.batch.decodes + (one.rest == 0)
            ),
        )
        sequences = state.sequences
        scheduled_s = jnp.minimum(load(sequences.scheduled_s, i), start_s)
        state = state._replace(
            sequences=sequences._replace(
                admission=write(sequences.admission, i, state.admissions),
                scheduled_s=write(sequences.scheduled_s, i, scheduled_s),
            )
        )
        if structure.peaks:
            state = enter_end(given, requests, state, i)
        state = _compute(given, structure, state, i, one)
        return join(given, requests, structure, state, i, one.rest == 0, has_kv=True)

    return lax.while_loop(next_fits, take, state)


def _continue_prompts(
    given: GeneralLane, requests: Requests, structure: GeneralStructure, state: State, on: Array
) -> State:
    """The next chunk of each prompt under way, in order of admission, as far as the budget and the KV go."""

    def next_one(carry: tuple[State, Array, Array]) -> Array:
        state, before, _ = carry
        return load(state.prompts.newer, before)

    def goes_on(carry: tuple[State, Array, Array]) -> Array:
        state, _, fits = carry
        i = next_one(carry)
        return on & fits & (i < state.prompts.sentinel) & (_candidate(given, state, i).tokens > 0)

    def go_on(carry: tuple[State, Array, Array]) -> tuple[State, Array, Array]:
        state, before, _ = carry
        i = next_one(carry)
        one = _candidate(given, state, i)
        state, fits = make_room(given, requests, structure, state, i, (one.start + one.tokens).astype(jnp.float64))
        one = one._replace(tokens=jnp.where(fits, one.tokens, 0))
        state = _compute(given, structure, state, i, one)
        return state, jnp.where(one.tokens == one.rest, before, i), fits

    start = (state, state.prompts.sentinel, ~jnp.zeros((), bool))
    return lax.while_loop(goes_on, go_on, start)[0]


def _compute(given: GeneralLane, structure: GeneralStructure, state: State, i: Array, one: Candidate) -> State:
    """The batch computes a chunk of a prompt under way; nothing happens if it has no tokens."""
    batch, sequences, window = state.batch, state.sequences, given.lane.window
    computes = one.tokens > 0
    completes = computes & (one.tokens == one.rest)
    low = one.start.astype(jnp.float64)
    tokens = one.tokens.astype(jnp.float64)
    high = low + tokens
    batch = batch._replace(
        tokens=batch.tokens + tokens,
        sequences=batch.sequences + computes,
        area=batch.area + triangle(high) - triangle(low),
        context=batch.context + jnp.where(computes, high, 0.0),
    )
    if structure.windowed:
        batch = batch._replace(
            window_area=batch.window_area + window_triangle(high, window) - window_triangle(low, window),
            window_context=batch.window_context + jnp.where(computes, jnp.minimum(high, tokens + window - 1.0), 0.0),
        )
    links = write(state.next_completing, i, jnp.where(completes, batch.completing, load(state.next_completing, i)))
    batch = batch._replace(completing=jnp.where(completes, i, batch.completing))
    computed = load(sequences.computed, i) + one.tokens
    flight = jnp.where(computes, state.sent, load(sequences.flight, i))
    return state._replace(
        batch=batch,
        sequences=sequences._replace(
            computed=write(sequences.computed, i, computed), flight=write(sequences.flight, i, flight)
        ),
        next_completing=links,
        prompts=state.prompts.remove(i, completes),
    )
