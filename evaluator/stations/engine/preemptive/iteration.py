"""Iterations of a replica with one pipeline rank: how a batch is launched, how far it leaps, and how it ends.

A replica forms a batch (``batch.form_batch``) and launches it: one iteration or, if the batch only decodes, a leap over
as many as pass before it changes. Within a leap each iteration takes longer than the one before by the same time,
because the context of every decode grows by a token: their sum has a closed form, and so the loop takes a trip per
change of the batch and not per token. When it ends, what it did is accounted for and its tokens are handed out
(``iteration_end.complete_iteration``).

A replica with a loop of its own (``program``) knows its next arrival when it launches, and the leap ends before it. Of
replicas that run together (``engine.joint``) it is not known where the next request goes: a leap goes as far as nothing
at the replica itself changes it, and is cut short by an arrival.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from evaluator.cost.iteration import BatchStatistics, alike_steps, decode_growth, share_touched
from evaluator.cost.quantities import batch_tokens, raised
from evaluator.stations.engine.common.arrays import Flag, Float, Int
from evaluator.stations.engine.common.kv_growth import Moments, taken_later
from evaluator.stations.engine.common.leap import UNBOUNDED, Leap, batch_time, once
from evaluator.stations.engine.common.rings import WORD, read, steps_to_event
from evaluator.stations.engine.preemptive.batch import Scheduled
from evaluator.stations.engine.preemptive.iteration_end import IterationEnd, MeasuredSteps, complete_iteration
from evaluator.stations.engine.preemptive.kv import kv_of
from evaluator.stations.engine.preemptive.lane import Given
from evaluator.stations.engine.preemptive.preemption import growth_at
from evaluator.stations.engine.preemptive.state import State
from evaluator.stations.engine.preemptive.swapping import copy_s
from evaluator.stations.engine.preemptive.waiting import any_waiting


class LaunchedBatch(NamedTuple):
    """A batch under way, or, leaping, ``iterations`` alike one after the other.

    The first of them takes ``first_s``, each next one ``slope_s`` more than the one before.
    """

    start_s: Float
    end_s: Float
    iterations: Float
    first_s: Float
    slope_s: Float
    seen: Float  # iterations whose KV has been counted
    completing: Int  # list of requests whose prompts are complete with it
    sums: BatchStatistics  # of the first of them

    def end_of(self, iterations: Float) -> Float:
        """When so many of the iterations are done."""
        grown_s = 0.5 * self.slope_s * iterations * (iterations - 1.0)
        return self.start_s + (iterations * self.first_s + grown_s)

    def under_way(self, time_s: Float) -> Float:
        """The first of the iterations, counted from 1, that does not end before a time; at most the last.

        The root of the quadratic may be wrong by rounding; it is taken a little too low and corrected.
        """
        wait_s = jnp.maximum(time_s - self.start_s, 0.0)
        b = self.first_s - 0.5 * self.slope_s
        root = 2.0 * wait_s / (b + jnp.sqrt(b * b + 2.0 * self.slope_s * wait_s))
        estimate = jnp.clip(jnp.ceil(root - 1e-6), 1.0, jnp.maximum(self.iterations, 1.0))
        return estimate + jnp.where((estimate < self.iterations) & (self.end_of(estimate) < time_s), 1.0, 0.0)

    def done(self, time_s: Float) -> Float:
        """How many of the iterations have ended by a time."""
        under_way = self.under_way(time_s)
        return under_way - jnp.where(self.end_of(under_way) <= time_s, 0.0, 1.0)


class LeapKv(NamedTuple):
    """A leap, and the KV that decodes take in it."""

    iterations: Float  # that find enough of it
    took_s: Float
    kv: Float  # units in use at its end
    kv_unit_s: Float  # units in use, integrated over the leap


Bound = Callable[[Float, Float, Flag], Float]
"""Most iterations of a leap, given the duration of the first and by how much each is longer than the one before; the
flag says whether more than one is possible at all."""


def launch(given: Given, state: State, batch: Scheduled, bound: Bound) -> tuple[LaunchedBatch, LeapKv]:
    """The batch that was formed starts at the time of the clock; an empty one makes no iteration.

    The state stays as it is: what the iterations change of it the loop enters when they end (``complete``), so that a
    leap of replicas that run together may still be cut short. ``batch`` has the sums for its time, ``state.batch`` what
    has happened while it was formed; ``bound`` is what the loop knows of arrivals.
    """
    # Without a pipeline there is one rank, which has all layers. Its figures are read where they are used (``packed``).
    costs = given.pipeline_ranks
    # Many read it: in a conditional it is computed once. An empty batch takes no time; above 0, since it divides.
    first_s = lax.cond(batch.nonempty, lambda: batch_time(costs[0], batch.sums), lambda: jnp.ones((), jnp.float64))
    if state.swapped is not None:
        first_s = first_s + copy_s(given, state)
    # Decodes whose attention window is full read no more KV in the next iteration than in this one.
    growing = read(state.decode_groups.growing, state.schedulable)
    # Prompts are computed once: what is longer from one iteration to the next is the decodes' share of the time.
    repeats = _repeats(given, state)
    slope_s = once(batch.decodes & repeats, lambda: decode_growth(costs[0], batch.sums, growing))
    # A leap ends before what the loop knows of arrivals, at an event of the batch, and where KV runs out.
    most = alike_iterations(given, state, batch, bound(first_s, slope_s, repeats))
    leap = leap_kv(given, state, most, first_s, slope_s)
    running_batch = LaunchedBatch(
        start_s=state.clock,
        end_s=jnp.float64(jnp.inf),  # for the loop to set: at once, or of several replicas with its calendar
        iterations=jnp.where(
            batch.nonempty, leap.iterations, 0.0
        ),  # an empty batch is launched, too: no branch is needed
        first_s=first_s,
        slope_s=slope_s,
        seen=jnp.float64(1.0),  # decodes had the KV of the first iteration when the batch was formed
        completing=state.batch.completing,
        sums=batch.sums,
    )
    return running_batch, leap


def alike_iterations(given: Given, state: State, batch: Scheduled, most: Float | float = UNBOUNDED) -> Int:
    """Iterations, at most ``most``, until a look or an event changes the batch; arrivals and KV are left out."""
    if given.speculation is not None:
        return jnp.int32(1)  # contexts grow unevenly
    rules = given.rules
    # A cost may bend within a leap, where the device overtakes the host or a fitted curve has its knots.
    most = jnp.minimum(most, alike_steps(given.pipeline_ranks[0], batch.sums)).astype(jnp.int32)
    if given.structure.peaks:
        # LightLLM looks at its waiting queue every ``look_every`` decode iterations, and may then admit.
        waited = state.replica.decode_iterations - state.replica.last_look
        to_look = rules.look_every - waited % jnp.maximum(rules.look_every, 1)
        looks = (rules.look_every > 0) & any_waiting(given, state)
        most = jnp.minimum(most, jnp.where(looks, to_look, jnp.int32(1 << 30)))
    # An event is a member that leaves, or whose attention window is full so that its context no longer grows. Of
    # several decode groups each has a ring of its own, of which ``first`` is the first word.
    first = 0 if given.structure.decode_groups() == 1 else state.schedulable * (given.structure.ring // WORD)
    step = read(state.decode_groups.step, state.schedulable)
    to_event = steps_to_event(state.rings.events, step, given.structure.ring, first)
    return jnp.where(_repeats(given, state), jnp.minimum(most, to_event), 1)


def _repeats(given: Given, state: State) -> Flag:
    """The batch that was formed may be followed by one alike, for all that is known of it.

    After a batch with prompts, or one whose requests were admitted or lacked KV, the next one is another.
    """
    if given.speculation is not None:
        return jnp.zeros((), bool)
    formed = state.batch
    repeats = (formed.prompts.tokens == 0) & (formed.admitted == 0) & ~formed.short
    if kv_of(given).waiting_hits_change:
        # A block that a decode fills may be one that the queue's head begins with: then it needs less than it did.
        waits = any_waiting(given, state)
        seat = state.replica.running_count < given.limits.max_num_seqs
        repeats = repeats & ~(waits & seat & ~given.limits.policy.drain_first)
    if state.new_tokens is not None:
        # SGLang looks at who waits before every decode, but where its batch counts as full.
        repeats = repeats & ~(any_waiting(given, state) & ~state.new_tokens.full)
    return repeats


def leap_kv(given: Given, state: State, most: Int, first_s: Float, slope_s: Float) -> LeapKv:
    """The KV of a leap of at most so many iterations, at least one.

    With KV on demand, decodes take more of it in every step after the first, which had it when the batch was formed; so
    the leap ends before the step that finds too little, and a batch is formed that preempts.

    Planned asynchronously, a step takes its KV when the one before starts. The integral over KV is then from the start
    of the leap until that of its last step.
    """
    if given.structure.block_tokens:
        return _leap_kv_by_blocks(given, state, most, first_s, slope_s)
    ahead_of, kv = 1 if given.structure.asynchronous else 0, state.replica.kv

    def reserved(count: Float) -> LeapKv:
        took_s = Leap(count, first_s, slope_s).duration_s()
        held_s = Leap(count - ahead_of, first_s, slope_s).duration_s() if ahead_of else took_s
        return LeapKv(count, took_s, kv, kv * held_s)

    if not given.structure.preempts:
        return reserved(most.astype(jnp.float64))
    step, on_demand = read(state.decode_groups.step, state.schedulable), given.rules.on_demand

    # A loop over steps, not over requests: what all decodes take together at a step is one number, noted when they
    # joined (``decode_groups``). Reserved KV is not looked at: ``fits`` is false at once, and a product is its
    # integral.
    def fits(carry: tuple[Int, Float, Float]) -> Flag:
        ahead, kv, _ = carry
        # vLLM preempts when ``allocate_slots`` finds no block for the next token: that is for the next batch to do.
        return on_demand & (ahead < most) & (kv + growth_at(given, state, step + ahead) <= given.limits.kv_units)

    def go_on(carry: tuple[Int, Float, Float]) -> tuple[Int, Float, Float]:
        ahead, kv, kv_unit_s = carry
        kv = kv + growth_at(given, state, step + ahead)
        return ahead + 1, kv, kv_unit_s + kv * (first_s + slope_s * (ahead - ahead_of if ahead_of else ahead))

    start = kv * 0.0 if ahead_of else kv * first_s
    ahead, after, kv_unit_s = lax.while_loop(fits, go_on, (jnp.int32(1), kv, start))
    count = jnp.where(on_demand, ahead, most).astype(jnp.float64)  # reserved KV never runs out
    leap = reserved(count)
    return leap._replace(kv=after, kv_unit_s=jnp.where(on_demand, kv_unit_s, leap.kv_unit_s))


def _leap_kv_by_blocks(given: Given, state: State, most: Int, first_s: Float, slope_s: Float) -> LeapKv:
    """The same where growth is counted by remainders: what a leap takes has a closed form.

    Only a leap that finds too little is walked through, up to the step that does.
    """
    step, kv, capacity = read(state.decode_groups.step, state.schedulable), state.replica.kv, given.limits.kv_units
    cells, block = state.rings.kv_growth, given.block()
    leaps = given.rules.on_demand & (most > 1)
    taken = lax.cond(leaps, lambda: taken_later(cells, block, step, most - 1), Moments.none)
    short = kv + taken.taken > capacity

    def fits(carry: tuple[Int, Moments]) -> Flag:
        ahead, taken = carry
        # vLLM preempts when ``allocate_slots`` finds no block for the next token: that is for the next batch to do.
        return short & (kv + taken.taken + growth_at(given, state, step + ahead) <= capacity)

    def go_on(carry: tuple[Int, Moments]) -> tuple[Int, Moments]:
        ahead, taken = carry
        return ahead + 1, taken.enter(ahead, growth_at(given, state, step + ahead))

    start = jnp.where(short, 1, most), Moments(*(jnp.where(short, 0.0, moment) for moment in taken))
    ahead, taken = lax.while_loop(fits, go_on, start)
    count, last = ahead.astype(jnp.float64), kv + taken.taken
    kv_unit_s = taken.unit_s(last, count, first_s, slope_s, given.structure.asynchronous)
    return LeapKv(count, Leap(count, first_s, slope_s).duration_s(), last, kv_unit_s)


def complete(
    given: Given,
    state: State,
    running_batch: LaunchedBatch,
    took_s: Float,
    kv_unit_s: Float,
    measured: MeasuredSteps | None = None,
    lockstep: tuple[Float, Float] | None = None,
) -> State:
    """A launched batch has come to its end: what it did is added to the totals, and its tokens are handed out.

    ``kv_unit_s``: the integral of the KV that running requests held meanwhile, as far as it is not counted yet.
    ``lockstep``: of data-parallel ranks, the share of the experts that an iteration touched at any of them, and how
    many ranks the batch stands for (``joint.lockstep``).
    """
    cost = given.pipeline_ranks[0]
    touched, ranks = lockstep or (share_touched(cost, batch_tokens(cost, running_batch.sums)), None)
    # Decodes that waited for an iteration of prompts (vLLM v0) took no step in it.
    steps = jnp.where(running_batch.sums.decodes > 0, running_batch.iterations, 0.0).astype(jnp.int32)
    replica, totals = state.replica, state.totals
    state = state.at_replica(decode_iterations=replica.decode_iterations + steps).in_totals(
        busy_s=totals.busy_s + (took_s if ranks is None else ranks * took_s),
        iterations=totals.iterations + running_batch.iterations,
        kv_units_max=jnp.maximum(totals.kv_units_max, replica.kv),
        kv_unit_s=totals.kv_unit_s + kv_unit_s,
        experts_touched=totals.experts_touched
        + running_batch.iterations * (touched if ranks is None else ranks * touched),
        peaks=raised(cost, totals.peaks, running_batch.sums, running_batch.iterations),
    )
    first_end_s = running_batch.start_s + running_batch.first_s
    return complete_iteration(
        given,
        state,
        IterationEnd(state.schedulable, steps, first_end_s, running_batch.end_s, running_batch.completing, measured),
    )
