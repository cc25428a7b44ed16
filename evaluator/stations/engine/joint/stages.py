"""Stages of a pipeline on one clock with the pools: a request comes from stop to stop, and its answer home at the end.

Stops are those of ``lane.Stops``: servers, to each of whose queues requests come in the order of their time, delays,
and visits to the LLM. When a request comes to servers it is known when one of them will be free for it, because who
comes later goes behind it (Kiefer and Wolfowitz 1955): its next stop is an event of a calendar from then on. At one
point in time

1. ``HOME``: answers reach those who wait for them, who then send what they have to;
2. requests are sent (``set_out``);
3. ``STAGE``: requests come to stages;
4. ``LLM``: requests come to the LLM, where a router chooses by what was there before any of that time.

Of one kind and time the first visit goes first, then the request with the lowest number (``lane.Stops.number``), as in
the reference, whose stations sort those who come to them at one time.
"""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
from jax import lax

from evaluator.stations.engine.common.arrays import Flag, Float, Int
from evaluator.stations.engine.common.rings import read, where, write
from evaluator.stations.engine.joint.events import Event, entered, first, popped
from evaluator.stations.engine.joint.pools import StagesState
from evaluator.stations.engine.joint.routing import announce, choice, come_to, next_request
from evaluator.stations.engine.joint.state import ClusterState
from evaluator.stations.engine.joint.transfers import answer, listed, network_of, next_listed
from evaluator.stations.engine.preemptive.lane import AT_HOME, AT_LLM, Given, Stops

HOME, STAGE, LLM = range(3)


def next_stop(cluster: ClusterState) -> Event:
    """Who comes to its next stop first; that is the ``job`` of the event."""
    return first(_stages(cluster).calendar)


def anybody_on_route(cluster: ClusterState) -> Flag:
    """Some requests are at stages, or on their way from or to the LLM."""
    return _stages(cluster).calendar.size > 0


def set_out(given: Given, cluster: ClusterState) -> ClusterState:
    """The next request is sent at the time of the clock: it comes to its first stop."""
    cluster, i = next_request(given, cluster)
    stop, now = read(_stops(given).first, i), cluster.state.clock
    cluster = _with(cluster, began_s=write(_stages(cluster).began_s, stop, now))._replace(arrived=cluster.arrived + 1)
    return _onward(given, cluster, stop, now)


def take_stop(given: Given, cluster: ClusterState) -> ClusterState:
    """Whoever comes next is at its stop."""
    calendar, event = popped(_stages(cluster).calendar)
    cluster = _with(cluster, calendar=calendar)
    # Loops of one trip or none, one of which has it (``rings.where``). Whose replica is asked for when an answer comes
    # home is read behind the loop in which replicas are chosen: else XLA copied those of all requests.
    for kind, happens in ((STAGE, _serve), (LLM, _come_to_llm), (HOME, _come_home)):
        cluster = where(event.kind == kind, functools.partial(happens, given, stop=event.job), cluster)
    return cluster


def leave_llm(given: Given, cluster: ClusterState, i: Int, on: Flag) -> ClusterState:
    """Job ``i`` has its last token, if ``on``: its request goes on behind the LLM."""
    before = read(network_of(given).before, i)
    of_first_side = jnp.where(before >= 0, before, i)
    return _onward(given, cluster, read(_stops(given).llm, of_first_side), cluster.state.clock, on)


def all_leave_llm(given: Given, cluster: ClusterState) -> ClusterState:
    """So do all that are done at the replica at hand, which is of the only side."""

    def leave(cluster: ClusterState) -> ClusterState:
        cluster, i = next_listed(cluster)
        return leave_llm(given, cluster, i, ~jnp.zeros((), bool))

    return lax.while_loop(lambda cluster: listed(cluster) >= 0, leave, cluster)


def _onward(given: Given, cluster: ClusterState, stop: Int, time_s: Float, on: Flag | bool = True) -> ClusterState:
    """A request leaves a stop at a time, if ``on``, and is at its next one then."""
    stops, stages, following = _stops(given), _stages(cluster), stop + 1
    queue = read(stops.queue, following)
    kind = jnp.where(queue == AT_LLM, LLM, jnp.where(queue == AT_HOME, HOME, STAGE))
    order = read(stops.number, following)
    calendar = entered(stages.calendar, time_s, kind, following, jnp.asarray(on), order)
    return _with(cluster, calendar=calendar)


def _serve(given: Given, cluster: ClusterState, stop: Int) -> ClusterState:
    stops, stages, now = _stops(given), _stages(cluster), cluster.state.clock
    queue, servers = read(stops.queue, stop), given.structure.servers
    waits = queue >= 0  # else it is a delay
    row = jnp.maximum(queue, 0) * servers
    free_s = lax.dynamic_slice(stages.free_s, (row,), (servers,))
    began_s = jnp.where(waits, jnp.maximum(free_s.min(), now), now)
    end_s = began_s + read(stops.seconds, stop)
    server = jnp.where(waits, row + jnp.argmin(free_s).astype(jnp.int32), stages.free_s.shape[0] - 1)
    cluster = _with(cluster, free_s=write(stages.free_s, server, end_s), began_s=write(stages.began_s, stop, began_s))
    return _onward(given, cluster, stop, end_s)


def _come_to_llm(given: Given, cluster: ClusterState, stop: Int) -> ClusterState:
    job = read(_stops(given).number, stop)
    cluster, r = choice(given, cluster, job)
    return come_to(given, announce(given, cluster, job, r), job, r)


def _come_home(given: Given, cluster: ClusterState, stop: Int) -> ClusterState:
    """The answer is behind the last stage, from where on it takes what it took from the engine without any."""
    job = read(_stops(given).number, stop)
    later = read(network_of(given).after, job)
    return answer(given, cluster, jnp.where(later >= 0, later, job), ~jnp.zeros((), bool))


def _stages(cluster: ClusterState) -> StagesState:
    assert cluster.several is not None and cluster.several.stages is not None
    return cluster.several.stages


def _with(cluster: ClusterState, **changes: Any) -> ClusterState:
    several = cluster.several
    assert several is not None
    return cluster._replace(several=several._replace(stages=_stages(cluster)._replace(**changes)))


def _stops(given: Given) -> Stops:
    stops = network_of(given).stops
    assert stops is not None
    return stops
