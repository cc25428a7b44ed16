"""The end of an iteration, or of a leap over iterations of the same batch: tokens, gaps between them, departures."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from evaluator.stations.engine.common import histogram
from evaluator.stations.engine.common.arrays import Flag, Float, Int
from evaluator.stations.engine.common.rings import (
    NONE,
    add,
    behind,
    read,
    read_each,
    read_once,
    tagged_count,
    unmark,
    where,
    write,
)
from evaluator.stations.engine.preemptive.decode_groups import end_growth, join, known_tokens, leave
from evaluator.stations.engine.preemptive.kv import kv_of, own_units
from evaluator.stations.engine.preemptive.lane import Given
from evaluator.stations.engine.preemptive.speculative_steps import held_tokens, path_since
from evaluator.stations.engine.preemptive.state import State
from evaluator.stations.engine.preemptive.waiting import release_next


class MeasuredSteps(NamedTuple):
    """Of several replicas that run together, another one may end the warm-up while this one is within a leap."""

    since_s: Float  # the first token of the first measured request, if it is there
    steps: Int  # how many of the steps after the first end later


class IterationEnd(NamedTuple):
    """A batch that has come to its end."""

    decode_group: Int  # whose decodes were in it
    steps: Int  # that the decode group took; 0 without decodes, or if no batch has ended
    first_end_s: Float  # end of the first of them
    end_s: Float  # end of the last
    completing: Int  # list of requests whose prompts are complete
    measured: MeasuredSteps | None = None  # of several replicas


def complete_iteration(given: Given, state: State, iteration_end: IterationEnd) -> State:
    """The clock has reached the end of an iteration or a leap: its tokens are handed out, and finished requests leave.

    Gaps count from the first token of the first measured request on, as in ``fcfs_reserved``.
    """
    # Read before this iteration hands out its tokens: where the first measured request gets its first one now, no gap
    # that ends now counts (the reference: gaps before tokens that come later than that one).
    if iteration_end.measured is None:
        first_token_s = read_once(state.sequences.first_token_s, given.limits.measured_from)
        weight = first_weight = jnp.where(first_token_s < jnp.inf, 1.0, 0.0)
    else:
        weight = jnp.where(iteration_end.measured.since_s < iteration_end.end_s, 1.0, 0.0)
        first_weight = jnp.where(iteration_end.measured.since_s < iteration_end.first_end_s, 1.0, 0.0)
    # The order matters: gaps need the members as they were; who leaves has had its last step; whoever completed its
    # prompt joins the decodes after they have stepped, because its first token comes with this iteration.
    state = _enter_gaps(given, state, iteration_end, first_weight)
    state = _take_steps(given, state, iteration_end)
    state = _finish_decodes(given, state, iteration_end)
    if given.structure.pipeline_ranks > 1:
        state = _make_schedulable(given, state, iteration_end)
    return _complete_prompts(given, state, iteration_end, weight)


def _enter_gaps(given: Given, state: State, iteration_end: IterationEnd, weight: Float) -> State:
    """The histogram with the gaps that end in the steps that have come to their end.

    A sequence that has joined since the decode group's last step has a gap of its own, from its own last token; if its
    prompt was resident it has no token yet, and its first one comes now. All other gaps start at the end of the last
    step.
    """
    decode_group, decode_groups, steps = iteration_end.decode_group, state.decode_groups, iteration_end.steps
    moves, first_bin = steps > 0, given.first_bin()

    def enter_first(carry: tuple[State, Int, Float]) -> tuple[State, Int, Float]:
        state, i, count = carry
        sequences = state.sequences
        first, token_s = read_each(i, sequences.first_token_s, sequences.token_s)
        resident = first == jnp.inf
        gap_s = iteration_end.first_end_s - token_s
        bins = histogram.enter(state.itl_histogram, gap_s, jnp.where(resident, 0.0, weight), first_bin)
        # Not into the padding cell: it stands for a request that has no token yet (``PoolStates.first_measured``).
        first_token_s = write(sequences.first_token_s, i, jnp.where(resident, iteration_end.first_end_s, first))
        state = state._replace(itl_histogram=bins, sequences=sequences._replace(first_token_s=first_token_s))
        return state, read_once(state.sequences.next_joined, i), count + 1.0

    start = (state, jnp.where(moves, read(decode_groups.joined, decode_group), NONE), jnp.zeros(()))
    state, _, count = lax.while_loop(lambda carry: carry[1] >= 0, enter_first, start)
    decode_groups, decodes = state.decode_groups, read(state.decode_groups.decodes, decode_group)
    gap_from, joined = read(decode_groups.gap_from, decode_group), read(decode_groups.joined, decode_group)
    # One entry for all of them, with their number as its weight: a histogram does not ask whose gaps they are.
    others = jnp.where(moves, weight * (decodes - count), 0.0)
    bins = histogram.enter(state.itl_histogram, iteration_end.first_end_s - gap_from, others, first_bin)
    if iteration_end.measured is None:  # a replica with a loop of its own, whose pool has the only histogram
        bins = histogram.enter_later_steps(
            bins, steps, iteration_end.first_end_s, iteration_end.end_s, weight * decodes
        )
    else:
        mean_s = (iteration_end.end_s - iteration_end.first_end_s) / jnp.maximum(steps - 1, 1)
        bins = histogram.enter(bins, mean_s, decodes * iteration_end.measured.steps, first_bin)
    # The count makes the write below depend on the loop, which starts from what it overwrites (``common.rings``).
    done = moves & (count >= 0.0)
    return state._replace(
        itl_histogram=bins,
        decode_groups=decode_groups._replace(
            gap_from=write(decode_groups.gap_from, decode_group, jnp.where(moves, iteration_end.end_s, gap_from)),
            joined=write(decode_groups.joined, decode_group, jnp.where(done, NONE, joined)),
        ),
    )


def _take_steps(given: Given, state: State, iteration_end: IterationEnd) -> State:
    """The decode group's sums after its steps: every member has a token more with each."""
    decode_group, decode_groups = iteration_end.decode_group, state.decode_groups
    grown = iteration_end.steps.astype(jnp.float64)
    step = read(decode_groups.step, decode_group) + iteration_end.steps
    if state.accepted is not None:
        return _gain(given, state, iteration_end, step)
    decode_groups = decode_groups._replace(
        step=write(decode_groups.step, decode_group, step),
        context=add(decode_groups.context, decode_group, grown * read(decode_groups.decodes, decode_group)),
    )
    if given.structure.windowed:
        cell = given.structure.cell(decode_group, step)
        # Of a leap the last step alone is looked at: a window that fills is an event, and an event ends a leap.
        full = jnp.where(grown > 0, tagged_count(state.rings.crossing, cell, step), 0.0)
        decode_groups = decode_groups._replace(
            window_context=add(
                decode_groups.window_context, decode_group, grown * read(decode_groups.growing, decode_group)
            ),
            growing=add(decode_groups.growing, decode_group, -full),
        )
    return state._replace(decode_groups=decode_groups)


def _gain(given: Given, state: State, iteration_end: IterationEnd, step: Int) -> State:
    """The same with drafts after one step, or none: every member has what it gained."""
    decode_group, decode_groups, accepted = iteration_end.decode_group, state.decode_groups, state.accepted
    assert accepted is not None
    moves, cell = iteration_end.steps > 0, given.structure.cell(decode_group, step)
    tokens = jnp.where(moves, tagged_count(accepted.tokens, cell, step, once=True), 0.0)
    decodes = jnp.where(moves, read(decode_groups.decodes, decode_group), 0.0)
    decode_groups = decode_groups._replace(
        step=write(decode_groups.step, decode_group, step),
        context=add(decode_groups.context, decode_group, tokens),
    )
    if given.structure.windowed:
        wider = jnp.where(moves, tagged_count(accepted.window, cell, step, once=True), 0.0)
        decode_groups = decode_groups._replace(window_context=add(decode_groups.window_context, decode_group, wider))
    accepted = accepted._replace(decoded=accepted.decoded + decodes, decoded_tokens=accepted.decoded_tokens + tokens)
    return state._replace(decode_groups=decode_groups, accepted=accepted)


def _finish_decodes(given: Given, state: State, iteration_end: IterationEnd) -> State:
    """The members that leave after the decode group's last step have their last token."""
    decode_group = iteration_end.decode_group
    cell = given.structure.cell(decode_group, read(state.decode_groups.step, decode_group))

    def depart(carry: tuple[State, Int]) -> tuple[State, Int]:
        state, i = carry
        # What the group's sums have of it after ``_take_steps``: the next step, which it does not take, would attend to
        # its last token as well.
        attends = known_tokens(given, i, read(given.requests.output_tokens, i))
        # While it is still a member: with drafts its KV follows from its steps in the group.
        held = _held(given, state, i, iteration_end.steps > 0)
        decode_groups = state.decode_groups._replace(
            decodes=add(state.decode_groups.decodes, decode_group, -1.0),
            context=add(state.decode_groups.context, decode_group, -attends),
        )
        if given.structure.windowed:
            attended = -jnp.minimum(attends, given.limits.window)
            decode_groups = decode_groups._replace(
                window_context=add(decode_groups.window_context, decode_group, attended)
            )
        departs = behind(i, held)
        sequences = state.sequences._replace(decode_group=write(state.sequences.decode_group, departs, NONE))
        state = end_growth(given, state._replace(decode_groups=decode_groups, sequences=sequences), i)
        state = kv_of(given).leave_for_good(given, kv_of(given).leave(given, state, i), i)
        return _finish(given, state, i, iteration_end.end_s, True, held), read_once(state.sequences.next_leaving, i)

    # An iteration without decodes must not touch the list of the step that the group has done already.
    first = jnp.where(iteration_end.steps > 0, read_once(state.rings.leaving, cell), NONE)
    # Links are written from here on. Until now the gaps and, with a prefix cache, the leap have read the sequences.
    first = behind(first, read(state.decode_groups.joined, decode_group), state.replica.kv)
    if state.cache is not None:
        first = behind(first, read_once(state.cache.named, jnp.maximum(first, 0)))
    next_leaving, first = kv_of(given).leaving_order(state.sequences.next_leaving, first)
    state = state._replace(sequences=state.sequences._replace(next_leaving=next_leaving))
    state, end = lax.while_loop(lambda carry: carry[1] >= 0, depart, (state, first))
    rings = state.rings
    left = jnp.where(iteration_end.steps > 0, end, read_once(rings.leaving, cell))  # NONE after the walk: an empty list
    rings = rings._replace(leaving=write(rings.leaving, cell, left))
    if given.structure.pipeline_ranks == 1:
        rings = rings._replace(events=unmark(rings.events, cell))
    return state._replace(rings=rings)


def _make_schedulable(given: Given, state: State, iteration_end: IterationEnd) -> State:
    """The decode group of a batch from the pipeline may be taken by the next batch.

    If the schedulable decode group is empty, the two change places. Otherwise the members join it one by one, in order
    of admission.
    """
    moved, here = iteration_end.decode_group, state.schedulable
    moves = iteration_end.steps > 0
    empty = read(state.decode_groups.decodes, here) == 0
    pipeline = state.pipeline
    slot, running_batches = pipeline.completed_batches % given.structure.pipeline_ranks, pipeline.running_batches
    swap = moves & empty
    state = state.in_pipeline(
        schedulable=jnp.where(swap, moved, here),
        running_batches=running_batches._replace(
            decode_group=write(running_batches.decode_group, slot, jnp.where(swap, here, moved))
        ),
    )

    # vLLM schedules running requests in the order of their admission, so that they join in this order.
    def next_member(state: State, i: Int) -> Int:
        def elsewhere(i: Int) -> Flag:
            return (i < state.replica.sentinel) & (read_once(state.sequences.decode_group, i) != moved)

        return lax.while_loop(elsewhere, lambda i: read_once(state.running.newer, i), i)

    def move(carry: tuple[State, Int]) -> tuple[State, Int]:
        state, before = carry
        i = next_member(state, read_once(state.running.newer, before))
        member = i < state.replica.sentinel  # always; a constant would leave reads and writes in no order
        return join(given, leave(given, state, i, member), i, member), i

    def left(carry: tuple[State, Int]) -> Flag:
        state, _ = carry
        return moves & ~empty & (read(state.decode_groups.decodes, moved) > 0)

    return lax.while_loop(left, move, (state, state.replica.sentinel))[0]


def _complete_prompts(given: Given, state: State, iteration_end: IterationEnd, weight: Float) -> State:
    """Requests whose prompts are complete have a token: their first, or after a preemption one that ends a gap."""
    end_s = iteration_end.end_s

    def complete(carry: tuple[State, Int]) -> tuple[State, Int]:
        state, i = carry
        sequences = state.sequences
        # ``before`` is above 0 after a preemption: then the token ends a gap. ``generated > 0`` below always holds. It
        # makes the write of ``token_s`` depend on what was read (``common.rings``).
        before, token_s, first_s = read_each(i, sequences.generated, sequences.token_s, sequences.first_token_s)
        generated, gaps = before + 1, jnp.where(before > 0, weight, 0.0)
        first_token_s = jnp.minimum(first_s, end_s)
        state = state._replace(
            itl_histogram=histogram.enter(state.itl_histogram, end_s - token_s, gaps, given.first_bin()),
            sequences=sequences._replace(
                generated=write(sequences.generated, i, generated),
                first_token_s=write(sequences.first_token_s, i, first_token_s),
                token_s=write(sequences.token_s, i, jnp.where(generated > 0, end_s, token_s)),
            ),
        )
        if state.seen_latencies is not None:
            first, ttft_s = before == 0, end_s - read(given.requests.arrival_s, i)
            seen = state.seen_latencies
            seen = seen._replace(started=seen.started + first, ttft_s=seen.ttft_s + jnp.where(first, ttft_s, 0.0))
            state = state._replace(seen_latencies=seen)
        if state.new_tokens is not None and state.new_tokens.before_s is not None:
            before_s = write(state.new_tokens.before_s, i, token_s)
            state = state._replace(new_tokens=state.new_tokens._replace(before_s=before_s))
        if state.router_counts is not None:
            state = state._replace(
                router_counts=state.router_counts._replace(completed=state.router_counts.completed + 1.0)
            )
        # Behind the write of ``generated``, from which ``join`` reckons the step after which a member leaves.
        ends = generated == read(given.requests.output_tokens, i)
        held = _held(given, state, i, ends & False)  # a traced False: the last token is the prompt's, not a decode's
        state = join(given, state, behind(i, held), ~ends)
        # Few have one token, or are preempted before their last.
        state = where(ends, lambda state: _finish(given, state, i, end_s, ends, held), state)
        return state, read_once(state.sequences.next_completing, i)

    next_completing, completing = kv_of(given).leaving_order(state.sequences.next_completing, iteration_end.completing)
    state = state._replace(sequences=state.sequences._replace(next_completing=next_completing))
    return lax.while_loop(lambda carry: carry[1] >= 0, complete, (state, completing))[0]


def _held(given: Given, state: State, i: Int, decodes: Flag) -> Int | Float:
    """KV units of a request that has its last token, of a decode iteration or of its prompt's last chunk.

    On demand drafts may have taken slots that its last iteration did not fill, or that it never came to take.
    """
    reserved = given.kv_units(i)
    if given.speculation is None:
        return reserved
    path = path_since(given, state, i, decodes)
    elapsed = jnp.where(decodes, read(state.decode_groups.step, path.decode_group) - path.step, 0)
    tokens = held_tokens(given, path, elapsed)
    taken = own_units(given, i, tokens.astype(jnp.float64))
    return jnp.where(given.on_demand(), taken, reserved.astype(jnp.float64))


def _finish(given: Given, state: State, i: Int, end_s: Float, on: Flag, held: Int | Float) -> State:
    """A request has its last token, if ``on``; of its KV it ``held`` such units."""
    if state.planned is None:
        return give_back(given, state, i, end_s, on, held)
    finishes = jnp.where(on, i, given.padding())
    sequences = state.sequences._replace(last_token_s=write(state.sequences.last_token_s, finishes, end_s))
    planned = state.planned._replace(leaving=state.planned.leaving.push(i, on))
    return state._replace(planned=planned, sequences=sequences)


def give_back(
    given: Given, state: State, i: Int, end_s: Float, on: Flag, held: Int | Float, seated: Flag | None = None
) -> State:
    """A request that has its last token, if ``on``, gives back its seat, and its KV, of which it ``held`` such units.

    ``seated`` is False of one that was preempted after its last token was planned, and has neither any more.
    """
    here = on if seated is None else seated
    # Before the first token's time is read below: both are columns of one array, of which XLA would else copy all
    # requests for each that leaves.
    last_token_s = write(state.sequences.last_token_s, jnp.where(on, i, given.padding()), end_s)
    state = state._replace(sequences=state.sequences._replace(last_token_s=last_token_s))
    if state.seen_latencies is not None:
        seen, steps = state.seen_latencies, read(given.requests.output_tokens, i) - 1
        tpot_s = (end_s - read_once(state.sequences.first_token_s, i)) / jnp.maximum(steps, 1)
        several = on & (steps > 0)
        seen = seen._replace(done=seen.done + several, tpot_s=seen.tpot_s + jnp.where(several, tpot_s, 0.0))
        state = state._replace(seen_latencies=seen)
    if state.router_counts is not None:
        whole = known_tokens(given, i, read(given.requests.output_tokens, i))
        left_context = state.router_counts.left_context + jnp.where(on, whole, 0.0)
        state = state._replace(router_counts=state.router_counts._replace(left_context=left_context))
    kv = kv_of(given)
    # Under back-pressure a prefill replica has the blocks of a request until they are sent (``joint.kv_reservation``).
    frees = here
    if given.structure.kv_reservation and kv.reserves_blocks:
        assert given.network is not None
        frees = here & (read(given.network.after, i) < 0)
    state = kv.release(given, state, i, held, frees)
    # Of two sides the one behind is told, and its user only when that is done with the request.
    if state.listed is None:
        state = release_next(given, state, i, end_s, on)
    else:
        state = state._replace(listed=state.listed.push(i, on))
    return state.at_replica(running_count=state.replica.running_count - here)._replace(
        running=state.running.remove(i, here) if given.structure.lists_running else state.running,
        by_end=state.by_end.remove(i, on) if given.structure.peaks else state.by_end,
        finished=state.finished + on,
    )
