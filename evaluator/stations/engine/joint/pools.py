"""What the loop carries where the replicas are those of several pools, and whose figures count at a replica."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from evaluator.stations.engine.common.arrays import (
    Array,
    FloatPerReplica,
    FloatPerRequest,
    Int,
    IntPerReplica,
    IntPerRequest,
)
from evaluator.stations.engine.common.calendar import Calendar
from evaluator.stations.engine.common.leap import no_peaks
from evaluator.stations.engine.common.rings import NONE, read, write
from evaluator.stations.engine.joint.lane import GivenPool, Network, ReplicaTotalRows
from evaluator.stations.engine.preemptive.lane import Given
from evaluator.stations.engine.preemptive.state import QueueList, State


class Travel(NamedTuple):
    """Of two sides: what is on its way from the first to the second."""

    calendar: Calendar
    free_s: FloatPerReplica  # when the link of a prefill replica is free
    link_s: FloatPerRequest  # when the transfer of a job began
    sender: IntPerRequest  # the prefill replica of a job


class Reserved(NamedTuple):
    """Under back-pressure, by replica: the numbers of ``State.kv_reservation``, and who waits for room there, in a
    line."""

    kept: FloatPerReplica
    lost_kv: IntPerReplica  # see ``state.QueueList``
    first: IntPerReplica  # job without room that has come first, or NONE
    last: IntPerReplica
    next: IntPerRequest
    room_s: FloatPerRequest  # since when there is room for a job
    grants: Int  # given so far


class PoolStates(NamedTuple):
    """Beside what replicas of one pool have."""

    totals: ReplicaTotalRows
    sent_s: FloatPerRequest  # when a job came to its side
    first_measured: IntPerReplica  # the first measured job that came to a replica; the padding slot before
    taken: Array  # int32 (kind * group,): choices taken from the tables of a router
    travel: Travel | None  # None: one side
    reserved: Reserved | None  # None: no back-pressure


def nothing_yet(given: Given, network: Network | None) -> PoolStates | None:
    """Before the first request; None for one pool."""
    if network is None:
        return None
    replicas, slots = given.structure.replicas, given.requests.arrival_s.shape[0]
    zeros, ints, none = jnp.zeros(replicas), jnp.zeros(replicas, jnp.int32), jnp.full(replicas, NONE, jnp.int32)
    never, links = jnp.full(slots, jnp.inf), jnp.full(slots, NONE, jnp.int32)
    peaks = jnp.zeros((replicas, *no_peaks(given.pipeline_ranks[0]).shape))
    kinds, groups, _ = network.turns.shape
    phases = given.structure.phases > 1
    return PoolStates(
        totals=ReplicaTotalRows(zeros, zeros, zeros, zeros, ints, zeros, peaks),
        sent_s=never,
        first_measured=jnp.full(replicas, slots - 1, jnp.int32),
        taken=jnp.zeros(kinds * groups, jnp.int32),
        travel=Travel(Calendar.empty(slots), zeros - jnp.inf, never, links) if phases else None,
        reserved=Reserved(zeros, none, none, none, links, never, jnp.int32(0))
        if given.structure.kv_reservation
        else None,
    )


def given_at(pool: GivenPool, r: Int, several: PoolStates | None) -> Given:
    """What is given to replica r: of several pools the figures of its own."""
    if pool.network is None or several is None:
        return pool.given
    given, number = pool.given, read(pool.network.pool, r)
    limits = given.limits
    ranks, own, rules = jax.tree.map(
        lambda values: lax.dynamic_index_in_dim(values, number, keepdims=False),
        (given.pipeline_ranks, limits._replace(users=None, requests=None, measured_from=None), given.rules),
    )
    measured_from = read(several.first_measured, r)
    own = own._replace(users=limits.users, requests=limits.requests, measured_from=measured_from)
    return given._replace(pipeline_ranks=ranks, limits=own, rules=rules, pool=number)


def totals_at_hand(state: State, several: PoolStates | None, r: Int) -> State:
    """The state with the totals of replica r, nobody listed, and what is reserved there."""
    if several is None:
        return state
    state = state._replace(**{name: _cell(column, r) for name, column in several.totals._asdict().items()})
    if state.listed is not None:
        state = state._replace(listed=state.listed._replace(first=jnp.int32(NONE)))
    if several.reserved is not None and state.kv_reservation is not None and isinstance(state.waiting, QueueList):
        waiting = state.waiting._replace(lost_kv=read(several.reserved.lost_kv, r))
        kv_reservation = state.kv_reservation._replace(kept=read(several.reserved.kept, r))
        state = state._replace(waiting=waiting, kv_reservation=kv_reservation)
    return state


def totals_put_back(several: PoolStates | None, r: Int, state: State) -> PoolStates | None:
    """The same the other way round."""
    if several is None:
        return None
    mine = (getattr(state, name) for name in ReplicaTotalRows._fields)
    totals = ReplicaTotalRows(
        *(_write_cell(column, r, value) for column, value in zip(several.totals, mine, strict=True))
    )
    reserved = several.reserved
    if reserved is not None and state.kv_reservation is not None and isinstance(state.waiting, QueueList):
        lost_kv = write(reserved.lost_kv, r, state.waiting.lost_kv)
        reserved = reserved._replace(kept=write(reserved.kept, r, state.kv_reservation.kept), lost_kv=lost_kv)
    return several._replace(totals=totals, reserved=reserved)


def _cell(column: Array, r: Int) -> Array:
    return lax.dynamic_index_in_dim(column, r, keepdims=False)


def _write_cell(column: Array, r: Int, value: Array) -> Array:
    return lax.dynamic_update_index_in_dim(column, jnp.asarray(value, column.dtype), r, 0)
