"""The moves of a prefix cache, in the order of ``reference.prefix_cache``, by runs of blocks (``block_runs``).

All of them change how much KV is in use (``ReplicaState.kv``): blocks that somebody uses. Where a policy has KV
reserved, a request takes all its blocks on admission. A block gets its name when the chunk or the decode that fills it
is put into a batch, so that requests behind it in the same batch find it.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jax import lax

from evaluator.stations.engine.common.arrays import Flag, Float, Int
from evaluator.stations.engine.common.rings import NONE, read, read_each, read_once, write
from evaluator.stations.engine.preemptive.block_runs import ReplicaRuns, Text
from evaluator.stations.engine.preemptive.cache import Cache
from evaluator.stations.engine.preemptive.lane import Given
from evaluator.stations.engine.preemptive.state import State


def text_at(given: Given, replica: Int, i: Int, place: Int) -> Text:
    """The text to which the block of request ``i`` at a place belongs, among those of the replica."""
    content, shape = given.content, given.structure.cache
    assert content is not None and shape is not None
    cell = given.cell(i)
    known, own_from = read(content.known_blocks, cell), read(content.own_from, cell)
    number = lax.div(place, content.each)  # of numbers that are not negative, without the sign's corrections of ``//``
    sourced, begin = place < known, read(content.sources_from, cell)
    at_source = begin + number
    if content.ends is None:
        first = number * content.each
        end = first + content.each
    else:
        ends = content.ends
        # As many steps as agents have started one another, at the most: these begin with some of each one's text.
        at_source = lax.while_loop(
            lambda at_source: sourced & (read(ends, at_source) <= place), lambda at_source: at_source + 1, at_source
        )
        first = jnp.where(at_source > begin, read(ends, jnp.maximum(at_source - 1, 0)), 0)
        end = read(ends, at_source)
    source = read(content.sources, at_source)
    return Text(
        ring=replica * shape.names + jnp.where(sourced, source, own_from + known),
        first=jnp.where(sourced, first, known),
        end=jnp.where(sourced, jnp.minimum(end, known), _ENDLESS),
    )


_ENDLESS = 1 << 30
"""More blocks than a request has."""


def look_up(given: Given, state: State, i: Int, on: Flag) -> tuple[Int, Int]:
    """(leading blocks of request ``i`` that are there, those of them that nobody uses), if ``on``.

    One token at least is left to compute: the one that the next token comes from.
    """
    runs = _cache(state).runs
    if given.content is not None and given.content.caches is not None:
        on = on & given.content.caches
    # vLLM ``get_computed_blocks``: the longest run of whole blocks from the first on; the last token is never a hit.
    most = jnp.where(on, (read_once(state.sequences.target, i) - 1) // given.block(), 0)

    def look(carry: tuple[Int, Int, Int, Int]) -> tuple[Int, Int, Int, Int]:
        place, r, idle, _ = carry
        text = text_at(given, state.replica.number, i, place)
        r = jnp.where(place == text.first, read(runs.heads, text.ring), r)
        holds, r = r >= 0, runs.slot_of(r)
        blocks = jnp.minimum(read(runs.blocks, r), jnp.minimum(text.end, most) - place)
        blocks = jnp.where(holds, blocks, 0)
        idle = idle + jnp.where(read(runs.users, r) == 0, blocks, 0)
        return place + blocks, runs.following(r), idle, jnp.where(holds, most, 0)

    start = (most * 0, most * 0 + NONE, most * 0, most)
    hits, _, idle, _ = lax.while_loop(lambda carry: carry[0] < carry[3], look, start)
    return hits, idle


def admit(given: Given, state: State, i: Int, units: Int) -> State:
    """Request ``i`` is admitted with ``units`` blocks; the first ``Cache.hits`` of them are there and become shared.

    Who got its blocks with a KV reservation (``joint.kv_reservation``) has them already, and takes none.
    """
    cache = _cache(state)
    hits, idle_hits, held, named = cache.hits, cache.idle_hits, jnp.int32(0), cache.hits
    if given.structure.kv_reservation:
        held = read_once(cache.units, i)
        hits, idle_hits = (jnp.where(held > 0, 0, blocks) for blocks in (hits, idle_hits))
        named = jnp.where(held > 0, read_once(cache.named, i), hits)

    def share(carry: tuple[Int, Int, Int, ReplicaRuns]) -> tuple[Int, Int, Int, ReplicaRuns]:
        place, r, _, here = carry
        text = text_at(given, state.replica.number, i, place)
        r = jnp.where(place == text.first, read_once(here.runs.heads, text.ring), r)
        here, r = here.share(r, text.ring + jnp.minimum(text.end, hits) - text.first)
        return place + read_once(here.runs.blocks, r), read_once(here.runs.same.newer, r), r, here

    number = jnp.int32(0)
    start = (number, number, read_once(_cache(state).tail, i), _runs(given, state))
    _, _, tail, here = lax.while_loop(lambda carry: carry[0] < hits, share, start)
    state = _with_runs(state, here)
    cache = _cache(state)
    before = read_once(cache.hit_tokens, i)
    tokens = jnp.where(before < 0, hits * given.block(), before)
    cache = cache._replace(
        tail=write(cache.tail, i, tail),
        units=write(cache.units, i, hits + held),  # either is 0
        named=write(cache.named, i, named),
        hit_tokens=write(cache.hit_tokens, i, tokens),
    )
    state = state.at_replica(kv=state.replica.kv + idle_hits)
    return extend(given, state._replace(cache=cache), i, units)


def extend(given: Given, state: State, i: Int, units: Int) -> State:
    """Request ``i`` takes as many blocks as make it ``units``: there are as many that nobody uses."""
    held = read_once(_cache(state).units, i)
    more = jnp.maximum(units - held, 0)
    state = _with_runs(state, _runs(given, state).take(more, given.limits.kv_units.astype(jnp.int32)))
    cache = _cache(state)
    state = state.at_replica(kv=state.replica.kv + more)
    return state._replace(cache=cache._replace(units=write(cache.units, i, held + more)))


def register(given: Given, state: State, i: Int, tokens: Int) -> State:
    """The first ``tokens`` tokens of request ``i`` are computed, or are in this batch: its whole blocks get names."""
    (named, tail), whole = read_each(i, _cache(state).named, _cache(state).tail), tokens // given.block()

    def name(carry: tuple[Int, Int, ReplicaRuns]) -> tuple[Int, Int, ReplicaRuns]:
        place, tail, here = carry
        text = text_at(given, state.replica.number, i, place)
        here, tail, place = here.add(i, tail, text, place, jnp.minimum(whole, text.end))
        return place, tail, here

    start = (named, tail, _runs(given, state))
    end, tail, here = lax.while_loop(lambda carry: carry[0] < whole, name, start)
    state = _with_runs(state, here)
    cache = _cache(state)
    return state._replace(cache=cache._replace(tail=write(cache.tail, i, tail), named=write(cache.named, i, end)))


def release(given: Given, state: State, i: Int, on: Flag | bool) -> State:
    """Request ``i`` gives back all its blocks, if ``on``, the last first; their content stays.

    Blocks without a name, which nobody can find again, come before all that hold something (vLLM
    ``BlockPool.free_blocks`` prepends blocks without a hash). Among themselves they are all alike.
    """
    held, named = read_each(i, _cache(state).units, _cache(state).named)

    def give_back(carry: tuple[Int, Int, ReplicaRuns]) -> tuple[Int, Int, ReplicaRuns]:
        place, freed, here = carry
        text = text_at(given, state.replica.number, i, place - 1)
        here, blocks, idle = here.give_back(here.held(i, text.ring, text.ring + place - text.first))
        return place - blocks, freed + idle, here

    # vLLM frees a request's blocks in reverse order, so that ends of prompts are evicted before their beginnings.
    start = (jnp.where(on, named, 0), jnp.int32(0), _runs(given, state))
    left, freed, here = lax.while_loop(lambda carry: carry[0] > 0, give_back, start)
    unnamed = jnp.where(on, held - named, 0)
    here = here._replace(counts=here.counts._replace(written=here.counts.written - unnamed))
    state = _with_runs(state, here)
    cache = _cache(state)
    # ``left`` is 0, which XLA does not know: what is written depends on what was read (``common.rings``).
    cache = cache._replace(
        units=write(cache.units, i, jnp.where(on & (held >= left), left, held)),
        named=write(cache.named, i, jnp.where(on, left, named)),
    )
    return state.at_replica(kv=state.replica.kv - (freed + unnamed))._replace(cache=cache)


def _runs(given: Given, state: State) -> ReplicaRuns:
    shape, replica = given.structure.cache, state.replica
    assert shape is not None and replica.blocks is not None
    # Sentinels of all replicas are behind the runs of all, in the order of those of requests.
    sentinel = shape.blocks * shape.replicas + (replica.sentinel - (given.requests.arrival_s.shape[0] - 1))
    first, runs, events = replica.number * shape.blocks, _cache(state).runs, _cache(state).events
    if events is None:
        return ReplicaRuns(runs, replica.blocks, first, sentinel)
    now = jnp.where(events.step_s >= 0.0, events.step_s, state.clock)
    return ReplicaRuns(runs, replica.blocks, first, sentinel, events, replica.events, now)


def _with_runs(state: State, here: ReplicaRuns) -> State:
    cache = _cache(state)._replace(runs=here.runs, events=here.events)
    return state.at_replica(blocks=here.counts, events=here.queue)._replace(cache=cache)


def at_step(state: State, begins_s: Float) -> State:
    """What changes now in a leap does so where a step of it begins; below 0: all changes are of now."""
    cache = _cache(state)
    assert cache.events is not None
    return state._replace(cache=cache._replace(events=cache.events._replace(step_s=begins_s)))


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


def next_due(given: Given, state: State, step: Int, end: Int) -> Int:
    """The first step from ``step`` on, but none from ``end`` on, at which a decode opens a block or fills one."""
    newer, requests = _cache(state).due.newer, given.requests.arrival_s.shape[0]

    def nobody(step: Int) -> Flag:
        opens, fills = (read_once(newer, bucket(given, state.schedulable, step + more)) for more in (0, 1))
        return (step < end) & (opens >= requests) & (fills >= requests)  # both are sentinels

    return lax.while_loop(nobody, lambda step: step + 1, step)


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
        stays = runs(state, i)
        state = extend(given, state, jnp.where(stays, i, padding), jnp.where(stays, units, 0))
        # Where it is preempted itself, whoever was admitted later was so before.
        return state, jnp.where(stays, following(state, i), sentinel)

    def following(state: State, i: Int) -> Int:
        """Of the bucket, the one that was admitted after ``i``; the first, after the sentinel."""
        cache, admission = _cache(state), state.sequences.admission
        before = jnp.where(i < requests, read_once(admission, jnp.minimum(i, padding)), -1)

        def look(carry: tuple[Int, Int, Int]) -> tuple[Int, Int, Int]:
            j, nearest, lowest = carry
            number = read_once(admission, j)
            nearer = (number > before) & (number < lowest)
            return read_once(cache.due.newer, j), jnp.where(nearer, j, nearest), jnp.where(nearer, number, lowest)

        # The bucket is in the order in which they joined the decodes. That is the order of admission, unless a prompt
        # was overtaken, as it may be where only shares of long ones are computed, or groups of a pipeline were merged.
        joined = jnp.asarray(given.structure.pipeline_ranks == 1) & (given.rules.long_prefill_tokens == jnp.inf)
        after = read_once(cache.due.newer, i)
        first = jnp.where(joined, sentinel, read_once(cache.due.newer, sentinel))
        start = (first, sentinel, jnp.int32(1 << 30))
        later = lax.while_loop(lambda carry: carry[0] < requests, look, start)[1]
        return jnp.where(joined, after, later)

    first = jnp.where(on, following(state, sentinel), sentinel)
    return lax.while_loop(lambda carry: carry[1] < requests, give, (state, first))[0]


def _computed(state: State, i: Int, step: Int) -> Int:
    """Tokens of the KV of a decode before a step of its group."""
    computed, since = read_each(i, state.sequences.computed, state.sequences.since)
    return computed + step - since


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
