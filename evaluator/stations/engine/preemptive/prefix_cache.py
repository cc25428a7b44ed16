"""The moves of a prefix cache, in the order of ``reference.prefix_cache``, by runs of blocks (``block_runs``).

All of them change how much KV is in use (``ReplicaState.kv``): blocks that somebody uses. Where a policy has KV
reserved, a request takes all its blocks on admission. A block gets its name when the chunk or the decode that fills it
is put into a batch, so that requests behind it in the same batch find it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from evaluator.stations.engine.common.arrays import Flag, Float, Int, IntPerRequest
from evaluator.stations.engine.common.rings import NONE, read, read_each, read_once, write
from evaluator.stations.engine.preemptive.block_runs import ReplicaRuns, Text
from evaluator.stations.engine.preemptive.cache import Cache
from evaluator.stations.engine.preemptive.lane import Given
from evaluator.stations.engine.preemptive.linked_lists import push, unlink
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
        ring=replica * shape.texts + jnp.where(sourced, read(content.texts, at_source), read(content.own_text, cell)),
        number=jnp.where(sourced, source, own_from + known),
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
        most_here = jnp.minimum(text.end, most) - place
        blocks = jnp.where(holds, jnp.minimum(read(runs.blocks, r), most_here), 0)
        idle = idle + jnp.where(read(runs.users, r) == 0, blocks, 0)
        if _cache(state).unnamed is None:
            return place + blocks, runs.following(r), idle, jnp.where(holds, most, 0)
        # Behind what is found of a text are the blocks that its decodes have filled since, which they use.
        more = jnp.clip(_filled_of_text(given, state, text.ring, ~holds) - place, 0, most_here)
        goes_on = holds | (more > 0)
        return place + blocks + more, jnp.where(holds, runs.following(r), NONE), idle, jnp.where(goes_on, most, 0)

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

    if cache.unnamed is not None:
        state = settle(given, state, i, jnp.int32(0), hits, jnp.int32(0))
        cache = _cache(state)

    def share(carry: tuple[Int, Int, Int, ReplicaRuns]) -> tuple[Int, Int, Int, ReplicaRuns]:
        place, r, _, here = carry
        text = text_at(given, state.replica.number, i, place)
        r = jnp.where(place == text.first, read_once(here.runs.heads, text.ring), r)
        here, r = here.share(r, jnp.minimum(text.end, hits) - text.first)
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
    state = take(given, state, more)
    cache = _cache(state)
    return state._replace(cache=cache._replace(units=write(cache.units, i, held + more)))


def take(given: Given, state: State, blocks: Int) -> State:
    """So many blocks are in use, of which there are enough that nobody uses."""
    state = _with_runs(state, _runs(given, state).take(blocks, given.limits.kv_units.astype(jnp.int32)))
    return state.at_replica(kv=state.replica.kv + blocks)


def register(given: Given, state: State, i: Int, tokens: Int) -> State:
    """The first ``tokens`` tokens of request ``i`` are computed, or are in this batch: its whole blocks get names."""
    whole = tokens // given.block()
    if _cache(state).unnamed is not None:
        return settle(given, state, i, read_once(_cache(state).named, i), whole, whole)
    return _with_names(state, _named(given, state, _names(given, state), i, whole))


class Names(NamedTuple):
    """What changes where blocks get names."""

    here: ReplicaRuns
    tail: IntPerRequest
    named: IntPerRequest


def _names(given: Given, state: State) -> Names:
    return Names(_runs(given, state), _cache(state).tail, _cache(state).named)


def _with_names(state: State, names: Names) -> State:
    state = _with_runs(state, names.here)
    return state._replace(cache=_cache(state)._replace(tail=names.tail, named=names.named))


def _named(given: Given, state: State, names: Names, i: Int, whole: Int) -> Names:
    """With names for the first ``whole`` blocks of request ``i``."""
    named, tail = read_each(i, names.named, names.tail)

    def name(carry: tuple[Int, Int, ReplicaRuns]) -> tuple[Int, Int, ReplicaRuns]:
        place, tail, here = carry
        text = text_at(given, state.replica.number, i, place)
        here, tail, place = here.add(i, tail, text, place, jnp.minimum(whole, text.end))
        return place, tail, here

    end, tail, here = lax.while_loop(lambda carry: carry[0] < whole, name, (named, tail, names.here))
    return Names(here, write(names.tail, i, tail), write(names.named, i, end))


def release(given: Given, state: State, i: Int, on: Flag | bool) -> State:
    """Request ``i`` gives back all its blocks, if ``on``, the last first; their content stays.

    Blocks without a name, which nobody can find again, come before all that hold something (vLLM
    ``BlockPool.free_blocks`` prepends blocks without a hash). Among themselves they are all alike.
    """
    held, named = read_each(i, _cache(state).units, _cache(state).named)

    def give_back(carry: tuple[Int, Int, ReplicaRuns]) -> tuple[Int, Int, ReplicaRuns]:
        place, freed, here = carry
        text = text_at(given, state.replica.number, i, place - 1)
        here, blocks, idle = here.give_back(here.held(i, text.ring, place - text.first))
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


# -- decodes whose blocks get their names when somebody looks (``Structure.names_late``)
#
# What a decode has follows from the steps of its group, so that nobody visits it while it decodes. A name matters to
# those alone who look for its text, or give it to blocks of their own: before they do, all decodes of that text are
# settled. Where blocks are evicted meanwhile it comes to the same: a block without a name is in use, and so is what it
# would have been, a copy of the evicted one, and takes its place when it gets the name.


def join_text(given: Given, state: State, i: Int, on: Flag) -> State:
    """Request ``i``, whose prompt has its names, decodes from now on, if ``on``."""
    cache, content, shape = _cache(state), given.content, given.structure.cache
    assert content is not None and shape is not None and cache.unnamed is not None
    unnamed, cell = cache.unnamed, given.cell(i)
    text = state.replica.number * shape.texts + read(content.own_text, cell)
    first, following = push(unnamed.first, text, unnamed.next, i, on)
    texts = write(unnamed.text, jnp.where(on, i, given.padding()), jnp.where(on, text, NONE))
    return state._replace(cache=cache._replace(unnamed=unnamed._replace(first=first, next=following, text=texts)))


def leave_text(given: Given, state: State, i: Int) -> State:
    """Request ``i`` decodes no longer, if it did: it is known what it holds, and all has names."""
    unnamed, block = _cache(state).unnamed, given.block()
    assert unnamed is not None
    text = read_once(unnamed.text, i)
    decodes = text >= 0
    filled = jnp.where(decodes, _filled(given, state, i), 0)
    state = _with_names(state, _named(given, state, _names(given, state), i, filled // block))
    cache = _cache(state)
    held = read_once(cache.units, i)
    tokens = jnp.where(decodes, _computed(state, i, read(unnamed.steps, state.schedulable)), 0)
    taken = jnp.where(given.rules.on_demand, (tokens + block - 1) // block, 0)
    # Not the maximum of it and 0, of which XLA knows that it is not negative (``rings.read_once``).
    cell = jnp.where(decodes, text, unnamed.first.shape[0] - 1)
    first, following, _ = unlink(unnamed.first, cell, unnamed.next, i, decodes)
    texts = write(unnamed.text, i, jnp.where(decodes, NONE, text))
    return state._replace(
        cache=cache._replace(
            units=write(cache.units, i, jnp.maximum(held, taken)),
            unnamed=unnamed._replace(first=first, next=following, text=texts),
        )
    )


def step_to(state: State, step: Int, on: Flag) -> State:
    """The decodes of the replica have the KV of all steps before ``step``, if ``on``; not if there are none."""
    cache = _cache(state)
    assert cache.unnamed is not None
    steps, group = cache.unnamed.steps, state.schedulable
    on = on & (read(state.decode_groups.decodes, group) > 0)
    steps = write(steps, group, jnp.where(on, step, read_once(steps, group)))
    return state._replace(cache=cache._replace(unnamed=cache.unnamed._replace(steps=steps)))


def settle(given: Given, state: State, i: Int, place: Int, stop: Int, whole: Int) -> State:
    """All that decodes have filled of the texts of request ``i`` in its blocks ``place`` .. ``stop`` gets names; then
    its own first ``whole`` blocks do."""
    unnamed, number = _cache(state).unnamed, state.replica.number
    assert unnamed is not None

    # A trip for each text, each decode of it, and the request itself: one loop, so that naming is compiled once.
    def name_next(carry: tuple[Int, Int, Flag, Names]) -> tuple[Int, Int, Flag, Names]:
        place, j, _, names = carry
        decodes, last = j >= 0, place >= stop
        filled = _filled(given, state, jnp.where(decodes, j, i)) // given.block()
        blocks = jnp.where(decodes, filled, jnp.where(last, whole, 0))
        names = _named(given, state, names, jnp.where(decodes, j, i), blocks)
        text = text_at(given, number, i, place)
        first = jnp.where(last, NONE, read(unnamed.first, text.ring))
        after = jnp.where(decodes, read(unnamed.next, jnp.where(decodes, j, i)), first)
        return jnp.where(decodes, place, text.end), after, decodes | ~last, names

    start = (place, jnp.int32(NONE), ~jnp.zeros((), bool), _names(given, state))
    return _with_names(state, lax.while_loop(lambda carry: carry[2], name_next, start)[3])


def take_in_turn(given: Given, state: State, on: Flag, preempt_last: Callable[[State], State]) -> State:
    """Decodes that need a block for their next step take it in order of admission, if ``on``; see ``grow_in_turn``."""
    cache, sentinel, block = _cache(state), state.replica.sentinel, given.block()
    assert cache.unnamed is not None
    step = read(cache.unnamed.steps, state.schedulable)

    def runs(state: State, i: Int) -> Flag:
        return read_once(state.running.newer, i) != i

    def give(carry: tuple[State, Int]) -> tuple[State, Int]:
        state, i = carry
        unnamed = _cache(state).unnamed
        assert unnamed is not None
        decodes = read_once(unnamed.text, i) >= 0
        opens = decodes & (_computed(state, i, step) % block == 0)

        def lacks(state: State) -> Flag:
            return opens & runs(state, i) & (given.limits.kv_units - state.replica.kv < 1)

        state = lax.while_loop(lacks, preempt_last, state)
        stays = runs(state, i)
        state = take(given, state, jnp.where(opens & stays, 1, 0))
        # Where it is preempted itself, whoever was admitted later was so before.
        return state, jnp.where(stays, read_once(state.running.newer, i), sentinel)

    first = jnp.where(on, state.running.oldest(sentinel), sentinel)
    return lax.while_loop(lambda carry: carry[1] < sentinel, give, (state, first))[0]


def unnamed_blocks(given: Given, state: State, on: Flag) -> Int:
    """How many blocks decodes of the replica have filled that have no name yet, if ``on``."""
    cache, running, sentinel = _cache(state), state.running, state.replica.sentinel
    if cache.unnamed is None:
        return jnp.int32(0)
    texts = cache.unnamed.text

    def count(carry: tuple[Int, Int]) -> tuple[Int, Int]:
        i, blocks = carry
        more = jnp.maximum(_filled(given, state, i) // given.block() - read(cache.named, i), 0)
        return read(running.newer, i), blocks + jnp.where(read(texts, i) >= 0, more, 0)

    start = (jnp.where(on, running.oldest(sentinel), sentinel), jnp.int32(0))
    return lax.while_loop(lambda carry: carry[0] < sentinel, count, start)[1]


def _filled(given: Given, state: State, i: Int) -> Int:
    """Tokens of the KV of a decode that are known."""
    unnamed = _cache(state).unnamed
    assert unnamed is not None
    # The token with which a decode fills a block is not known when its step is planned ahead (vLLM
    # ``KVCacheManager.allocate_slots`` caches up to ``request.num_tokens``).
    known = 1 if given.structure.asynchronous else 0
    return _computed(state, i, read(unnamed.steps, state.schedulable) - known)


def _filled_of_text(given: Given, state: State, text: Int, on: Flag) -> Int:
    """The place behind the last block of a text that any decode has filled, if ``on`` and there is one."""
    unnamed = _cache(state).unnamed
    assert unnamed is not None

    def look(carry: tuple[Int, Int]) -> tuple[Int, Int]:
        i, most = carry
        return read(unnamed.next, i), jnp.maximum(most, _filled(given, state, i) // given.block())

    start = (jnp.where(on, read(unnamed.first, text), NONE), jnp.int32(0))
    return lax.while_loop(lambda carry: carry[0] >= 0, look, start)[1]


# -- decodes that are visited at each block


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
    return cache._replace(due=cache.buckets.append(bucket(given, decode_group, opens), i, on))


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
    newer, requests = _cache(state).buckets.newer, given.requests.arrival_s.shape[0]

    def nobody(step: Int) -> Flag:
        opens, fills = (read_once(newer, bucket(given, state.schedulable, step + more)) for more in (0, 1))
        return (step < end) & (opens >= requests) & (fills >= requests)  # both are sentinels

    return lax.while_loop(nobody, lambda step: step + 1, step)


def open_blocks(given: Given, state: State, step: Int, on: Flag) -> State:
    """The schedulable decodes take the blocks that a step opens, if ``on`` and KV is on demand; there are enough."""

    def open_block(state: State, i: Int) -> State:
        cache = _cache(state)
        return extend(given, state, i, read_once(cache.units, i) + 1)

    return _for_due(given, state, bucket(given, state.schedulable, step), on & given.on_demand(), open_block)


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
            return read_once(cache.buckets.newer, j), jnp.where(nearer, j, nearest), jnp.where(nearer, number, lowest)

        # The bucket is in the order in which they joined the decodes. That is the order of admission, unless a prompt
        # was overtaken, as it may be where only shares of long ones are computed, or groups of a pipeline were merged.
        joined = jnp.asarray(given.structure.pipeline_ranks == 1) & (given.rules.long_prefill_tokens == jnp.inf)
        after = read_once(cache.buckets.newer, i)
        first = jnp.where(joined, sentinel, read_once(cache.buckets.newer, sentinel))
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
        return state, read_once(_cache(state).buckets.newer, i)

    requests = given.requests.arrival_s.shape[0]
    first = jnp.where(on, read_once(_cache(state).buckets.newer, sentinel), sentinel)
    return lax.while_loop(lambda carry: carry[1] < requests, go_on, (state, first))[0]


def _cache(state: State) -> Cache:
    assert state.cache is not None
    return state.cache
