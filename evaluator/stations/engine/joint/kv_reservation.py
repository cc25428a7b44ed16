"""Back-pressure: KV that is reserved on a decode replica, and KV that a prefill replica keeps until it is sent.

It is in use (``Rows.kv``), and so never given to others, but no running request holds it (``Reserved.kept``).
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from evaluator.stations.engine.common.arrays import Flag, Float, Int
from evaluator.stations.engine.common.rings import NONE, read, read_once, write
from evaluator.stations.engine.joint.events import GRANT, entered
from evaluator.stations.engine.joint.lane import GivenPool
from evaluator.stations.engine.joint.pools import Reserved, given_at
from evaluator.stations.engine.joint.routing import add_counts, counts_row, cut_short, has_room
from evaluator.stations.engine.joint.state import Fleet, put_back, replica_at_hand
from evaluator.stations.engine.preemptive.preemption import own_units
from evaluator.stations.engine.preemptive.state import State

_GRANTS = 1 << 20
"""Grants that are told apart; more of them at one time at one replica would be out of order."""


def reserved_of(fleet: Fleet) -> Reserved:
    """What is reserved."""
    assert fleet.several is not None and fleet.several.reserved is not None
    return fleet.several.reserved


def expect(pool: GivenPool, fleet: Fleet, j: Int, r: Int) -> Fleet:
    """Job j will come to decode replica r when there is room: at once, or when others leave.

    With KV on demand, iterations under way have yet to take theirs, and room is given between them.
    """
    reserved = reserved_of(fleet)
    first, last = read(reserved.first, r), read(reserved.last, r)
    slots, empty = reserved.next.shape[0], first < 0
    links = write(write(reserved.next, jnp.where(empty, slots - 1, last), j), j, NONE)
    reserved = reserved._replace(
        first=write(reserved.first, r, jnp.where(empty, j, first)), last=write(reserved.last, r, j), next=links
    )
    fleet = _with(fleet, reserved)
    given = given_at(pool, r, fleet.several)
    on_demand, room = given.rules.on_demand, has_room(given, fleet, r)
    if fleet.pipelines is None:
        fleet = cut_short(fleet, r, on_demand & ~room)
    fleet = reserve(pool, fleet, r, ~on_demand)
    return fleet._replace(touched=fleet.touched.push(r, room))


def reserve(pool: GivenPool, fleet: Fleet, r: Int, on: Flag) -> Fleet:
    """Give KV to those who wait for room at replica r, first come first served, as far as it goes, if ``on``.

    While a preempted request waits for KV nobody new gets room (``reference.queues.Queues.reserve``).
    """
    given = given_at(pool, r, fleet.several)

    def needed(fleet: Fleet) -> tuple[Int, Float]:
        j = jnp.maximum(read(reserved_of(fleet).first, r), 0)
        prompt = read(given.requests.prompt_tokens, j) + 1
        taken = own_units(given, j, prompt.astype(jnp.float64))
        return j, jnp.where(given.rules.on_demand, taken, given.kv_units(j).astype(jnp.float64))

    def goes_on(fleet: Fleet) -> Flag:
        reserved, units = reserved_of(fleet), needed(fleet)[1]
        kept = jnp.where(given.rules.on_demand, given.rules.watermark_units, 0.0)
        fits = (units + kept <= given.limits.kv_units - read(fleet.rows.kv, r)) | (units <= 0.0)
        return on & fits & (read(reserved.first, r) >= 0) & (read(reserved.lost_kv, r) < 0)

    def grant(fleet: Fleet) -> Fleet:
        j, units = needed(fleet)
        reserved = reserved_of(fleet)
        following = read_once(reserved.next, j)
        reserved = reserved._replace(first=write(reserved.first, r, following), grants=reserved.grants + 1)
        fleet = keep(_with(fleet, reserved), r, units)
        several, state, clock = fleet.several, fleet.state, fleet.state.clock
        assert several is not None and several.travel is not None and state.kv_reservation is not None
        travel, totals = several.travel, several.totals
        order = r * _GRANTS + reserved.grants % _GRANTS
        calendar = entered(travel.calendar, clock, GRANT, j, ~jnp.zeros((), bool), order)
        most = jnp.maximum(read(totals.kv_max, r), read(fleet.rows.kv, r))
        several = several._replace(
            travel=travel._replace(calendar=calendar), totals=totals._replace(kv_max=write(totals.kv_max, r, most))
        )
        kv_reservation = state.kv_reservation._replace(since_s=write(state.kv_reservation.since_s, j, clock))
        return fleet._replace(
            counts=add_counts(fleet.counts, r, counts_row(kv_units=-given.kv_units(j))),
            several=several,
            state=state._replace(kv_reservation=kv_reservation),
        )

    return lax.while_loop(goes_on, grant, fleet)


def reserve_between(pool: GivenPool, fleet: Fleet, r: Int, state: State, on: Flag) -> tuple[Fleet, State]:
    """``reserve`` when the replica at hand has formed a batch; if that preempted somebody, nobody new gets room."""
    router_counts, listed, short = state.router_counts, state.listed, state.batch.short
    fleet = reserve(pool, put_back(fleet, r, state), r, on & ~short)
    joined = replica_at_hand(fleet, r)
    return fleet, joined._replace(
        router_counts=router_counts, listed=listed, kv_max=jnp.maximum(joined.kv_max, joined.kv)
    )


def keep(fleet: Fleet, r: Int, units: Float) -> Fleet:
    """So many units more, or fewer, are in use at replica r that no running request holds."""
    fleet = _integrated(fleet, r)
    reserved, rows = reserved_of(fleet), fleet.rows
    reserved = reserved._replace(kept=write(reserved.kept, r, read(reserved.kept, r) + units))
    return _with(fleet, reserved)._replace(rows=rows._replace(kv=write(rows.kv, r, read(rows.kv, r) + units)))


def sent_away(pool: GivenPool, fleet: Fleet, i: Int, r: Int) -> Fleet:
    """The KV of job i, which is done at prefill replica r, has been sent."""
    given = given_at(pool, r, fleet.several)
    units = given.kv_units(i).astype(jnp.float64)
    fleet = keep(fleet, r, -units)
    if fleet.pipelines is None:
        several = fleet.several
        assert several is not None
        held_s = fleet.state.clock - read_once(fleet.state.sequences.last_token_s, i)
        kv_unit_s = several.totals.kv_unit_s
        kv_unit_s = write(kv_unit_s, r, read(kv_unit_s, r) + units * held_s)
        fleet = fleet._replace(several=several._replace(totals=several.totals._replace(kv_unit_s=kv_unit_s)))
    return fleet._replace(touched=fleet.touched.push(r, has_room(given, fleet, r)))


def _with(fleet: Fleet, reserved: Reserved) -> Fleet:
    assert fleet.several is not None
    return fleet._replace(several=fleet.several._replace(reserved=reserved))


def _integrated(fleet: Fleet, r: Int) -> Fleet:
    """Of a pipeline: the integral of the KV in use up to now, before it changes."""
    pipelines, several = fleet.pipelines, fleet.several
    if pipelines is None or several is None:
        return fleet
    held_s = fleet.state.clock - read(pipelines.counted_s, r)
    kv_unit_s = several.totals.kv_unit_s
    kv_unit_s = write(kv_unit_s, r, read(kv_unit_s, r) + read(fleet.rows.kv, r) * held_s)
    return fleet._replace(
        pipelines=pipelines._replace(counted_s=write(pipelines.counted_s, r, fleet.state.clock)),
        several=several._replace(totals=several.totals._replace(kv_unit_s=kv_unit_s)),
    )
