"""The token-exact serving engine: one lane's event loop as a scalar JAX program, and the map over lanes.

One trip of the loop is one iteration that computes prompts, or a leap over all decode iterations up to the next event: a
completion, an admissible arrival, or a context that passes the attention window. In between the batch is fixed and an
iteration's time is affine in the number of iterations, so their sum has a closed form and the result equals a loop over
single iterations (``evaluator.reference``) to rounding, at a cost per request instead of per token.

On CPU the lanes run one after another (``lax.map``) and XLA compiles the whole loop into one function (``evaluator.device``
asks it to), which runs at a few hundred instructions a trip; elsewhere the same program is vmapped.

Two habits keep the loop free of array copies: an array is written first and read after within a trip, and where an old
value is read before a write, the value written depends on it, so that XLA sees the order.

Time is counted in *steps*: a step is one iteration in which decodes take part. A sequence that gets its first token at
the end of step ``s`` and has ``n`` output tokens leaves at the end of step ``s + n - 1``. ``leaving[step]`` heads the
list of requests that leave at that step (``next_leaving`` chains them), ``events`` has a bit per step with an event; both
are rings longer than the longest output.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from evaluator.cost.iteration import Array, BatchStatistics, experts_touched, iteration_time
from evaluator.stations.engine import histogram
from evaluator.stations.engine.lane import Lane, LaneResult, Requests

NOBODY = -1
WORD = 64  # bits of a word of ``events``


class Structure(NamedTuple):
    """What is compiled in: everything else is traced."""

    ring: int  # steps in the rings, a power of two above the longest output
    windowed: bool  # the model has sliding-window layers


class State(NamedTuple):
    clock: Array
    head: Array  # first request whose prompt is not completely computed
    progress: Array  # prompt tokens of the head already computed
    step: Array  # steps done
    decodes: Array  # running sequences
    context: Array  # tokens that they attend to in the next step, summed
    window_context: Array
    window_growing: Array  # decodes whose windowed context still grows
    kv: Array  # KV units reserved
    released: Array  # closed loop: requests sent so far
    gap_from: Array  # end of the last step, where the next gap between tokens starts
    first_gap: Array  # requests from here to the head have no second token yet
    busy_s: Array
    iterations: Array
    kv_max: Array
    experts_touched: Array
    events: Array  # (ring / 64,) uint64
    leaving: Array  # (ring + 1,) int32, the last cell takes writes that are not meant
    crossing: Array  # (ring + 1,) int32, decodes whose windowed context stops growing at that step
    next_leaving: Array  # (request + 1,) int32
    scheduled_s: Array  # (request + 1,)
    first_token_s: Array
    last_token_s: Array
    itl_histogram: Array  # (bin,)


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


def _get(array: Array, index: Array) -> Array:
    return lax.dynamic_slice(array, (index,), (1,))[0]


def _set(array: Array, index: Array, value: Array) -> Array:
    return lax.dynamic_update_slice(array, jnp.asarray(value, array.dtype)[None], (index,))


def _bit(slot: Array) -> Array:
    return jnp.uint64(1) << (slot % WORD).astype(jnp.uint64)


def _mark(events: Array, slot: Array, on: Array) -> Array:
    word = _get(events, slot // WORD)
    return _set(events, slot // WORD, word | jnp.where(on, _bit(slot), jnp.uint64(0)))


def _steps_to_event(events: Array, step: Array, ring: int) -> Array:
    """Steps until the next marked one, at least 1; where the next 64 or more hold none, as far as was looked."""
    slot = (step + 1) % ring
    near = _get(events, slot // WORD) >> (slot % WORD).astype(jnp.uint64)
    far = _get(events, (slot // WORD + 1) % (ring // WORD))
    zeros = lambda word: lax.population_count(~word & (word - jnp.uint64(1))).astype(jnp.int32)
    return 1 + jnp.where(near != 0, zeros(near), WORD - slot % WORD + zeros(far))


def _triangle(n: Array) -> Array:
    return 0.5 * n * (n + 1.0)


def _window_triangle(n: Array, window: Array) -> Array:
    """Sum over 1 .. n of the windowed context."""
    inside = jnp.minimum(n, window)
    return _triangle(inside) + (n - inside) * window


def _consider(lane: Lane, requests: Requests, structure: Structure, state: State, now: Array, intake: Intake) -> Intake:
    """Look at the request at the head of the queue and take what the policy and the limits allow of it."""
    i = intake.head
    arrival = _get(requests.arrival_s, i)
    compute, prompt, output, kv = (_get(field, i).astype(jnp.float64) for field in requests[1:])
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
    complete = taken & (share == rest)
    starts = taken & ~started
    tokens = jnp.where(taken, share, 0.0)
    computes = tokens > 0
    low = prompt - compute + intake.progress
    high = low + tokens

    # The first token comes at the end of this iteration, the last one ``output - 1`` steps later.
    alone = lane.policy.prefill_alone & ~lane.prompts_resident
    first_step = state.step + jnp.where(alone, 0, 1)
    last = (first_step + output.astype(jnp.int32) - 1) % structure.ring
    events = _mark(intake.events, last, complete)
    next_leaving = _set(intake.next_leaving, i, jnp.where(complete, _get(intake.leaving, last), NOBODY))
    leaving = _set(
        intake.leaving, jnp.where(complete, last, structure.ring), jnp.where(complete, i, _get(next_leaving, i))
    )
    scheduled = _set(intake.scheduled_s, i, jnp.where(starts, now, _get(intake.scheduled_s, i)))

    attends = prompt + 1.0 + lane.prompts_resident  # in the step after its first token
    zero = jnp.zeros_like(tokens)
    crossing, window_area, window_context = intake.crossing, zero, zero
    joined_window, joined_growing, resident_window = zero, zero, zero
    if structure.windowed:
        window = lane.window
        window_area = _window_triangle(high, window) - _window_triangle(low, window)
        window_context = jnp.where(computes, jnp.minimum(high, tokens + window - 1.0), 0.0)
        joined_window = jnp.where(complete, jnp.minimum(attends, window), 0.0)
        resident_window = jnp.where(complete & lane.prompts_resident, jnp.minimum(attends - 1.0, window), 0.0)
        grows = complete & (attends < window)
        joined_growing = grows.astype(jnp.float64)
        stop = (first_step + jnp.minimum(window - attends, output - 1.0).astype(jnp.int32)) % structure.ring
        events = _mark(events, stop, grows)
        stop = jnp.where(grows, stop, structure.ring)
        crossing = _set(crossing, stop, _get(crossing, stop) + 1)

    return Intake(
        more=complete,
        waits=fits & ~taken,
        next_arrival=arrival,
        head=i + complete,
        progress=jnp.where(complete, 0.0, intake.progress + tokens),
        kv=intake.kv + jnp.where(starts, kv, 0.0),
        tokens=intake.tokens + tokens,
        sequences=intake.sequences + computes,
        area=intake.area + _triangle(high) - _triangle(low),
        window_area=intake.window_area + window_area,
        prefill_context=intake.prefill_context + jnp.where(computes, high, 0.0),
        prefill_window_context=intake.prefill_window_context + window_context,
        joined=intake.joined + complete,
        joined_context=intake.joined_context + jnp.where(complete, attends, 0.0),
        joined_window_context=intake.joined_window_context + joined_window,
        joined_growing=intake.joined_growing + joined_growing,
        resident_window_context=intake.resident_window_context + resident_window,
        events=events,
        leaving=leaving,
        crossing=crossing,
        next_leaving=next_leaving,
        scheduled_s=scheduled,
    )


def _admit(lane: Lane, requests: Requests, structure: Structure, state: State, now: Array) -> Intake:
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


def _iterations_until(wait_s: Array, first_s: Array, slope_s: Array) -> Array:
    """Smallest k with ``k first + slope k (k - 1) / 2 >= wait``, or one less where rounding leaves a doubt.

    One too few costs another trip, one too many would be wrong. The root is in the form that does not cancel.
    """
    b = first_s - 0.5 * slope_s
    root = 2.0 * wait_s / (b + jnp.sqrt(b * b + 2.0 * slope_s * wait_s))
    return jnp.ceil(root - 1e-6)


def _first_tokens(first_token_s: Array, start: Array, end: Array, clock: Array) -> Array:
    """Write the time of the first token of requests start .. end - 1."""
    return lax.while_loop(
        lambda carry: carry[0] < end, lambda carry: (carry[0] + 1, _set(carry[1], carry[0], clock)), (start, first_token_s)
    )[1]


class Departures(NamedTuple):
    request: Array
    count: Array
    context: Array
    window_context: Array
    kv: Array
    last_token_s: Array


def _depart(lane: Lane, requests: Requests, structure: Structure, first: Array, intake: Intake, state: State, clock: Array):
    """Walk the list of requests that leave now, adding up what they free."""

    def leave(out: Departures) -> Departures:
        i = out.request
        prompt, output, kv = (_get(field, i).astype(jnp.float64) for field in requests[2:])
        attends = prompt + output + lane.prompts_resident
        windowed = jnp.minimum(attends, lane.window) if structure.windowed else 0.0
        return Departures(
            _get(intake.next_leaving, i),
            out.count + 1,
            out.context + attends,
            out.window_context + windowed,
            out.kv + kv,
            _set(out.last_token_s, i, clock),
        )

    zero = jnp.zeros((), jnp.float64)
    start = Departures(first, jnp.int32(0), zero, zero, zero, state.last_token_s)
    return lax.while_loop(lambda out: out.request >= 0, leave, start)


def _enter_gaps(
    lane: Lane, requests: Requests, state: State, first_token_s: Array, first_end: Array, steps: Array, rest_s: Array
) -> Array:
    """Histogram with the gaps that end in ``steps`` steps, the first at ``first_end``, the others after ``rest_s`` more.

    The first gap of a sequence starts at its own first token, which may lie before the end of the last step where
    decodes waited for prompts: it is entered by itself. All other gaps start at the end of the last step.
    """
    weight = jnp.where(state.head > lane.measured_from, 1.0, 0.0)

    def enter_first(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        i, entered, bins = carry
        runs = jnp.where(_get(requests.output_tokens, i) > 1, 1.0, 0.0)
        at = histogram.bin_of(first_end - _get(first_token_s, i))
        return i + 1, entered + runs, _set(bins, at, _get(bins, at) + runs * weight)

    end = jnp.where(steps > 0, state.head, state.first_gap)
    start = (state.first_gap, jnp.zeros((), jnp.float64), state.itl_histogram)
    _, entered, bins = lax.while_loop(lambda carry: carry[0] < end, enter_first, start)
    at = histogram.bin_of(first_end - state.gap_from)
    bins = _set(bins, at, _get(bins, at) + jnp.where(steps > 0, weight * (state.decodes - entered), 0.0))
    more = jnp.maximum(steps - 1, 0).astype(jnp.float64)
    at = histogram.bin_of(rest_s / jnp.maximum(more, 1.0))
    return _set(bins, at, _get(bins, at) + weight * more * state.decodes)


def _trip(lane: Lane, requests: Requests, structure: Structure, state: State) -> State:
    ring = structure.ring
    empty = (state.decodes == 0) & (state.progress == 0)
    now = jnp.where(empty, jnp.maximum(state.clock, _get(requests.arrival_s, state.head)), state.clock)
    intake = _admit(lane, requests, structure, state, now)

    computes = intake.tokens > 0
    stalled = lane.policy.prefill_alone & computes  # the decodes wait for this iteration
    admitted = computes | (intake.joined > 0)
    here = jnp.where(lane.prompts_resident, 1.0, 0.0)  # joined sequences that decode at once
    part = jnp.where(stalled, 0.0, 1.0)
    decodes = part * state.decodes + here * intake.joined
    nothing = ~computes & (decodes == 0)  # the head can never be admitted
    batch = BatchStatistics(
        decodes=decodes,
        decode_context=part * state.context + here * (intake.joined_context - intake.joined),
        decode_window_context=part * state.window_context + intake.resident_window_context,
        prefill_tokens=intake.tokens,
        prefill_sequences=intake.sequences,
        prefill_area=intake.area,
        prefill_window_area=intake.window_area,
        prefill_context=intake.prefill_context,
        prefill_window_context=intake.prefill_window_context,
    )
    first_s = iteration_time(lane.cost, batch)
    slope_s = lane.cost.context_s * state.decodes + lane.cost.window_context_s * state.window_growing

    until_arrival = _iterations_until(jnp.maximum(intake.next_arrival - now, 0.0), first_s, slope_s)
    most = jnp.where(intake.waits, jnp.clip(until_arrival, 1.0, 1e9), 1e9).astype(jnp.int32)
    leap = jnp.minimum(_steps_to_event(intake.events, state.step, ring), most)
    leap = jnp.where(admitted, 1, leap)
    iterations = leap.astype(jnp.float64)
    took_s = iterations * first_s + jnp.where(admitted, 0.0, 0.5 * slope_s * iterations * (iterations - 1.0))
    clock = jnp.where(nothing, jnp.inf, now + took_s)
    steps = jnp.where(stalled, 0, leap)
    step = state.step + steps
    grown = steps.astype(jnp.float64)

    first_token_s = _first_tokens(state.first_token_s, state.head, intake.head, clock)
    gaps = _enter_gaps(lane, requests, state, first_token_s, now + first_s, steps, took_s - first_s)
    slot = step % ring
    out = _depart(lane, requests, structure, _get(intake.leaving, slot), intake, state, clock)
    leaving = _set(intake.leaving, slot, out.request)  # NOBODY, and written only after the list was read
    events = _set(intake.events, slot // WORD, _get(intake.events, slot // WORD) & ~_bit(slot))
    crossing, stops = intake.crossing, jnp.zeros_like(grown)
    if structure.windowed:
        stops = _get(crossing, slot).astype(jnp.float64)
        crossing = _set(crossing, slot, jnp.minimum(stops, 0.0))  # zero, written only after it was read
    left = out.count.astype(jnp.float64)
    touched = state.experts_touched
    if len(lane.cost.expert_rows.flop):
        touched = touched + iterations * experts_touched(
            lane.cost.log_expert_missed, decodes + intake.tokens, lane.cost.expert_skew
        )
    return State(
        clock=clock,
        head=jnp.where(nothing, lane.requests, intake.head),
        progress=intake.progress,
        step=step,
        decodes=state.decodes + intake.joined - left,
        context=state.context + grown * state.decodes + intake.joined_context - out.context,
        window_context=state.window_context
        + grown * state.window_growing
        + intake.joined_window_context
        - out.window_context,
        window_growing=state.window_growing + intake.joined_growing - stops,
        kv=intake.kv - out.kv,
        released=state.released + out.count,
        gap_from=jnp.where(stalled, state.gap_from, clock),
        first_gap=jnp.where(stalled, state.first_gap, state.head),
        busy_s=state.busy_s + took_s,
        iterations=state.iterations + iterations,
        kv_max=jnp.maximum(state.kv_max, intake.kv),
        experts_touched=touched,
        events=events,
        leaving=leaving,
        crossing=crossing,
        next_leaving=intake.next_leaving,
        scheduled_s=intake.scheduled_s,
        first_token_s=first_token_s,
        last_token_s=out.last_token_s,
        itl_histogram=gaps,
    )


def _run_lane(lane: Lane, requests: Requests, structure: Structure) -> LaneResult:
    slots = requests.arrival_s.shape[0]
    zero, number = jnp.zeros((), jnp.float64), jnp.zeros((), jnp.int32)
    never = jnp.full(slots, jnp.inf)
    nobody = jnp.full(structure.ring + 1, NOBODY, jnp.int32)
    state = State(
        clock=zero, head=number, progress=zero, step=number, decodes=zero, context=zero, window_context=zero,
        window_growing=zero, kv=zero, released=lane.users, gap_from=zero, first_gap=number, busy_s=zero,
        iterations=zero, kv_max=zero, experts_touched=zero,
        events=jnp.zeros(structure.ring // WORD, jnp.uint64),
        leaving=nobody,
        crossing=jnp.zeros(structure.ring + 1 if structure.windowed else 1, jnp.int32),
        next_leaving=jnp.full(slots, NOBODY, jnp.int32),
        scheduled_s=never, first_token_s=never, last_token_s=never,
        itl_histogram=jnp.zeros(histogram.BINS),
    )  # fmt: skip
    state = lax.while_loop(
        lambda state: (state.head < lane.requests) | (state.decodes > 0),
        lambda state: _trip(lane, requests, structure, state),
        state,
    )
    return LaneResult(
        scheduled_s=state.scheduled_s[:-1],
        first_token_s=state.first_token_s[:-1],
        last_token_s=state.last_token_s[:-1],
        busy_s=state.busy_s,
        iterations=state.iterations,
        kv_units_max=state.kv_max,
        experts_touched=state.experts_touched,
        itl_histogram=state.itl_histogram,
    )


@functools.partial(jax.jit, static_argnames=("structure", "vectorise"))
def run_lanes(lanes: Lane, requests: Requests, structure: Structure, vectorise: bool = False) -> LaneResult:
    """Simulate a batch of lanes: ``lanes`` and ``requests`` with a leading ``lane`` axis, and so the result.

    ``vectorise`` runs all lanes in step (for accelerators) instead of one after another; the numbers are the same.
    """
    run = lambda pair: _run_lane(*pair, structure)
    return jax.vmap(run)((lanes, requests)) if vectorise else lax.map(run, (lanes, requests))
