"""Which requests take part in the next iteration: the policies, put together from the same moves as in the reference.

A batch is formed by three moves, each of which a policy uses or not, in an order that is the policy's:

* *admit*: requests from the waiting queue, while its head fits into the token budget, the seats and the KV;
* *grow*: KV for the next token of every running decode, preempting where there is none;
* *continue*: the next chunk of every prompt under way.

vLLM v1 (``chunked``) grows, continues and, if no request was preempted, admits. Where prompts are computed in
iterations of their own (vLLM v0, ``prefill_alone``), admission comes first, and the decodes grow only if it found no
prompt.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from evaluator.cost.iteration import BatchStatistics
from evaluator.stations.engine.common.arrays import Flag, Float, Int
from evaluator.stations.engine.common.rings import behind, read, read_once, where, write
from evaluator.stations.engine.preemptive.decode_groups import join
from evaluator.stations.engine.preemptive.kv import kv_of, own_units
from evaluator.stations.engine.preemptive.lane import Given
from evaluator.stations.engine.preemptive.peak import enter_end, mend_order, peak_units
from evaluator.stations.engine.preemptive.preemption import decodes_lack, grow_decodes, make_room
from evaluator.stations.engine.preemptive.state import State, no_batch
from evaluator.stations.engine.preemptive.swapping import swap_in
from evaluator.stations.engine.preemptive.waiting import any_waiting, head, pop


def form_batch(given: Given, state: State, start_s: Float, on: Flag) -> tuple[State, Scheduled]:
    """The next batch, which will start at ``start_s``, if ``on``; its decodes are the schedulable decode group."""
    state = state._replace(batch=no_batch())
    policy, rules = given.limits.policy, given.rules
    alone = given.prompts_alone()
    looks = ~policy.drain_first | (state.replica.running_count == 0)
    if given.structure.peaks:  # elsewhere nobody looks only now and then
        looks = jnp.where(rules.look_every > 0, _looks(given, state), looks)
    any_kind = given.admits_any_kind()
    # Where prompts are computed alone (vLLM v0: ``_schedule_prefills``) admission comes first.
    first = on & alone & looks
    if given.structure.peaks and given.structure.pipeline_ranks > 1:
        state = mend_order(given, state, first & (rules.look_every > 0))

    def turn(carry: tuple[State, Flag, Flag]) -> tuple[State, Flag, Flag]:
        state, admits_first, goes_on = carry
        # vLLM v0 decodes only when no prompt was scheduled; v1 takes its running requests first, decodes among them.
        # In lanes in step those without another turn go along with the others, and must find nothing to do.
        decodes = goes_on & ~admits_first & (~alone | (state.batch.prompts.tokens == 0))
        state = _serve_running(given, state, decodes, decodes & ~policy.whole_prompts)
        # vLLM v1 ``schedule``: "if not preempted_reqs", new requests come in after the running ones have their KV.
        last = decodes & ~state.batch.short & ~any_kind
        computing, resident = admits_first | (last & ~alone), (admits_first & any_kind) | last
        state = _admit(given, state, start_s, computing, resident)
        if given.structure.peaks:
            replica = state.replica
            looked = admits_first & (state.batch.admitted > 0)
            state = state.at_replica(last_look=jnp.where(looked, replica.decode_iterations, replica.last_look))
        return state, jnp.zeros((), bool), admits_first

    if not given.structure.admits_first:  # one turn in any case: the loop would carry the whole state for nothing
        state, _, _ = turn((state, jnp.zeros((), bool), on))
        return state, scheduled(given, state)
    # Two turns where admission comes first, else one: the moves of a batch are by far the largest part of a program,
    # and to write the admission down on both sides of the others would compile it twice.
    state, _, _ = lax.while_loop(lambda carry: carry[2], turn, (state, first, on))
    return state, scheduled(given, state)


class Scheduled(NamedTuple):
    """What a batch that was formed costs and does: the sums for its time, and whether it has decodes, or anything."""

    sums: BatchStatistics  # each field a Float
    decodes: Flag  # the schedulable decode group takes a step
    nonempty: Flag  # it has decodes or prompt tokens


def scheduled(given: Given, state: State) -> Scheduled:
    """The sums of ``state.batch`` and the schedulable decode group, which waits where prompts are computed alone."""
    decode_group, decode_groups, prompts = state.schedulable, state.decode_groups, state.batch.prompts
    stalled = given.prompts_alone() & (prompts.tokens > 0)
    part = jnp.where(stalled, 0.0, 1.0)
    sums = BatchStatistics(
        part * read(decode_groups.decodes, decode_group),
        part * read(decode_groups.context, decode_group),
        part * read(decode_groups.window_context, decode_group),
        *prompts,
    )
    decodes = sums.decodes > 0
    return Scheduled(sums, decodes, decodes | (prompts.tokens > 0))


def _looks(given: Given, state: State) -> Flag:
    """LightLLM looks at the waiting queue when no request runs, and every ``look_every`` decode iterations."""
    waited = state.replica.decode_iterations - state.replica.last_look
    due = (waited > 0) & (waited % jnp.maximum(given.rules.look_every, 1) == 0)
    return (state.replica.running_count == 0) | due


class Candidate(NamedTuple):
    """A waiting request or a prompt under way: what the next iteration computes of it."""

    start: Int  # tokens computed so far
    rest: Int  # tokens to compute before its next output token
    tokens: Int  # of the next chunk; below 0 if it has to wait


def _candidate(given: Given, state: State, i: Int, cached: Int | int = 0) -> Candidate:
    """The next chunk of a request within the token budget, whole or in part as the policy says.

    ``cached`` leading tokens of it are in the prefix cache.
    """
    whole, room = given.limits.policy.whole_prompts, _token_room(given, state)

    def look() -> tuple[Int, Int, Int]:
        start = jnp.maximum(read(state.sequences.computed, i), cached)
        rest = jnp.maximum(read(state.sequences.target, i) - start, 0)
        # vLLM: ``token_budget`` is shared; ``long_prefill_token_threshold`` cuts a chunk before the budget does.
        bound = jnp.minimum(room, given.rules.long_prefill_tokens)
        chunk = jnp.where(whole, jnp.where(rest <= room, rest, -1.0), jnp.minimum(rest, bound))
        has_room = room > 0  # whole prompts of no tokens would fit into a budget of none
        if given.speculation is not None:
            has_room = jnp.where(rest > 0, has_room, room >= given.rows(1.0))
        return start, rest, jnp.where(has_room, chunk, -1.0).astype(jnp.int32)

    # The condition always holds: what is computed in a conditional XLA repeats nowhere (``rings.read_once``).
    return Candidate(*lax.cond(i >= 0, look, lambda: (jnp.int32(0),) * 3))


def _token_room(given: Given, state: State) -> Float:
    """Tokens of the budget that the batch has left."""
    return given.limits.max_num_batched_tokens - state.batch.decodes - state.batch.prompts.tokens


def _needed_units(given: Given, i: Int, chunk: Candidate) -> Float:
    """KV units that a request takes on admission: for what it computes now, or with reserved KV for all of it."""
    rules = given.rules
    computes = jnp.maximum(chunk.tokens, 1)
    if given.speculation is not None:
        computes = jnp.where(chunk.rest > 0, computes, given.rows(1.0).astype(jnp.int32))
    # Sarathi gives a prompt its whole KV at once; vLLM v1 only the blocks of the chunk that is computed now.
    slots = jnp.maximum(chunk.start + computes, jnp.where(rules.whole_kv, chunk.start + chunk.rest, 0))
    reserved = given.kv_units(i).astype(jnp.float64)
    return jnp.where(given.on_demand(), own_units(given, i, slots.astype(jnp.float64)), reserved)


def _fitting_units(given: Given, i: Int, chunk: Candidate) -> Float:
    """KV units for which there must be room on admission: those that a request takes, or all of its prompt's.

    vLLM ``KVCacheManager.allocate_slots``, ``full_sequence_must_fit``.
    """
    needed = _needed_units(given, i, chunk)
    whole = own_units(given, i, (chunk.start + chunk.rest).astype(jnp.float64))
    return jnp.where(given.on_demand() & given.rules.full_prompt, jnp.maximum(needed, whole), needed)


def _admit(given: Given, state: State, start_s: Float, computing: Flag, resident: Flag) -> State:
    """Admit from the waiting queue as long as its head fits into all limits.

    ``computing``: requests with a prompt to compute may come in; ``resident``: those without. If both are false, none.
    """
    limits, rules, kv = given.limits, given.rules, kv_of(given)

    def fits(state: State) -> Flag:
        i = head(given, state)
        chunk = _candidate(given, state, i, kv.found_tokens(given, state))
        kept_free = _kept_free(given, state) + kv.taken_beside(state)
        needed, room = _fitting_units(given, i, chunk), limits.kv_units - state.replica.kv
        has_kv = needed + kept_free <= room
        if given.structure.kv_reservation:
            has_kv = has_kv | _has_room(given, read_once(state.sequences.scheduled_s, i))
        fits = jnp.where(chunk.rest > 0, computing & (chunk.tokens > 0), resident & (chunk.tokens >= 0)) & has_kv
        if given.structure.peaks:
            fits = fits & (~(rules.look_every > 0) | (peak_units(given, state, i, fits) <= limits.kv_units))
        return fits

    def looks(state: State) -> Flag:
        return (computing | resident) & (state.replica.running_count < limits.max_num_seqs) & any_waiting(given, state)

    # Only the head is tried: vLLM breaks off at the first waiting request that does not fit, even if others would. Its
    # candidate is computed here and again where it is taken: when it was carried from here to there, lanes in step
    # never ended, since those that take nobody go along with the others, then on a candidate of zeros.
    def next_fits(state: State) -> Flag:
        return lax.cond(looks(state), fits, lambda _: jnp.zeros((), bool), state)

    def look_up(state: State) -> State:
        """With what is there of the head that is looked at next."""
        return kv.look_up(given, state, head(given, state), looks(state))

    return lax.while_loop(next_fits, lambda state: look_up(_take_head(given, state, start_s)), look_up(state))


def _kept_free(given: Given, state: State) -> Float:
    """vLLM's watermark: an admission leaves some KV, lest somebody be preempted for it soon.

    None where nothing runs (``allocate_slots``, ``has_scheduled_reqs``), or a request might never be admitted: prompts
    that wait to be sent, and reservations, may have KV then.
    """
    counts = given.on_demand() & (state.replica.running_count > 0)
    return jnp.where(counts, given.rules.watermark_units, 0.0)


def may_be_admitted(given: Given, state: State) -> Flag:
    """A request might come into a batch formed before any request leaves, for all that seats, policy and KV say.

    The KV of the waiting queue's head is taken at the least that it needs, whatever else is in the batch; under least
    work an arrival may become the head, so that nothing is said of its KV.
    """
    limits = given.limits
    i = head(given, state)
    start = read_once(state.sequences.computed, i)
    rest = jnp.maximum(read_once(state.sequences.target, i) - start, 0)
    least = Candidate(start, rest, jnp.where(limits.policy.whole_prompts, rest, 1).astype(jnp.int32))
    short = _fitting_units(given, i, least) + _kept_free(given, state) > limits.kv_units - state.replica.kv
    waits_for_kv = ~given.by_work() & any_waiting(given, state) & short
    drains = limits.policy.drain_first & (state.replica.running_count > 0)
    return ~(waits_for_kv | drains | (state.replica.running_count >= limits.max_num_seqs))


def _take_head(given: Given, state: State, start_s: Float) -> State:
    """The head of the waiting queue is admitted: it takes a seat, KV, and its first chunk or its place as a decode."""
    i = head(given, state)
    return take(given, state, i, _candidate(given, state, i, kv_of(given).found_tokens(given, state)), start_s)


def take(given: Given, state: State, i: Int, chunk: Candidate, start_s: Float) -> State:
    """The same for the head ``i`` with this chunk of it, for which there is room."""
    batch, scheduled_s = state.batch, read_once(state.sequences.scheduled_s, i)
    has_room = _has_room(given, scheduled_s) if given.structure.kv_reservation else False
    if state.swapped is not None:
        state, i = swap_in(given, state, i)
    state = kv_of(given).admit(given, state, i, _needed_units(given, i, chunk), chunk.start)
    if state.router_counts is not None:
        waiting_units = state.router_counts.waiting_units - jnp.where(has_room, 0, given.kv_units(i))
        state = state._replace(router_counts=state.router_counts._replace(waiting_units=waiting_units))
    if given.structure.kv_reservation:
        gives = has_room & (not kv_of(given).reserves_blocks)  # else it was admitted with those that it has
        freed = jnp.where(gives, _needed_units(given, i, chunk), 0.0)
        state = _move_in(given, state, i, freed, start_s, scheduled_s == jnp.inf)
    state = pop(given, state, i, scheduled_s < jnp.inf)
    sentinel = state.replica.sentinel
    state = state.at_replica(running_count=state.replica.running_count + 1)._replace(
        running=state.running.append(sentinel, i, True) if given.structure.lists_running else state.running,
        # A prompt that is computed whole at once need not be in the list of those under way.
        prompts=state.prompts.append(sentinel, i, chunk.rest > jnp.maximum(chunk.tokens, 0)),
        admissions=state.admissions + 1,
        batch=batch._replace(
            admitted=batch.admitted + 1, decodes=batch.decodes + given.rows(jnp.where(chunk.rest == 0, 1.0, 0.0))
        ),
    )
    sequences = state.sequences
    scheduled_s = jnp.minimum(scheduled_s, start_s)  # of its first admission: infinite before, and it never grows
    sequences = sequences._replace(scheduled_s=write(sequences.scheduled_s, i, scheduled_s))
    if sequences.admission is not None:
        admission = write(sequences.admission, behind(i, chunk.start), state.admissions)
        sequences = sequences._replace(admission=admission)
    state = state._replace(sequences=sequences)
    if given.structure.peaks:
        state = enter_end(given, state, i)
        # Its place was found by reading the sequences, which are written next.
        i = behind(i, read_once(state.by_end.older, i))
    # Without a prompt to compute it decodes at once: the token that this batch writes is known, and may fill a block.
    state = compute(given, state, i, chunk, chunk.start + jnp.where(chunk.rest == 0, 1, jnp.maximum(chunk.tokens, 0)))
    if not given.structure.admits_decodes:
        return state
    decodes = chunk.rest == 0  # its prompt is resident or was swapped out, which most lanes have none of
    if given.structure.names_late:  # blocks that got names have read the sequences
        i = behind(i, read_once(state.block_cache.named, i))
    return where(decodes, lambda state: join(given, state, i, decodes, has_kv=True), state)


def _has_room(given: Given, scheduled_s: Float) -> Flag:
    """Room was reserved for a waiting request, which has not lost it in a preemption since it was first scheduled."""
    return given.limits.prompts_resident & (scheduled_s == jnp.inf)


def _move_in(given: Given, state: State, i: Int, units: Float, start_s: Float, first: Flag) -> State:
    """A request is admitted where room is reserved: ``units`` that were reserved for it are its own now.

    Of a prefill side, requests that are admitted for the ``first`` time are listed: layer by layer they ask for room
    from now on.
    """
    replica, listed = state.replica, state.listed
    assert replica.reserved is not None and state.room_since_s is not None and listed is not None
    state = state.at_replica(kv=replica.kv - units, reserved=replica.reserved - units)
    state = state._replace(listed=listed.push(i, first & ~given.limits.prompts_resident))
    if given.structure.pipeline_ranks > 1:
        return state  # the integral goes by what is in use, whoever uses it
    waited_s = jnp.where(units > 0.0, start_s - read_once(state.room_since_s, i), 0.0)
    return state.in_totals(kv_unit_s=state.totals.kv_unit_s + units * waited_s)


def _serve_running(given: Given, state: State, decodes: Flag, continues: Flag) -> State:
    """KV for the next token of the decodes, if they take a step; then the next chunk of prompts, if one ``continues``.

    The chunks are those of the prompts under way, in order of admission, as far as the token budget and the KV go.
    ``State.prompts`` is walked from its oldest member on. A prompt that is complete drops out of the chain, so the next
    one is always behind the last that stayed in. Decodes that lack KV come first, as one, since whoever lacks it
    preempts, which is compiled only once that way.
    """
    kv, lack = kv_of(given), decodes
    # Most batches have KV for their decodes and no prompt under way: no trip of the loop.
    if kv.grows_by_units or not given.structure.preempts:
        lack = decodes & decodes_lack(given, state)
        state = _take_step(given, state, decodes & ~lack)

    def next_one(carry: tuple[State, Int, Flag, Flag]) -> Int:
        state, before, _, _ = carry
        return read_once(state.prompts.newer, before)

    def goes_on(carry: tuple[State, Int, Flag, Flag]) -> Flag:
        state, _, fits, grows = carry
        # Whoever is in the list has tokens left to compute, so that the next chunk has some if the budget has.
        under_way = next_one(carry) < state.replica.sentinel
        return grows | (continues & fits & under_way & (_token_room(given, state) > 0))

    def go_on(carry: tuple[State, Int, Flag, Flag]) -> tuple[State, Int, Flag, Flag]:
        state, before, _, grows = carry
        i = next_one(carry)
        candidate = _candidate(given, state, i)

        def proceed(carry: tuple[State, Int], chunk: Candidate, more: Float) -> tuple[State, Int]:
            state, before = carry
            state = compute(given, kv.extend(given, state, i, more), i, chunk)
            completes = chunk.tokens == chunk.rest
            state = state._replace(prompts=state.prompts.remove(i, (chunk.tokens > 0) & completes))
            return state, jnp.where(completes, before, i)

        if not given.structure.preempts:  # a prompt has all of its KV since its admission
            return *proceed((state, before), candidate, jnp.zeros((), jnp.float64)), ~grows, grows
        state, more, fits = make_room(given, state, i, (candidate.start + candidate.tokens).astype(jnp.float64), grows)
        chunk = candidate._replace(tokens=jnp.where(fits, candidate.tokens, 0))
        if kv.grows_by_units:
            state = _take_step(given, state, grows)
        else:
            state = where(grows, lambda state: _take_step(given, state, grows), state)
        state, before = where(~grows, partial(proceed, chunk=chunk, more=more), (state, before))
        return state, before, fits, jnp.zeros((), bool)

    # Arrivals that went to the heap by their work (``arrive``) were read from the columns that chunks are written to.
    before = behind(state.replica.sentinel, state.replica.queue.top)
    start = (state, before, ~jnp.zeros((), bool), lack)
    return lax.while_loop(goes_on, go_on, start)[0]


def _take_step(given: Given, state: State, on: Flag) -> State:
    """The decodes take a step, if ``on``: they have room for the KV of their next token, and a part of the budget."""
    state = grow_decodes(given, state, on)
    state = kv_of(given).take_step(given, state, read(state.decode_groups.step, state.schedulable), on)
    decodes = read(state.decode_groups.decodes, state.schedulable)
    beside = jnp.where(given.prompts_alone(), 0.0, given.rows(decodes))
    return state._replace(batch=state.batch._replace(decodes=jnp.where(on, beside, state.batch.decodes)))


def compute(given: Given, state: State, i: Int, chunk: Candidate, has_computed: Int | None = None) -> State:
    """The batch computes a chunk of a prompt under way; nothing happens if it has no tokens.

    ``has_computed``: tokens of the request that have KV after it, if the caller knows.
    """
    batch, sequences = state.batch, state.sequences
    computes = chunk.tokens > 0
    completes = computes & (chunk.tokens == chunk.rest)  # its next token comes with this batch
    prompts = batch.prompts.add_chunk(chunk.start.astype(jnp.float64), chunk.tokens.astype(jnp.float64), given.window())
    computing, computed = jnp.where(computes, i, given.padding()), chunk.start + chunk.tokens
    if sequences.running_batch is not None and state.replica.pipeline is not None:
        launched = state.replica.pipeline.launched_batches
        sequences = sequences._replace(running_batch=write(sequences.running_batch, computing, launched))
    state = state._replace(
        batch=batch._replace(prompts=prompts, completing=jnp.where(completes, i, batch.completing)),
        sequences=sequences._replace(
            computed=write(sequences.computed, computing, computed),
            next_completing=write(
                sequences.next_completing, jnp.where(completes, i, given.padding()), batch.completing
            ),
        ),
    )
    if has_computed is None:  # a prompt that found no KV may have been preempted for it, and has what that has left it
        has_computed = jnp.where(computes, computed, read_once(state.sequences.computed, i))
    return kv_of(given).compute(given, state, i, has_computed)
