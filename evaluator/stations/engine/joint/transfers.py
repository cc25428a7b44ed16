"""Transfers of KV from the prefill to the decode side, as ``reference.stations.transfers`` has them; see ``events``."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jax import lax

from evaluator.stations.engine.common.arrays import Flag, Float, Int
from evaluator.stations.engine.common.rings import read, read_once, where, write
from evaluator.stations.engine.joint.events import ASK, AT_ONCE, BEGIN, END, GRANT, Event, entered, first, popped
from evaluator.stations.engine.joint.kv_reservation import expect, keep, sent_away
from evaluator.stations.engine.joint.pools import Travel, given_at
from evaluator.stations.engine.joint.routing import announce, choice, come_to
from evaluator.stations.engine.joint.state import ClusterState
from evaluator.stations.engine.preemptive.kv import kv_of
from evaluator.stations.engine.preemptive.lane import Given, Network
from evaluator.stations.engine.preemptive.waiting import answered, delivery_s, seen_s

Leave = Callable[[Given, ClusterState, Int, Flag], ClusterState]
"""What becomes of a job that has its last token, if the flag is set."""


def travel_of(cluster: ClusterState) -> Travel:
    """The transfers: asked for, waiting for their link, or under way."""
    assert cluster.several is not None and cluster.several.travel is not None
    return cluster.several.travel


def _with(cluster: ClusterState, travel: Travel) -> ClusterState:
    several = cluster.several
    assert several is not None
    return cluster._replace(several=several._replace(travel=travel))


def _entered(cluster: ClusterState, time_s: Float, kind: int, j: Int, on: Flag) -> ClusterState:
    travel = travel_of(cluster)
    return _with(cluster, travel._replace(calendar=entered(travel.calendar, time_s, kind, j, on)))


def next_due(given: Given, cluster: ClusterState) -> Event:
    """The next event of the transfers; a grant only once no replica has a batch to send."""
    event = first(travel_of(cluster).calendar)
    if not given.structure.kv_reservation:
        return event
    # Grants are last at their time (``events``), so that one on top of the calendar hides nothing that is due now.
    waits = (event.kind == GRANT) & (cluster.ready.top >= 0)
    return event._replace(time_s=jnp.where(waits, jnp.inf, event.time_s))


def asks_now(given: Given, cluster: ClusterState) -> tuple[Flag, Flag]:
    """Under back-pressure: (the next event is a request that asks for room, the prefill side has sent its batches).

    Links that send layer by layer need both: the requests of a prefill batch ask for room when that batch is launched,
    which must come before the decode side launches its own batches of the same time.
    """
    network = network_of(given)
    event, top = first(travel_of(cluster).calendar), cluster.ready.top
    prefill_sent = (top < 0) | (read(network.phase, jnp.maximum(top, 0)) > 0)
    return (event.kind == ASK) & (event.time_s < jnp.inf), prefill_sent


def network_of(given: Given) -> Network:
    """The pools."""
    assert given.network is not None
    return given.network


def take_due(given: Given, cluster: ClusterState) -> ClusterState:
    """Take the next event from the calendar, and do what it says."""
    travel, structure = travel_of(cluster), given.structure
    calendar, event = popped(travel.calendar)
    cluster = _with(cluster, travel._replace(calendar=calendar))
    if structure.route_at_first_token:
        cluster = where(event.kind == ASK, lambda cluster: _ask(given, cluster, event.job), cluster)
    # Each kind of event writes other arrays. What this one does not do is a loop without a trip (``rings.where``).
    begins = event.kind == BEGIN
    if structure.kv_reservation:
        computed = read_once(cluster.state.sequences.last_token_s, read(network_of(given).before, event.job)) < jnp.inf
        # Room may come before the prompt is computed: then the transfer begins when it is (``_computed``).
        begins = begins | ((event.kind == GRANT) & computed)
        cluster = _granted(cluster, event)
    cluster = where(begins, lambda cluster: _begin(given, cluster, event), cluster)
    return where(event.kind == END, lambda cluster: _end(given, cluster, event.job), cluster)


def _ask(given: Given, cluster: ClusterState, j: Int) -> ClusterState:
    """Choose the decode replica. Under back-pressure the transfer waits for room there, else it begins when it may."""
    # The job counts at its decode replica from now on. Else all prompts that end together would go to the same one.
    cluster, r = choice(given, cluster, j)
    cluster = announce(given, cluster, j, r)
    if given.structure.kv_reservation:
        return expect(given, cluster, j, r)
    return _entered(cluster, _may_begin(given, cluster, j), BEGIN, j, ~jnp.zeros((), bool))


def _granted(cluster: ClusterState, event: Event) -> ClusterState:
    # The time is stored whether or not the prompt is computed by now: if it is not, ``_computed`` reads it later.
    several = cluster.several
    assert several is not None and several.reserved is not None
    room_s, on = several.reserved.room_s, event.kind == GRANT
    job = jnp.where(on, event.job, room_s.shape[0] - 1)
    reserved = several.reserved._replace(room_s=write(room_s, job, event.time_s))
    return cluster._replace(several=several._replace(reserved=reserved))


def _way(given: Given, cluster: ClusterState, j: Int) -> Int:
    """The row of the links' figures for a job."""
    network, structure = network_of(given), given.structure
    # If the decode replica is chosen after the transfer there is one decode pool, the last, so that its row is known.
    source = read(network.pool, read_once(travel_of(cluster).sender, j))
    target = (
        read(network.pool, read_once(cluster.replica, j)) if structure.route_at_first_token else structure.pools - 1
    )
    return read(network.links.row, source * structure.pools + target)


def _service_s(given: Given, cluster: ClusterState, row: Int, j: Int) -> Float:
    slots, links = given.requests.arrival_s.shape[0], network_of(given).links
    whole_s = read(links.service_s, row * slots + j)
    cache = cluster.state.cache
    if cache is None or not given.structure.kv_reservation:
        return whole_s
    # What the decode replica found in its cache with the reservation is not sent: KV that is found by its content is
    # so many bytes a token, as neither windows nor states are.
    hit = read_once(cache.hit_tokens, j)
    missing = (read(given.requests.prompt_tokens, j) - hit).astype(jnp.float64)
    missing_s = read(links.token_bytes, row) * missing / links.bandwidth
    return jnp.where(hit > 0, jnp.minimum(missing_s, whole_s), whole_s)


def _may_begin(given: Given, cluster: ClusterState, j: Int) -> Float:
    """The earliest time at which the transfer of a computed prompt may begin and then run without a pause."""
    # Layer by layer (vLLM ``save_kv_layer``) all but the last layer's share may be sent while the prompt is computed,
    # no faster than it is: the transfer may begin that much before the first token, at the earliest with the prompt.
    links, i, row = network_of(given).links, read(network_of(given).before, j), _way(given, cluster, j)
    sequences = cluster.state.sequences
    first_s = read_once(sequences.first_token_s, i)
    computed_s = first_s - read_once(sequences.scheduled_s, i)
    return first_s - read(links.ahead, row) * jnp.minimum(_service_s(given, cluster, row, j), computed_s)


def _begin(given: Given, cluster: ClusterState, event: Event) -> ClusterState:
    """The transfer begins as soon as it may and the link of its prefill replica is free."""
    links, j = network_of(given).links, event.job
    travel, row = travel_of(cluster), _way(given, cluster, j)
    sender, service_s = read_once(travel.sender, j), _service_s(given, cluster, row, j)
    # ``shared: none``: every transfer has the link to itself, as if it had always been free.
    free_s = jnp.where(links.one_by_one, read(travel.free_s, sender), -jnp.inf)
    start_s = jnp.maximum(event.time_s, free_s)
    end_s = start_s + service_s
    calendar = entered(travel.calendar, end_s + links.latency_s, END, j, ~jnp.zeros((), bool))
    link_s, free = write(travel.link_s, j, start_s), write(travel.free_s, sender, end_s)
    return _with(cluster, travel._replace(calendar=calendar, free_s=free, link_s=link_s))


def _end(given: Given, cluster: ClusterState, j: Int) -> ClusterState:
    """The KV has come: the job enters its decode replica, and the prefill replica frees its KV."""
    # The latency is behind the link's service: the next transfer may begin while this one's last bytes travel.
    structure, i = given.structure, read(network_of(given).before, j)
    # In this order, as in the reference: the prefill replica has its KV back before the job comes anywhere else.
    if structure.kv_reservation:
        cluster = sent_away(given, cluster, i, read_once(travel_of(cluster).sender, j))
    if structure.route_at_first_token:
        return come_to(given, cluster, j, read_once(cluster.replica, j))
    cluster, r = choice(given, cluster, j)
    return come_to(given, announce(given, cluster, j, r), j, r)


# --- behind an engine


def hand_on(given: Given, cluster: ClusterState, r: Int, leave: Leave) -> ClusterState:
    """Requests that replica r has completed go on to the decode side; if there is none for them, they ``leave``."""
    pool_given = given_at(given, r, cluster.several)

    def go_on(cluster: ClusterState) -> ClusterState:
        # In any order: the calendar orders the transfers, and of answers only the number matters.
        cluster, i = next_listed(cluster)
        j = read(network_of(given).after, i)
        on = j >= 0
        # Under back-pressure the prefill replica keeps the KV until it is sent, though no running request holds it.
        if pool_given.structure.kv_reservation and not kv_of(pool_given).reserves_blocks:
            units = pool_given.kv_units(i).astype(jnp.float64)
            cluster = keep(cluster, r, jnp.where(on, units, 0.0))
        # Masked where the request has no second phase (an output of one token), with any job in its place.
        cluster = _computed(given, _from(cluster, jnp.maximum(j, 0), r, on), jnp.maximum(j, 0), on)
        return leave(given, cluster, i, ~on)

    return lax.while_loop(lambda cluster: listed(cluster) >= 0, go_on, cluster)


def _from(cluster: ClusterState, j: Int, r: Int, on: Flag) -> ClusterState:
    """Job j comes from prefill replica r, if ``on``."""
    travel = travel_of(cluster)
    slots = travel.sender.shape[0]  # masked writes go to the slot behind the jobs (``common.rings``)
    return _with(cluster, travel._replace(sender=write(travel.sender, jnp.where(on, j, slots - 1), r)))


def ask_early(given: Given, cluster: ClusterState, r: Int) -> ClusterState:
    """Requests whose first chunk replica r has just launched ask for room, if the link sends layer by layer."""

    def ask(cluster: ClusterState) -> ClusterState:
        cluster, i = next_listed(cluster)
        j = read(network_of(given).after, i)
        cluster = _from(cluster, jnp.maximum(j, 0), r, j >= 0)
        return _entered(cluster, jnp.float64(AT_ONCE), ASK, jnp.maximum(j, 0), j >= 0)

    # Else the list is left as it is: the next replica at hand begins with an empty one (``replica_at_hand``).
    asks = network_of(given).links.asks_early
    return lax.while_loop(lambda cluster: asks & (listed(cluster) >= 0), ask, cluster)


def listed(cluster: ClusterState) -> Int:
    """The first of those that are done at the replica at hand, or NONE."""
    assert cluster.state.listed is not None
    return cluster.state.listed.first


def next_listed(cluster: ClusterState) -> tuple[ClusterState, Int]:
    """The cluster without that one, and who it is."""
    requests = cluster.state.listed
    assert requests is not None
    i = requests.first
    requests = requests._replace(first=read_once(requests.next, i))
    return cluster._replace(state=cluster.state._replace(listed=requests)), i


def _computed(given: Given, cluster: ClusterState, j: Int, on: Flag) -> ClusterState:
    """A prompt is computed, if ``on``: its KV is to be sent."""
    structure = given.structure
    at_once = jnp.float64(AT_ONCE)
    if not structure.route_at_first_token:
        return _entered(cluster, _may_begin(given, cluster, j), BEGIN, j, on)
    if not structure.kv_reservation:
        return _entered(cluster, at_once, ASK, j, on)
    several = cluster.several
    assert several is not None and several.reserved is not None
    asked, room_s = network_of(given).links.asks_early, read_once(several.reserved.room_s, j)
    # Layer by layer room was asked for with the first chunk; it may have been granted before the prompt was complete.
    cluster = _entered(cluster, at_once, ASK, j, on & ~asked)
    may_s = jnp.maximum(_may_begin(given, cluster, j), room_s)
    return _entered(cluster, may_s, BEGIN, j, on & asked & (room_s < jnp.inf))


def answer(given: Given, cluster: ClusterState, i: Int, on: Flag) -> ClusterState:
    """A user has the answer of which job ``i`` is the last and may send the next request, if ``on``.

    The frontend is that of the pool to which the request went first.
    """
    state, requests, network = cluster.state, given.requests, network_of(given)
    if state.answers is None:
        return cluster._replace(state=state._replace(released=state.released + on))
    # The answer's tokens are those of both phases; its first one came from the prefill replica, to which the user
    # talks.
    before = read(network.before, i)
    first = jnp.where(before >= 0, before, i)
    output = read(requests.output_tokens, i) + jnp.where(before >= 0, read(requests.output_tokens, first), 0)
    rules = given_at(given, read_once(cluster.replica, first), cluster.several).rules
    first_s, end_s = (
        read_once(state.sequences.first_token_s, first),
        read_once(state.sequences.last_token_s, i),
    )
    if network.stops is None:
        return cluster._replace(state=answered(given, state, first, seen_s(rules, first_s, end_s, output), on))
    # Behind stages it is on its way from now on; who sends next follows from the request, and not from its last visit.
    reaches_s = state.clock + delivery_s(rules, first_s, end_s, output)
    return cluster._replace(state=answered(given, state, read(network.stops.request, first), reaches_s, on))
