"""Sequences that decode together: who joins, who is taken out, and the KV that their next tokens need.

As in the program for arrivals in order, time is counted in steps of the group and a sequence is entered at its last
one; with KV on demand also at each step at which it needs another unit.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from evaluator.cost.iteration import Array
from evaluator.cost.kv import units
from evaluator.stations.engine.any_order.chains import push, unlink
from evaluator.stations.engine.any_order.lane import GeneralLane, GeneralStructure, every_token
from evaluator.stations.engine.any_order.state import State, group_count
from evaluator.stations.engine.common.lane import Requests
from evaluator.stations.engine.common.rings import load, mark, read, tagged_add, write
from evaluator.stations.engine.in_order.state import NOBODY


def add(array: Array, index: Array, value: Array) -> Array:
    """The array with ``value`` more at ``index``."""
    return write(array, index, load(array, index) + value)


def known_tokens(given: GeneralLane, requests: Requests, i: Array, generated: Array) -> Array:
    """Prompt and generated tokens, float64: what the next token attends to, itself not counted."""
    return (read(requests.prompt_tokens, i) + generated + given.lane.prompts_resident).astype(jnp.float64)


def join(
    given: GeneralLane,
    requests: Requests,
    structure: GeneralStructure,
    state: State,
    i: Array,
    on: Array,
    has_kv: bool = False,
) -> State:
    """A sequence joins the group at rest, if ``on``; ``has_kv``: it has the KV of its first token there."""
    groups, rings, sequences, g = state.groups, state.rings, state.sequences, state.at_rest
    one = jnp.where(on, 1.0, 0.0)
    step = read(groups.step, g)
    generated = load(sequences.generated, i)
    last = step + read(requests.output_tokens, i) - generated
    attends = known_tokens(given, requests, i, generated)
    leaving, next_leaving = push(rings.leaving, _cell(structure, g, last, on), state.next_leaving, i, on)
    fresh, next_fresh = push(groups.fresh, g, state.next_fresh, i, on)
    groups = groups._replace(
        decodes=add(groups.decodes, g, one), context=add(groups.context, g, one * attends), fresh=fresh
    )
    events = _mark(structure, rings.events, last, on)
    if structure.windowed:
        window, grows, full = _grows(given, step, last, attends, on)
        groups = groups._replace(
            window_context=add(groups.window_context, g, one * jnp.minimum(attends, window)),
            growing=add(groups.growing, g, jnp.where(grows, 1.0, 0.0)),
        )
        rings = rings._replace(crossing=tagged_add(rings.crossing, _cell(structure, g, full, grows), full))
        events = _mark(structure, events, full, grows)
    computed = load(sequences.computed, i)
    growth = _growth(given, structure, rings.growth, g, computed, step, step + has_kv, jnp.where(on, last, step), 1)
    return state._replace(
        groups=groups,
        rings=rings._replace(leaving=leaving, events=events, growth=growth),
        sequences=sequences._replace(
            group=write(sequences.group, i, jnp.where(on, g, load(sequences.group, i))),
            since=write(sequences.since, i, jnp.where(on, step, load(sequences.since, i))),
        ),
        next_leaving=next_leaving,
        next_fresh=next_fresh,
    )


def leave(
    given: GeneralLane, requests: Requests, structure: GeneralStructure, state: State, i: Array, on: Array
) -> State:
    """A sequence is taken out of its group, if it is in one and ``on``; what it has generated is noted."""
    groups, rings, sequences = state.groups, state.rings, state.sequences
    group, generated = load(sequences.group, i), load(sequences.generated, i)
    on = on & (group >= 0)
    g = jnp.where(on, group, 0)
    step, since = read(groups.step, g), load(sequences.since, i)
    elapsed = jnp.where(on, step - since, 0)
    last = since + read(requests.output_tokens, i) - generated
    generated, computed = generated + elapsed, load(sequences.computed, i) + elapsed
    was_fresh = on & (elapsed == 0)
    one = jnp.where(on, 1.0, 0.0)
    attends = known_tokens(given, requests, i, generated)
    leaving, next_leaving = unlink(rings.leaving, _cell(structure, g, last, on), state.next_leaving, i, on)
    fresh, next_fresh = unlink(groups.fresh, g, state.next_fresh, i, was_fresh)
    token_s = load(sequences.token_s, i)
    groups = groups._replace(
        decodes=add(groups.decodes, g, -one), context=add(groups.context, g, -one * attends), fresh=fresh
    )
    rings = rings._replace(
        leaving=leaving,
        growth=_growth(given, structure, rings.growth, g, computed, step, step, jnp.where(on, last, step), -1),
    )
    if structure.windowed:
        window, grows, full = _grows(given, step, last, attends, on)
        groups = groups._replace(
            window_context=add(groups.window_context, g, -one * jnp.minimum(attends, window)),
            growing=add(groups.growing, g, jnp.where(grows, -1.0, 0.0)),
        )
        rings = rings._replace(crossing=tagged_add(rings.crossing, _cell(structure, g, full, grows), full, -1))
    return state._replace(
        groups=groups,
        rings=rings,
        sequences=sequences._replace(
            generated=write(sequences.generated, i, generated),
            computed=write(sequences.computed, i, computed),
            group=write(sequences.group, i, jnp.where(on, NOBODY, group)),
            token_s=write(sequences.token_s, i, jnp.where(on & ~was_fresh, read(groups.gap_from, g), token_s)),
        ),
        next_leaving=next_leaving,
        next_fresh=next_fresh,
    )


def _growth(
    given: GeneralLane,
    structure: GeneralStructure,
    growth: Array,
    g: Array,
    computed: Array,
    step: Array,
    start: Array,
    end: Array,
    count: int,
) -> Array:
    """The ring with ``count`` times the units that a sequence, ``computed`` tokens long at ``step``, needs from the
    step ``start`` on and before ``end``."""
    rules = given.rules
    block = jnp.maximum(rules.kv.block_tokens.astype(jnp.int32), 1)  # of 0 in a lane that fills up a call
    ahead = -(computed + start - step) % block

    def enter(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        at, before, ring = carry
        after = units(rules.kv, (computed + at - step + 1).astype(jnp.float64))
        more = count * (after - before).astype(jnp.int64)
        return at + block, after, tagged_add(ring, g * structure.ring + at % structure.ring, at, more)

    first = start + ahead
    held = units(rules.kv, (computed + first - step).astype(jnp.float64))
    stop = jnp.where(rules.on_demand & ~every_token(rules.kv), end, start)
    return lax.while_loop(lambda carry: carry[0] < stop, enter, (first, held, growth))[2]


def _grows(given: GeneralLane, step: Array, last: Array, attends: Array, on: Array) -> tuple[Array, Array, Array]:
    """The window, whether a sequence's windowed context still grows, and up to which step: its last at most."""
    window = given.lane.window
    return window, on & (attends < window), jnp.minimum(step + (window - attends).astype(jnp.int32), last)


def _mark(structure: GeneralStructure, events: Array, step: Array, on: Array) -> Array:
    return (
        mark(events, step % structure.ring, on) if structure.pipeline_ranks == 1 else events
    )  # only leaps look at events


def _cell(structure: GeneralStructure, g: Array, step: Array, on: Array) -> Array:
    """Where a group's step is in the rings; the last cell, for writes that are not meant, unless ``on``."""
    return jnp.where(on, g * structure.ring + step % structure.ring, group_count(structure) * structure.ring)
