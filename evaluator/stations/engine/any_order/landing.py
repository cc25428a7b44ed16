"""The end of an iteration, or of a leap over alike ones: tokens, gaps between them, and departures."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from evaluator.cost.iteration import Array
from evaluator.stations.engine.any_order.groups import add, join, known_tokens, leave
from evaluator.stations.engine.any_order.lane import GeneralLane, GeneralStructure
from evaluator.stations.engine.any_order.state import State
from evaluator.stations.engine.common import histogram
from evaluator.stations.engine.common.lane import Requests
from evaluator.stations.engine.common.rings import load, read, tagged_count, unmark, write
from evaluator.stations.engine.in_order.state import NOBODY


class Landing(NamedTuple):
    """A batch that comes to its end."""

    group: Array  # int32
    steps: Array  # int32, of the group; 0 without decodes, or if there is no batch
    first_end_s: Array  # of the first of them
    end_s: Array  # of the last
    completing: Array  # int32, list of requests whose prompts are complete


def land(given: GeneralLane, requests: Requests, structure: GeneralStructure, state: State, landing: Landing) -> State:
    """The clock has reached the landing's end."""
    weight = jnp.where(load(state.sequences.first_token_s, given.lane.measured_from) < jnp.inf, 1.0, 0.0)
    state = _enter_gaps(state, landing, weight)
    state = _take_steps(given, requests, structure, state, landing)
    if structure.pipeline_ranks > 1:
        state = _come_to_rest(given, requests, structure, state, landing)
    return _complete_prompts(given, requests, structure, state, landing, weight)


def _enter_gaps(state: State, landing: Landing, weight: Array) -> State:
    """The gaps that end in the steps: for those who have joined since the last one from a token of their own."""
    g, steps = landing.group, landing.steps
    moves = steps > 0

    def enter_first(carry: tuple[State, Array, Array]) -> tuple[State, Array, Array]:
        state, i, count = carry
        bins, sequences = state.itl_histogram, state.sequences
        first = load(sequences.first_token_s, i)
        resident = first == jnp.inf  # its first token comes now
        at = histogram.bin_of(landing.first_end_s - load(sequences.token_s, i))
        bins = write(bins, at, read(bins, at) + jnp.where(resident, 0.0, weight))
        first_token_s = write(sequences.first_token_s, i, jnp.where(resident, landing.first_end_s, first))
        state = state._replace(itl_histogram=bins, sequences=sequences._replace(first_token_s=first_token_s))
        return state, load(state.next_fresh, i), count + 1.0

    start = (state, jnp.where(moves, read(state.groups.fresh, g), NOBODY), jnp.zeros(()))
    state, _, count = lax.while_loop(lambda carry: carry[1] >= 0, enter_first, start)
    bins = state.itl_histogram
    decodes = read(state.groups.decodes, g)
    at = histogram.bin_of(landing.first_end_s - read(state.groups.gap_from, g))
    bins = write(bins, at, load(bins, at) + jnp.where(moves, weight * (decodes - count), 0.0))
    more = jnp.maximum(steps - 1, 0).astype(jnp.float64)
    at = histogram.bin_of((landing.end_s - landing.first_end_s) / jnp.maximum(more, 1.0))
    bins = write(bins, at, load(bins, at) + weight * more * decodes)
    gap_from, fresh = read(state.groups.gap_from, g), read(state.groups.fresh, g)
    done = moves & (count >= 0.0)  # whoever writes what the loop reads waits for it, see ``load``
    return state._replace(
        itl_histogram=bins,
        groups=state.groups._replace(
            gap_from=write(state.groups.gap_from, g, jnp.where(moves, landing.end_s, gap_from)),
            fresh=write(state.groups.fresh, g, jnp.where(done, NOBODY, fresh)),
        ),
    )


def _take_steps(
    given: GeneralLane, requests: Requests, structure: GeneralStructure, state: State, landing: Landing
) -> State:
    """The group's steps, and the departure of those with their last token."""
    g, groups = landing.group, state.groups
    grown = landing.steps.astype(jnp.float64)
    step = read(groups.step, g) + landing.steps
    slot = step % structure.ring
    cell = g * structure.ring + slot
    groups = groups._replace(
        step=write(groups.step, g, step), context=add(groups.context, g, grown * read(groups.decodes, g))
    )
    if structure.windowed:
        full = jnp.where(grown > 0, tagged_count(state.rings.crossing, cell, step), 0.0)
        groups = groups._replace(
            window_context=add(groups.window_context, g, grown * read(groups.growing, g)),
            growing=add(groups.growing, g, -full),
        )

    def depart(carry: tuple[State, Array]) -> tuple[State, Array]:
        state, i = carry
        attends = known_tokens(given, requests, i, read(requests.output_tokens, i))
        groups = state.groups._replace(
            decodes=add(state.groups.decodes, g, -1.0), context=add(state.groups.context, g, -attends)
        )
        if structure.windowed:
            attended = -jnp.minimum(attends, given.lane.window)
            groups = groups._replace(window_context=add(groups.window_context, g, attended))
        state = state._replace(
            groups=groups, sequences=state.sequences._replace(group=write(state.sequences.group, i, NOBODY))
        )
        return _finish(requests, structure, state, i, landing.end_s, True), load(state.next_leaving, i)

    first = jnp.where(landing.steps > 0, load(state.rings.leaving, cell), NOBODY)
    state, last = lax.while_loop(lambda carry: carry[1] >= 0, depart, (state._replace(groups=groups), first))
    rings = state.rings
    kept = jnp.where(landing.steps > 0, last, load(rings.leaving, cell))
    rings = rings._replace(leaving=write(rings.leaving, cell, kept))
    if structure.pipeline_ranks == 1:
        rings = rings._replace(events=unmark(rings.events, slot))
    return state._replace(rings=rings)


def _come_to_rest(
    given: GeneralLane, requests: Requests, structure: GeneralStructure, state: State, landing: Landing
) -> State:
    """The group of a batch from the pipeline is the one at rest if that is empty; else its members join that."""
    moved, here = landing.group, state.at_rest
    lands = landing.steps > 0
    empty = read(state.groups.decodes, here) == 0
    slot = state.landed % structure.pipeline_ranks
    swap = lands & empty
    state = state._replace(
        at_rest=jnp.where(swap, moved, here),
        flights=state.flights._replace(group=write(state.flights.group, slot, jnp.where(swap, here, moved))),
    )

    def move(carry: tuple[State, Array]) -> tuple[State, Array]:
        state, i = carry
        mine = load(state.sequences.group, i) == moved
        state = leave(given, requests, structure, state, i, mine)
        token_s = jnp.where(mine, landing.end_s, load(state.sequences.token_s, i))
        sequences = state.sequences._replace(token_s=write(state.sequences.token_s, i, token_s))
        state = join(given, requests, structure, state._replace(sequences=sequences), i, mine)
        return state, load(state.running.newer, i)

    def left(carry: tuple[State, Array]) -> Array:
        state, i = carry
        return lands & ~empty & (i < state.running.sentinel) & (read(state.groups.decodes, moved) > 0)

    return lax.while_loop(left, move, (state, state.running.oldest()))[0]


def _complete_prompts(
    given: GeneralLane, requests: Requests, structure: GeneralStructure, state: State, landing: Landing, weight: Array
) -> State:
    """Those whose prompts are complete have a token; after a preemption it ends a gap."""
    end_s = landing.end_s

    def complete(carry: tuple[State, Array]) -> tuple[State, Array]:
        state, i = carry
        sequences, bins = state.sequences, state.itl_histogram
        before = load(sequences.generated, i)
        generated, token_s = before + 1, load(sequences.token_s, i)
        at = histogram.bin_of(end_s - token_s)
        sequences = sequences._replace(
            generated=write(sequences.generated, i, generated),
            first_token_s=write(sequences.first_token_s, i, jnp.minimum(load(sequences.first_token_s, i), end_s)),
            token_s=write(sequences.token_s, i, jnp.where(generated > 0, end_s, token_s)),
        )
        state = state._replace(
            sequences=sequences, itl_histogram=write(bins, at, load(bins, at) + jnp.where(before > 0, weight, 0.0))
        )
        ends = generated == read(requests.output_tokens, i)
        state = join(given, requests, structure, state, i, ~ends)
        return _finish(requests, structure, state, i, end_s, ends), load(state.next_completing, i)

    return lax.while_loop(lambda carry: carry[1] >= 0, complete, (state, landing.completing))[0]


def _finish(requests: Requests, structure: GeneralStructure, state: State, i: Array, end_s: Array, on: Array) -> State:
    """A request has its last token, if ``on``: it gives back its place and KV."""
    last_token_s = load(state.sequences.last_token_s, i)
    return state._replace(
        sequences=state.sequences._replace(
            last_token_s=write(state.sequences.last_token_s, i, jnp.where(on, end_s, last_token_s))
        ),
        running=state.running.remove(i, on),
        by_end=state.by_end.remove(i, on) if structure.peaks else state.by_end,
        running_count=state.running_count - on,
        kv=state.kv - jnp.where(on, read(requests.kv_units, i), 0),
        finished=state.finished + on,
        waiting=state.waiting._replace(released=state.waiting.released + on),
    )
