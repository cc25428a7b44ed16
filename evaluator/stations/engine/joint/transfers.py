"""The way from a prefill to a decode side, as ``reference.stations.transfers`` has it; see ``events``."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from evaluator.stations.engine.common.arrays import Flag, Float, Int
from evaluator.stations.engine.common.rings import read, read_once, write
from evaluator.stations.engine.joint.events import ASK, AT_ONCE, BEGIN, END, GRANT, Event, entered, first, popped
from evaluator.stations.engine.joint.kv_reservation import expect, keep, sent_away
from evaluator.stations.engine.joint.lane import GivenPool, Network
from evaluator.stations.engine.joint.pools import Travel, given_at
from evaluator.stations.engine.joint.routing import announce, choice, come_to
from evaluator.stations.engine.joint.state import Fleet, where
from evaluator.stations.engine.preemptive.state import QueueList
from evaluator.stations.engine.preemptive.waiting import deliver, seen_s


def travel_of(fleet: Fleet) -> Travel:
    """What is on its way."""
    assert fleet.several is not None and fleet.several.travel is not None
    return fleet.several.travel


def _with(fleet: Fleet, travel: Travel) -> Fleet:
    several = fleet.several
    assert several is not None
    return fleet._replace(several=several._replace(travel=travel))


def _entered(fleet: Fleet, time_s: Float, kind: int, j: Int, on: Flag) -> Fleet:
    travel = travel_of(fleet)
    return _with(fleet, travel._replace(calendar=entered(travel.calendar, time_s, kind, j, on)))


def next_due(pool: GivenPool, fleet: Fleet) -> Event:
    """What comes next on the way between the sides; of grants, once no batch is to be sent."""
    event = first(travel_of(fleet).calendar)
    if not pool.given.structure.kv_reservation:
        return event
    waits = (event.kind == GRANT) & (fleet.touched.top >= 0)
    return event._replace(time_s=jnp.where(waits, jnp.inf, event.time_s))


def asks_now(pool: GivenPool, fleet: Fleet) -> tuple[Flag, Flag]:
    """Back-pressure: (somebody asks for room, the prefill side has sent its batches).

    Layer by layer these have to do with one another: who is in a batch asks before the decode side sends its own.
    """
    network = network_of(pool)
    event, top = first(travel_of(fleet).calendar), fleet.touched.top
    launched_batches = (top < 0) | (read(network.phase, jnp.maximum(top, 0)) > 0)
    return (event.kind == ASK) & (event.time_s < jnp.inf), launched_batches


def network_of(pool: GivenPool) -> Network:
    """The pools."""
    assert pool.network is not None
    return pool.network


def take_due(pool: GivenPool, fleet: Fleet) -> Fleet:
    """What comes next happens now."""
    travel, structure = travel_of(fleet), pool.given.structure
    calendar, event = popped(travel.calendar)
    fleet = _with(fleet, travel._replace(calendar=calendar))
    if structure.route_at_first_token:
        fleet = where(event.kind == ASK, lambda fleet: _ask(pool, fleet, event.job), fleet)
    begins = event.kind == BEGIN
    if structure.kv_reservation:
        computed = read_once(fleet.state.sequences.last_token_s, read(network_of(pool).before, event.job)) < jnp.inf
        begins = begins | ((event.kind == GRANT) & computed)
        fleet = _granted(fleet, event)
    fleet = where(begins, lambda fleet: _begin(pool, fleet, event), fleet)
    return where(event.kind == END, lambda fleet: _end(pool, fleet, event.job), fleet)


def _ask(pool: GivenPool, fleet: Fleet, j: Int) -> Fleet:
    """The decode replica is chosen; under back-pressure the job begins when there is room, else as soon as it may."""
    fleet, r = choice(pool, fleet, j)
    fleet = announce(pool, fleet, j, r)
    if pool.given.structure.kv_reservation:
        return expect(pool, fleet, j, r)
    return _entered(fleet, _may_begin(pool, fleet, j), BEGIN, j, ~jnp.zeros((), bool))


def _granted(fleet: Fleet, event: Event) -> Fleet:
    several = fleet.several
    assert several is not None and several.reserved is not None
    room_s, on = several.reserved.room_s, event.kind == GRANT
    at = jnp.where(on, event.job, room_s.shape[0] - 1)
    reserved = several.reserved._replace(room_s=write(room_s, at, event.time_s))
    return fleet._replace(several=several._replace(reserved=reserved))


def _way(pool: GivenPool, fleet: Fleet, j: Int) -> Int:
    """The row of the links' figures for a job."""
    network, structure = network_of(pool), pool.given.structure
    source = read(network.pool, read_once(travel_of(fleet).sender, j))
    target = read(network.pool, read_once(fleet.replica, j)) if structure.route_at_first_token else structure.pools - 1
    return read(network.links.row, source * structure.pools + target)


def _service_s(pool: GivenPool, row: Int, j: Int) -> Float:
    slots = pool.given.requests.arrival_s.shape[0]
    return read(network_of(pool).links.service_s, row * slots + j)


def _may_begin(pool: GivenPool, fleet: Fleet, j: Int) -> Float:
    """From when on a computed prompt can be sent without a pause."""
    links, i, row = network_of(pool).links, read(network_of(pool).before, j), _way(pool, fleet, j)
    sequences = fleet.state.sequences
    first_s = read_once(sequences.first_token_s, i)
    computed_s = first_s - read_once(sequences.scheduled_s, i)
    return first_s - read(links.ahead, row) * jnp.minimum(_service_s(pool, row, j), computed_s)


def _begin(pool: GivenPool, fleet: Fleet, event: Event) -> Fleet:
    """The transfer begins as soon as it may and the link of its prefill replica is free."""
    links, j = network_of(pool).links, event.job
    travel, row = travel_of(fleet), _way(pool, fleet, j)
    sender, service_s = read_once(travel.sender, j), _service_s(pool, row, j)
    free_s = jnp.where(links.one_by_one, read(travel.free_s, sender), -jnp.inf)
    start_s = jnp.maximum(event.time_s, free_s)
    end_s = start_s + service_s
    calendar = entered(travel.calendar, end_s + links.latency_s, END, j, ~jnp.zeros((), bool))
    link_s, free = write(travel.link_s, j, start_s), write(travel.free_s, sender, end_s)
    return _with(fleet, travel._replace(calendar=calendar, free_s=free, link_s=link_s))


def _end(pool: GivenPool, fleet: Fleet, j: Int) -> Fleet:
    """The KV is there: the job comes to its decode replica, and the prefill replica may forget it."""
    structure, i = pool.given.structure, read(network_of(pool).before, j)
    if structure.kv_reservation:
        fleet = sent_away(pool, fleet, i, read_once(travel_of(fleet).sender, j))
    if structure.route_at_first_token:
        return come_to(pool, fleet, j, read_once(fleet.replica, j))
    fleet, r = choice(pool, fleet, j)
    return come_to(pool, announce(pool, fleet, j, r), j, r)


# --- behind an engine


def hand_on(pool: GivenPool, fleet: Fleet, r: Int) -> Fleet:
    """Those who are done at replica r go on to the decode side, or the answer to their user."""
    given = given_at(pool, r, fleet.several)

    def go_on(fleet: Fleet) -> Fleet:
        fleet, i = _next_listed(fleet)
        j = read(network_of(pool).after, i)
        on = j >= 0
        if given.structure.kv_reservation:
            units = given.kv_units(i).astype(jnp.float64)
            fleet = keep(fleet, r, jnp.where(on, units, 0.0))
        fleet = _computed(pool, _from(fleet, jnp.maximum(j, 0), r, on), jnp.maximum(j, 0), on)
        return _answer(pool, fleet, i, ~on)

    return lax.while_loop(lambda fleet: _listed(fleet) >= 0, go_on, fleet)


def _from(fleet: Fleet, j: Int, r: Int, on: Flag) -> Fleet:
    """Job j comes from prefill replica r, if ``on``."""
    travel = travel_of(fleet)
    slots = travel.sender.shape[0]
    return _with(fleet, travel._replace(sender=write(travel.sender, jnp.where(on, j, slots - 1), r)))


def ask_early(pool: GivenPool, fleet: Fleet, r: Int) -> Fleet:
    """Those whose first chunk was sent off at replica r ask for room, if the link sends layer by layer."""

    def ask(fleet: Fleet) -> Fleet:
        fleet, i = _next_listed(fleet)
        j = read(network_of(pool).after, i)
        fleet = _from(fleet, jnp.maximum(j, 0), r, j >= 0)
        return _entered(fleet, jnp.float64(AT_ONCE), ASK, jnp.maximum(j, 0), j >= 0)

    asks = network_of(pool).links.asks_early
    return lax.while_loop(lambda fleet: asks & (_listed(fleet) >= 0), ask, fleet)


def _listed(fleet: Fleet) -> Int:
    assert fleet.state.listed is not None
    return fleet.state.listed.first


def _next_listed(fleet: Fleet) -> tuple[Fleet, Int]:
    listed = fleet.state.listed
    assert listed is not None
    i = listed.first
    listed = listed._replace(first=read_once(listed.next, i))
    return fleet._replace(state=fleet.state._replace(listed=listed)), i


def _computed(pool: GivenPool, fleet: Fleet, j: Int, on: Flag) -> Fleet:
    """A prompt is computed, if ``on``: its KV is to be sent."""
    structure = pool.given.structure
    at_once = jnp.float64(AT_ONCE)
    if not structure.route_at_first_token:
        return _entered(fleet, _may_begin(pool, fleet, j), BEGIN, j, on)
    if not structure.kv_reservation:
        return _entered(fleet, at_once, ASK, j, on)
    several = fleet.several
    assert several is not None and several.reserved is not None
    asked, room_s = network_of(pool).links.asks_early, read_once(several.reserved.room_s, j)
    fleet = _entered(fleet, at_once, ASK, j, on & ~asked)
    may_s = jnp.maximum(_may_begin(pool, fleet, j), room_s)
    return _entered(fleet, may_s, BEGIN, j, on & asked & (room_s < jnp.inf))


def _answer(pool: GivenPool, fleet: Fleet, i: Int, on: Flag) -> Fleet:
    """Of a closed loop: a user has the answer and may send the next request, if ``on``.

    The frontend is that of the pool to which the request went first.
    """
    state, requests, network = fleet.state, pool.given.requests, network_of(pool)
    waiting = state.waiting
    assert isinstance(waiting, QueueList)
    if not pool.given.structure.frontend:
        return fleet._replace(state=state._replace(waiting=waiting._replace(released=waiting.released + on)))
    before = read(network.before, i)
    first = jnp.where(before >= 0, before, i)
    output = read(requests.output_tokens, i) + jnp.where(before >= 0, read(requests.output_tokens, first), 0)
    rules = given_at(pool, read_once(fleet.replica, first), fleet.several).rules
    first_s, end_s = (
        read_once(state.sequences.first_token_s, first),
        read_once(state.sequences.last_token_s, i),
    )
    waiting = deliver(waiting, seen_s(rules, first_s, end_s, output), on)
    return fleet._replace(state=state._replace(waiting=waiting))
