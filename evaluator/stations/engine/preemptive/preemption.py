"""KV on demand: running requests take more of it with every token, and where there is none left, the request admitted
last is preempted: computed anew (vLLM's preemption by recomputation), or swapped to host memory (``swapping``)."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from evaluator.stations.engine.common import kv_growth
from evaluator.stations.engine.common.arrays import Flag, Float, Int
from evaluator.stations.engine.common.leap import once
from evaluator.stations.engine.common.rings import NONE, behind, read, read_once, tagged_count, write
from evaluator.stations.engine.preemptive.decode_groups import known_tokens, leave
from evaluator.stations.engine.preemptive.kv import kv_of, own_units
from evaluator.stations.engine.preemptive.lane import Given
from evaluator.stations.engine.preemptive.state import State
from evaluator.stations.engine.preemptive.swapping import swap_out
from evaluator.stations.engine.preemptive.waiting import go_back


def grow_decodes(given: Given, state: State, on: Flag) -> State:
    """KV for the next token of every schedulable decode, if ``on``; there is room for it (``make_room``)."""
    if not given.structure.preempts:
        return state
    on, kv = on & given.on_demand(), kv_of(given)
    if kv.grows_in_turn:
        in_turn = on
        if given.structure.names_late:  # all at once where there is enough
            in_turn = on & decodes_lack(given, state)
            state = kv.grow(given, state, jnp.where(on & ~in_turn, decodes_need(given, state), 0.0))
        state = kv.grow_in_turn(
            given, state, in_turn, lambda state: preempt(given, state, newest_schedulable(given, state))
        )
        return state._replace(batch=state.batch._replace(grown=state.batch.grown | on))
    state = state._replace(batch=state.batch._replace(grown=state.batch.grown | on))
    return kv.grow(given, state, jnp.where(on, decodes_need(given, state), 0.0))


def decodes_lack(given: Given, state: State) -> Flag:
    """There is not enough KV for the next token of all schedulable decodes."""
    return given.on_demand() & (decodes_need(given, state) > given.limits.kv_units - state.replica.kv)


def decodes_need(given: Given, state: State) -> Float:
    """Units that the schedulable decodes take for their next token, all together."""
    growth = growth_at(given, state, read(state.decode_groups.step, state.schedulable))
    if given.structure.block_tokens:
        return growth
    # Sequences without a prompt to compute, admitted into this batch, have the KV of their first token already.
    return growth - jnp.where(given.every_token_takes_a_unit(), state.batch.decodes, 0.0)


def growth_at(given: Given, state: State, step: Int) -> Float:
    """Units that a step of the schedulable decode group needs more than the one before."""
    return growth_of(given, state, state.schedulable, step)


def growth_of(given: Given, state: State, decode_group: Int, step: Int) -> Float:
    """Units that a step of a decode group needs more than the one before."""
    if given.structure.block_tokens:
        return kv_growth.growth_at(state.rings.kv_growth, given.block(), step)
    noted = tagged_count(state.rings.kv_growth, given.structure.cell(decode_group, step), step)
    return jnp.where(given.every_token_takes_a_unit(), read(state.decode_groups.decodes, decode_group), noted)


def make_room(given: Given, state: State, i: Int, tokens: Float, grows: Flag) -> tuple[State, Float, Flag]:
    """Room for the next token of every schedulable decode, if one ``grows``; else for a prompt under way.

    Of that for ``tokens`` tokens: (the state, the units that it takes, whether there is room). Requests admitted after
    it are preempted, last first. If none of them is left, the request itself is preempted; if it cannot be, because a
    batch in flight computes a chunk of it, it waits for the next batch.

    vLLM gives KV to the running requests one after the other and preempts the one admitted last whenever one finds
    none. For all decodes at once comes to the same: the victim is always the last, a victim frees its KV and no longer
    needs any, and preemption ends as soon as the others' need fits.
    """
    rules, kv = given.rules, kv_of(given)

    def lacking() -> Float:
        return jnp.maximum(own_units(given, i, tokens) - kv.held(given, state, i), 0.0)

    more = once(~grows & rules.on_demand, lacking)
    admission = read_once(state.sequences.admission, i)

    def lacks(carry: tuple[State, Flag]) -> Flag:
        state, here = carry
        last = newest_schedulable(given, state)
        yields = (last < state.replica.sentinel) & (read_once(state.sequences.admission, last) >= admission)
        room = given.limits.kv_units - state.replica.kv
        lack = grows & (False if kv.grows_in_turn else decodes_lack(given, state))
        return lack | (rules.on_demand & ~grows & here & (more > room) & yields)

    def give_up(carry: tuple[State, Flag]) -> tuple[State, Flag]:
        state, _ = carry
        last = newest_schedulable(given, state)
        return preempt(given, state, last), last != i

    # vLLM v1: while ``allocate_slots`` gives None, ``self.running.pop()`` is preempted, maybe the request itself.
    state, here = lax.while_loop(lacks, give_up, (state, ~jnp.zeros((), bool)))
    fits = ~rules.on_demand | (here & (more <= given.limits.kv_units - state.replica.kv))
    state = state._replace(batch=state.batch._replace(short=state.batch.short | (~grows & ~fits)))
    return state, jnp.where(rules.on_demand & fits, more, 0.0), grows | fits


def newest_schedulable(given: Given, state: State) -> Int:
    """The running request admitted last of those in no batch in flight; the sentinel if all are in one.

    Without a pipeline no batch is in flight while the next one is formed, so it is the newest. Prompts already put into
    the next batch are older than the request that lacks KV, because they are continued in order of admission: that
    request and all newer ones are preempted before them.
    """
    pipeline, sequences, newest = state.replica.pipeline, state.sequences, state.running.newest(state.replica.sentinel)
    if pipeline is None or sequences.running_batch is None:
        return newest
    running_batch = sequences.running_batch

    def in_batch(i: Int) -> Flag:
        schedulable = (read_once(sequences.decode_group, i) == state.schedulable) | (
            (read_once(sequences.decode_group, i) < 0) & (read_once(running_batch, i) < pipeline.completed_batches)
        )
        return (i < state.replica.sentinel) & ~schedulable

    return lax.while_loop(in_batch, lambda i: read_once(state.running.older, i), newest)


def preempt(given: Given, state: State, i: Int) -> State:
    """A running request goes back to the waiting queue and frees its KV: prompt and generated tokens are recomputed.

    It was not admitted into the batch being formed: vLLM admits new requests after the running ones have their KV, and
    only if none of these was short.
    """
    held, left = kv_of(given).held(given, state, i), jnp.int32(0)
    waits: Flag | bool = True
    if state.planned is not None:
        # The last token of a request may be planned already (vLLM ``AsyncScheduler``: ``num_output_placeholders``). It
        # comes all the same, so that the request gives up its seat and its KV, and does not wait again.
        waits = read_once(state.sequences.last_token_s, i) == jnp.inf
        held = jnp.where(waits, held, given.kv_units(i))
    if state.router_counts is not None:  # tokens left to compute before the preemption: none of a decode
        left = read_once(state.sequences.target, i) - read_once(state.sequences.computed, i)
    # The condition always holds. It makes every write below depend on what was read above (``common.rings``).
    i = jnp.where((held >= 0.0) & (left < 1 << 30), i, NONE)
    state = kv_of(given).release(given, kv_of(given).leave_for_good(given, state, i), i, held, True)
    if given.structure.names_late:  # it has read the sequences
        i = behind(i, state.replica.kv)
    state = leave(given, state, i, True)
    sequences, requests = state.sequences, given.requests
    # Recomputation: prompt and generated tokens become one prompt (vLLM: ``num_computed_tokens = 0``), but for what
    # was known of it from the start, which stays resident.
    known = known_tokens(given, i, read_once(sequences.generated, i)).astype(jnp.int32)
    cached = read(requests.prompt_tokens, i) - read(requests.compute_tokens, i)
    keeps = jnp.where(given.limits.prompts_resident, 0, cached)
    if state.router_counts is not None:
        needs, computes = given.kv_units(i), known - keeps - jnp.maximum(left, 0)
        if state.planned is not None:
            needs, computes = (jnp.where(waits, value, 0) for value in (needs, computes))
        waiting_units, again = state.router_counts.waiting_units + needs, state.router_counts.again + computes
        state = state._replace(router_counts=state.router_counts._replace(again=again, waiting_units=waiting_units))
    if state.swapped is not None:
        state, swaps = swap_out(given, state, i)
        known = jnp.where(swaps, read_once(sequences.target, i), known)
        keeps = jnp.where(swaps, read_once(sequences.computed, i), keeps)
    state = state._replace(
        sequences=sequences._replace(
            target=write(sequences.target, behind(i, keeps), known),
            computed=write(sequences.computed, i, keeps),
            slots=None if sequences.slots is None else write(sequences.slots, i, jnp.int32(0)),
        ),
        running=state.running.remove(i),
        prompts=state.prompts.remove(i),
        by_end=state.by_end.remove(i) if given.structure.peaks else state.by_end,
        batch=state.batch._replace(short=~jnp.zeros((), bool), preempted=~jnp.zeros((), bool)),
    )
    state = state.at_replica(running_count=state.replica.running_count - 1)
    if state.replica.unseated is not None:
        state = state.at_replica(unseated=state.replica.unseated + jnp.where(waits, 0.0, 1.0))
    return go_back(given, state.in_totals(preemptions=state.totals.preemptions + 1), i, waits)
