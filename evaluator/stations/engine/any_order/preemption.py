"""KV on demand: more of it for who runs, and where there is none, it is taken from who was admitted last."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from evaluator.cost.iteration import Array
from evaluator.cost.kv import units
from evaluator.stations.engine.any_order.groups import known_tokens, leave
from evaluator.stations.engine.any_order.lane import GeneralLane, GeneralStructure, every_token
from evaluator.stations.engine.any_order.state import State
from evaluator.stations.engine.any_order.waiting import go_back
from evaluator.stations.engine.common.lane import Requests
from evaluator.stations.engine.common.rings import load, read, tagged_count, write
from evaluator.stations.engine.in_order.state import NOBODY


def grow_decodes(given: GeneralLane, requests: Requests, structure: GeneralStructure, state: State, on: Array) -> State:
    """KV for the next token of every decode at rest, if ``on``; who was admitted last is preempted until it fits.

    All together need what each in its turn would get: it is always the last who has to go, and who goes needs nothing.
    """
    on = on & given.rules.on_demand

    def needed(state: State) -> Array:
        newcomers = jnp.where(every_token(given.rules.kv), state.batch.decodes, 0.0)  # they have theirs
        return growth_at(given, structure, state, read(state.groups.step, state.at_rest)) - newcomers

    def lacks(state: State) -> Array:
        return on & (needed(state) > given.lane.kv_units - state.kv)

    def give_up(state: State) -> State:
        return preempt(given, requests, structure, state, newest_at_rest(structure, state))

    state = lax.while_loop(lacks, give_up, state)
    kv = state.kv + jnp.where(on, needed(state), 0.0)
    return state._replace(kv=kv, batch=state.batch._replace(grown=on))


def growth_at(given: GeneralLane, structure: GeneralStructure, state: State, step: Array) -> Array:
    """Units that a step of the group at rest needs more than the one before."""
    noted = tagged_count(state.rings.growth, state.at_rest * structure.ring + step % structure.ring, step)
    return jnp.where(every_token(given.rules.kv), read(state.groups.decodes, state.at_rest), noted)


def make_room(
    given: GeneralLane, requests: Requests, structure: GeneralStructure, state: State, i: Array, tokens: Array
) -> tuple[State, Array]:
    """KV for ``tokens`` tokens of a prompt under way, at the cost of those admitted after it; and whether it has it.

    Where none of them is left it goes itself; in flight with a chunk it cannot, and waits.
    """
    rules = given.rules
    more = jnp.maximum(own_units(given, i, tokens) - held_units(given, requests, state, i), 0.0)
    admission = load(state.sequences.admission, i)

    def victim(state: State) -> Array:
        return newest_at_rest(structure, state)

    def lacks(carry: tuple[State, Array]) -> Array:
        state, here = carry
        last = victim(state)
        yields = (last < state.running.sentinel) & (load(state.sequences.admission, last) >= admission)
        return rules.on_demand & here & (more > given.lane.kv_units - state.kv) & yields

    def give_up(carry: tuple[State, Array]) -> tuple[State, Array]:
        state, _ = carry
        last = victim(state)
        return preempt(given, requests, structure, state, last), last != i

    state, here = lax.while_loop(lacks, give_up, (state, ~jnp.zeros((), bool)))
    fits = ~rules.on_demand | (here & (more <= given.lane.kv_units - state.kv))
    kv = state.kv + jnp.where(rules.on_demand & fits, more, 0.0)
    short = state.batch.short | ~fits
    return state._replace(kv=kv, batch=state.batch._replace(short=short)), fits


def own_units(given: GeneralLane, i: Array, tokens: Array) -> Array:
    """Units that a request of so many tokens holds on demand, but for those that it shares."""
    return jnp.maximum(units(given.rules.kv, tokens) - read(given.shared_units, i), 0.0)


def held_units(given: GeneralLane, requests: Requests, state: State, i: Array) -> Array:
    """Units that a running request at rest holds."""
    rules, sequences = given.rules, state.sequences
    g, target = load(sequences.group, i), load(sequences.target, i)
    elapsed = read(state.groups.step, jnp.maximum(g, 0)) - load(sequences.since, i) + state.batch.grown
    computed = load(sequences.computed, i)
    prompt = jnp.where(rules.whole_kv, target, computed)
    tokens = jnp.where(g >= 0, computed + elapsed, prompt)
    taken = own_units(given, i, tokens.astype(jnp.float64))
    return jnp.where(rules.on_demand, taken, read(requests.kv_units, i).astype(jnp.float64))


def newest_at_rest(structure: GeneralStructure, state: State) -> Array:
    """Who was admitted last of those in no batch in flight; the sentinel if all are.

    Without a pipeline nobody is in flight when a batch is put together, but those who are in it already, and they were
    admitted before whoever still needs KV.
    """
    if structure.pipeline_ranks == 1:
        return state.running.newest()
    sequences = state.sequences

    def flies(i: Array) -> Array:
        at_rest = (load(sequences.group, i) == state.at_rest) | (
            (load(sequences.group, i) < 0) & (load(sequences.flight, i) < state.landed)
        )
        return (i < state.running.sentinel) & ~at_rest

    return lax.while_loop(flies, lambda i: load(state.running.older, i), state.running.newest())


def preempt(given: GeneralLane, requests: Requests, structure: GeneralStructure, state: State, i: Array) -> State:
    """Back to the waiting, all KV freed: prompt and generated tokens are to be computed anew.

    Nobody is preempted in the round that admitted it: newcomers come last, and only if nobody was short of KV.
    """
    held = held_units(given, requests, state, i)
    kv, i = state.kv - held, jnp.where(held >= 0.0, i, NOBODY)  # always: what follows shall wait for what was read
    state = leave(given, requests, structure, state, i, True)
    sequences = state.sequences
    known = known_tokens(given, requests, i, load(sequences.generated, i)).astype(jnp.int32)
    cached = read(requests.prompt_tokens, i) - read(requests.compute_tokens, i)
    kept = jnp.where(given.lane.prompts_resident, 0, cached)
    state = state._replace(
        kv=kv,
        sequences=sequences._replace(
            target=write(sequences.target, i, known), computed=write(sequences.computed, i, kept)
        ),
        running=state.running.remove(i),
        prompts=state.prompts.remove(i),
        by_end=state.by_end.remove(i) if structure.peaks else state.by_end,
        running_count=state.running_count - 1,
        preemptions=state.preemptions + 1,
        batch=state.batch._replace(short=~jnp.zeros((), bool), preempted=~jnp.zeros((), bool)),
    )
    return go_back(given, requests, state, i)
