"""The KV of a replica, as a part: what happens to it when a request is admitted, computes, decodes, and leaves.

The moves of a replica (admit, grow, continue, complete, preempt) are the same however its KV is kept. They call the
hooks of ``KvPart`` and know nothing of how it counts. There are two:

* ``UnitKv`` keeps a number of units in use. They are reserved on admission, or taken on demand as tokens come;
* ``BlockKv`` keeps every block by what is in it, so that requests with the same beginning share blocks (a prefix cache,
  ``prefix_cache``). It counts the blocks that somebody uses. ``PlannedBlockKv`` and ``DraftedBlockKv`` are
  the same with batches that are planned asynchronously, and with drafts.

Another one is a class with these hooks and, where the number of units in use will not do, a sub-state of the replica
(``KvPart.initial``). A user's program registers it as a ``KvManager`` (docs/parts.md); ``kv_of`` chooses by what is
compiled in (``Structure``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

from evaluator.cost.kv import units
from evaluator.stations.engine.common.arrays import Flag, Float, Int
from evaluator.stations.engine.common.rings import behind, read, read_once, write
from evaluator.stations.engine.preemptive import drafted_blocks, prefix_cache
from evaluator.stations.engine.preemptive.lane import Given
from evaluator.stations.engine.preemptive.linked_lists import turned
from evaluator.stations.engine.preemptive.speculative_steps import held_tokens, path_since
from evaluator.stations.engine.preemptive.state import State


class KvPart:
    """The hooks. Those that do nothing unless they are overridden are for KV that goes by its content."""

    grows_by_units: bool = False
    """All that decodes take for their next token is a number of units, without other hooks than ``grow``."""

    grows_in_turn: bool = False
    """Decodes get the KV of their next token one after the other (``grow_in_turn``), and not all at once (``grow``)."""

    reserves_blocks: bool = False
    """A KV reservation (``joint.kv_reservation``) gives a request what it will run on, and not only so many units."""

    waiting_hits_change: bool = False
    """What the head of the waiting queue finds may change with every step, so that a leap must not keep it waiting."""

    def initial(self, given: Given) -> Any:
        """What a replica carries for it in ``ReplicaState.own_kv``, before anything has happened: a tuple of numbers.

        None: nothing. Hooks change it by ``state.at_replica(own_kv=...)``. Of the package's own parts, whose sub-state
        is made with the rest (``state.initial_state``), it is not asked.
        """
        return None

    # -- of the waiting queue's head

    def look_up(self, given: Given, state: State, i: Int, on: Flag) -> State:
        """With what is there of request ``i``, which may be admitted next, if ``on``."""
        return state

    def found_tokens(self, given: Given, state: State) -> Int | int:
        """Leading tokens of the request that was looked up which need not be computed."""
        return 0

    def taken_beside(self, state: State) -> Int | int:
        """Units that its admission takes off those that are free, more than what it holds afterwards."""
        return 0

    # -- of a request

    def admit(self, given: Given, state: State, i: Int, units: Float, start: Int) -> State:
        """Request ``i`` is admitted with so many units; the first ``start`` tokens are computed, or found."""
        raise NotImplementedError

    def extend(self, given: Given, state: State, i: Int, more: Float) -> State:
        """A prompt under way takes so many units more."""
        raise NotImplementedError

    def held(self, given: Given, state: State, i: Int) -> Float:
        """Units that a running request holds which is in no batch in flight."""
        raise NotImplementedError

    def release(self, given: Given, state: State, i: Int, held: Float | Int, on: Flag | bool) -> State:
        """Request ``i``, which ``held`` so many units, gives them back, if ``on``."""
        raise NotImplementedError

    def compute(self, given: Given, state: State, i: Int, tokens: Int) -> State:
        """The first ``tokens`` tokens of request ``i`` are computed, or are in the batch being formed."""
        return state

    # -- of decodes

    def join(self, given: Given, state: State, i: Int, decode_group: Int, opens: Int, on: Flag) -> State:
        """Request ``i`` decodes with a group from now on, if ``on``; a step ``opens`` opens a block for it."""
        return state

    def leave(self, given: Given, state: State, i: Int, on: Flag | bool = True) -> State:
        """It no longer does."""
        return state

    def leave_for_good(self, given: Given, state: State, i: Int) -> State:
        """The same before that: it has had its last step, or is preempted, and gives back next what it holds."""
        return state

    def grow(self, given: Given, state: State, more: Float) -> State:
        """The schedulable decodes take so many units for their next token, on demand."""
        raise NotImplementedError

    def grow_in_turn(self, given: Given, state: State, on: Flag, preempt_last: Callable[[State], State]) -> State:
        """The same one by one, if ``on``; where one lacks KV, ``preempt_last`` preempts the request admitted last."""
        raise NotImplementedError

    def take_step(self, given: Given, state: State, step: Int, on: Flag) -> State:
        """The schedulable decodes take a step, if ``on``."""
        return state

    def leap(self, given: Given, state: State, steps: Float) -> State:
        """The same for each step of a leap after the first."""
        return state

    def take_for_leap(self, given: Given, state: State, kv: Float) -> State:
        """All steps of a leap together have brought the units in use to ``kv``."""
        return state.at_replica(kv=kv)

    # -- of those that leave

    def leaving_order(self, links: Int, first: Int) -> tuple[Int, Int]:
        """A linked list, whose last member came first, in the order in which requests give back their KV."""
        return links, first


class UnitKv(KvPart):
    """Units in use, as one number. With reserved KV a request holds from the start all that it will ever need."""

    grows_by_units = True

    def admit(self, given: Given, state: State, i: Int, units: Float, start: Int) -> State:
        return state.at_replica(kv=state.replica.kv + units)

    def extend(self, given: Given, state: State, i: Int, more: Float) -> State:
        return state.at_replica(kv=state.replica.kv + more)

    def held(self, given: Given, state: State, i: Int) -> Float:
        # How much a request holds on demand is not written down anywhere: it follows from its tokens.
        rules, sequences = given.rules, state.sequences
        decode_group, target = read_once(sequences.decode_group, i), read_once(sequences.target, i)
        step = read(state.decode_groups.step, jnp.maximum(decode_group, 0))
        elapsed = step - read_once(sequences.since, i) + state.batch.grown
        computed = read_once(sequences.computed, i)
        prompt = jnp.where(rules.whole_kv, target, computed)
        made = computed + elapsed
        if given.speculation is not None:
            made = held_tokens(given, path_since(given, state, i, decode_group >= 0), elapsed)
        tokens = jnp.where(decode_group >= 0, made, prompt)
        taken = own_units(given, i, tokens.astype(jnp.float64))
        return jnp.where(rules.on_demand, taken, given.kv_units(i).astype(jnp.float64))

    def release(self, given: Given, state: State, i: Int, held: Float | Int, on: Flag | bool) -> State:
        return state.at_replica(kv=state.replica.kv - (held if on is True else jnp.where(on, held, 0)))

    def grow(self, given: Given, state: State, more: Float) -> State:
        return state.at_replica(kv=state.replica.kv + more)


class BlockKv(KvPart):
    """Blocks by their content, as vLLM v1 keeps them (``KVCacheManager``)."""

    reserves_blocks = True
    waiting_hits_change = True

    def look_up(self, given: Given, state: State, i: Int, on: Flag) -> State:
        hits, idle = prefix_cache.look_up(given, state, i, on)
        return state._replace(cache=state.block_cache._replace(hits=hits, idle_hits=idle))

    def found_tokens(self, given: Given, state: State) -> Int | int:
        return state.block_cache.hits * given.block()

    def taken_beside(self, state: State) -> Int | int:
        # Shared blocks need not be taken, but those that nobody uses are no longer free (``BlockPool.touch``).
        return state.block_cache.idle_hits - state.block_cache.hits

    def admit(self, given: Given, state: State, i: Int, units: Float, start: Int) -> State:
        hit_tokens = start - read_once(state.sequences.computed, i)
        if state.router_counts is not None:
            state = state._replace(
                router_counts=state.router_counts._replace(again=state.router_counts.again - hit_tokens)
            )
            i = behind(i, hit_tokens)
        state = prefix_cache.admit(given, state, i, units.astype(jnp.int32))
        if given.structure.names_late:  # it has read the sequences of decodes
            i = behind(i, read_once(state.block_cache.named, i))
        computed = write(state.sequences.computed, i, start)
        return state._replace(sequences=state.sequences._replace(computed=computed))

    def extend(self, given: Given, state: State, i: Int, more: Float) -> State:
        held = read_once(state.block_cache.units, i) + more.astype(jnp.int32)
        return prefix_cache.extend(given, state, i, held)

    def held(self, given: Given, state: State, i: Int) -> Float:
        return read_once(state.block_cache.units, i).astype(jnp.float64)

    def release(self, given: Given, state: State, i: Int, held: Float | Int, on: Flag | bool) -> State:
        return prefix_cache.release(given, state, i, on)

    def compute(self, given: Given, state: State, i: Int, tokens: Int) -> State:
        return prefix_cache.register(given, state, i, tokens)

    def join(self, given: Given, state: State, i: Int, decode_group: Int, opens: Int, on: Flag) -> State:
        return state._replace(cache=prefix_cache.enter_due(given, state.block_cache, i, decode_group, opens, on))

    def leave(self, given: Given, state: State, i: Int, on: Flag | bool = True) -> State:
        cache = state.block_cache
        return state._replace(cache=cache._replace(due=cache.buckets.remove(i, on)))

    def grow(self, given: Given, state: State, more: Float) -> State:
        return state  # ``take_step`` takes the blocks, request by request

    def take_step(self, given: Given, state: State, step: Int, on: Flag) -> State:
        return prefix_cache.take_step(given, state, step, on)

    def leap(self, given: Given, state: State, steps: Float) -> State:
        first = read(state.decode_groups.step, state.schedulable)
        end = first + steps.astype(jnp.int32)

        def take(carry: tuple[Int, State]) -> tuple[Int, State]:
            step, state = carry
            state = self.leap_step(given, state, step)
            return prefix_cache.next_due(given, state, step + 1, end), state

        # Those of the first step have theirs since the batch was formed. Most steps neither open nor fill a block.
        start = (prefix_cache.next_due(given, state, first + 1, end), state)
        return lax.while_loop(lambda carry: carry[0] < end, take, start)[1]

    def leap_step(self, given: Given, state: State, step: Int) -> State:
        """One of them."""
        return self.take_step(given, state, step, jnp.ones((), bool))

    def leaving_order(self, links: Int, first: Int) -> tuple[Int, Int]:
        return turned(links, first)  # the order in which blocks come free decides which are taken first


class LateBlockKv(BlockKv):
    """The same where blocks of answers get their names when somebody looks for them: decodes are not visited."""

    def join(self, given: Given, state: State, i: Int, decode_group: Int, opens: Int, on: Flag) -> State:
        return prefix_cache.join_text(given, state, i, on)

    def leave(self, given: Given, state: State, i: Int, on: Flag | bool = True) -> State:
        return state

    def leave_for_good(self, given: Given, state: State, i: Int) -> State:
        return prefix_cache.leave_text(given, state, i)

    def grow(self, given: Given, state: State, more: Float) -> State:
        return prefix_cache.take(given, state, more.astype(jnp.int32))

    def take_step(self, given: Given, state: State, step: Int, on: Flag) -> State:
        return prefix_cache.step_to(state, step + 1, on)

    def leap(self, given: Given, state: State, steps: Float) -> State:
        step = read(state.decode_groups.step, state.schedulable)
        return prefix_cache.step_to(state, step + steps.astype(jnp.int32), steps > 0)

    def take_for_leap(self, given: Given, state: State, kv: Float) -> State:
        return prefix_cache.take(given, state, (kv - state.replica.kv).astype(jnp.int32))


class LatePlannedBlockKv(LateBlockKv):
    """The same where batches are planned asynchronously."""

    grows_in_turn = True

    def grow_in_turn(self, given: Given, state: State, on: Flag, preempt_last: Callable[[State], State]) -> State:
        return prefix_cache.take_in_turn(given, state, on, preempt_last)


class PlannedBlockKv(BlockKv):
    """The same where batches are planned asynchronously: the token with which a decode fills a block is known late."""

    grows_in_turn = True

    def grow_in_turn(self, given: Given, state: State, on: Flag, preempt_last: Callable[[State], State]) -> State:
        return prefix_cache.grow_in_turn(
            given, state, on, lambda state, i: read_once(state.block_cache.units, i) + 1, preempt_last
        )

    def take_step(self, given: Given, state: State, step: Int, on: Flag) -> State:
        return prefix_cache.name_blocks_before(given, state, step, on)

    def leap_step(self, given: Given, state: State, step: Int) -> State:
        always = jnp.ones((), bool)
        return self.take_step(given, prefix_cache.open_blocks(given, state, step, always), step, always)


class DraftedBlockKv(BlockKv):
    """The same where decodes verify drafts, so that they fill blocks and need new ones at uneven steps.

    vLLM ``KVCacheManager.allocate_slots``: a step has slots for all tokens that it verifies; blocks get their names up
    to the tokens that are known, drafts apart.
    """

    grows_in_turn = True

    def grow_in_turn(self, given: Given, state: State, on: Flag, preempt_last: Callable[[State], State]) -> State:
        return drafted_blocks.grow(given, state, on, preempt_last)

    def join(self, given: Given, state: State, i: Int, decode_group: Int, opens: Int, on: Flag) -> State:
        return drafted_blocks.join(given, state, i, decode_group, on)

    def take_step(self, given: Given, state: State, step: Int, on: Flag) -> State:
        return drafted_blocks.take_step(given, state, step, on)


UNITS, BLOCKS, LATE_BLOCKS = UnitKv(), BlockKv(), LateBlockKv()
LATE_PLANNED_BLOCKS, PLANNED_BLOCKS, DRAFTED_BLOCKS = LatePlannedBlockKv(), PlannedBlockKv(), DraftedBlockKv()


def kv_of(given: Given) -> KvPart:
    """How the replicas keep their KV."""
    if given.structure.kv_manager is not None:
        hooks: KvPart = given.structure.kv_manager.hooks
        return hooks
    if given.structure.cache is None:
        return UNITS
    if given.structure.names_late:
        return LATE_PLANNED_BLOCKS if given.structure.asynchronous else LATE_BLOCKS
    if given.structure.asynchronous:
        return PLANNED_BLOCKS
    return BLOCKS if given.speculation is None else DRAFTED_BLOCKS


def own_units(given: Given, i: Int, tokens: Float) -> Float:
    """Units that a request of so many tokens holds on demand, without those that it shares."""
    return jnp.maximum(units(given.rules.kv, tokens) - read(given.shared_units, i), 0.0)
