"""The engine's program for replicas that run together, of one configuration under one seed.

A replica does here what it does alone in the program for any order, from whose functions this one is made. What is
added is the clock that they share: as in ``reference.network``, it goes to the next end or arrival, wherever it is, and
at one point in time ends come first, then arrivals, then new batches.

A batch under way, or a leap over alike ones, is a *flight* of its replica (``state.JointBatches``). It is sent as far
as
nothing at the replica itself changes it, and does nothing before its end. An arrival that may join ends it early, with
the iteration under way; a router that counts tokens adds what the iterations that have ended by then have made.

Of several pools (``lane.Network``) the figures of a replica are those of its pool (``several.given_at``). What leaves a
prefill side is a job of the decode side and comes due there after its transfer, by a calendar (``events``,
``transfers``); under back-pressure KV is reserved and kept meanwhile (``kv_reservation``). A job that another one
follows, at
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
from evaluator.stations.engine.common.arrays import Flag, Float, Int
from evaluator.stations.engine.common.lane import Requests, over_lanes
from evaluator.stations.engine.common.leap import batch_time
from evaluator.stations.engine.common.rings import read, read_once, write
from evaluator.stations.engine.joint.kv_reservation import reserve_between
from evaluator.stations.engine.joint.lane import GivenPool, JointPool, NetworkResult, PoolResult
from evaluator.stations.engine.joint.leap import until_change
from evaluator.stations.engine.joint.lockstep import launch_together, own_part
from evaluator.stations.engine.joint.lockstep_leap import first_rank
from evaluator.stations.engine.joint.pipeline import complete_batch, launch_batch
from evaluator.stations.engine.joint.pools import given_at
from evaluator.stations.engine.joint.routing import (
    add_counts,
    counts_row,
    decoded_tokens,
    grow_to,
    next_arrival,
    send,
)
from evaluator.stations.engine.joint.state import (
    Fleet,
    JointBatches,
    ends_at,
    initial_fleet,
    put_back,
    replica_at_hand,
    where,
)
from evaluator.stations.engine.joint.transfers import ask_early, asks_now, hand_on, next_due, take_due
from evaluator.stations.engine.preemptive.batch import Scheduled, form_batch, scheduled
from evaluator.stations.engine.preemptive.iteration_end import IterationEnd, MeasuredSteps, complete_iteration
from evaluator.stations.engine.preemptive.lane import Given, Structure
from evaluator.stations.engine.preemptive.program import result_of
from evaluator.stations.engine.preemptive.state import State, no_batch


def _loop_step(pool: GivenPool, fleet: Fleet) -> Fleet:
    """One end, or else all that comes up to what finds its replica idle, or up to the next end; and one new batch.

    When nothing is left to do at this point in time, the clock goes on to the next end or arrival. If there is none,
    the requests that are left can never be admitted: the lane stops with ``stuck``.
    """

    def ends_now(fleet: Fleet) -> Flag:
        return fleet.ending & (fleet.next_s <= fleet.state.clock)

    lands, launches = (_complete_batches, _launch) if fleet.pipelines is None else (complete_batch, launch_batch)
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
    return hand_on(pool, fleet, r) if pool.given.structure.phases > 1 else fleet


def _send_off(pool: GivenPool, launches: Phase, fleet: Fleet) -> Fleet:
    r, fleet = fleet.touched.top, launches(pool, fleet)
    return ask_early(pool, fleet, r) if pool.given.structure.kv_reservation else fleet


def _may_launch(pool: GivenPool, fleet: Fleet) -> Flag:
    """A batch is to be sent, and under back-pressure nobody asks for room before that."""
    touched = fleet.touched.top >= 0
    if not pool.given.structure.kv_reservation:
        return touched
    asks, launched_batches = asks_now(pool, fleet)
    return touched & ~(asks & launched_batches)


def _next_coming(pool: GivenPool, fleet: Fleet) -> tuple[Float, Flag]:
    """When the next request is sent, or the next thing happens between two sides, and whether it is the latter."""
    arrival_s = next_arrival(pool, fleet)
    if pool.given.structure.phases == 1:
        return arrival_s, jnp.zeros((), bool)
    due_s = next_due(pool, fleet).time_s
    return jnp.minimum(arrival_s, due_s), due_s <= arrival_s


def _comes(pool: GivenPool, fleet: Fleet) -> Flag:
    """Something comes now; or before the next end, and no batch is to be sent before."""
    coming_s, _ = _next_coming(pool, fleet)
    ahead = (coming_s < fleet.next_s) & (fleet.touched.top < 0)
    comes = fleet.ending & ((coming_s <= fleet.state.clock) | ahead)
    if not pool.given.structure.kv_reservation:
        return comes
    asks, launched_batches = asks_now(pool, fleet)
    return comes | (asks & launched_batches)


def _come(pool: GivenPool, fleet: Fleet) -> Fleet:
    """It happens, and the clock goes there."""
    coming_s, between = _next_coming(pool, fleet)
    clock = jnp.maximum(coming_s, fleet.state.clock)
    fleet = fleet._replace(state=fleet.state._replace(clock=clock))
    if pool.given.structure.phases == 1:
        return send(pool, fleet)
    sends = ~between
    fleet = where(between, functools.partial(take_due, pool), fleet)
    return where(sends, functools.partial(send, pool), fleet)


def _complete_batches(pool: GivenPool, fleet: Fleet) -> Fleet:
    """The first flight that ends now: its tokens are handed out, and finished requests leave."""
    r = fleet.next_replica
    given = given_at(pool, r, fleet.several)
    grows = given.rules.on_demand if fleet.caches is None else True
    fleet = grow_to(pool, fleet, r, jnp.where(grows, read(fleet.running_batches.iterations, r), 0.0))
    running_batch = jax.tree.map(lambda column: read(column, r), fleet.running_batches)
    before = _account(
        given, replica_at_hand(fleet, r), running_batch, None if fleet.together is None else own_part(fleet, r)
    )
    state = complete_iteration(given, before, _landing(given, before, running_batch))
    router_counts = state.router_counts
    assert router_counts is not None
    tokens = (
        decoded_tokens(before, state, running_batch.iterations * running_batch.sums.decodes) + router_counts.completed
    )
    more = counts_row(
        requests=before.finished - state.finished,
        work_tokens=-running_batch.sums.prefill_tokens - tokens,
        output_tokens=-tokens,
        context_tokens=tokens - router_counts.left_context,
    )
    running_batches = fleet.running_batches
    end_s, sums = write(running_batches.end_s, r, jnp.inf), running_batches.sums
    following = jnp.argmin(end_s).astype(jnp.int32)
    return put_back(fleet, r, state)._replace(
        counts=add_counts(fleet.counts, r, more),
        running_batches=running_batches._replace(end_s=end_s, sums=sums._replace(decodes=write(sums.decodes, r, 0.0))),
        next_s=read(end_s, following),
        next_replica=following,
        touched=fleet.touched.push(r if pool.ranks is None else first_rank(r, pool.ranks), ~jnp.zeros((), bool)),
    )


def _account(given: Given, state: State, running_batch: JointBatches, together: tuple[Float, Float] | None) -> State:
    """The sums over all that has happened, with a flight that has come to its end.

    ``together``: of ranks in lockstep, see ``lockstep.own_part``.
    """
    took_s = running_batch.end_s - running_batch.start_s
    cost = given.pipeline_ranks[0]
    tokens = batch_tokens(cost, running_batch.sums)
    touched, weight = (share_touched(cost, tokens), None) if together is None else together
    return state._replace(
        decode_iterations=state.decode_iterations + _steps(running_batch),
        kv_max=jnp.maximum(state.kv_max, state.kv),
        kv_unit_s=state.kv_unit_s + jnp.where(given.rules.on_demand, 0.0, _of_running(state) * took_s),
        busy_s=state.busy_s + (took_s if weight is None else weight * took_s),
        iterations=state.iterations + running_batch.iterations,
        experts_touched=state.experts_touched
        + running_batch.iterations * (touched if weight is None else weight * touched),
        peaks=raised(cost, state.peaks, running_batch.sums, running_batch.iterations),
    )


def _of_running(state: State) -> Float:
    """The KV of running requests."""
    return state.kv if state.kv_reservation is None else state.kv - state.kv_reservation.kept


def _steps(running_batch: JointBatches) -> Int:
    return jnp.where(running_batch.sums.decodes > 0, running_batch.iterations, 0.0).astype(jnp.int32)


def _landing(given: Given, state: State, running_batch: JointBatches) -> IterationEnd:
    since_s = read_once(state.sequences.first_token_s, given.limits.measured_from)
    late = running_batch.iterations - jnp.maximum(running_batch.done(since_s), 1.0)
    return IterationEnd(
        decode_group=state.schedulable,
        steps=_steps(running_batch),
        first_end_s=running_batch.end_of(jnp.float64(1.0)),
        end_s=running_batch.end_s,
        completing=running_batch.completing,
        measured=MeasuredSteps(since_s, jnp.where(since_s < running_batch.end_s, late, 0.0).astype(jnp.int32)),
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
    if state.kv_reservation is not None:
        fleet, state = reserve_between(pool, fleet, r, state, batch.there | ~state.batch.preempted)
    iterations, first_s, slope_s = _leap(given, state, batch)
    running_batch = JointBatches(
        start_s=state.clock,
        end_s=jnp.inf,
        iterations=iterations,
        first_s=first_s,
        slope_s=slope_s,
        seen=jnp.float64(1.0),
        completing=state.batch.completing,
        sums=batch.sums,
    )
    end_s = jnp.where(batch.there, running_batch.end_of(iterations), jnp.inf)
    router_counts = state.router_counts
    assert router_counts is not None
    more = counts_row(work_tokens=router_counts.again, kv_units=router_counts.waiting_units)
    kv_unit_s = jnp.where(given.rules.on_demand & batch.there, _of_running(state) * first_s, 0.0)
    fleet = put_back(fleet, r, state._replace(kv_unit_s=state.kv_unit_s + kv_unit_s))._replace(
        counts=add_counts(fleet.counts, r, more),
        running_batches=jax.tree.map(
            lambda column, value: write(column, r, value), fleet.running_batches, running_batch
        ),
        touched=fleet.touched.pop(batch.there | ~state.batch.preempted),
        ending=jnp.zeros((), bool),
    )
    return ends_at(fleet, r, end_s)


def _leap(given: Given, state: State, batch: Scheduled) -> tuple[Float, Float, Float]:
    """As many iterations of this batch as pass before it changes if nobody arrives, and their times."""
    cost = given.pipeline_ranks[0]
    first_s = batch_time(cost, batch.sums)
    growing = read(state.decode_groups.growing, state.schedulable)
    slope_s = jnp.where(batch.decodes, decode_growth(cost, batch.sums, growing), 0.0)
    return until_change(given, state, batch), first_s, slope_s


def _run(pool: GivenPool) -> Fleet:
    jobs = pool.given.limits.requests if pool.network is None else pool.network.jobs
    return lax.while_loop(
        lambda fleet: (fleet.state.finished < jobs) & ~fleet.state.stuck,
        lambda fleet: _loop_step(pool, fleet),
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
def run_pools(pools: JointPool, requests: Requests, structure: Structure, vectorise: bool = False) -> Any:
    """Simulate lanes of several replicas each: ``pools`` and ``requests`` with a leading ``lane`` axis, as the result.

    The result is a ``PoolResult``, of several pools (``JointPool.network``) a ``NetworkResult``. ``vectorise`` as in
    ``over_lanes``: for accelerators.
    """

    def run(pool: JointPool, requests: Requests) -> PoolResult | NetworkResult:
        given = GivenPool(Given(*pool.lane, requests, structure), *pool[1:])
        return _run_pool(given) if given.network is None else _run_network(given)

    return over_lanes(run, pools, requests, vectorise)
