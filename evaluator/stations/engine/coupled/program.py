"""The engine's program for replicas that run together, of one configuration under one seed.

A replica does here what it does alone in the program for any order, from whose functions this one is made. What is
added is the clock that they share: as in ``reference.network``, it goes to the next end or arrival, wherever it is, and
at one point in time ends come first, then arrivals, then new batches.

A batch under way, or a leap over alike ones, is a *flight* of its replica (``state.Flight``). It is sent as far as
nothing at the replica itself changes it, and does nothing before its end. An arrival that may join ends it early, with
the iteration under way; a router that counts tokens adds what the iterations that have ended by then have made.

Of several pools (``lane.Network``) the figures of a replica are those of its pool (``several.given_at``). What leaves a
prefill side is a job of the decode side and comes due there after its transfer, by a calendar (``events``,
``transfers``); under back-pressure KV is reserved and kept meanwhile (``rooms``). A job that another one follows, at
whichever pool and after whichever delay, would be one more event of that calendar.

Each phase of a trip is skipped where it has nothing to do, by a loop that runs once or not at all: XLA updates arrays
in place through loops, not through conditionals.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from evaluator.cost.iteration import decode_growth, share_touched
from evaluator.cost.quantities import batch_tokens, raised
from evaluator.stations.engine.any_order.batch import Scheduled, form_batch, scheduled
from evaluator.stations.engine.any_order.landing import Landing, Measured, land
from evaluator.stations.engine.any_order.lane import Given, Structure
from evaluator.stations.engine.any_order.program import result_of
from evaluator.stations.engine.any_order.state import State, no_batch
from evaluator.stations.engine.common.arrays import Flag, Float, Int
from evaluator.stations.engine.common.lane import Requests, over_lanes
from evaluator.stations.engine.common.leap import batch_time
from evaluator.stations.engine.common.rings import read, read_once, write
from evaluator.stations.engine.coupled.abreast import first_rank
from evaluator.stations.engine.coupled.lane import GivenPool, NetworkResult, Pool, PoolResult
from evaluator.stations.engine.coupled.leap import until_change
from evaluator.stations.engine.coupled.lockstep import launch_together, own_part
from evaluator.stations.engine.coupled.pipeline import land_batch, launch_batch
from evaluator.stations.engine.coupled.rooms import reserve_between
from evaluator.stations.engine.coupled.routing import (
    add_counts,
    counts_row,
    decoded_tokens,
    grow_to,
    next_arrival,
    send,
)
from evaluator.stations.engine.coupled.several import given_at
from evaluator.stations.engine.coupled.state import (
    Fleet,
    Flight,
    ends_at,
    initial_fleet,
    put_back,
    replica_at_hand,
    where,
)
from evaluator.stations.engine.coupled.transfers import ask_early, asks_now, hand_on, next_due, take_due


def _trip(pool: GivenPool, fleet: Fleet) -> Fleet:
    """One end, or else all that comes up to what finds its replica idle, or up to the next end; and one new batch.

    When nothing is left to do at this point in time, the clock goes on to the next end or arrival. If there is none,
    the requests that are left can never be admitted: the lane stops with ``stuck``.
    """

    def ends_now(fleet: Fleet) -> Flag:
        return fleet.ending & (fleet.next_s <= fleet.state.clock)

    lands, launches = (_land, _launch) if fleet.pipelines is None else (land_batch, launch_batch)
    launches = launches if fleet.together is None else launch_together
    fleet = where(ends_now(fleet), functools.partial(_end, pool, lands), fleet)
    more = ends_now(fleet)
    fleet = lax.while_loop(lambda fleet: ~more & _comes(pool, fleet), functools.partial(_come, pool), fleet)
    fleet = where(~more & _may_launch(pool, fleet), functools.partial(_send_off, pool, launches), fleet)
    done = ~more & (fleet.touched.top < 0)
    next_s = jnp.minimum(fleet.next_s, _next_coming(pool, fleet)[0])
    state, goes = fleet.state, done & (next_s < jnp.inf)
    return fleet._replace(
        state=state._replace(clock=jnp.where(goes, jnp.maximum(next_s, state.clock), state.clock), stuck=done & ~goes),
        ending=more | done,
    )


Phase = Callable[[GivenPool, Fleet], Fleet]


def _end(pool: GivenPool, lands: Phase, fleet: Fleet) -> Fleet:
    """A flight ends; of two sides, who is done goes on."""
    r, fleet = fleet.next_replica, lands(pool, fleet)
    return hand_on(pool, fleet, r) if pool.given.structure.sides > 1 else fleet


def _send_off(pool: GivenPool, launches: Phase, fleet: Fleet) -> Fleet:
    r, fleet = fleet.touched.top, launches(pool, fleet)
    return ask_early(pool, fleet, r) if pool.given.structure.rooms else fleet


def _may_launch(pool: GivenPool, fleet: Fleet) -> Flag:
    """A batch is to be sent, and under back-pressure nobody asks for room before that."""
    touched = fleet.touched.top >= 0
    if not pool.given.structure.rooms:
        return touched
    asks, sent = asks_now(pool, fleet)
    return touched & ~(asks & sent)


def _next_coming(pool: GivenPool, fleet: Fleet) -> tuple[Float, Flag]:
    """When the next request is sent, or the next thing happens between two sides, and whether it is the latter."""
    arrival_s = next_arrival(pool, fleet)
    if pool.given.structure.sides == 1:
        return arrival_s, jnp.zeros((), bool)
    due_s = next_due(pool, fleet).time_s
    return jnp.minimum(arrival_s, due_s), due_s <= arrival_s


def _comes(pool: GivenPool, fleet: Fleet) -> Flag:
    """Something comes now; or before the next end, and no batch is to be sent before."""
    coming_s, _ = _next_coming(pool, fleet)
    ahead = (coming_s < fleet.next_s) & (fleet.touched.top < 0)
    comes = fleet.ending & ((coming_s <= fleet.state.clock) | ahead)
    if not pool.given.structure.rooms:
        return comes
    asks, sent = asks_now(pool, fleet)
    return comes | (asks & sent)


def _come(pool: GivenPool, fleet: Fleet) -> Fleet:
    """It happens, and the clock goes there."""
    coming_s, between = _next_coming(pool, fleet)
    clock = jnp.maximum(coming_s, fleet.state.clock)
    fleet = fleet._replace(state=fleet.state._replace(clock=clock))
    if pool.given.structure.sides == 1:
        return send(pool, fleet)
    sends = ~between
    fleet = where(between, functools.partial(take_due, pool), fleet)
    return where(sends, functools.partial(send, pool), fleet)


def _land(pool: GivenPool, fleet: Fleet) -> Fleet:
    """The first flight that ends now: its tokens are handed out, and finished requests leave."""
    r = fleet.next_replica
    given = given_at(pool, r, fleet.several)
    grows = given.rules.on_demand if fleet.caches is None else True
    fleet = grow_to(pool, fleet, r, jnp.where(grows, read(fleet.flights.iterations, r), 0.0))
    flight = jax.tree.map(lambda column: read(column, r), fleet.flights)
    before = _account(given, replica_at_hand(fleet, r), flight, None if fleet.together is None else own_part(fleet, r))
    state = land(given, before, _landing(given, before, flight))
    tally = state.tally
    assert tally is not None
    tokens = decoded_tokens(before, state, flight.iterations * flight.sums.decodes) + tally.completed
    more = counts_row(
        requests=before.finished - state.finished,
        work_tokens=-flight.sums.prefill_tokens - tokens,
        output_tokens=-tokens,
        context_tokens=tokens - tally.left_context,
    )
    flights = fleet.flights
    end_s, sums = write(flights.end_s, r, jnp.inf), flights.sums
    following = jnp.argmin(end_s).astype(jnp.int32)
    return put_back(fleet, r, state)._replace(
        counts=add_counts(fleet.counts, r, more),
        flights=flights._replace(end_s=end_s, sums=sums._replace(decodes=write(sums.decodes, r, 0.0))),
        next_s=read(end_s, following),
        next_replica=following,
        touched=fleet.touched.push(r if pool.ranks is None else first_rank(r, pool.ranks), ~jnp.zeros((), bool)),
    )


def _account(given: Given, state: State, flight: Flight, together: tuple[Float, Float] | None) -> State:
    """The sums over all that has happened, with a flight that has come to its end.

    ``together``: of ranks in lockstep, see ``lockstep.own_part``.
    """
    took_s = flight.end_s - flight.start_s
    cost = given.pipeline_ranks[0]
    tokens = batch_tokens(cost, flight.sums)
    touched, weight = (share_touched(cost, tokens), None) if together is None else together
    return state._replace(
        decode_iterations=state.decode_iterations + _steps(flight),
        kv_max=jnp.maximum(state.kv_max, state.kv),
        kv_unit_s=state.kv_unit_s + jnp.where(given.rules.on_demand, 0.0, _of_running(state) * took_s),
        busy_s=state.busy_s + (took_s if weight is None else weight * took_s),
        iterations=state.iterations + flight.iterations,
        experts_touched=state.experts_touched + flight.iterations * (touched if weight is None else weight * touched),
        peaks=raised(cost, state.peaks, flight.sums, flight.iterations),
    )


def _of_running(state: State) -> Float:
    """The KV of running requests."""
    return state.kv if state.rooms is None else state.kv - state.rooms.kept


def _steps(flight: Flight) -> Int:
    return jnp.where(flight.sums.decodes > 0, flight.iterations, 0.0).astype(jnp.int32)


def _landing(given: Given, state: State, flight: Flight) -> Landing:
    since_s = read_once(state.sequences.first_token_s, given.limits.measured_from)
    late = flight.iterations - jnp.maximum(flight.done(since_s), 1.0)
    return Landing(
        cohort=state.at_rest,
        steps=_steps(flight),
        first_end_s=flight.end_of(jnp.float64(1.0)),
        end_s=flight.end_s,
        completing=flight.completing,
        measured=Measured(since_s, jnp.where(since_s < flight.end_s, late, 0.0).astype(jnp.int32)),
    )


def _launch(pool: GivenPool, fleet: Fleet) -> Fleet:
    """A replica where something has happened sends a batch, if there is anything to do.

    If all that ran there was preempted, it is looked at once more: that takes no time, and some may be admitted again.
    """
    r = fleet.touched.top
    given = given_at(pool, r, fleet.several)
    state = replica_at_hand(fleet, r)._replace(batch=no_batch())
    state = form_batch(given, state, state.clock, ~jnp.zeros((), bool))
    batch = scheduled(given, state)
    if state.rooms is not None:
        fleet, state = reserve_between(pool, fleet, r, state, batch.there | ~state.batch.preempted)
    iterations, first_s, slope_s = _leap(given, state, batch)
    flight = Flight(
        start_s=state.clock,
        end_s=jnp.inf,
        iterations=iterations,
        first_s=first_s,
        slope_s=slope_s,
        seen=jnp.float64(1.0),
        completing=state.batch.completing,
        sums=batch.sums,
    )
    end_s = jnp.where(batch.there, flight.end_of(iterations), jnp.inf)
    tally = state.tally
    assert tally is not None
    more = counts_row(work_tokens=tally.again, kv_units=tally.waiting_units)
    kv_unit_s = jnp.where(given.rules.on_demand & batch.there, _of_running(state) * first_s, 0.0)
    fleet = put_back(fleet, r, state._replace(kv_unit_s=state.kv_unit_s + kv_unit_s))._replace(
        counts=add_counts(fleet.counts, r, more),
        flights=jax.tree.map(lambda column, value: write(column, r, value), fleet.flights, flight),
        touched=fleet.touched.pop(batch.there | ~state.batch.preempted),
        ending=jnp.zeros((), bool),
    )
    return ends_at(fleet, r, end_s)


def _leap(given: Given, state: State, batch: Scheduled) -> tuple[Float, Float, Float]:
    """As many iterations of this batch as pass before it changes if nobody arrives, and their times."""
    cost = given.pipeline_ranks[0]
    first_s = batch_time(cost, batch.sums)
    growing = read(state.cohorts.growing, state.at_rest)
    slope_s = jnp.where(batch.decodes, decode_growth(cost, batch.sums, growing), 0.0)
    return until_change(given, state, batch), first_s, slope_s


def _run(pool: GivenPool) -> Fleet:
    jobs = pool.given.limits.requests if pool.network is None else pool.network.jobs
    return lax.while_loop(
        lambda fleet: (fleet.state.finished < jobs) & ~fleet.state.stuck,
        lambda fleet: _trip(pool, fleet),
        initial_fleet(pool.given, pool.network),
    )


def _run_pool(pool: GivenPool) -> PoolResult:
    final = _run(pool)
    return PoolResult(result_of(final.state), final.replica[:-1])


def _run_network(pool: GivenPool) -> NetworkResult:
    final = _run(pool)
    several, served = final.several, result_of(final.state)
    assert several is not None
    travel = several.travel
    return NetworkResult(
        sent_s=several.sent_s[:-1],
        scheduled_s=served.scheduled_s,
        first_token_s=served.first_token_s,
        last_token_s=served.last_token_s,
        link_s=(several.sent_s if travel is None else travel.link_s)[:-1],
        replica=final.replica[:-1],
        totals=several.totals,
        itl_histogram=served.itl_histogram,
    )


@functools.partial(jax.jit, static_argnames=("structure", "vectorise"))
def run_pools(pools: Pool, requests: Requests, structure: Structure, vectorise: bool = False) -> Any:
    """Simulate lanes of several replicas each: ``pools`` and ``requests`` with a leading ``lane`` axis, as the result.

    The result is a ``PoolResult``, of several pools (``Pool.network``) a ``NetworkResult``. ``vectorise`` as in
    ``over_lanes``: for accelerators.
    """

    def run(pool: Pool, requests: Requests) -> PoolResult | NetworkResult:
        given = GivenPool(Given(*pool.lane, requests, structure), *pool[1:])
        return _run_pool(given) if given.network is None else _run_network(given)

    return over_lanes(run, pools, requests, vectorise)
