"""A replica that plans its next batch before the tokens of the one under way are known: vLLM's default.

vLLM's engine core (``EngineCore.step_with_batch_queue``, with ``AsyncScheduler``) keeps two batches in its queue: one
runs, the next one is planned. It plans again as soon as the older one has ended, which is when the newer one starts;
until then it looks at no arrival. So with start and end of batch n

    planned at   t(n+1) = start(n)
    start        start(n) = max(t(n), end(n-1))

where ``max`` is ``t(n)`` only if nothing ran when batch n was planned. The loop has one trip for each planned batch (or
leap), and ``State.clock`` is the time at which the next one is planned. An empty batch takes no time and has its place
in the queue all the same: by the same formula the next one is planned when the batch under way has ended.

A planned decode counts with its token at once, since its place is all that the scheduler needs (``Request.
num_output_placeholders``). So a batch is completed in the trip that plans it, with the times at which it will end. What
waits for its end is only what a finished request gives back: its seat, its KV, and the user's next request. These
requests are in ``PlannedAhead.leaving``, which is emptied one trip later.

SGLang's overlap scheduling (``Scheduler.event_loop_overlap``) plans at the same times: a batch when the one before it
starts. What it knows then of the tokens under way is in ``token_ratio``.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from evaluator.stations.engine.common.arrays import Flag, Float, Int
from evaluator.stations.engine.common.leap import UNBOUNDED, iterations_until, once
from evaluator.stations.engine.common.rings import NONE, behind, read, read_once
from evaluator.stations.engine.preemptive.batch import form_batch
from evaluator.stations.engine.preemptive.decode_groups import known_tokens
from evaluator.stations.engine.preemptive.iteration import complete, launch
from evaluator.stations.engine.preemptive.iteration_end import give_back
from evaluator.stations.engine.preemptive.kv import kv_of
from evaluator.stations.engine.preemptive.lane import Given
from evaluator.stations.engine.preemptive.state import PlannedAhead, State
from evaluator.stations.engine.preemptive.token_ratio import form_by_ratio
from evaluator.stations.engine.preemptive.waiting import any_waiting, arrive, next_arrival


def asynchronous_step(given: Given, state: State) -> State:
    """Plan a batch, or a leap over batches alike; the clock goes on to when the next one is planned.

    If no batch runs and the planned one is empty, that is the next arrival. As without planning ahead, the lane stops
    with ``stuck`` if none is left or somebody waits who can never be admitted.
    """
    before, planned_s = _planned(state), state.clock
    start_s = jnp.maximum(planned_s, before.end_s)
    if given.new_tokens is not None:
        state, batch = form_by_ratio(given, state, start_s)
    else:
        state, batch = form_batch(given, arrive(given, state), start_s, ~jnp.zeros((), bool))
    waits, leaves = any_waiting(given, state), before.leaving.first >= 0
    planned_kv = state.replica.kv
    state = state.in_totals(kv_units_max=jnp.maximum(state.totals.kv_units_max, planned_kv))
    # The batch before ends when this one starts, and only then is the next one planned. So whoever leaves with it is
    # gone for all of a leap but its first iteration, and that one is formed already.
    state = leave(given, state)

    def bound(first_s: Float, slope_s: Float, repeats: Flag) -> Float:
        return _until_change(given, state, start_s, waits, leaves, first_s, slope_s, repeats)

    running_batch, leap = launch(given, state, batch, bound)
    took_s = jnp.where(batch.nonempty, leap.took_s, 0.0)
    end_s = start_s + took_s
    running_batch = running_batch._replace(start_s=start_s, end_s=end_s)
    idle = ~batch.nonempty & ~state.batch.preempted & (before.end_s <= planned_s) & ~leaves
    # All iterations of the leap but the last have ended when the next batch is planned.
    last_s = running_batch.first_s + running_batch.slope_s * (running_batch.iterations - 1.0)
    next_s = jnp.where(running_batch.iterations > 1, end_s - last_s, start_s)
    clock = jnp.where(idle, next_arrival(given, state), next_s)
    stuck = idle & (waits | (clock == jnp.inf))
    state = kv_of(given).leap(given, state, jnp.where(batch.decodes, running_batch.iterations, 0.0))
    state = kv_of(given).take_for_leap(given, state, jnp.where(batch.nonempty, leap.kv, state.replica.kv))
    kv_unit_s = planned_kv * (start_s - planned_s) + jnp.where(batch.nonempty, leap.kv_unit_s, 0.0)
    if given.structure.kv_manager is not None:  # it may keep KV while nothing runs; others hold none then
        kv_unit_s = kv_unit_s + planned_kv * jnp.where(idle & (clock < jnp.inf), clock - start_s, 0.0)
    step_s = read(state.decode_groups.gap_from, state.schedulable)  # the end of the step before this batch
    state = complete(given, state, running_batch, took_s, kv_unit_s)
    planned = _planned(state)._replace(end_s=end_s)
    if planned.before_s is not None and planned.gap_s is not None:
        leaps, later = running_batch.iterations > 1, jnp.maximum(running_batch.iterations - 1.0, 1.0)
        before_s = jnp.where(leaps, next_s, step_s)
        # Gaps of a leap are entered at their mean (``histogram.enter_later_steps``).
        gap_s = jnp.where(leaps, (end_s - (start_s + running_batch.first_s)) / later, end_s - step_s)
        planned = planned._replace(
            before_s=jnp.where(batch.decodes, before_s, planned.before_s),
            gap_s=jnp.where(batch.decodes, gap_s, planned.gap_s),
        )
    return state._replace(clock=clock, stuck=stuck, planned=planned)


def _until_change(
    given: Given,
    state: State,
    start_s: Float,
    waits: Flag,
    leaves: Flag,
    first_s: Float,
    slope_s: Float,
    repeats: Flag,
) -> Float:
    """Iterations of a leap that starts at ``start_s`` until one is planned into which a request may come.

    The second one is planned when the first starts, so that an arrival meets one iteration more than are begun by then.
    """
    arrival_s = next_arrival(given, state)
    # ``waits``: the head of the queue did not fit into the first one. It may fit into the second if somebody leaves.
    comes = (state.replica.running_count < given.limits.max_num_seqs) & (arrival_s < jnp.inf)
    comes = comes & repeats & (given.by_work() | ~waits)
    wait_s = jnp.maximum(arrival_s - start_s, 0.0)
    until = 1.0 + once(comes, lambda: iterations_until(wait_s, first_s, slope_s))
    most = jnp.where(comes, jnp.clip(until, 1.0, UNBOUNDED), UNBOUNDED)
    return jnp.where(leaves & waits, 1.0, most)


def leave(given: Given, state: State) -> State:
    """The batch that was under way has ended: requests that had their last token with it give back what they hold."""
    kv, planned = kv_of(given), _planned(state)
    links, first = kv.leaving_order(planned.leaving.next, planned.leaving.first)
    state = state._replace(planned=planned._replace(leaving=planned.leaving._replace(next=links)))

    def leave_next(carry: tuple[State, Int]) -> tuple[State, Int]:
        state, i = carry
        # A request that is linked to itself is not running: it was preempted after its last token had been planned.
        seated = read_once(state.running.newer, i) != i
        computed = known_tokens(given, i, read(given.requests.output_tokens, i)).astype(jnp.int32) - 1
        state = kv.compute(given, state, i, jnp.where(seated, computed, 0))
        done = behind(i, read_once(state.block_cache.named, i)) if given.structure.names_late else i
        state = give_back(given, state, done, planned.end_s, ~jnp.zeros((), bool), given.kv_units(i), seated)
        if state.replica.unseated is not None:
            state = state.at_replica(unseated=state.replica.unseated - jnp.where(seated, 0.0, 1.0))
        return state, read_once(_planned(state).leaving.next, i)

    state, end = lax.while_loop(lambda carry: carry[1] >= 0, leave_next, (state, first))
    # ``end`` is NONE, and makes the write depend on the loop (``common.rings``).
    leaving = _planned(state).leaving._replace(first=jnp.minimum(end, NONE))
    return state._replace(planned=_planned(state)._replace(leaving=leaving))


def _planned(state: State) -> PlannedAhead:
    assert state.planned is not None
    return state.planned
