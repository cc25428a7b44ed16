"""What the loop carries where the replicas are those of several pools, and whose figures count at a replica."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from evaluator.stations.engine.common.arrays import (
    Array,
    Float,
    FloatPerReplica,
    FloatPerRequest,
    FloatPerStop,
    Int,
    IntPerReplica,
    IntPerRequest,
)
from evaluator.stations.engine.common.calendar import Calendar
from evaluator.stations.engine.common.rings import NONE, add, read
from evaluator.stations.engine.preemptive.lane import Given, Stops
from evaluator.stations.engine.preemptive.state import State


class Travel(NamedTuple):
    """Of two sides: what is on its way from the first to the second."""

    calendar: Calendar
    free_s: FloatPerReplica  # when the link of a prefill replica is free
    link_s: FloatPerRequest  # when the transfer of a job began
    sender: IntPerRequest  # the prefill replica of a job


class Reserved(NamedTuple):
    """Under back-pressure, by replica: who waits for room there, in a line."""

    first: IntPerReplica  # job without room that has come first, or NONE
    last: IntPerReplica
    next: IntPerRequest
    room_s: FloatPerRequest  # since when there is room for a job
    grants: Int  # at the time of the last one, before it
    granted_s: Float  # when that was


class Decoded(NamedTuple):
    """With drafts, what decodes have done by replica, for the figures of each pool."""

    iterations: FloatPerReplica  # summed over the sequences
    tokens: FloatPerReplica  # that they gave

    def joined(self, r: Int, before: State, after: State) -> Decoded:
        """With what replica r has done between two states, whose sums are over all replicas."""
        assert before.accepted is not None and after.accepted is not None
        iterations = after.accepted.decoded - before.accepted.decoded
        tokens = after.accepted.decoded_tokens - before.accepted.decoded_tokens
        return Decoded(add(self.iterations, r, iterations), add(self.tokens, r, tokens))


class StagesState(NamedTuple):
    """Of stages that are in the loop, see ``stages``: requests that are not at the LLM, and servers."""

    calendar: Calendar
    free_s: Array  # float64 (queue * server + 1,): when a server is free; infinite where a queue has fewer
    began_s: FloatPerStop  # when the service there began


class PoolStates(NamedTuple):
    """Beside what replicas of one pool have."""

    sent_s: FloatPerRequest  # when a job came to its side
    first_measured: IntPerReplica  # the first measured job that came to a replica; the padding slot before
    travel: Travel | None  # None: one side
    reserved: Reserved | None  # None: no back-pressure
    decoded: Decoded | None = None  # None: no drafts
    stages: StagesState | None = None  # None: requests pass no stages in the loop


def nothing_yet(given: Given) -> PoolStates | None:
    """Before the first request; None for one pool."""
    if given.network is None:
        return None
    replicas, slots = given.structure.replicas, given.requests.arrival_s.shape[0]
    zeros, none = jnp.zeros(replicas), jnp.full(replicas, NONE, jnp.int32)
    never, links = jnp.full(slots, jnp.inf), jnp.full(slots, NONE, jnp.int32)
    phases = given.structure.phases > 1
    return PoolStates(
        sent_s=never,
        first_measured=jnp.full(replicas, slots - 1, jnp.int32),
        travel=Travel(Calendar.empty(slots), zeros - jnp.inf, never, links) if phases else None,
        reserved=Reserved(none, none, links, never, jnp.int32(0), jnp.float64(-1.0))
        if given.structure.kv_reservation
        else None,
        decoded=None if given.speculation is None else Decoded(zeros, zeros),
        stages=None if given.network.stops is None else _servers_free(given, given.network.stops),
    )


def _servers_free(given: Given, stops: Stops) -> StagesState:
    there = jnp.arange(given.structure.servers)[None] < stops.servers[:, None]
    free_s = jnp.append(jnp.where(there, -jnp.inf, jnp.inf).reshape(-1), jnp.inf)  # and a padding cell
    return StagesState(Calendar.empty(given.requests.arrival_s.shape[0]), free_s, jnp.zeros(stops.queue.shape))


def given_at(given: Given, r: Int, several: PoolStates | None) -> Given:
    """What is given to replica r: of several pools the figures of its own."""
    if given.network is None or several is None:
        return given
    # A row of figures, and not a branch by pool: pools are numbers of one program.
    number = read(given.network.pool, r)
    figures: tuple[Any, ...] = given.pipeline_ranks, given.limits, given.rules
    ranks, limits, rules = (packed.row(number) for packed in figures)
    network, speculation = given.network, given.speculation
    measured_from = read(several.first_measured, r)
    if speculation is not None:  # its draws are those of the request, wherever it is served
        chances = lax.dynamic_index_in_dim(speculation.chances, number, keepdims=False)
        speculation = speculation._replace(chances=chances, drafts=read(speculation.drafts, number))
    content = given.content
    if content is not None and content.caches is not None:
        content = content._replace(each=read(content.each, number), caches=read(content.caches, number))
    fewer = None if network.pipeline_ranks is None else read(network.pipeline_ranks, r)
    return given._replace(
        pipeline_ranks=ranks,
        limits=limits.replaced(measured_from=measured_from),
        rules=rules,
        content=content,
        speculation=speculation,
        pool=number,
        ranks=fewer,
    )
