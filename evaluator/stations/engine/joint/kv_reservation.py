"""Back-pressure: KV that is reserved on a decode replica, and KV that a prefill replica keeps until it is sent.

Such KV counts as in use (``ReplicaState.kv``), so that no other request gets it, though no running request holds it
(``ReplicaState.reserved``). With prefix caches it consists of blocks: on the decode replica a request holds its blocks
from the reservation on, including those of its prompt that are in the cache; on the prefill replica it holds them
until they are sent.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from evaluator.stations.engine.common.arrays import Flag, Float, Int
from evaluator.stations.engine.common.rings import NONE, read, read_once, where, write
from evaluator.stations.engine.joint.events import GRANT, entered
from evaluator.stations.engine.joint.pools import Reserved, given_at
from evaluator.stations.engine.joint.routing import add_counts, counts_row, look_at
from evaluator.stations.engine.joint.state import (
    ClusterState,
    at_hand,
    kv_unit_s,
    put_back,
    replica_at_hand,
    with_kv_unit_s,
)
from evaluator.stations.engine.preemptive.kv import kv_of, own_units
from evaluator.stations.engine.preemptive.lane import Given
from evaluator.stations.engine.preemptive.state import State

_GRANTS = 1 << 16
"""Grants of one time that are told apart. With 2 ** 18 replicas, the most whose rings fit, they fill the order of an
event."""


def reserved_of(cluster: ClusterState) -> Reserved:
    """What is reserved."""
    assert cluster.several is not None and cluster.several.reserved is not None
    return cluster.several.reserved


def expect(given: Given, cluster: ClusterState, j: Int, r: Int) -> ClusterState:
    """Job j gets room at decode replica r at once, or when other requests have left.

    With KV on demand room is given between iterations: those of a leap under way have yet to take their KV.
    """
    # The queue of those without room is a line of its own, behind which nobody overtakes: as in vLLM, where a request
    # whose KV comes from elsewhere gets its blocks when it is scheduled (``WAITING_FOR_REMOTE_KVS``).
    reserved = reserved_of(cluster)
    first, last = read(reserved.first, r), read(reserved.last, r)
    slots, empty = reserved.next.shape[0], first < 0
    links = write(write(reserved.next, jnp.where(empty, slots - 1, last), j), j, NONE)
    reserved = reserved._replace(
        first=write(reserved.first, r, jnp.where(empty, j, first)), last=write(reserved.last, r, j), next=links
    )
    cluster = _with(cluster, reserved)
    pool_given = given_at(given, r, cluster.several)
    on_demand = pool_given.rules.on_demand
    # With reserved KV what is free changes at ends of batches alone, so that room is given at once.
    if not kv_of(given).reserves_blocks:
        return reserve(given, look_at(given, cluster, r, on_demand), r, ~on_demand)
    # Blocks that a leap has filled by now can be found (``routing.sees_kv``); if there is no room yet, those that it
    # fills next may give it. Where nobody sees KV within a leap, all of it is taken on demand.
    cluster = reserve(given, cluster, r, ~on_demand) if given.structure.kv_seen else cluster
    return look_at(given, cluster, r, expects(cluster, r))


def expects(cluster: ClusterState, r: Int) -> Flag:
    """A request waits for room at replica r."""
    return read(reserved_of(cluster).first, r) >= 0


def reserve(given: Given, cluster: ClusterState, r: Int, on: Flag) -> ClusterState:
    """Reserve KV for the requests that wait for room at replica r, first come first served, while it lasts, if ``on``.

    No new request gets room while a preempted one waits for KV (``reference.kv_reservations``).
    """
    pool_given = given_at(given, r, cluster.several)
    kv = kv_of(pool_given)

    def needed(cluster: ClusterState) -> tuple[Int, Float]:
        j = jnp.maximum(read(reserved_of(cluster).first, r), 0)
        # On demand the room of the prompt and of the first step: one token, or with drafts all that it verifies.
        slots = read(pool_given.requests.prompt_tokens, j).astype(jnp.float64) + pool_given.rows(1.0)
        taken = own_units(pool_given, j, slots)
        return j, jnp.where(pool_given.rules.on_demand, taken, pool_given.kv_units(j).astype(jnp.float64))

    def turn(carry: tuple[ClusterState, Flag]) -> tuple[ClusterState, Flag]:
        cluster, _ = carry
        j, units = needed(cluster)
        looked = kv.look_up(pool_given, replica_at_hand(cluster, r), j, ~jnp.zeros((), bool))
        # The watermark is kept free on demand alone, as on any other admission (``batch._admit``).
        watermark = jnp.where(pool_given.rules.on_demand, pool_given.rules.watermark_units, 0.0)
        kept_free = watermark + kv.taken_beside(looked)
        # A request that takes nothing, because all of it is shared, waits for nothing.
        fits = (units + kept_free <= pool_given.limits.kv_units - read(cluster.replicas.kv, r)) | (units <= 0.0)
        cluster = cluster._replace(state=cluster.state._replace(cache=looked.cache))  # with what was found
        cluster = where(fits, grant, cluster)
        return cluster, fits & expects(cluster, r)

    def grant(cluster: ClusterState) -> ClusterState:
        j, units = needed(cluster)
        reserved = reserved_of(cluster)
        following = read_once(reserved.next, j)
        clock = cluster.state.clock
        # Counted anew at every point in time: a count over the whole run would wrap around within one of them.
        grants = jnp.where(clock > reserved.granted_s, 0, reserved.grants + 1)
        reserved = reserved._replace(first=write(reserved.first, r, following), grants=grants, granted_s=clock)
        if kv.reserves_blocks:
            state = kv.admit(pool_given, at_hand(cluster, r), j, units, read_once(cluster.state.sequences.computed, j))
            cluster = _with(_put_back_beside(cluster, r, state), reserved)
        else:
            cluster = keep(_with(cluster, reserved), r, units)
        several, state = cluster.several, cluster.state
        assert several is not None and several.travel is not None and state.room_since_s is not None
        travel, totals = several.travel, cluster.totals
        assert totals is not None
        # Grants of one time come due by replica, and there in the order in which they were given.
        order = r.astype(jnp.int64) * _GRANTS + jnp.minimum(reserved.grants, _GRANTS - 1)
        calendar = entered(travel.calendar, clock, GRANT, j, ~jnp.zeros((), bool), order)
        # Room counts as used from now on, also for the peak: nobody else can have it.
        most = jnp.maximum(read(totals.kv_units_max, r), read(cluster.replicas.kv, r))
        return cluster._replace(
            counts=add_counts(cluster.counts, r, counts_row(kv_units=-pool_given.kv_units(j))),
            several=several._replace(travel=travel._replace(calendar=calendar)),
            totals=totals._replace(kv_units_max=write(totals.kv_units_max, r, most)),
            state=state._replace(room_since_s=write(state.room_since_s, j, clock)),
        )

    preempted = cluster.replicas.queue.preempted
    assert preempted is not None
    begins = on & expects(cluster, r) & (read(preempted, r) == 0)
    return lax.while_loop(lambda carry: carry[1], turn, (cluster, begins))[0]


def reserve_between(given: Given, cluster: ClusterState, r: Int, state: State, on: Flag) -> tuple[ClusterState, State]:
    """``reserve`` when the replica at hand has formed a batch; if that preempted somebody, nobody new gets room."""
    # The batch is formed but not yet launched: its state is put back for ``reserve`` and taken out again, which empties
    # the batch, what a trip counts for routers and lists of requests. They are carried over by hand.
    router_counts, listed, batch = state.router_counts, state.listed, state.batch
    cluster = reserve(given, put_back(cluster, r, state), r, on & ~batch.short)
    joined = replica_at_hand(cluster, r)
    joined = joined.in_totals(kv_units_max=jnp.maximum(joined.totals.kv_units_max, joined.replica.kv))
    return cluster, joined._replace(batch=batch, router_counts=router_counts, listed=listed)


def keep(cluster: ClusterState, r: Int, units: Float) -> ClusterState:
    """So many units more, or fewer, are in use at replica r that no running request holds."""
    # A pipeline integrates all that is in use over time; without one, batches integrate what running requests hold, and
    # what nobody runs on is added when it is given back or moved into (``sent_away``, ``batch._move_in``).
    cluster = _integrated(cluster, r)
    replicas = cluster.replicas
    kv, reserved = replicas.kv, replicas.reserved
    assert reserved is not None
    kv, reserved = (write(column, r, read(column, r) + units) for column in (kv, reserved))
    return cluster._replace(replicas=replicas._replace(kv=kv, reserved=reserved))


def sent_away(given: Given, cluster: ClusterState, i: Int, r: Int) -> ClusterState:
    """The KV of job i, which is done at prefill replica r, has been sent."""
    pool_given = given_at(given, r, cluster.several)
    units, kv = pool_given.kv_units(i).astype(jnp.float64), kv_of(pool_given)
    if kv.reserves_blocks:
        state = at_hand(cluster, r)
        state = kv.release(pool_given, state, i, kv.held(pool_given, state, i), True)
        return look_at(given, _put_back_beside(cluster, r, state), r, jnp.zeros((), bool))
    # vLLM frees such blocks when the worker reports that they were sent (``KVConnectorOutput.finished_sending``).
    cluster = keep(cluster, r, -units)
    if cluster.replicas.pipeline is None:
        held_s = cluster.state.clock - read_once(cluster.state.sequences.last_token_s, i)
        cluster = _held_longer(cluster, r, units * held_s)
    return look_at(given, cluster, r, jnp.zeros((), bool))  # room for others, which a running batch has no use for


def _with(cluster: ClusterState, reserved: Reserved) -> ClusterState:
    assert cluster.several is not None
    return cluster._replace(several=cluster.several._replace(reserved=reserved))


def _put_back_beside(cluster: ClusterState, r: Int, state: State) -> ClusterState:
    """The cluster after the KV of replica r has changed beside its batches: what a trip lists is kept."""
    return put_back(cluster, r, state._replace(listed=cluster.state.listed))


def _integrated(cluster: ClusterState, r: Int) -> ClusterState:
    """Of a pipeline: the integral of the KV in use up to now, before it changes."""
    replicas, clock = cluster.replicas, cluster.state.clock
    counted_s = replicas.counted_s
    if counted_s is None:
        return cluster
    cluster = _held_longer(cluster, r, read(replicas.kv, r) * (clock - read(counted_s, r)))
    return cluster._replace(replicas=replicas._replace(counted_s=write(counted_s, r, clock)))


def _held_longer(cluster: ClusterState, r: Int, unit_s: Float) -> ClusterState:
    """With so much more in the integral of the KV in use."""
    return with_kv_unit_s(cluster, r, kv_unit_s(cluster, r) + unit_s)
