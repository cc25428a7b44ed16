"""Decode groups, sequences that decode together: how one joins, how it is taken out, and what KV its next tokens need.

Time is counted in steps of the decode group, each of which adds a token to every member. What will happen to a member
follows from the step at which it joins, so it is entered once in the decode group's rings (``state.Rings``) and not
looked at again until then: at the step after which it leaves, at the step at which its attention window is full, and,
with KV on demand, at each step at which it needs another KV unit.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from evaluator.cost.kv import units
from evaluator.stations.engine.common import kv_growth as kv_growth_by_blocks
from evaluator.stations.engine.common.arrays import Array, Flag, Float, Int, StepBits
from evaluator.stations.engine.common.rings import (
    NONE,
    add,
    behind,
    mark,
    read,
    read_each,
    read_once,
    tagged_add,
    write,
)
from evaluator.stations.engine.preemptive.kv import kv_of
from evaluator.stations.engine.preemptive.lane import Given
from evaluator.stations.engine.preemptive.linked_lists import push, unlink
from evaluator.stations.engine.preemptive.speculative_steps import (
    SpeculativePath,
    enter_accepted,
    held_tokens,
    note_units,
    path_since,
    walk_path,
)
from evaluator.stations.engine.preemptive.state import State


class GroupMember(NamedTuple):
    """A sequence as its decode group counts it."""

    decode_group: Int
    step: Int  # of the decode group, now
    last: Int  # the step after which the sequence leaves
    computed: Int  # tokens of its KV at ``step``
    attends: Float  # tokens that it attends to in the next step
    on: Flag  # it is there; where False, all writes are masked


def known_tokens(given: Given, i: Int, generated: Int) -> Float:
    """Prompt and generated tokens: what the next token attends to, itself not counted."""
    return (read(given.requests.prompt_tokens, i) + generated + given.limits.prompts_resident).astype(jnp.float64)


def join(given: Given, state: State, i: Int, on: Flag, has_kv: bool = False) -> State:
    """A sequence joins the schedulable decode group, if ``on``; ``has_kv``: it has the KV of its first token there."""
    sequences, decode_group = state.sequences, state.schedulable
    step = read(state.decode_groups.step, decode_group)
    generated, computed = read_each(i, sequences.generated, sequences.computed)
    steps = read(given.requests.output_tokens, i) - generated  # a token each
    attends = known_tokens(given, i, generated)
    if state.accepted is not None:
        path = path_since(given, state, i, on)._replace(decode_group=decode_group, step=step)
        steps, gains = enter_accepted(given, state.accepted, path, attends, 1)
        noted = note_units(given, state.rings.kv_growth, path, has_kv, 1)
        i = behind(i, path.slots)
        state = state._replace(accepted=gains, rings=state.rings._replace(kv_growth=noted))
    last = step + steps
    member = GroupMember(decode_group, step, last, computed, attends, on)
    # All that will happen to the member is noted now, at the steps at which it will happen; masked where not ``on``.
    leaving, next_leaving = push(
        state.rings.leaving, _cell(given, decode_group, last, on), sequences.next_leaving, i, on
    )
    joined, next_joined = push(state.decode_groups.joined, decode_group, sequences.next_joined, i, on)
    events = _mark(given, state.rings.events, decode_group, last, on)
    kv_growth = state.rings.kv_growth
    if given.speculation is None:
        kv_growth = _note_growth(given, kv_growth, member, step + has_kv, 1)
    joins = behind(jnp.where(on, i, given.padding()), generated)  # and ``computed``, which is read with it
    # The padding cell stays in no group: of lanes in step those with nothing to do go along with it, and would look for
    # it in the group's lists without an end.
    sequences = sequences._replace(
        decode_group=write(sequences.decode_group, joins, jnp.where(on, decode_group, NONE)),
        since=write(sequences.since, joins, step),
        next_leaving=next_leaving,
        next_joined=next_joined,
    )
    state = state._replace(
        decode_groups=state.decode_groups._replace(joined=joined),
        rings=state.rings._replace(leaving=leaving, events=events, kv_growth=kv_growth),
        sequences=sequences,
    )
    state = kv_of(given).join(given, state, i, decode_group, step - computed, on)
    return _count(given, state, member, 1)


def _withdraw_steps(given: Given, state: State, i: Int, member: GroupMember, generated: Int) -> State:
    """The rings without what a member would still have gained; ``generated`` tokens are there."""
    sequences = state.sequences
    if state.accepted is None or sequences.decoded is None or sequences.slots is None:
        kv_growth = _note_growth(given, state.rings.kv_growth, member, member.step, -1)
        return state._replace(rings=state.rings._replace(kv_growth=kv_growth))
    since = path_since(given, state, i, member.on)
    elapsed = member.step - since.step
    slots = jnp.where(member.on, held_tokens(given, since, elapsed), since.slots)
    left = jnp.where(member.on, read(given.requests.output_tokens, i) - generated, 0)
    later = SpeculativePath(i, member.decode_group, member.step, since.first + elapsed, left, member.computed, slots)
    kv_growth = note_units(given, state.rings.kv_growth, later, False, -1)
    decoded = write(sequences.decoded, behind(i, member.computed), jnp.where(member.on, later.first, since.first))
    return state._replace(
        accepted=enter_accepted(given, state.accepted, later, member.attends, -1)[1],
        rings=state.rings._replace(kv_growth=kv_growth),
        sequences=sequences._replace(decoded=decoded, slots=write(sequences.slots, i, slots)),
    )


def leave(given: Given, state: State, i: Int, on: Flag) -> State:
    """A sequence is taken out of its decode group, if it is in one and ``on``; what it has generated is written
    down."""
    member, generated, was_fresh = _membership(given, state, i, on)
    state = _withdraw_steps(given, state, i, member, generated)
    sequences, decode_groups = state.sequences, state.decode_groups
    on, decode_group = member.on, member.decode_group
    leaving, next_leaving, left = unlink(
        state.rings.leaving, _cell(given, decode_group, member.last, on), sequences.next_leaving, i, on
    )
    joined, next_joined, fresh = unlink(decode_groups.joined, decode_group, sequences.next_joined, i, was_fresh)
    stepped = jnp.where(on & ~was_fresh, i, given.padding())
    state = state._replace(
        decode_groups=decode_groups._replace(joined=joined),
        rings=state.rings._replace(leaving=leaving),
        sequences=sequences._replace(
            generated=write(sequences.generated, behind(i, *left, *fresh), generated),
            computed=write(sequences.computed, i, member.computed),
            decode_group=write(sequences.decode_group, jnp.where(on, i, given.padding()), NONE),
            token_s=write(sequences.token_s, stepped, read(decode_groups.gap_from, decode_group)),
            next_leaving=next_leaving,
            next_joined=next_joined,
        ),
    )
    state = kv_of(given).leave(given, state, i, on)
    return _count(given, state, member, -1)


def _membership(given: Given, state: State, i: Int, on: Flag) -> tuple[GroupMember, Int, Flag]:
    """A member as of now, its generated tokens, and whether it has joined since the decode group's last step."""
    sequences = state.sequences
    decode_group, generated, since, before = read_each(
        i, sequences.decode_group, sequences.generated, sequences.since, sequences.computed
    )
    on = on & (decode_group >= 0)
    decode_group = jnp.where(on, decode_group, 0)
    step = read(state.decode_groups.step, decode_group)
    elapsed = jnp.where(on, step - since, 0)
    steps, gained = read(given.requests.output_tokens, i) - generated, elapsed
    if given.speculation is not None:
        steps, gained = walk_path(given, path_since(given, state, i, on), elapsed)
    last = since + steps
    generated, computed = generated + gained, before + gained
    return (
        GroupMember(decode_group, step, last, computed, known_tokens(given, i, generated), on),
        generated,
        on & (elapsed == 0),
    )


def _count(given: Given, state: State, member: GroupMember, sign: int) -> State:
    """A sequence is added to (``sign`` 1) or taken off (-1) the sums of its decode group."""
    decode_groups, rings, on, amount = (
        state.decode_groups,
        state.rings,
        member.on,
        jnp.where(member.on, 1.0 * sign, 0.0),
    )
    decode_groups = decode_groups._replace(
        decodes=add(decode_groups.decodes, member.decode_group, amount),
        context=add(decode_groups.context, member.decode_group, amount * member.attends),
    )
    if not given.structure.windowed:
        return state._replace(decode_groups=decode_groups)
    window = given.limits.window
    if given.speculation is not None:
        windowed = add(decode_groups.window_context, member.decode_group, amount * jnp.minimum(member.attends, window))
        return state._replace(decode_groups=decode_groups._replace(window_context=windowed))
    grows = on & (member.attends < window)  # until the window is full, each step adds a token to what it attends to
    full = jnp.minimum(member.step + (window - member.attends).astype(jnp.int32), member.last)  # its last step at most
    decode_groups = decode_groups._replace(
        window_context=add(
            decode_groups.window_context, member.decode_group, amount * jnp.minimum(member.attends, window)
        ),
        growing=add(decode_groups.growing, member.decode_group, jnp.where(grows, 1.0 * sign, 0.0)),
    )
    rings = rings._replace(
        crossing=tagged_add(rings.crossing, _cell(given, member.decode_group, full, grows), full, sign),
        # An event of a sequence that was taken out stays: it ends a leap early, which costs a trip and is still exact.
        events=_mark(given, rings.events, member.decode_group, full, grows) if sign > 0 else rings.events,
    )
    return state._replace(decode_groups=decode_groups, rings=rings)


def _note_growth(given: Given, kv_growth: Array, member: GroupMember, start: Int, count: int) -> Array:
    """The ring with ``count`` times the KV units that a sequence needs from the step ``start`` on, up to its last.

    Only the steps at which its tokens begin a new block are visited.
    """
    if not given.structure.preempts:
        return kv_growth
    if given.structure.block_tokens:
        return _count_growth(given, kv_growth, member.step - member.computed, jnp.where(member.on, float(count), 0.0))
    rules, block = given.rules, given.block()
    ahead = -(member.computed + start - member.step) % block

    def enter(carry: tuple[Int, Float, Array]) -> tuple[Int, Float, Array]:
        reached, before, counts = carry
        after = units(rules.kv, (member.computed + reached - member.step + 1).astype(jnp.float64))
        more = count * (after - before).astype(jnp.int64)
        return (
            reached + block,
            after,
            tagged_add(counts, given.structure.cell(member.decode_group, reached), reached, more),
        )

    first = start + ahead
    held = units(rules.kv, (member.computed + first - member.step).astype(jnp.float64))
    end = jnp.where(member.on, member.last, member.step)
    stop = jnp.where(rules.on_demand & ~given.every_token_takes_a_unit(), end, start)
    return lax.while_loop(lambda carry: carry[0] < stop, enter, (first, held, kv_growth))[2]


def _count_growth(given: Given, kv_growth: Array, opens: Int, decodes: Float) -> Array:
    """With so many decodes more to which a step ``opens``, and every one a block's tokens later, opens a block."""
    # Models that only keep states take no more with their tokens.
    takes = given.rules.on_demand & (given.rules.kv.full > 0.0)
    return kv_growth_by_blocks.enter(kv_growth, given.block(), opens, jnp.where(takes, decodes, 0.0))


def end_growth(given: Given, state: State, i: Int) -> State:
    """A member has had its last step: counted by remainders, its growth is taken off; the rings know its last step."""
    if not given.structure.block_tokens:
        return state
    opens = read_once(state.sequences.since, i) - read_once(state.sequences.computed, i)
    kv_growth = _count_growth(given, state.rings.kv_growth, opens, jnp.float64(-1.0))
    return state._replace(rings=state.rings._replace(kv_growth=kv_growth))


def _mark(given: Given, events: StepBits, decode_group: Int, step: Int, on: Flag) -> StepBits:
    """The ring with an event at ``step``, if ``on``; a pipeline, which looks at every step (``rounds``), keeps none."""
    return mark(events, given.structure.cell(decode_group, step), on) if given.structure.pipeline_ranks == 1 else events


def _cell(given: Given, decode_group: Int, step: Int, on: Flag) -> Int:
    """Where a decode group's step is in the rings, if ``on``; else the padding cell."""
    structure = given.structure
    return jnp.where(on, structure.cell(decode_group, step), structure.decode_groups() * structure.ring)
