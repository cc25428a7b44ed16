"""The token-exact serving engine: one lane's event loop as a scalar JAX program, and the map over lanes.

One trip of the loop is one iteration that computes prompts, or a leap over all decode iterations up to the next event:
a completion, an admissible arrival, a context that fills the attention window, or a device that grows slower than the
host. In between the batch is fixed and an iteration's time is affine in the number of iterations, so their sum has a
closed form and the result equals a loop over single iterations (``evaluator.reference``) to rounding, at a cost per
request instead of per token.

On CPU the lanes run one after another (``lax.map``) and XLA compiles the whole loop into one function
(``evaluator.device`` asks it to), at a few hundred instructions a trip; elsewhere the same program is vmapped.

Two habits keep the loop free of array copies: an array is written first and read after within a trip, and where an old
value is read before a write, the value written depends on it, so that XLA sees the order.

Time is counted in *steps*: a step is one iteration in which decodes take part. A sequence that gets its first token at
the end of step ``s`` and has ``n`` output tokens leaves at the end of step ``s + n - 1``. ``leaving[step]`` heads the
list of requests that leave at that step (``next_leaving`` chains them), ``events`` has a bit per step with an event;
both are rings longer than the longest output.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax

from evaluator.cost.iteration import Array, BatchStatistics, alike_steps, decode_growth, iteration_time, share_touched
from evaluator.cost.quantities import raised
from evaluator.stations.engine.common.lane import Lane, LaneResult, Requests
from evaluator.stations.engine.common.rings import read, steps_to_event, tagged_count, unmark, write
from evaluator.stations.engine.in_order.admission import Intake, admit
from evaluator.stations.engine.in_order.departures import depart
from evaluator.stations.engine.in_order.state import State, Structure, initial_state
from evaluator.stations.engine.in_order.tokens import Leap, enter_gaps, first_tokens


def iterations_until(wait_s: Array, first_s: Array, slope_s: Array) -> Array:
    """Smallest k with ``k first + slope k (k - 1) / 2 >= wait``, or one less where rounding leaves a doubt.

    One too few costs another trip, one too many would be wrong. The root is in the form that does not cancel.
    """
    b = first_s - 0.5 * slope_s
    root = 2.0 * wait_s / (b + jnp.sqrt(b * b + 2.0 * slope_s * wait_s))
    return jnp.ceil(root - 1e-6)


def _batch(lane: Lane, state: State, intake: Intake, stalled: Array) -> BatchStatistics:
    """The batch of the trip's first iteration."""
    resident = jnp.where(lane.prompts_resident, 1.0, 0.0)  # those who join decode at once
    part = jnp.where(stalled, 0.0, 1.0)
    return BatchStatistics(
        decodes=part * state.decodes + resident * intake.joined,
        decode_context=part * state.context + resident * (intake.joined_context - intake.joined),
        decode_window_context=part * state.window_context + intake.resident_window_context,
        prefill_tokens=intake.tokens,
        prefill_sequences=intake.sequences,
        prefill_area=intake.area,
        prefill_window_area=intake.window_area,
        prefill_context=intake.prefill_context,
        prefill_window_context=intake.prefill_window_context,
    )


def _leap(
    lane: Lane, ring: int, state: State, intake: Intake, now: Array, batch: BatchStatistics, stalled: Array
) -> Leap:
    """One iteration where it admits anybody, else as many as pass before the batch changes.

    Without anybody to run it ends never: the head of the queue cannot be admitted, and nothing will change that.
    """
    stuck = (batch.prefill_tokens == 0) & (batch.decodes == 0)
    first_s = iteration_time(lane.cost, batch)
    slope_s = decode_growth(lane.cost, batch, state.window_growing)
    until_arrival = iterations_until(jnp.maximum(intake.next_arrival - now, 0.0), first_s, slope_s)
    most = jnp.where(intake.waits, jnp.clip(until_arrival, 1.0, 1e9), 1e9)
    most = jnp.minimum(most, alike_steps(lane.cost, batch)).astype(jnp.int32)
    alone = (intake.tokens == 0) & (intake.joined == 0)
    count = jnp.where(alone, jnp.minimum(steps_to_event(intake.events, state.step, ring), most), 1)
    count = jnp.where(stuck, 0, count)
    iterations = count.astype(jnp.float64)
    took_s = iterations * first_s + jnp.where(alone, 0.5 * slope_s * iterations * (iterations - 1.0), 0.0)
    clock = jnp.where(stuck, jnp.inf, now + took_s)
    return Leap(iterations, jnp.where(stalled, 0, count), now + first_s, clock, took_s)


def _trip(lane: Lane, requests: Requests, structure: Structure, state: State) -> State:
    idle = (state.decodes == 0) & (state.progress == 0)
    now = jnp.where(idle, jnp.maximum(state.clock, read(requests.arrival_s, state.head)), state.clock)
    intake = admit(lane, requests, structure, state, now)
    stalled = lane.policy.prefill_alone & (intake.tokens > 0)  # the decodes wait for this iteration
    batch = _batch(lane, state, intake, stalled)
    leap = _leap(lane, structure.ring, state, intake, now, batch, stalled)
    clock = leap.clock
    first_token_s = first_tokens(state.first_token_s, state.head, intake.head, clock)
    gaps = enter_gaps(lane, requests, state, first_token_s, leap)
    step = state.step + leap.steps
    slot = step % structure.ring
    first = read(intake.leaving, slot)
    out = depart(lane, requests, structure, intake.next_leaving, first, state.last_token_s, clock)
    full = jnp.where(leap.steps > 0, tagged_count(intake.crossing, slot, step), 0.0) if structure.windowed else 0.0
    touched = leap.iterations * share_touched(lane.cost, batch.decodes + batch.prefill_tokens)
    grown = leap.steps.astype(jnp.float64)
    return State(
        clock=clock,
        head=jnp.where(clock == jnp.inf, lane.requests, intake.head),
        progress=intake.progress,
        step=step,
        decodes=state.decodes + intake.joined - out.count.astype(jnp.float64),
        context=state.context + grown * state.decodes + intake.joined_context - out.context,
        window_context=state.window_context
        + grown * state.window_growing
        + intake.joined_window_context
        - out.window_context,
        window_growing=state.window_growing + intake.joined_growing - full,
        kv=intake.kv - out.kv,
        released=state.released + out.count,
        gap_from=jnp.where(stalled, state.gap_from, clock),
        first_gap=jnp.where(stalled, state.first_gap, state.head),
        busy_s=state.busy_s + leap.took_s,
        iterations=state.iterations + leap.iterations,
        kv_max=jnp.maximum(state.kv_max, intake.kv),
        experts_touched=state.experts_touched + touched,
        peaks=raised(lane.cost, state.peaks, batch, leap.iterations),
        events=unmark(intake.events, slot),
        leaving=write(intake.leaving, slot, out.request),  # NOBODY, and written only after the list was read
        crossing=intake.crossing,
        next_leaving=intake.next_leaving,
        scheduled_s=intake.scheduled_s,
        first_token_s=first_token_s,
        last_token_s=out.last_token_s,
        itl_histogram=gaps,
    )


def _kv_unit_s(requests: Requests, final: State) -> Array:
    """What each request holds times how long it holds it, summed."""
    held_s = final.last_token_s - final.scheduled_s
    return jnp.sum(jnp.where(held_s < jnp.inf, requests.kv_units * held_s, 0.0))


def _run_lane(lane: Lane, requests: Requests, structure: Structure) -> LaneResult:
    final = lax.while_loop(
        lambda state: (state.head < lane.requests) | (state.decodes > 0),
        lambda state: _trip(lane, requests, structure, state),
        initial_state(lane, requests.arrival_s.shape[0], structure),
    )
    return LaneResult(
        scheduled_s=final.scheduled_s[:-1],
        first_token_s=final.first_token_s[:-1],
        last_token_s=final.last_token_s[:-1],
        busy_s=final.busy_s,
        iterations=final.iterations,
        kv_units_max=final.kv_max,
        kv_unit_s=_kv_unit_s(requests, final),
        preemptions=jnp.zeros((), jnp.int32),
        experts_touched=final.experts_touched,
        peaks=final.peaks,
        itl_histogram=final.itl_histogram,
    )


@functools.partial(jax.jit, static_argnames=("structure", "vectorise"))
def run_lanes(lanes: Lane, requests: Requests, structure: Structure, vectorise: bool = False) -> LaneResult:
    """Simulate a batch of lanes: ``lanes`` and ``requests`` with a leading ``lane`` axis, and so the result.

    ``vectorise`` runs all lanes in step (for accelerators) instead of one after another; the numbers are the same.
    """

    def run(pair: tuple[Lane, Requests]) -> LaneResult:
        return _run_lane(*pair, structure)

    return jax.vmap(run)((lanes, requests)) if vectorise else lax.map(run, (lanes, requests))
