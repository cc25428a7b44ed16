"""Prefix caches of replicas whose decodes verify drafts: when each decode needs a block, and when it fills one.

Without drafts a decode has a token more with each step, so that it opens a block every ``block_tokens`` steps and stays
in one bucket of ``Cache.due``. With drafts a step gives it as many tokens as were accepted. So its bucket is that of
the next step at which anything happens, which is found by walking on from the last one, at most ``block_tokens`` steps.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jax import lax

from evaluator.stations.engine.common.arrays import Flag, Int
from evaluator.stations.engine.common.rings import read, read_once, write
from evaluator.stations.engine.common.speculation import Speculation, tokens_given
from evaluator.stations.engine.preemptive.cache import DraftedVisits
from evaluator.stations.engine.preemptive.lane import Given
from evaluator.stations.engine.preemptive.prefix_cache import bucket, grow_in_turn, register
from evaluator.stations.engine.preemptive.state import State


def join(given: Given, state: State, i: Int, decode_group: Int, on: Flag) -> State:
    """Request ``i`` decodes with a group from now on, if ``on``: it is looked at with the group's next step."""
    cache, visits = state.block_cache, _visits(state)
    step, computed = read(state.decode_groups.step, decode_group), read_once(state.sequences.computed, i)
    padding = given.requests.arrival_s.shape[0] - 1
    joins = jnp.where(on, i, padding)  # who stays in another group must keep its links there
    place = write(visits.place, joins, visits.joins)
    drafted = DraftedVisits(visits.computed, place, visits.joins + on)
    return _visit_at(
        given, state._replace(cache=cache._replace(drafted=drafted)), joins, decode_group, step, computed, on
    )


def grow(given: Given, state: State, on: Flag, preempt_last: Callable[[State], State]) -> State:
    """The schedulable decodes take the blocks of their next step, if ``on``: for the sure token and all drafts."""
    rows = given.rows(1.0).astype(jnp.int32)

    def needed(state: State, i: Int) -> Int:
        # A batch whose drafts were rejected may have left it more slots than it needs now.
        blocks = _blocks(given, read_once(_visits(state).computed, i) + rows)
        return jnp.maximum(blocks, read_once(state.block_cache.units, i))

    return grow_in_turn(given, state, on, needed, preempt_last)


def take_step(given: Given, state: State, step: Int, on: Flag) -> State:
    """The schedulable decodes take a step, if ``on``: blocks that it fills get their names.

    They are known up to the sure token: drafts that the step will accept are named with the next one.
    """
    decode_group, requests = state.schedulable, given.requests.arrival_s.shape[0]

    def visit(carry: tuple[State, Int]) -> tuple[State, Int]:
        state, i = carry
        after = read_once(state.block_cache.buckets.newer, i)  # before it goes to another bucket
        computed = read_once(_visits(state).computed, i)
        state = register(given, state, i, computed + 1)
        ahead, later, goes_on = _next_visit(given, state, i, step, computed)
        cache = state.block_cache
        state = state._replace(cache=cache._replace(due=cache.buckets.remove(i)))
        return _visit_at(given, state, i, decode_group, step + ahead, later, goes_on), after

    sentinel = bucket(given, decode_group, step)
    first = jnp.where(on, read_once(state.block_cache.buckets.newer, sentinel), sentinel)
    return lax.while_loop(lambda carry: carry[1] < requests, visit, (state, first))[0]


def _next_visit(given: Given, state: State, i: Int, step: Int, computed: Int) -> tuple[Int, Int, Flag]:
    """(steps until a decode needs or fills a block again, the tokens of its KV then, whether it still decodes)."""
    sequences = state.sequences
    assert sequences.decoded is not None and given.speculation is not None
    speculation: Speculation = given.speculation
    gained = computed - read_once(sequences.computed, i)
    left = read(given.requests.output_tokens, i) - read_once(sequences.generated, i) - gained
    number = read_once(sequences.decoded, i) + step - read_once(sequences.since, i)  # of this iteration of the request
    rows = given.rows(1.0).astype(jnp.int32)
    held, block = _blocks(given, computed + rows), given.block()

    def nothing(carry: tuple[Int, Int]) -> Flag:
        ahead, later = carry
        needs = (_blocks(given, later + rows) > held) | ((later + 1) // block > (computed + 1) // block)
        return (later - computed < left) & ((ahead == 0) | ~needs)

    def go_on(carry: tuple[Int, Int]) -> tuple[Int, Int]:
        ahead, later = carry
        return ahead + 1, later + tokens_given(speculation, i, number + ahead)

    ahead, later = lax.while_loop(nothing, go_on, (jnp.int32(0), computed))
    return ahead, later, later - computed < left


def _visit_at(given: Given, state: State, i: Int, decode_group: Int, step: Int, computed: Int, on: Flag) -> State:
    """Request ``i``, which is in no bucket, is looked at with a step, if ``on``, when it has so many tokens of KV.

    Those of a bucket are looked at in the order in which they joined: of equal blocks the first that is named is found.
    """
    cache, visits, requests = state.block_cache, _visits(state), given.requests.arrival_s.shape[0]
    sentinel, place = bucket(given, decode_group, step), read_once(visits.place, i)

    def later(other: Int) -> Flag:
        return on & (other < requests) & (read_once(visits.place, jnp.minimum(other, requests - 1)) > place)

    last = lax.while_loop(
        later, lambda other: read_once(cache.buckets.older, other), read_once(cache.buckets.older, sentinel)
    )
    due = cache.buckets.insert(i, read_once(cache.buckets.newer, last), on)
    tokens = jnp.where(on, computed, read_once(visits.computed, i))
    return state._replace(
        cache=cache._replace(due=due, drafted=visits._replace(computed=write(visits.computed, i, tokens)))
    )


def _blocks(given: Given, tokens: Int) -> Int:
    """Blocks that hold so many tokens."""
    block = given.block()
    return (tokens + block - 1) // block


def _visits(state: State) -> DraftedVisits:
    assert state.block_cache.drafted is not None
    return state.block_cache.drafted
