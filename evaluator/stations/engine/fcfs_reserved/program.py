"""The token-exact serving engine for arrivals in order: one lane's event loop as a scalar JAX program.

A lane admits its requests in the order of arrival and sends none back, so that every queue is a range of request
numbers (the other program, ``preemptive``, does without that). KV is reserved on admission; or it is taken on demand
and only counted, until a lane runs short of it (``kv_on_demand``). One trip of the loop is an iteration that computes
prompts, if there are any, and a leap over all decode iterations up to the next event: a completion, an admissible
arrival, a context that fills the attention window, or the iteration from which the device takes longer than the host
that runs ahead. In the leap the batch is fixed and an iteration's time is affine in the number of iterations, so their
sum has a closed form and the result equals a loop over single iterations (``evaluator.reference``) to rounding, at a
cost per request instead of per token. Batches that are planned ahead (``planned_ahead``) change the times at which the
loop looks, and no more.

On CPU the lanes run one after another (``lax.map``) and XLA compiles the whole loop into one function
(``evaluator.device`` asks it to), at a few hundred instructions a trip; elsewhere the same program is vmapped. How
arrays are read and written without copies is explained in ``common.rings``.

Time is counted in *steps*: a step is one iteration in which decodes take part. A sequence that gets its first token at
the end of step ``s`` and has ``n`` output tokens leaves at the end of step ``s + n - 1``. ``leaving[step]`` heads the
list of requests that leave at that step (``next_leaving`` chains them), ``events`` has a bit per step with an event;
both are rings longer than the longest output. A request with branches is admitted as a whole, and all its branches get
their first tokens in the same iteration; each is in the list of its own step, and the last of them ends the request.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from evaluator.cost.iteration import BatchStatistics, alike_steps, decode_growth, iteration_time, share_touched
from evaluator.cost.quantities import batch_tokens, holds_everywhere, raised
from evaluator.metrics.use import PoolTotals
from evaluator.stations.engine.common.arrays import Flag, Float, FloatPerRequest, Int, Peaks
from evaluator.stations.engine.common.lane import LaneResult, Requests, over_lanes
from evaluator.stations.engine.common.leap import UNBOUNDED, Leap, iterations_until, once
from evaluator.stations.engine.common.rings import in_ring, read, steps_to_event, tagged_count, unmark, write
from evaluator.stations.engine.common.speculation import AcceptedTokens
from evaluator.stations.engine.fcfs_reserved.admission import Intake, admit
from evaluator.stations.engine.fcfs_reserved.departures import depart
from evaluator.stations.engine.fcfs_reserved.kv_on_demand import KvGrowth, KvUse, complete_prompts, kv_of_leap
from evaluator.stations.engine.fcfs_reserved.lane import Given, Lane, PackedLane, Structure, given_to, packed
from evaluator.stations.engine.fcfs_reserved.planned_ahead import next_planned_s
from evaluator.stations.engine.fcfs_reserved.speculative_steps import uneven_leap
from evaluator.stations.engine.fcfs_reserved.state import State, initial_state
from evaluator.stations.engine.fcfs_reserved.tokens import LoopSteps, enter_gaps, first_tokens


def _batch(given: Given, state: State, intake: Intake, stalled: Flag) -> BatchStatistics:
    """The batch of the trip's first iteration; ``stalled``: the decodes do not take part."""
    resident = jnp.where(given.limits.prompts_resident, 1.0, 0.0)  # admitted sequences decode at once
    part = jnp.where(stalled, 0.0, 1.0)
    first = intake.joined_context  # with drafts, of the first decode iteration, else of that after it
    if given.speculation is None:
        first = first - intake.joined
    return BatchStatistics(
        part * state.decodes + resident * intake.joined,
        part * state.context + resident * first,
        part * state.window_context + intake.resident_window_context,
        *intake.prompts,
    )


class Lead(NamedTuple):
    """The first iteration of a trip, if it computes prompts."""

    count: Float  # 1, or 0 where it does not
    took_s: Float


class Run(NamedTuple):
    """The iterations of a trip: one, or a leap, which may begin with an iteration that computes prompts."""

    count: Int
    iterations: Float  # the same
    first_s: Float  # duration of the first
    two_s: Float  # of the first two
    took_s: Float  # of all
    touched: Float | None  # shares of experts touched, summed over the iterations; None without experts
    lead: Float  # 1: the first computes prompts and is none of the leap; 0: it does not, or there are drafts
    leap: Leap
    after: BatchStatistics  # batch of the first iteration of the leap
    tokens: Float | None = None  # with drafts: output tokens that they give
    window: Float | None = None  # with drafts: what they add to the windowed contexts


def _share_touched(given: Given, batch: BatchStatistics) -> Float | None:
    """Of the experts in an iteration; None of a model without any."""
    share = share_touched(given.cost, batch_tokens(given.cost, batch))
    return None if isinstance(share, float) else share


def _after_prompts(state: State, intake: Intake, batch: BatchStatistics) -> BatchStatistics:
    """The batch of the trip's first iteration without prompts: after one with prompts those that joined decode, too."""

    def grown(decoding: Float, more: Float) -> Float:
        return decoding + jnp.where(batch.prefill_tokens > 0, more, 0.0)

    return BatchStatistics(
        grown(batch.decodes, intake.joined),
        grown(batch.decode_context, state.decodes + intake.joined_context),
        grown(batch.decode_window_context, state.window_growing + intake.joined_window_context),
        # Python's zeros, so that nothing of prompts is computed.
        *(0.0,) * len(intake.prompts),
    )


def _leap(given: Given, state: State, intake: Intake, start_s: Float, batch: BatchStatistics) -> Run:
    """As many iterations as pass before the batch changes but for prompts: of a trip that computes some, the first.

    Requests whose prompts end in it decode from the next iteration on, and resident ones in it already. From there on
    the batch stays as it is, up to the next event or the arrival of a request that could come in. If the batch is empty
    although the clock has reached the arrival of the waiting queue's head, the head can never be admitted (no event is
    left that would free KV or seats): the leap then has 0 iterations.
    """
    computes = batch.prefill_tokens > 0
    after, lead = _after_prompts(state, intake, batch), jnp.where(computes, 1.0, 0.0)
    stuck = ~computes & (batch.decodes == 0)
    # A leap ends at events. Where one comes with its first iteration, as always on a prefill side, no time of those
    # behind it is computed.
    until_event = steps_to_event(intake.events, state.step, given.structure.ring)
    repeats = _may_repeat(given, intake) & (until_event > 1)
    growing = state.window_growing + jnp.where(computes, intake.joined_growing, 0.0)
    # Figures of a cost are read within the branches, for which they would be handed over one by one else.
    lead_s, lead_touched = once(computes, lambda: (iteration_time(given.cost, batch), _share_touched(given, batch)))
    first_s, slope_s, touched = once(
        jnp.where(computes, repeats, ~stuck),
        lambda: (
            iteration_time(given.cost, after),
            decode_growth(given.cost, after, growing),
            _share_touched(given, after),
        ),
    )
    leap = Leap(jnp.zeros(()), first_s, slope_s)
    # A conditional also because XLA would repeat all this in each computation that uses the number.
    count = lax.cond(
        repeats & ~stuck,
        lambda: jnp.minimum(until_event, _iterations(given, state, intake, start_s, after, Lead(lead, lead_s), leap)),
        lambda: jnp.where(stuck, 0, 1).astype(jnp.int32),
    )
    iterations = count.astype(jnp.float64)
    leap = leap._replace(iterations=jnp.maximum(iterations - lead, 0.0))
    return Run(
        count,
        iterations,
        first_s=jnp.where(computes, lead_s, first_s),
        two_s=first_s + jnp.where(computes, lead_s, first_s + slope_s),
        took_s=lead_s + leap.duration_s(),
        touched=None if touched is None else lead_touched + leap.iterations * touched,
        lead=lead,
        leap=leap,
        after=after,
    )


def _iterations(
    given: Given, state: State, intake: Intake, start_s: Float, after: BatchStatistics, lead: Lead, leap: Leap
) -> Int:
    """Of a trip that may have several: up to an arrival, or to where the time is no longer affine.

    The first is the ``lead``, if there is one; those behind it are of ``leap``, however many.
    """
    wait_s = jnp.maximum(intake.next_arrival - start_s, 0.0)
    until_arrival = iterations_until(jnp.maximum(wait_s - lead.took_s, 0.0), leap.first_s, leap.slope_s)
    until_arrival = until_arrival + jnp.where(wait_s > 0.0, lead.count, 0.0)
    if state.planned is not None:
        # The second iteration is planned when the first starts: an arrival comes in one later than it would else.
        until_arrival = until_arrival + 1.0
    most = jnp.where(intake.waits, jnp.clip(until_arrival, 1.0, UNBOUNDED), UNBOUNDED)
    return jnp.minimum(most, lead.count + alike_steps(given.cost, after)).astype(jnp.int32)


def _may_repeat(given: Given, intake: Intake) -> Flag:
    """Another iteration may follow the first: one without prompts, whose batch is that of the first and who joined.

    After an iteration that computes prompts the queue's head must have been refused for want of seats or of KV, which
    only an event frees, or have yet to arrive: the next iteration may have token budget that this one lacked. Where
    prompts are computed alone, decodes wait for such an iteration, which is then no step. Where decodes take none of
    the token budget, those that come in resident take it for one iteration, so that the next one may admit more. Of
    those a windowed context grows by another law from the second token on.
    """
    computes = intake.prompts.tokens > 0
    stays = False if given.structure.windowed else given.limits.prompts_resident & _has_budget(given, intake)
    after_prompts = intake.budget_left & ~given.limits.policy.prefill_alone
    return jnp.where(computes, after_prompts, (intake.joined == 0) | stays)


def _has_budget(given: Given, intake: Intake) -> Flag:
    """Requests that come in without a prompt leave token budget for another, or the decodes keep what they take."""
    limits = given.limits
    return ~limits.policy.prefill_alone | (given.rows(intake.joined + given.cells) <= limits.max_num_batched_tokens)


def _run(given: Given, state: State, intake: Intake, start_s: Float, batch: BatchStatistics, stalled: Flag) -> Run:
    """How many iterations of this batch there are, and what they take."""
    if given.speculation is None:
        return _leap(given, state, intake, start_s, batch)
    repeats = _may_repeat(given, intake) & (intake.prompts.tokens == 0)
    steps = uneven_leap(given, state, intake, start_s, batch, repeats, stalled)
    two_s, count = steps.first_s + steps.second_s, steps.count.astype(jnp.float64)
    leap, share = Leap(count, steps.first_s, steps.second_s - steps.first_s), _share_touched(given, batch)
    touched = None if share is None else count * share
    return Run(
        steps.count, count, steps.first_s, two_s, steps.took_s, touched, jnp.zeros(()), leap, batch,
        steps.tokens, steps.window,
    )  # fmt: skip


class Contexts(NamedTuple):
    """Tokens that the decodes attend to in the next step, before any leaves: ``State.context`` and the windowed one."""

    full: Float
    window: Float


def _contexts(state: State, intake: Intake, run: Run, steps: Int) -> Contexts:
    """After the iterations of a trip: every decode has a token more of each step, or with drafts what it gained."""
    if run.tokens is not None:
        return Contexts(
            state.context + run.tokens + intake.joined_context,
            state.window_context + run.window + intake.joined_window_context,
        )
    grown = steps.astype(jnp.float64)
    later = jnp.maximum(run.iterations - 1.0, 0.0)  # the steps in which those that joined attend to a token more
    return Contexts(
        state.context + grown * state.decodes + (intake.joined_context + later * intake.joined),
        state.window_context
        + grown * state.window_growing
        + (intake.joined_window_context + later * intake.joined_growing),
    )


def _peaks(given: Given, state: State, batch: BatchStatistics, run: Run) -> Peaks:
    """The largest quantities of the lane's batches, where its cost has a range."""
    cost, alone = given.cost, run.leap.iterations
    if holds_everywhere(cost):
        return state.peaks
    peaks = jnp.where(run.lead > 0, raised(cost, state.peaks, batch, run.lead), state.peaks)
    return jnp.where(alone > 0, raised(cost, peaks, run.after, alone), peaks)


def _growth(given: Given, state: State, intake: Intake, run: Run, steps: Int) -> AcceptedTokens | None:
    """With what the decodes of a trip gave."""
    accepted = intake.accepted
    if accepted is None:
        return None
    resident = jnp.where(given.limits.prompts_resident, intake.joined, 0.0)
    return accepted._replace(
        decoded=accepted.decoded + steps.astype(jnp.float64) * (state.decodes + resident),
        decoded_tokens=accepted.decoded_tokens + run.tokens,
    )


def _loop_step(given: Given, state: State) -> State:
    """Admit, compute one iteration or a leap, hand out tokens, and let finished requests leave."""
    ring, planned = given.structure.ring, state.planned
    idle = (state.decodes == 0) & (state.progress == 0)
    if planned is not None:
        idle = idle & (planned.sequences == 0)  # else the next batch is planned when they have left
    arrival_s = read(given.requests.arrival_s, state.head)
    now = jnp.where(idle, jnp.maximum(state.clock, arrival_s), state.clock)
    start_s = now if planned is None else jnp.maximum(now, planned.end_s)
    intake = admit(given, state, now, start_s)
    stalled = given.limits.policy.prefill_alone & (intake.prompts.tokens > 0)  # the decodes wait for this iteration
    batch = _batch(given, state, intake, stalled)
    run = _run(given, state, intake, start_s, batch, stalled)
    if planned is None:
        clock = end_s = jnp.where(run.count == 0, jnp.inf, start_s + run.took_s)  # a lane that is stuck never ends
    else:
        end_s, stuck = start_s + run.took_s, idle & (run.count == 0)
        clock = next_planned_s(start_s, end_s, run.leap, run.iterations, stuck)
    steps = LoopSteps(jnp.where(stalled, 0, run.count), start_s + run.first_s, start_s + run.two_s, end_s)
    first_token_s, kv, growth = _complete_prompts(given, state, intake, run, now, start_s, stalled)
    gaps = enter_gaps(given, state, intake, first_token_s, steps)
    step = state.step + steps.count
    slot = in_ring(step, ring)
    out = depart(given, intake, growth, step, state.last_token_s, end_s)
    # A step at which a window fills is an event (``admission._windowed``), and a leap ends at events: only the last
    # step can be one.
    full = tagged_count(intake.crossing, slot, step) if given.structure.windowed else 0.0
    contexts = _contexts(state, intake, run, steps.count)
    return State(
        clock=clock,
        # Nothing can free room for who waits: the queue is given up, else the loop would not end.
        head=jnp.where(clock == jnp.inf, given.limits.requests, intake.head),
        progress=intake.progress,
        step=step,
        decodes=state.decodes + intake.joined - out.count.astype(jnp.float64),
        context=contexts.full - out.context,
        window_context=contexts.window - out.window_context,
        # A trip without a step has the slot of the trip before, which was counted there.
        window_growing=state.window_growing + intake.joined_growing - jnp.where(steps.count > 0, full, 0.0),
        # Planned ahead, who leaves holds seat and KV while the next batch is planned: ``planned`` takes them off one
        # trip later.
        kv=kv.last - out.kv if planned is None else kv.last,
        released=state.released + (out.requests if planned is None else planned.requests),
        gap_from=jnp.where(stalled, state.gap_from, end_s),
        # Whoever came in with a trip of two steps or more has had its first gap in the second (``enter_gaps``).
        first_gap=jnp.where(stalled, state.first_gap, jnp.where(steps.count > 1, intake.head, state.head)),
        busy_s=state.busy_s + run.took_s,
        iterations=state.iterations + run.iterations,
        kv_max=jnp.maximum(state.kv_max, kv.most),
        kv_unit_s=state.kv_unit_s if _follows_from_times(given) else state.kv_unit_s + kv.unit_s,
        experts_touched=state.experts_touched + (0.0 if run.touched is None else run.touched),
        peaks=_peaks(given, state, batch, run),
        events=unmark(intake.events, slot),
        leaving=write(intake.leaving, slot, out.branch),  # NONE: the list's end, hence written after it was read
        crossing=intake.crossing,
        next_leaving=intake.next_leaving,
        scheduled_s=intake.scheduled_s,
        first_token_s=first_token_s,
        last_token_s=out.last_token_s,
        itl_histogram=gaps,
        accepted=_growth(given, state, intake, run, steps.count),
        kv_growth=None if growth is None else growth._replace(steps=out.kv_steps),
        planned=None if planned is None else planned.with_departures(end_s, out),
    )


def _complete_prompts(
    given: Given, state: State, intake: Intake, run: Run, now: Float, start_s: Float, stalled: Flag
) -> tuple[FloatPerRequest, KvUse, KvGrowth | None]:
    """First tokens after a trip, the KV in use in its iterations and, on demand, what was asked for."""
    first_s, planned = start_s + run.first_s, state.planned
    if state.kv_growth is None:
        times = first_tokens(state.first_token_s, state.head, intake.head, first_s)
        if planned is None:
            return times, KvUse(intake.kv, intake.kv, intake.kv * run.took_s), None
        # What an admitted request holds from its first iteration on follows from its times; it has it since the plan.
        return times, KvUse(intake.kv - planned.kv, intake.kv, (intake.kv - state.kv) * (start_s - now)), None
    times, kv, growth = complete_prompts(given, state, intake, first_s, stalled)
    running = kv if planned is None else kv - planned.kv
    use = kv_of_leap(given, growth, state.step, running, run.count, run.first_s, run.leap, run.lead)
    if planned is not None:
        use = KvUse(use.last, jnp.maximum(use.last, kv), use.unit_s + kv * (start_s - now))
    return times, use, growth._replace(asked=jnp.maximum(growth.asked, use.most))


def _follows_from_times(given: Given) -> bool:
    """The integral of the KV in use follows from the times of the requests, each of which holds the same all along."""
    return given.branches is None and given.on_demand is None and not given.structure.asynchronous


def _kv_unit_s(given: Given, final: State) -> Float:
    """KV units in use, integrated over time: what each request holds times how long it holds it, if that is all."""
    if given.on_demand is None and given.branches is None:
        held_s = final.last_token_s - final.scheduled_s
        # Of who was never served, and of padding, it is inf - inf: NaN compares false.
        return final.kv_unit_s + jnp.sum(jnp.where(held_s < jnp.inf, given.requests.kv_units * held_s, 0.0))
    if final.planned is None:
        return final.kv_unit_s
    # What the last requests hold while their last iteration runs, before which the next one would have been planned.
    return final.kv_unit_s + jnp.where(final.kv > 0.0, final.kv * (final.planned.end_s - final.clock), 0.0)


def _run_lane(given: Given, start: State) -> LaneResult:
    def goes_on(state: State) -> Flag:
        left = (state.head < given.limits.requests) | (state.decodes > 0)
        return left if state.kv_growth is None else left & ~_ran_short(given, state.kv_growth)

    final = lax.while_loop(goes_on, lambda state: _loop_step(given, state), start)
    none: Float = jnp.zeros(())
    return LaneResult(
        # Without the padding cell of masked writes (``common.rings``).
        scheduled_s=final.scheduled_s[:-1],
        first_token_s=final.first_token_s[:-1],
        last_token_s=final.last_token_s[:-1],
        totals=PoolTotals(
            busy_s=final.busy_s,
            iterations=final.iterations,
            preemptions=none.astype(jnp.int32),
            experts_touched=final.experts_touched,
            kv_unit_s=_kv_unit_s(given, final),
            kv_units_max=final.kv_max,
            decoded=none if final.accepted is None else final.accepted.decoded,
            decoded_tokens=none if final.accepted is None else final.accepted.decoded_tokens,
            peaks=final.peaks,
        ),
        itl_histogram=final.itl_histogram,
        ran_short=None if final.kv_growth is None else _ran_short(given, final.kv_growth),
    )


def _ran_short(given: Given, growth: KvGrowth) -> Flag:
    """Requests asked for more KV than there is."""
    return growth.asked > given.limits.kv_units


@functools.partial(jax.jit, static_argnames=("structure", "vectorise"))
def run_lanes(lanes: Lane, requests: Requests, structure: Structure, vectorise: bool = False) -> LaneResult:
    """Simulate a batch of lanes: ``lanes`` and ``requests`` with a leading ``lane`` axis, and so the result.

    ``vectorise`` as in ``over_lanes``: for accelerators.
    """

    def given(lane: PackedLane, requests: Requests) -> Given:
        return given_to(lane, requests, structure)

    def start(lane: PackedLane, requests: Requests) -> State:
        return initial_state(given(lane, requests))

    def run(lane: PackedLane, requests: Requests, start: State) -> LaneResult:
        return _run_lane(given(lane, requests), start)

    return over_lanes(start, run, packed(lanes), requests, vectorise)
