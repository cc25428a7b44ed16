"""The engine's program for replicas that run together, of one configuration under one seed.

A replica does here what it does alone in the program for any order, from whose functions this one is made. What is
added is the clock that they share: as in ``reference.network``, it goes to the next end or arrival, wherever it is, and
at one point in time ends come first, then arrivals, then new batches.

A batch under way, or a leap over alike ones, is a ``LaunchedBatch`` of its replica. It is sent as far as nothing at the
replica itself changes it, and does nothing before its end. An arrival that may join ends it early, with the iteration
under way; a router that counts tokens adds what the iterations that have ended by then have made.

Replicas may come and go (``autoscaler``, ``fleet``): a look at what they do is one more kind of event.

Of several pools (``lane.Network``) the figures of a replica are those of its pool (``several.given_at``). What leaves a
prefill side is a job of the decode side and comes due there after its transfer, by a calendar (``events``,
``transfers``); under back-pressure KV is reserved and kept meanwhile (``kv_reservation``). A job that another one
follows, at whichever pool and after whichever delay, would be one more event of that calendar.

Each phase of a trip is skipped where it has nothing to do, by a loop that runs once or not at all: XLA updates arrays
in place through loops, not through conditionals.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from evaluator.stations.engine.common.arrays import Flag, Float, Int
from evaluator.stations.engine.common.histogram import BINS
from evaluator.stations.engine.common.lane import LaneResult, Requests, over_lanes
from evaluator.stations.engine.common.leap import UNBOUNDED
from evaluator.stations.engine.common.rings import read, read_once, where, write
from evaluator.stations.engine.joint.asynchronous import complete_older, plan_batch
from evaluator.stations.engine.joint.autoscaler import come_and_go, due
from evaluator.stations.engine.joint.events import ASK, END
from evaluator.stations.engine.joint.kv_reservation import expects, reserve_between
from evaluator.stations.engine.joint.lockstep import launch_together, own_part, send_together
from evaluator.stations.engine.joint.lockstep_leap import first_rank, ranks_of
from evaluator.stations.engine.joint.pipeline import complete_batch, launch_batch
from evaluator.stations.engine.joint.pools import given_at
from evaluator.stations.engine.joint.routing import (
    REQUESTS,
    add_counts,
    catch_up,
    counts_row,
    decoded_tokens,
    grow_to,
    next_arrival,
    sees_kv,
    send,
)
from evaluator.stations.engine.joint.stages import (
    HOME,
    LLM,
    all_leave_llm,
    anybody_on_route,
    leave_llm,
    next_stop,
    set_out,
    take_stop,
)
from evaluator.stations.engine.joint.state import (
    ClusterState,
    at_hand,
    count_decoded,
    ends_at,
    initial_cluster,
    put_back,
)
from evaluator.stations.engine.joint.transfers import answer, ask_early, asks_now, hand_on, next_due, take_due
from evaluator.stations.engine.preemptive.batch import form_batch
from evaluator.stations.engine.preemptive.iteration import LaunchedBatch, complete, launch
from evaluator.stations.engine.preemptive.iteration_end import MeasuredSteps
from evaluator.stations.engine.preemptive.kv import kv_of
from evaluator.stations.engine.preemptive.lane import Given, Lane, PackedLane, Structure, given_to, packed
from evaluator.stations.engine.preemptive.program import result_of
from evaluator.stations.engine.preemptive.state import State


def _loop_step(given: Given, cluster: ClusterState) -> ClusterState:
    """One end, or else all that comes up to what finds its replica idle, or up to the next end; and one new batch.

    When nothing is left to do at this point in time, the clock goes on to the next end or arrival. If there is none,
    the requests that are left can never be admitted: the lane stops with ``stuck``.
    """

    # ``ending`` is false while the batches of a point in time are sent: one of them that takes no time, and so ends
    # now, ends after all of them were sent.
    def ends_now(cluster: ClusterState) -> Flag:
        return cluster.ending & (cluster.next_s <= cluster.state.clock)

    completes, launches = (
        (_complete_batches, _launch) if cluster.replicas.pipeline is None else (complete_batch, launch_batch)
    )
    launches = launches if cluster.together is None else _launch_any
    if cluster.planned is not None:
        completes, launches = complete_older, plan_batch
    # One end in a trip. Of several at one time the next trip takes the next, and nothing else comes before (``more``).
    cluster = where(ends_now(cluster), functools.partial(_end, given, completes), cluster)
    more = ends_now(cluster)
    if cluster.fleet is not None:
        # Behind all ends, since what they leave is what the autoscaler sees, and before who comes now.
        cluster = where(~more & due(cluster), functools.partial(come_and_go, given), cluster)
    # Arrivals before the next end find all replicas as they are, so that all of them are sent in this trip.
    cluster = lax.while_loop(lambda cluster: ~more & _comes(given, cluster), functools.partial(_come, given), cluster)
    cluster = where(~more & _may_launch(given, cluster), functools.partial(launches, given), cluster)
    # The clock stays while a replica has yet to send a batch: at one point in time ends and arrivals precede batches.
    done = ~more & (cluster.ready.top < 0)
    # The clock never goes back: a leap that was cut short, or an event that is due ``AT_ONCE``, may have an earlier
    # time.
    next_s = jnp.minimum(cluster.next_s, _coming_s(given, cluster))
    if (
        cluster.fleet is not None
    ):  # looks alone change nothing for who waits, so that a lane may be stuck in spite of them
        next_s = jnp.where(next_s < jnp.inf, jnp.minimum(next_s, cluster.fleet.next_s), jnp.inf)
    state, goes = cluster.state, done & (next_s < jnp.inf)
    return cluster._replace(
        state=state._replace(clock=jnp.where(goes, jnp.maximum(next_s, state.clock), state.clock), stuck=done & ~goes),
        ending=more | done,
    )


Phase = Callable[[Given, ClusterState], ClusterState]


def _end(given: Given, completes: Phase, cluster: ClusterState) -> ClusterState:
    """A batch ends; of two sides, who is done goes on."""
    # Who is done is listed by the end of the batch (``State.listed``) and handed on here: what comes behind is an event
    # of this point in time (vLLM: ``KVConnector.request_finished`` is called where the scheduler frees the request).
    r, cluster = cluster.next_replica, completes(given, cluster)
    if cluster.fleet is not None:
        empty = read(cluster.counts[:, REQUESTS], r) == 0
        cluster = cluster._replace(fleet=cluster.fleet.left(r, cluster.state.clock, empty))
    stages = bool(given.structure.servers)
    if given.structure.phases > 1:
        return hand_on(given, cluster, r, leave_llm if stages else answer)
    return all_leave_llm(given, cluster) if stages else cluster


def _may_launch(given: Given, cluster: ClusterState) -> Flag:
    """A batch is to be sent, and under back-pressure nobody asks for room before that."""
    ready = cluster.ready.top >= 0
    if not given.structure.kv_reservation:
        return ready
    asks, prefill_sent = asks_now(given, cluster)
    return ready & ~(asks & prefill_sent)


def _next_coming(given: Given, cluster: ClusterState) -> tuple[Float, Flag]:
    """When the next request is sent, or the next thing happens between two sides, and whether it is the latter."""
    arrival_s = next_arrival(given, cluster)
    if given.structure.phases == 1:
        return arrival_s, jnp.zeros((), bool)
    due_s = next_due(given, cluster).time_s
    # At one time what is on its way comes before new requests: the reference ends stations from the last to the first.
    return jnp.minimum(arrival_s, due_s), due_s <= arrival_s


def _coming_s(given: Given, cluster: ClusterState) -> Float:
    """When something comes next, wherever."""
    coming_s, _ = _next_coming(given, cluster)
    return jnp.minimum(coming_s, next_stop(cluster).time_s) if given.structure.servers else coming_s


def _comes(given: Given, cluster: ClusterState) -> Flag:
    """Something comes now; or before the next end, and no batch is to be sent before."""
    coming_s = _coming_s(given, cluster)
    # Ahead of the next end nothing changes but what comes, so that the clock may go there within the trip. It may not
    # while a replica has yet to send its batch of this point in time, which what comes later would then be part of.
    ahead = (coming_s < cluster.next_s) & (cluster.ready.top < 0)
    if cluster.fleet is not None:
        ahead = ahead & (coming_s < cluster.fleet.next_s)
    comes = cluster.ending & ((coming_s <= cluster.state.clock) | ahead)
    if not given.structure.kv_reservation:
        return comes
    # Those whose prompts were sent off ask before the decode side forms its batches, hence after its first replicas.
    asks, prefill_sent = asks_now(given, cluster)
    return comes | (asks & prefill_sent)


def _come(given: Given, cluster: ClusterState) -> ClusterState:
    """It happens, and the clock goes there."""
    if given.structure.servers:
        return _come_on_routes(given, cluster)
    coming_s, between = _next_coming(given, cluster)
    clock = jnp.maximum(coming_s, cluster.state.clock)
    cluster = cluster._replace(state=cluster.state._replace(clock=clock))
    if given.structure.kv_seen:
        cluster = catch_up(given, cluster, _sees_kv(given, cluster, between))
    if given.structure.phases == 1:
        return send(given, cluster)
    # Both as loops of one trip or none: only one of them happens, and a conditional would copy what either writes.
    sends = ~between
    cluster = where(between, functools.partial(take_due, given), cluster)
    return where(sends, functools.partial(send, given), cluster)


def _come_on_routes(given: Given, cluster: ClusterState) -> ClusterState:
    """The same where requests pass stages, of which another event may come before it."""
    coming_s, between = _next_coming(given, cluster)
    stop = next_stop(cluster)
    # Of one time answers come before requests are sent, which are sent before others come to a stage or to the LLM.
    at_stop = (stop.time_s < coming_s) | ((stop.time_s == coming_s) & (stop.kind == HOME))
    clock = jnp.maximum(jnp.minimum(coming_s, stop.time_s), cluster.state.clock)
    cluster = cluster._replace(state=cluster.state._replace(clock=clock))
    between, sends = between & ~at_stop, ~between & ~at_stop
    if given.structure.kv_seen:
        seen = at_stop & (stop.kind == LLM) & sees_kv(given, jnp.int32(0))
        if given.structure.phases > 1:
            seen = seen | (between & _sees_kv(given, cluster, between))
        cluster = catch_up(given, cluster, seen)
    if given.structure.phases > 1:
        cluster = where(between, functools.partial(take_due, given), cluster)
    cluster = where(at_stop, functools.partial(take_stop, given), cluster)
    return where(sends, functools.partial(set_out, given), cluster)


def _sees_kv(given: Given, cluster: ClusterState, between: Flag) -> Flag:
    """What comes now is for a replica that is chosen by the KV of all, or asks for some; ``between`` two sides."""
    if given.structure.phases == 1:
        return sees_kv(given, jnp.int32(0))
    chooses = next_due(given, cluster).kind == (ASK if given.structure.route_at_first_token else END)
    return sees_kv(given, between.astype(jnp.int32)) & (~between | chooses)


def _complete_batches(given: Given, cluster: ClusterState) -> ClusterState:
    """The first batch that ends now: its tokens are handed out, and finished requests leave."""
    r = cluster.next_replica
    pool_given = given_at(given, r, cluster.several)
    # The decodes take the KV of the whole leap now; of the iterations that a router asked about they have it already.
    grows = pool_given.on_demand() if cluster.state.cache is None else True
    if given.structure.preempts or cluster.state.cache is not None:
        cluster = grow_to(given, cluster, r, jnp.where(grows, read(cluster.running_batches.iterations, r), 0.0))
    running_batch = cluster.running_batches.row(r)
    before, took_s = at_hand(cluster, r), running_batch.end_s - running_batch.start_s
    # Reserved KV does not change within a leap, so that its integral is a product; on demand ``grow_to`` has added it
    # up iteration by iteration. What is reserved for those who are still elsewhere is in neither (``kv_reservation``).
    counted = pool_given.on_demand() | pool_given.structure.integrates
    reserved_s = jnp.where(counted, 0.0, _of_running(before) * took_s)
    lockstep = None if cluster.together is None else own_part(given, cluster, r)
    measured = _measured(pool_given, before, running_batch)
    state = complete(pool_given, before, running_batch, took_s, reserved_s, measured, lockstep)
    router_counts = state.router_counts
    assert router_counts is not None
    tokens = (
        decoded_tokens(before, state, running_batch.iterations * running_batch.sums.decodes) + router_counts.completed
    )
    # Routers count by request what is to do; each token of work or output that has come is taken off.
    more = counts_row(
        requests=before.finished - state.finished,
        work_tokens=-running_batch.sums.prefill_tokens - tokens,
        output_tokens=-tokens,
        context_tokens=tokens - router_counts.left_context,
    )
    end_s = write(cluster.running_batches.end_s, r, jnp.inf)
    # The least of all ends is looked for here alone, in time linear in the replicas: 2,000 of them are 16 kB, which a
    # core reads in a microsecond or two. A heap would need to find and move the entry of a leap that is cut short.
    following = jnp.argmin(end_s).astype(jnp.int32)
    cluster = count_decoded(cluster, r, before, state)
    return put_back(cluster, r, state)._replace(
        counts=add_counts(cluster.counts, r, more),
        running_batches=cluster.running_batches._replace(end_s=end_s),
        next_s=read(end_s, following),
        next_replica=following,
        ready=cluster.ready.push(first_rank(given, r) if given.structure.lockstep else r, ~jnp.zeros((), bool)),
    )


def _of_running(state: State) -> Float:
    """The KV of running requests."""
    kv, reserved = state.replica.kv, state.replica.reserved
    return kv if reserved is None else kv - reserved


def _measured(given: Given, state: State, running_batch: LaunchedBatch) -> MeasuredSteps:
    since_s = read_once(state.sequences.first_token_s, given.limits.measured_from)
    # The warm-up may end at another replica while this one is within a leap: gaps of the steps after that count.
    late = running_batch.iterations - jnp.maximum(running_batch.done(since_s), 1.0)
    return MeasuredSteps(since_s, jnp.where(since_s < running_batch.end_s, late, 0.0).astype(jnp.int32))


def _launch(given: Given, cluster: ClusterState) -> ClusterState:
    """A replica where something has happened sends a batch, if there is anything to do.

    If all that ran there was preempted, it is looked at once more: that takes no time, and some may be admitted again.
    """
    r = cluster.ready.top
    pool_given = given_at(given, r, cluster.several)
    state = at_hand(cluster, r)
    # vLLM ``EngineCore.step``: ``schedule``, then ``execute_model``; what comes meanwhile waits in the input queue.
    state, batch = form_batch(pool_given, state, state.clock, ~jnp.zeros((), bool))
    if pool_given.structure.kv_reservation:
        cluster, state = reserve_between(given, cluster, r, state, batch.nonempty | ~state.batch.preempted)
    # Where the next request goes is not known yet: the leap goes as far as it can, and an arrival cuts it short.
    running_batch, _ = launch(pool_given, state, batch, lambda *_: jnp.float64(UNBOUNDED))
    if pool_given.structure.kv_reservation and kv_of(pool_given).waiting_hits_change:
        # Who waits for room may find more of its prompt with every block that is filled, and then needs less.
        most = jnp.where(expects(cluster, r), 1.0, jnp.inf)
        running_batch = running_batch._replace(iterations=jnp.minimum(running_batch.iterations, most))
    end_s = jnp.where(batch.nonempty, running_batch.end_of(running_batch.iterations), jnp.inf)
    router_counts = state.router_counts
    assert router_counts is not None
    more = counts_row(work_tokens=router_counts.again, kv_units=router_counts.waiting_units)
    # On demand the integral of the KV is taken iteration by iteration (``grow_to``), of the first one here.
    counts = pool_given.on_demand() & batch.nonempty & (not pool_given.structure.integrates)
    kv_unit_s = jnp.where(counts, _of_running(state) * running_batch.first_s, 0.0)
    cluster = put_back(cluster, r, state.in_totals(kv_unit_s=state.totals.kv_unit_s + kv_unit_s))._replace(
        counts=add_counts(cluster.counts, r, more),
        running_batches=cluster.running_batches.with_row(r, running_batch),
        ready=cluster.ready.pop(batch.nonempty | ~state.batch.preempted),
        ending=jnp.zeros((), bool),
    )
    cluster = ends_at(cluster, r, end_s)
    return ask_early(given, cluster, r) if given.structure.kv_reservation else cluster


def _launch_any(given: Given, cluster: ClusterState) -> ClusterState:
    """Where there are ranks in lockstep: they send their batches together, replicas of other pools by themselves."""
    piped = cluster.replicas.pipeline is not None
    abreast, alone = (send_together, launch_batch) if piped else (launch_together, _launch)
    if given.network is None:
        return abreast(given, cluster)
    # Both are there, each as a loop that runs once or not at all; a replica by itself leaps as its own cost says.
    together = ranks_of(given, cluster.ready.top) > 1
    cluster = where(together, functools.partial(abreast, given), cluster)
    return where(~together, functools.partial(alone, given), cluster)


def _goes_on(cluster: ClusterState) -> Flag:
    goes_on = ~cluster.state.stuck
    return goes_on if cluster.late is None else goes_on & ~cluster.late.missed


def _unfinished(given: Given, cluster: ClusterState, jobs: Int) -> Flag:
    unfinished = cluster.state.finished < jobs
    return unfinished | anybody_on_route(cluster) if given.structure.servers else unfinished


def _run(given: Given, start: ClusterState) -> LaneResult:
    # Of two phases each request is two jobs, but for those of one token, which are done with their prefill.
    jobs = given.limits.requests if given.network is None else given.network.jobs
    final = lax.while_loop(
        lambda cluster: _unfinished(given, cluster, jobs) & _goes_on(cluster),
        lambda cluster: _loop_step(given, cluster),
        start,
    )
    several, state = final.several, final.state
    # Of several pools the totals are by replica: pools are told apart outside of the loop (``simulation.joint_pools``).
    result = result_of(state if final.totals is None else state._replace(totals=final.totals))
    fleet = None if final.fleet is None else final.fleet.spans
    missed = None if final.late is None else final.late.missed
    result = result._replace(replica=final.replica[:-1], fleet=fleet, ran_short=missed)
    if final.planned is not None:
        # Behind those of the pools are those of batches under way.
        result = result._replace(itl_histogram=result.itl_histogram[: given.structure.pools * BINS])
    if several is None:
        return result
    link_s = several.sent_s if several.travel is None else several.travel.link_s
    if several.decoded is not None:
        totals = result.totals._replace(decoded=several.decoded.iterations, decoded_tokens=several.decoded.tokens)
        result = result._replace(totals=totals)
    began_s = None if several.stages is None else several.stages.began_s
    return result._replace(sent_s=several.sent_s[:-1], link_s=link_s[:-1], began_s=began_s)


@functools.partial(jax.jit, static_argnames=("structure", "vectorise"))
def run_lanes(lanes: Lane, requests: Requests, structure: Structure, vectorise: bool = False) -> LaneResult:
    """Simulate lanes of several replicas each: ``lanes`` and ``requests`` with a leading ``lane`` axis, as the result.

    ``vectorise`` as in ``over_lanes``: for accelerators.
    """

    def start(lane: PackedLane, requests: Requests) -> ClusterState:
        return initial_cluster(given_to(lane, requests, structure))

    def run(lane: PackedLane, requests: Requests, start: ClusterState) -> LaneResult:
        return _run(given_to(lane, requests, structure), start)

    return over_lanes(start, run, packed(lanes), requests, vectorise)
