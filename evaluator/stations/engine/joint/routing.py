"""Where arrivals go: what a router counts of the replicas, and the queue that a request comes into."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from evaluator.routing import COUNTERS
from evaluator.stations.engine.common.arrays import Array, Flag, FlagPerReplica, Float, FloatPerReplica, Int
from evaluator.stations.engine.common.rings import read, read_once, write
from evaluator.stations.engine.joint.caches import choose_by_prefix
from evaluator.stations.engine.joint.lane import GivenPool, Network
from evaluator.stations.engine.joint.lockstep_leap import cut_together, first_rank, waits_together
from evaluator.stations.engine.joint.pools import given_at
from evaluator.stations.engine.joint.state import Fleet, ends_at, put_back, replica_at_hand
from evaluator.stations.engine.preemptive.decode_groups import known_tokens
from evaluator.stations.engine.preemptive.lane import Given
from evaluator.stations.engine.preemptive.preemption import growth_at
from evaluator.stations.engine.preemptive.prefix_cache import take_step
from evaluator.stations.engine.preemptive.state import QueueList, State
from evaluator.stations.engine.preemptive.waiting import come_in, take_due

BY_TOKEN = tuple(
    {"work_tokens": -1.0, "output_tokens": -1.0, "context_tokens": 1.0}.get(name, 0.0) for name in COUNTERS
)
"""What one more output token adds to each of the counters."""
KV = COUNTERS.index("kv_units")


def counts_row(**values: Float | Int) -> Array:
    """Values of the counters by name, float64 (counter,); 0 where nothing is said."""
    return jnp.stack([jnp.asarray(values.get(name, 0.0), jnp.float64) for name in COUNTERS])


def add_counts(counts: Array, r: Int, more: Array) -> Array:
    """The counters of the replicas with ``more`` (counter,) at replica r."""
    row = lax.dynamic_slice(counts, (r, jnp.int32(0)), (1, len(COUNTERS)))
    return lax.dynamic_update_slice(counts, row + more[None], (r, jnp.int32(0)))


def decoded_tokens(before: State, after: State, steps: Float) -> Float:
    """Output tokens that decodes have given between two states: one for each of their ``steps``, with drafts more."""
    if before.accepted is None or after.accepted is None:
        return steps
    return after.accepted.decoded_tokens - before.accepted.decoded_tokens


def next_arrival(pool: GivenPool, fleet: Fleet) -> Float:
    """When the next request is sent; infinite if none will be before another has finished."""
    i, waiting, given = fleet.arrived, fleet.state.waiting, pool.given
    assert isinstance(waiting, QueueList)
    if given.session_turns is not None:
        return jnp.maximum(_next_of_talks(pool, fleet)[0], fleet.state.clock)
    at_s, comes = read(given.requests.arrival_s, i), i < waiting.released
    if given.structure.frontend:
        first_due = read_once(waiting.due, jnp.minimum(waiting.due_size, 0))
        at_s = jnp.where(comes, at_s, first_due)
        comes = comes | (waiting.due_size > 0)
    return jnp.where(comes & (i < given.limits.requests), jnp.maximum(at_s, fleet.state.clock), jnp.inf)


def _next_of_talks(pool: GivenPool, fleet: Fleet) -> tuple[Float, Int, Flag]:
    """(when the next request is sent, which one, whether it follows another) by users who think about answers."""
    session_turns, calendar = pool.given.session_turns, fleet.state.calendar
    assert session_turns is not None and calendar is not None
    opens = fleet.opened < session_turns.openings
    first = read(session_turns.opening, fleet.opened)
    opens_s = jnp.where(opens, read(pool.given.requests.arrival_s, first), jnp.inf)
    due_s, code = calendar.first()
    due = code.astype(jnp.int32)
    sooner = (due_s < opens_s) | ((due_s == opens_s) & (due < first))
    return jnp.minimum(due_s, opens_s), jnp.where(sooner, due, first), sooner


def _next_request(pool: GivenPool, fleet: Fleet) -> tuple[Fleet, Int]:
    """The request that is sent now, and the fleet where it is no longer due."""
    state, waiting, i = fleet.state, fleet.state.waiting, fleet.arrived
    if state.calendar is not None:
        _, i, follows = _next_of_talks(pool, fleet)
        state = state._replace(calendar=state.calendar.without_first(follows))
        return fleet._replace(state=state, opened=fleet.opened + ~follows), i
    if isinstance(waiting, QueueList) and pool.given.structure.frontend:
        fleet = fleet._replace(state=state._replace(waiting=take_due(waiting, i >= waiting.released)))
    return fleet, i


def send(pool: GivenPool, fleet: Fleet) -> Fleet:
    """The next request is sent at the time of the clock: it comes into the queue of the replica chosen for it."""
    fleet, i = _next_request(pool, fleet)
    fleet, r = choice(pool, fleet, i)
    fleet = come_to(pool, announce(pool, fleet, i, r), i, r)
    return fleet._replace(arrived=fleet.arrived + 1)


def announce(pool: GivenPool, fleet: Fleet, i: Int, r: Int) -> Fleet:
    """Job i is to be served at replica r, now or later: routers count it there."""
    given = given_at(pool, r, fleet.several)
    output, context = read(given.requests.output_tokens, i), known_tokens(given, i, 0)
    more = counts_row(
        requests=1.0,
        work_tokens=read(given.requests.compute_tokens, i) + output,
        output_tokens=output,
        kv_units=given.kv_units(i),
        context_tokens=context,
    )
    return fleet._replace(counts=add_counts(fleet.counts, r, more), replica=write(fleet.replica, i, r))


def come_to(pool: GivenPool, fleet: Fleet, i: Int, r: Int) -> Fleet:
    """Job i comes into the queue of replica r.

    A leap under way there, which would keep it waiting, ends with the iteration under way. In a pipeline nothing leaps.
    """
    given = given_at(pool, r, fleet.several)
    empty = read(fleet.rows.first, r) < 0
    fleet = _noted(pool, _come_in(fleet, i, r), i, r)
    may_come_in = empty & (read(fleet.rows.running_count, r) < given.limits.max_num_seqs)
    if pool.ranks is not None:
        room = waits_together(pool.ranks, fleet, r)
        fleet = cut_together(pool.ranks, fleet, r, may_come_in & ~room)
        return fleet._replace(touched=fleet.touched.push(first_rank(r, pool.ranks), room))
    room = has_room(given, fleet, r)
    if fleet.pipelines is None:
        fleet = cut_short(fleet, r, may_come_in & ~room)
    return fleet._replace(touched=fleet.touched.push(r, room))


def _noted(pool: GivenPool, fleet: Fleet, i: Int, r: Int) -> Fleet:
    """Of several pools: when job i came, and whether it is the first measured one at replica r."""
    network, several = pool.network, fleet.several
    if network is None or several is None:
        return fleet
    known = read(several.first_measured, r)
    none = known == several.sent_s.shape[0] - 1
    first = jnp.where(none & read(network.measured, i), i, known)
    return fleet._replace(
        several=several._replace(
            sent_s=write(several.sent_s, i, fleet.state.clock),
            first_measured=write(several.first_measured, r, first),
        )
    )


def has_room(given: Given, fleet: Fleet, r: Int) -> Flag:
    """Replica r may send a batch: none is under way, or fewer than it has pipeline ranks."""
    pipelines = fleet.pipelines
    if pipelines is None:
        return read(fleet.running_batches.end_s, r) == jnp.inf
    return read(pipelines.launched_batches, r) - read(pipelines.completed_batches, r) < given.structure.pipeline_ranks


def choice(pool: GivenPool, fleet: Fleet, i: Int) -> tuple[Fleet, Int]:
    """The replica of job i; the first of several with as little."""
    network, session_turns = pool.network, pool.given.session_turns
    if network is not None:
        return _choice_of_side(pool, network, fleet, i)
    if fleet.pipelines is None:
        fleet = count_kv(pool, fleet, pool.counter == KV)
        fleet = fleet if pool.by_prefix is None else catch_up(pool, fleet, pool.by_prefix.chosen)
    at = i if session_turns is None else jnp.where(session_turns.in_turn, fleet.arrived, i)

    def least() -> Int:
        there = jnp.arange(pool.given.structure.replicas, dtype=jnp.int32) < pool.replicas
        return _least(_load(fleet, pool.counter), there)

    r = lax.cond(pool.counter >= 0, least, lambda: read(pool.assigned, at))
    by, caches = pool.by_prefix, fleet.caches
    if by is None or caches is None:
        return fleet, r
    having = choose_by_prefix(pool.given, fleet.state, caches, fleet.counts, by, i, pool.replicas)
    return fleet, jnp.where(by.chosen, having, r)


def _load(fleet: Fleet, counter: Int) -> FloatPerReplica:
    """What a router counts of every replica, as of the iterations that have ended by now."""
    running_batches = fleet.running_batches
    load = lax.dynamic_slice(fleet.counts, (jnp.int32(0), counter), (fleet.counts.shape[0], 1))[:, 0]
    by_token = read(jnp.array(BY_TOKEN), counter)
    load = lax.cond(
        by_token != 0.0,
        lambda: load + by_token * running_batches.done(fleet.state.clock) * running_batches.sums.decodes,
        lambda: load,
    )
    return load + jnp.where(counter == KV, fleet.rows.kv, 0.0)


def _least(load: FloatPerReplica, able: FlagPerReplica) -> Int:
    return jnp.argmin(jnp.where(able, load, jnp.inf)).astype(jnp.int32)


def _choice_of_side(pool: GivenPool, network: Network, fleet: Fleet, i: Int) -> tuple[Fleet, Int]:
    """The replica of its side that serves job i: with its model and, if that matters, of its group."""
    before = read(network.before, i)
    phase = jnp.where(before >= 0, 1, 0)
    grouped = network.grouped & (before >= 0)
    group = jnp.int32(0)
    if fleet.several is not None and fleet.several.travel is not None:
        sender = read_once(fleet.several.travel.sender, i)
        group = jnp.where(grouped, read(network.group, jnp.maximum(sender, 0)), 0)
    counter = read(network.counter, phase)
    fleet = count_kv(pool, fleet, counter == KV) if fleet.pipelines is None else fleet

    def least() -> Int:
        able = (
            (network.phase == phase) & (network.model == read(network.asks, i)) & (~grouped | (network.group == group))
        )
        capacity = pool.given.limits.kv_units[network.pool]
        load = _load(fleet, counter)
        return _least(jnp.where(counter == KV, load / capacity, load), able)

    several = fleet.several
    assert several is not None
    kind, (_, groups, slots) = read(network.kind, i), network.turns.shape
    row = jnp.maximum(kind, 0) * groups + group
    turn = read(several.taken, row)
    takes = (counter < 0) & (kind >= 0)
    in_turn, by_job = row * slots + turn, group * slots + i
    r = lax.cond(
        counter >= 0,
        least,
        lambda: jnp.where(
            kind >= 0, read(network.turns.reshape(-1), in_turn), read(network.assigned.reshape(-1), by_job)
        ),
    )
    taken = write(several.taken, row, turn + takes)
    return fleet._replace(several=several._replace(taken=taken)), r


def _come_in(fleet: Fleet, i: Int, r: Int) -> Fleet:
    waiting = fleet.state.waiting
    assert isinstance(waiting, QueueList)
    rows = fleet.rows
    queue = come_in(waiting._replace(first=read(rows.first, r), last=read(rows.last, r)), i)
    return fleet._replace(
        state=fleet.state._replace(waiting=queue),
        rows=rows._replace(first=write(rows.first, r, queue.first), last=write(rows.last, r, queue.last)),
    )


def cut_short(fleet: Fleet, r: Int, on: Flag) -> Fleet:
    """The leap of replica r ends with the iteration under way, if ``on``."""
    running_batches = fleet.running_batches
    running_batch = type(running_batches)(
        *(read(column, r) if name != "sums" else column for name, column in running_batches._asdict().items())
    )
    cut = on & (running_batch.iterations > 1.0)
    iterations = jnp.where(cut, running_batch.under_way(fleet.state.clock), running_batch.iterations)
    end_s = jnp.where(cut, running_batch.end_of(iterations), running_batch.end_s)
    fleet = fleet._replace(
        running_batches=running_batches._replace(iterations=write(running_batches.iterations, r, iterations))
    )
    return ends_at(fleet, r, end_s)


def count_kv(pool: GivenPool, fleet: Fleet, on: Flag) -> Fleet:
    """The KV of every replica as of the iteration under way, if ``on``."""
    on_demand = pool.given.rules.on_demand
    return catch_up(pool, fleet, on & (on_demand if pool.network is None else on_demand.any()))


def catch_up(pool: GivenPool, fleet: Fleet, on: Flag) -> Fleet:
    """Every replica's KV as of the iteration under way, and with prefix caches its blocks, if ``on``."""

    def count_one(carry: tuple[Int, Fleet]) -> tuple[Int, Fleet]:
        r, fleet = carry
        until = read(fleet.running_batches.under_way(fleet.state.clock), r)
        flies = read(fleet.running_batches.end_s, r) < jnp.inf
        if pool.network is not None:
            flies = flies & given_at(pool, r, fleet.several).rules.on_demand
        return r + 1, grow_to(pool, fleet, r, jnp.where(flies, until, 0.0))

    stop = jnp.where(on, pool.replicas, 0)
    return lax.while_loop(lambda carry: carry[0] < stop, count_one, (jnp.int32(0), fleet))[1]


def grow_to(pool: GivenPool, fleet: Fleet, r: Int, until: Float) -> Fleet:
    """The KV that the leap of replica r has taken up to its iteration number ``until``, and its integral over time.

    With KV on demand, decodes take more of it in every step after the first, which had it when the batch was formed.
    """
    if fleet.caches is not None:
        return _take_blocks(pool, fleet, r, until)
    given, running_batches, state, several = (
        given_at(pool, r, fleet.several),
        fleet.running_batches,
        fleet.state,
        fleet.several,
    )
    kept = 0.0 if several is None or several.reserved is None else read(several.reserved.kept, r)
    step, first_s, slope_s = (
        read(state.decode_groups.step, r),
        read(running_batches.first_s, r),
        read(running_batches.slope_s, r),
    )

    def grow(carry: tuple[Float, Float, Float]) -> tuple[Float, Float, Float]:
        seen, kv, kv_unit_s = carry
        kv = kv + growth_at(given, state._replace(schedulable=r), step + seen.astype(jnp.int32))
        return seen + 1.0, kv, kv_unit_s + (kv - kept) * (first_s + slope_s * seen)

    so_far = state.kv_unit_s if several is None else read(several.totals.kv_unit_s, r)
    start = (read(running_batches.seen, r), read(fleet.rows.kv, r), so_far)
    seen, kv, kv_unit_s = lax.while_loop(lambda carry: carry[0] < until, grow, start)
    if several is not None:
        column = write(several.totals.kv_unit_s, r, kv_unit_s)
        several = several._replace(totals=several.totals._replace(kv_unit_s=column))
    return fleet._replace(
        state=state if several is not None else state._replace(kv_unit_s=kv_unit_s),
        several=several,
        rows=fleet.rows._replace(kv=write(fleet.rows.kv, r, kv)),
        running_batches=running_batches._replace(seen=write(running_batches.seen, r, seen)),
    )


def _take_blocks(pool: GivenPool, fleet: Fleet, r: Int, until: Float) -> Fleet:
    """The same in a prefix cache: the decodes take blocks and name those that they fill, whether KV is reserved or not.

    Of reserved KV the integral is taken at the end of the leap (``program._account``).
    """
    given, running_batches, state = pool.given, fleet.running_batches, replica_at_hand(fleet, r)
    step, first_s, slope_s = (
        read(state.decode_groups.step, r),
        read(running_batches.first_s, r),
        read(running_batches.slope_s, r),
    )

    def take(carry: tuple[Float, State]) -> tuple[Float, State]:
        seen, state = carry
        state = take_step(given, state, step + seen.astype(jnp.int32), seen < until)
        grown = jnp.where(given.rules.on_demand, state.kv * (first_s + slope_s * seen), 0.0)
        return seen + 1.0, state._replace(kv_unit_s=state.kv_unit_s + grown)

    seen, state = lax.while_loop(lambda carry: carry[0] < until, take, (read(running_batches.seen, r), state))
    return put_back(fleet, r, state)._replace(
        running_batches=running_batches._replace(seen=write(running_batches.seen, r, seen))
    )
