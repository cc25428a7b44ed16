"""The moves of a prefix cache, in the order of ``reference.prefix_cache``: every block is touched one by one.

All of them change how much KV is in use (``ReplicaState.kv``): blocks that somebody uses. Where a policy has KV
reserved, a request takes all its blocks on admission. A block gets its name when the chunk or the decode that fills it
is put into a batch, so that requests behind it in the same batch find it.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jax import lax

from evaluator.stations.engine.common.arrays import Flag, Int
from evaluator.stations.engine.common.rings import NONE, read, read_once, write
from evaluator.stations.engine.preemptive.cache import BlockCounts, Cache
from evaluator.stations.engine.preemptive.lane import Given
from evaluator.stations.engine.preemptive.state import ReplicaState, State


def name_of(given: Given, replica: Int, i: Int, place: Int) -> Int:
    """The name of what request ``i`` has in its block number ``place``, among those of the replica."""
    content, shape = given.content, given.structure.cache
    assert content is not None and shape is not None
    number = lax.div(place, content.each)  # of numbers that are not negative, without the sign's corrections of ``//``
    source = read(content.sources, read(content.sources_from, i) + number) + (place - number * content.each)
    own = read(content.own_from, i) + place
    return replica * shape.names + jnp.where(place < read(content.known_blocks, i), source, own)


def look_up(given: Given, state: State, i: Int, on: Flag) -> tuple[Int, Int]:
    """(leading blocks of request ``i`` that are there, those of them that nobody uses), if ``on``.

    One token at least is left to compute: the one that the next token comes from.
    """
    cache = _cache(state)
    most = jnp.where(on, (read_once(state.sequences.target, i) - 1) // given.block(), 0)

    def holder(place: Int) -> Int:
        return read(cache.first, name_of(given, state.replica.number, i, place))

    def goes_on(carry: tuple[Int, Int, Int]) -> Flag:
        place, block, _ = carry
        return (place < most) & (block >= 0)

    def go_on(carry: tuple[Int, Int, Int]) -> tuple[Int, Int, Int]:
        place, block, idle = carry
        return place + 1, holder(place + 1), idle + (read(cache.users, block) == 0)

    # vLLM ``get_computed_blocks``: the longest run of whole blocks from the first on; the last token is never a hit.
    found, _, idle = lax.while_loop(goes_on, go_on, (most * 0, holder(most * 0), most * 0))
    return found, idle


def admit(given: Given, state: State, i: Int, units: Int) -> State:
    """Request ``i`` is admitted with ``units`` blocks; the first ``Cache.hits`` of them are there and become shared."""
    cache = _cache(state)
    assert given.content is not None
    held_from, hits = read(given.content.held_from, i), cache.hits

    def share(carry: tuple[Int, Cache]) -> tuple[Int, Cache]:
        place, cache = carry
        block = read(cache.first, name_of(given, state.replica.number, i, place))
        return place + 1, cache._replace(
            users=write(cache.users, block, read_once(cache.users, block) + 1),
            idle=cache.idle.remove(block),
            held=write(cache.held, held_from + place, block),
        )

    _, cache = lax.while_loop(lambda carry: carry[0] < hits, share, (jnp.int32(0), cache))
    first = read_once(state.sequences.scheduled_s, i) == jnp.inf
    tokens = jnp.where(first, hits * given.block(), read_once(cache.hit_tokens, i))
    cache = cache._replace(
        units=write(cache.units, i, hits),
        named=write(cache.named, i, hits),
        hit_tokens=write(cache.hit_tokens, i, tokens),
    )
    state = state.at_replica(kv=state.replica.kv + cache.idle_hits)
    return extend(given, state._replace(cache=cache), i, units)


def extend(given: Given, state: State, i: Int, units: Int) -> State:
    """Request ``i`` takes as many blocks as make it ``units``: there are as many that nobody uses."""
    assert given.content is not None
    held_from, held = read(given.content.held_from, i), read_once(_cache(state).units, i)

    def take(carry: tuple[Int, Cache, BlockCounts]) -> tuple[Int, Cache, BlockCounts]:
        place, cache, counts = carry
        block, cache, counts = _take(given, state.replica, cache, counts)
        return place + 1, cache._replace(held=write(cache.held, held_from + place, block)), counts

    start = (held, _cache(state), _counts(state))
    end, cache, counts = lax.while_loop(lambda carry: carry[0] < units, take, start)
    state = state.at_replica(blocks=counts, kv=state.replica.kv + (end - held))
    return state._replace(cache=cache._replace(units=write(cache.units, i, end)))


def _take(given: Given, replica: ReplicaState, cache: Cache, counts: BlockCounts) -> tuple[Int, Cache, BlockCounts]:
    """A block that was never used, else the one that nobody has used for the longest time. It forgets what it held."""
    shape = given.structure.cache
    assert shape is not None
    new = counts.joined < given.limits.kv_units
    oldest = cache.idle.oldest(_idle_sentinel(given, replica))
    # vLLM v1 ``BlockPool.get_new_blocks`` takes from the front of ``free_block_queue``: blocks that were never used are
    # there first, then the least recently freed, which forget their content only now (``_maybe_evict_cached_block``).
    block = jnp.where(new, replica.number * shape.blocks + counts.joined, oldest)
    name = read_once(cache.name, block)
    named = name >= 0
    cell = jnp.where(named, name, cache.first.shape[0] - 1)
    first, after = read_once(cache.first, cell), read_once(cache.same.newer, block)
    following = jnp.where(after == block, NONE, after)
    cache = cache._replace(
        first=write(cache.first, cell, jnp.where(named & (first == block), following, first)),
        # What is written depends on what was read, see ``common.rings``: a block alone is not removed, an unnamed one
        # keeps the name that it has not.
        same=cache.same.remove(block, after != block),
        name=write(cache.name, block, jnp.where(named, NONE, name)),
        users=write(cache.users, block, 1),
        idle=cache.idle.remove(block),
    )
    return block, cache, BlockCounts(counts.joined + new, counts.known - named)


def _idle_sentinel(given: Given, replica: ReplicaState) -> Int:
    """The sentinel of the replica's unused blocks: those of all replicas are behind all blocks."""
    shape, slots = given.structure.cache, given.requests.arrival_s.shape[0]
    assert shape is not None
    return shape.blocks * given.structure.replicas + (replica.sentinel - (slots - 1))


def register(given: Given, state: State, i: Int, tokens: Int) -> State:
    """The first ``tokens`` tokens of request ``i`` are computed, or are in this batch: its whole blocks get names."""
    cache = _cache(state)
    assert given.content is not None
    held_from, named = read(given.content.held_from, i), read_once(cache.named, i)
    whole = tokens // given.block()

    def name(carry: tuple[Int, Cache]) -> tuple[Int, Cache]:
        place, cache = carry
        name, block = name_of(given, state.replica.number, i, place), read(cache.held, held_from + place)
        first = read_once(cache.first, name)
        there = first >= 0
        return place + 1, cache._replace(
            first=write(cache.first, name, jnp.where(there, first, block)),
            same=cache.same.insert(block, jnp.where(there, first, block), there),  # in front of the first: behind all
            name=write(cache.name, block, name),
        )

    end, cache = lax.while_loop(lambda carry: carry[0] < whole, name, (named, cache))
    counts = _counts(state)
    state = state.at_replica(blocks=counts._replace(known=counts.known + (end - named)))
    return state._replace(cache=cache._replace(named=write(cache.named, i, end)))


def release(given: Given, state: State, i: Int, on: Flag | bool) -> State:
    """Request ``i`` gives back all its blocks, if ``on``, the last first; their content stays.

    Blocks without a name, which nobody can find again, come before all that hold something (vLLM
    ``BlockPool.free_blocks`` prepends blocks without a hash). Among themselves they are all alike.
    """
    cache = _cache(state)
    assert given.content is not None
    held_from, held = read(given.content.held_from, i), read_once(cache.units, i)
    named, sentinel = read_once(cache.named, i), _idle_sentinel(given, state.replica)

    def give_back(carry: tuple[Int, Int, Cache]) -> tuple[Int, Int, Cache]:
        place, freed, cache = carry
        block = read(cache.held, held_from + place - 1)
        users = read_once(cache.users, block) - 1
        before = jnp.where(place > named, cache.idle.oldest(sentinel), sentinel)
        idle = cache.idle.insert(block, before, users == 0)
        cache = cache._replace(users=write(cache.users, block, users), idle=idle)
        return place - 1, freed + (users == 0), cache

    # vLLM frees a request's blocks in reverse order, so that ends of prompts are evicted before their beginnings.
    start = (jnp.where(on, held, 0), jnp.int32(0), cache)
    _, freed, cache = lax.while_loop(lambda carry: carry[0] > 0, give_back, start)
    cache = cache._replace(
        units=write(cache.units, i, jnp.where(on, 0, held)), named=write(cache.named, i, jnp.where(on, 0, named))
    )
    return state.at_replica(kv=state.replica.kv - freed)._replace(cache=cache)


# -- decodes


def bucket(given: Given, decode_group: Int, step: Int) -> Int:
    """The sentinel in ``Cache.due`` of the decodes of a decode group that open a block with a step.

    It is the same every ``block_tokens`` steps. They fill a block with the step before. With drafts it is of the
    decodes that need a block, or fill one, with that step, which is at most ``block_tokens`` steps after the last such
    step: one bucket more keeps the two apart.
    """
    shape = given.structure.cache
    assert shape is not None
    first = given.requests.arrival_s.shape[0] + decode_group * shape.due
    return first + step % (given.block() if given.speculation is None else given.block() + 1)


def enter_due(given: Given, cache: Cache, i: Int, decode_group: Int, opens: Int, on: Flag) -> Cache:
    """Request ``i`` decodes with a decode group from now on, if ``on``: the step ``opens`` opens a block for it."""
    padding = given.requests.arrival_s.shape[0] - 1
    i = jnp.where(on, i, padding)  # who stays in another group must keep its links there
    return cache._replace(due=cache.due.append(bucket(given, decode_group, opens), i, on))


def take_step(given: Given, state: State, step: Int, on: Flag) -> State:
    """The schedulable decodes take the blocks that a step opens, if ``on``, and those that it fills get their names.

    With reserved KV they have their blocks. With KV on demand there are enough: who found none was preempted before.
    """
    state = open_blocks(given, state, step, on)

    def fill_block(state: State, i: Int) -> State:
        return register(given, state, i, _computed(state, i, step) + 1)

    return _for_due(given, state, bucket(given, state.schedulable, step + 1), on, fill_block)


def open_blocks(given: Given, state: State, step: Int, on: Flag) -> State:
    """The schedulable decodes take the blocks that a step opens, if ``on`` and KV is on demand; there are enough."""

    def open_block(state: State, i: Int) -> State:
        cache = _cache(state)
        return extend(given, state, i, read_once(cache.units, i) + 1)

    return _for_due(given, state, bucket(given, state.schedulable, step), on & given.rules.on_demand, open_block)


def name_blocks_before(given: Given, state: State, step: Int, on: Flag) -> State:
    """The blocks that the schedulable decodes have filled with the step before get their names, if ``on``.

    So it is where batches are planned asynchronously: the token with which a decode fills a block is not known when its
    step is planned (vLLM ``KVCacheManager.allocate_slots`` caches up to ``request.num_tokens``).
    """

    def name_block(state: State, i: Int) -> State:
        return register(given, state, i, _computed(state, i, step))

    return _for_due(given, state, bucket(given, state.schedulable, step), on, name_block)


def grow_in_turn(
    given: Given, state: State, on: Flag, needed: Callable[[State, Int], Int], preempt_last: Callable[[State], State]
) -> State:
    """The schedulable decodes that need blocks for their next step, ``needed`` in all, take them in order of admission.

    Where one finds too few, requests are preempted, the one admitted last first, itself at the end. All at once would
    come to the same if a victim left one block without a name at most: those come before all others that are free, and
    a decode that takes its block before the victim is preempted makes one of the others forget what it holds.
    """
    requests, padding = given.requests.arrival_s.shape[0], given.requests.arrival_s.shape[0] - 1
    sentinel = bucket(given, state.schedulable, read(state.decode_groups.step, state.schedulable))

    def runs(state: State, i: Int) -> Flag:
        return read_once(state.running.newer, i) != i  # else it was the last itself, and is preempted

    def give(carry: tuple[State, Int]) -> tuple[State, Int]:
        state, i = carry
        units = needed(state, i)
        more = units - read_once(_cache(state).units, i)

        def lacks(state: State) -> Flag:
            return runs(state, i) & (more > given.limits.kv_units - state.replica.kv)

        state = lax.while_loop(lacks, preempt_last, state)
        there = runs(state, i)
        state = extend(given, state, jnp.where(there, i, padding), jnp.where(there, units, 0))
        # Where it is preempted itself, whoever was admitted later was so before.
        return state, jnp.where(there, following(state, i), sentinel)

    def following(state: State, i: Int) -> Int:
        """Of the bucket, the one that was admitted after ``i``; the first, after the sentinel."""
        cache, admission = _cache(state), state.sequences.admission
        before = jnp.where(i < requests, read_once(admission, jnp.minimum(i, padding)), -1)

        def look(carry: tuple[Int, Int, Int]) -> tuple[Int, Int, Int]:
            j, found, lowest = carry
            number = read_once(admission, j)
            nearer = (number > before) & (number < lowest)
            return read_once(cache.due.newer, j), jnp.where(nearer, j, found), jnp.where(nearer, number, lowest)

        # The bucket is in the order in which they joined the decodes. That is the order of admission, unless a prompt
        # was overtaken, as it may be where only shares of long ones are computed, or groups of a pipeline were merged.
        joined = jnp.asarray(given.structure.pipeline_ranks == 1) & (given.rules.long_prefill_tokens == jnp.inf)
        after = read_once(cache.due.newer, i)
        first = jnp.where(joined, sentinel, read_once(cache.due.newer, sentinel))
        start = (first, sentinel, jnp.int32(1 << 30))
        found = lax.while_loop(lambda carry: carry[0] < requests, look, start)[1]
        return jnp.where(joined, after, found)

    first = jnp.where(on, following(state, sentinel), sentinel)
    return lax.while_loop(lambda carry: carry[1] < requests, give, (state, first))[0]


def _computed(state: State, i: Int, step: Int) -> Int:
    """Tokens of the KV of a decode before a step of its group."""
    return read_once(state.sequences.computed, i) + step - read_once(state.sequences.since, i)


def _for_due(given: Given, state: State, sentinel: Int, on: Flag, do: Callable[[State, Int], State]) -> State:
    """``do`` for the decodes of a bucket, in the order in which they joined, if ``on``."""

    def go_on(carry: tuple[State, Int]) -> tuple[State, Int]:
        state, i = carry
        state = do(state, i)
        return state, read_once(_cache(state).due.newer, i)

    requests = given.requests.arrival_s.shape[0]
    first = jnp.where(on, read_once(_cache(state).due.newer, sentinel), sentinel)
    return lax.while_loop(lambda carry: carry[1] < requests, go_on, (state, first))[0]


def _cache(state: State) -> Cache:
    assert state.cache is not None
    return state.cache


def _counts(state: State) -> BlockCounts:
    assert state.replica.blocks is not None
    return state.replica.blocks
