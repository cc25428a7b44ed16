"""KV on demand: running requests take more of it with every token, and where there is none left, the request admitted
last is preempted (vLLM's preemption by recomputation)."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from evaluator.cost.kv import units
from evaluator.stations.engine.common.arrays import Flag, Float, Int
from evaluator.stations.engine.common.rings import NONE, read, read_once, tagged_count, write
from evaluator.stations.engine.preemptive import prefix_cache
from evaluator.stations.engine.preemptive.decode_groups import known_tokens, leave
from evaluator.stations.engine.preemptive.lane import Given
from evaluator.stations.engine.preemptive.speculative_steps import held_tokens, path_since
from evaluator.stations.engine.preemptive.state import State
from evaluator.stations.engine.preemptive.waiting import go_back


def grow_decodes(given: Given, state: State, on: Flag) -> State:
    """KV for the next token of every decode at rest, if ``on``; where it does not suffice, requests are preempted.

    vLLM gives KV to the running requests one after the other and preempts the one admitted last whenever one finds
    none. All at once comes to the same: the victim is always the last, a victim frees its KV and no longer needs any,
    and preemption ends as soon as the others' need fits.
    """
    on = on & given.rules.on_demand

    def needed(state: State) -> Float:
        # Sequences without a prompt to compute, admitted into this batch, have the KV of their first token already.
        admitted = jnp.where(given.every_token_takes_a_unit(), state.batch.decodes, 0.0)
        return growth_at(given, state, read(state.decode_groups.step, state.schedulable)) - admitted

    def lacks(state: State) -> Flag:
        return on & (needed(state) > given.limits.kv_units - state.kv)

    state = lax.while_loop(lacks, lambda state: preempt(given, state, newest_at_rest(given, state)), state)
    state = state._replace(batch=state.batch._replace(grown=on))
    if state.cache is not None:
        return state  # ``prefix_cache.take_step`` takes the blocks
    return state._replace(kv=state.kv + jnp.where(on, needed(state), 0.0))


def growth_at(given: Given, state: State, step: Int) -> Float:
    """Units that a step of the decode group at rest needs more than the one before."""
    return growth_of(given, state, state.schedulable, step)


def growth_of(given: Given, state: State, decode_group: Int, step: Int) -> Float:
    """Units that a step of a decode group needs more than the one before."""
    ring = given.structure.ring
    noted = tagged_count(state.rings.accepted, decode_group * ring + step % ring, step)
    return jnp.where(given.every_token_takes_a_unit(), read(state.decode_groups.decodes, decode_group), noted)


def make_room(given: Given, state: State, i: Int, tokens: Float) -> tuple[State, Flag]:
    """KV for ``tokens`` tokens of a prompt under way; the flag says whether the request has it.

    Requests admitted after it are preempted, last first. If none of them is left, the request itself is preempted; if
    it cannot be, because a batch in flight computes a chunk of it, it waits for the next batch.
    """
    rules = given.rules
    more = jnp.maximum(own_units(given, i, tokens) - held_units(given, state, i), 0.0)
    admission = read_once(state.sequences.admission, i)

    def lacks(carry: tuple[State, Flag]) -> Flag:
        state, here = carry
        last = newest_at_rest(given, state)
        yields = (last < state.running.sentinel) & (read_once(state.sequences.admission, last) >= admission)
        return rules.on_demand & here & (more > given.limits.kv_units - state.kv) & yields

    def give_up(carry: tuple[State, Flag]) -> tuple[State, Flag]:
        state, _ = carry
        last = newest_at_rest(given, state)
        return preempt(given, state, last), last != i

    state, here = lax.while_loop(lacks, give_up, (state, ~jnp.zeros((), bool)))
    fits = ~rules.on_demand | (here & (more <= given.limits.kv_units - state.kv))
    more = jnp.where(rules.on_demand & fits, more, 0.0)
    state = state._replace(batch=state.batch._replace(short=state.batch.short | ~fits))
    if state.cache is not None:
        units = read_once(state.cache.units, i) + more.astype(jnp.int32)
        return prefix_cache.extend(given, state, i, units), fits
    return state._replace(kv=state.kv + more), fits


def own_units(given: Given, i: Int, tokens: Float) -> Float:
    """Units that a request of so many tokens holds on demand, without those that it shares."""
    return jnp.maximum(units(given.rules.kv, tokens) - read(given.shared_units, i), 0.0)


def held_units(given: Given, state: State, i: Int) -> Float:
    """Units that a running request holds which is in no batch in flight."""
    if state.cache is not None:
        return read_once(state.cache.units, i).astype(jnp.float64)
    rules, sequences = given.rules, state.sequences
    decode_group, target = read_once(sequences.decode_group, i), read_once(sequences.target, i)
    elapsed = (
        read(state.decode_groups.step, jnp.maximum(decode_group, 0)) - read_once(sequences.since, i) + state.batch.grown
    )
    computed = read_once(sequences.computed, i)
    prompt = jnp.where(rules.whole_kv, target, computed)
    made = computed + elapsed
    if given.speculation is not None:
        made = held_tokens(given, path_since(given, state, i, decode_group >= 0), elapsed)
    tokens = jnp.where(decode_group >= 0, made, prompt)
    taken = own_units(given, i, tokens.astype(jnp.float64))
    return jnp.where(rules.on_demand, taken, given.kv_units(i).astype(jnp.float64))


def newest_at_rest(given: Given, state: State) -> Int:
    """The running request admitted last of those in no batch in flight; the sentinel if all are in one.

    Without a pipeline no batch is in flight while the next one is formed, so it is the newest. Prompts already put into
    the next batch are older than the request that lacks KV, because they are continued in order of admission: that
    request and all newer ones are preempted before them.
    """
    if given.structure.pipeline_ranks == 1:
        return state.running.newest()
    sequences = state.sequences

    def flies(i: Int) -> Flag:
        schedulable = (read_once(sequences.decode_group, i) == state.schedulable) | (
            (read_once(sequences.decode_group, i) < 0)
            & (read_once(sequences.running_batch, i) < state.completed_batches)
        )
        return (i < state.running.sentinel) & ~schedulable

    return lax.while_loop(flies, lambda i: read_once(state.running.older, i), state.running.newest())


def preempt(given: Given, state: State, i: Int) -> State:
    """A running request goes back to the waiting queue and frees its KV: prompt and generated tokens are recomputed.

    It was not admitted into the batch being formed: vLLM admits new requests after the running ones have their KV, and
    only if none of these was short.
    """
    held, left = held_units(given, state, i), jnp.int32(0)
    if state.router_counts is not None:  # tokens left to compute before the preemption: none of a decode
        left = read_once(state.sequences.target, i) - read_once(state.sequences.computed, i)
    # The condition always holds. It makes every write below depend on what was read above (``common.rings``).
    kv, i = state.kv - held, jnp.where((held >= 0.0) & (left < 1 << 30), i, NONE)
    if state.cache is None:
        state = state._replace(kv=kv)
    else:
        state = prefix_cache.release(given, state, i, True)
    state = leave(given, state, i, True)
    sequences, requests = state.sequences, given.requests
    known = known_tokens(given, i, read_once(sequences.generated, i)).astype(jnp.int32)
    cached = read(requests.prompt_tokens, i) - read(requests.compute_tokens, i)
    kept = jnp.where(given.limits.prompts_resident, 0, cached)
    if state.router_counts is not None:
        waiting_units = state.router_counts.waiting_units + given.kv_units(i)
        again = state.router_counts.again + known - kept - jnp.maximum(left, 0)
        state = state._replace(router_counts=state.router_counts._replace(again=again, waiting_units=waiting_units))
    state = state._replace(
        sequences=sequences._replace(
            target=write(sequences.target, i, known),
            computed=write(sequences.computed, i, kept),
            slots=None if sequences.slots is None else write(sequences.slots, i, jnp.int32(0)),
        ),
        running=state.running.remove(i),
        prompts=state.prompts.remove(i),
        by_end=state.by_end.remove(i) if given.structure.peaks else state.by_end,
        running_count=state.running_count - 1,
        preemptions=state.preemptions + 1,
        batch=state.batch._replace(short=~jnp.zeros((), bool), preempted=~jnp.zeros((), bool)),
    )
    return go_back(given, state, i)
