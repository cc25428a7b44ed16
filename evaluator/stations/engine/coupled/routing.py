"""Where arrivals go: what a router counts of the replicas, and the queue that a request comes into."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from evaluator.routing import COUNTERS
from evaluator.stations.engine.any_order.cohorts import known_tokens
from evaluator.stations.engine.any_order.lane import Given
from evaluator.stations.engine.any_order.preemption import growth_at
from evaluator.stations.engine.any_order.state import Line
from evaluator.stations.engine.any_order.waiting import come_in, take_due
from evaluator.stations.engine.common.arrays import Array, Flag, Float, Int
from evaluator.stations.engine.common.rings import read, read_once, write
from evaluator.stations.engine.coupled.lane import GivenPool
from evaluator.stations.engine.coupled.state import Fleet, ends_at

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


def next_arrival(pool: GivenPool, fleet: Fleet) -> Float:
    """When the next request is sent; infinite if none will be before another has finished."""
    i, waiting, given = fleet.arrived, fleet.state.waiting, pool.given
    assert isinstance(waiting, Line)
    at_s, comes = read(given.requests.arrival_s, i), i < waiting.released
    if given.structure.frontend:
        first_due = read_once(waiting.due, jnp.minimum(waiting.due_size, 0))
        at_s = jnp.where(comes, at_s, first_due)
        comes = comes | (waiting.due_size > 0)
    return jnp.where(comes & (i < given.limits.requests), jnp.maximum(at_s, fleet.state.clock), jnp.inf)


def send(pool: GivenPool, fleet: Fleet) -> Fleet:
    """The next request is sent at the time of the clock: it comes into the queue of the replica chosen for it.

    A leap under way there, which would keep it waiting, ends with the iteration under way. In a pipeline nothing leaps.
    """
    given, i = pool.given, fleet.arrived
    waiting = fleet.state.waiting
    if isinstance(waiting, Line) and given.structure.frontend:
        fleet = fleet._replace(state=fleet.state._replace(waiting=take_due(waiting, i >= waiting.released)))
    fleet = count_kv(pool, fleet, pool.counter == KV) if fleet.pipelines is None else fleet
    r = _choice(pool, fleet)
    empty = read(fleet.rows.first, r) < 0
    fleet = _come_in(fleet, i, r)
    output, context = read(given.requests.output_tokens, i), known_tokens(given, i, 0)
    more = counts_row(
        requests=1.0,
        work_tokens=read(given.requests.compute_tokens, i) + output,
        output_tokens=output,
        kv_units=read(given.requests.kv_units, i),
        context_tokens=context,
    )
    room = has_room(given, fleet, r)
    may_come_in = empty & (read(fleet.rows.running_count, r) < given.limits.max_num_seqs)
    if fleet.pipelines is None:
        fleet = cut_short(fleet, r, may_come_in & ~room)
    return fleet._replace(
        counts=add_counts(fleet.counts, r, more),
        touched=fleet.touched.push(r, room),
        arrived=i + 1,
        replica=write(fleet.replica, i, r),
    )


def has_room(given: Given, fleet: Fleet, r: Int) -> Flag:
    """Replica r may send a batch: none is under way, or fewer than it has pipeline ranks."""
    pipelines = fleet.pipelines
    if pipelines is None:
        return read(fleet.flights.end_s, r) == jnp.inf
    return read(pipelines.sent, r) - read(pipelines.landed, r) < given.structure.pipeline_ranks


def _choice(pool: GivenPool, fleet: Fleet) -> Int:
    """The replica of the next request; the first of several with as little."""

    def least() -> Int:
        flights, counter = fleet.flights, pool.counter
        load = lax.dynamic_slice(fleet.counts, (jnp.int32(0), counter), (fleet.counts.shape[0], 1))[:, 0]
        by_token = read(jnp.array(BY_TOKEN), counter)
        load = lax.cond(
            by_token != 0.0,
            lambda: load + by_token * flights.done(fleet.state.clock) * flights.sums.decodes,
            lambda: load,
        )
        load = load + jnp.where(counter == KV, fleet.rows.kv, 0.0)
        there = jnp.arange(len(load), dtype=jnp.int32) < pool.replicas
        return jnp.argmin(jnp.where(there, load, jnp.inf)).astype(jnp.int32)

    return lax.cond(pool.counter >= 0, least, lambda: read(pool.assigned, fleet.arrived))


def _come_in(fleet: Fleet, i: Int, r: Int) -> Fleet:
    waiting = fleet.state.waiting
    assert isinstance(waiting, Line)
    rows = fleet.rows
    queue = come_in(waiting._replace(first=read(rows.first, r), last=read(rows.last, r)), i)
    return fleet._replace(
        state=fleet.state._replace(waiting=queue),
        rows=rows._replace(first=write(rows.first, r, queue.first), last=write(rows.last, r, queue.last)),
    )


def cut_short(fleet: Fleet, r: Int, on: Flag) -> Fleet:
    """The leap of replica r ends with the iteration under way, if ``on``."""
    flights = fleet.flights
    flight = type(flights)(
        *(read(column, r) if name != "sums" else column for name, column in flights._asdict().items())
    )
    cut = on & (flight.iterations > 1.0)
    iterations = jnp.where(cut, flight.under_way(fleet.state.clock), flight.iterations)
    end_s = jnp.where(cut, flight.end_of(iterations), flight.end_s)
    fleet = fleet._replace(flights=flights._replace(iterations=write(flights.iterations, r, iterations)))
    return ends_at(fleet, r, end_s)


def count_kv(pool: GivenPool, fleet: Fleet, on: Flag) -> Fleet:
    """The KV of every replica as of the iteration under way, if ``on``."""
    on = on & pool.given.rules.on_demand

    def count_one(carry: tuple[Int, Fleet]) -> tuple[Int, Fleet]:
        r, fleet = carry
        until = read(fleet.flights.under_way(fleet.state.clock), r)
        flies = read(fleet.flights.end_s, r) < jnp.inf
        return r + 1, grow_to(pool, fleet, r, jnp.where(flies, until, 0.0))

    stop = jnp.where(on, pool.replicas, 0)
    return lax.while_loop(lambda carry: carry[0] < stop, count_one, (jnp.int32(0), fleet))[1]


def grow_to(pool: GivenPool, fleet: Fleet, r: Int, until: Float) -> Fleet:
    """The KV that the leap of replica r has taken up to its iteration number ``until``, and its integral over time.

    With KV on demand, decodes take more of it in every step after the first, which had it when the batch was formed.
    """
    given, flights, state = pool.given, fleet.flights, fleet.state
    step, first_s, slope_s = read(state.cohorts.step, r), read(flights.first_s, r), read(flights.slope_s, r)

    def grow(carry: tuple[Float, Float, Float]) -> tuple[Float, Float, Float]:
        seen, kv, kv_unit_s = carry
        kv = kv + growth_at(given, state._replace(at_rest=r), step + seen.astype(jnp.int32))
        return seen + 1.0, kv, kv_unit_s + kv * (first_s + slope_s * seen)

    start = (read(flights.seen, r), read(fleet.rows.kv, r), state.kv_unit_s)
    seen, kv, kv_unit_s = lax.while_loop(lambda carry: carry[0] < until, grow, start)
    return fleet._replace(
        state=state._replace(kv_unit_s=kv_unit_s),
        rows=fleet.rows._replace(kv=write(fleet.rows.kv, r, kv)),
        flights=flights._replace(seen=write(flights.seen, r, seen)),
    )
