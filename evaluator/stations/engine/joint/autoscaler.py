"""Replicas come and go by what an autoscaler sees at its looks: ``reference.stations.fleet``, look for look.

A look is an event of its own: behind the batches that end at that time and before who arrives then. Between two looks
nothing of this file is computed but the comparison of its next time with the clock.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax

from evaluator.scenario.autoscaling import LATENCIES, METRICS, OUTPUT_RATE, PROMPT_RATE, PROMPT_TOKENS
from evaluator.stations.engine.common.arrays import Array, Flag, FlagPerReplica, Float, FloatPerReplica, Int
from evaluator.stations.engine.common.lane import Spans
from evaluator.stations.engine.common.rings import read, where, write
from evaluator.stations.engine.joint.fleet import DRAINS, FREE, SERVES, STARTS, FleetState
from evaluator.stations.engine.joint.routing import OUTPUT, REQUESTS, WORK, catch_up
from evaluator.stations.engine.joint.state import ClusterState, not_waiting
from evaluator.stations.engine.preemptive.block_runs import Runs
from evaluator.stations.engine.preemptive.lane import Fleet, Given
from evaluator.stations.engine.preemptive.state import SeenLatencies


def due(cluster: ClusterState) -> Flag:
    """A look is due, or a replica has come to serve, before anything that comes now."""
    assert cluster.fleet is not None
    return cluster.ending & (cluster.fleet.next_s <= cluster.state.clock)


def come_and_go(given: Given, cluster: ClusterState) -> ClusterState:
    """Replicas that have started by now serve; then, if it is time, the autoscaler looks."""
    fleet, now = cluster.fleet, cluster.state.clock
    assert fleet is not None
    ready = fleet.ready_s <= now
    fleet = fleet._replace(
        condition=jnp.where(ready, SERVES, fleet.condition),
        ready_s=jnp.where(ready, jnp.inf, fleet.ready_s),
        turn=jnp.where(ready.any(), 0, fleet.turn),
    )
    cluster = where(fleet.look_s <= now, functools.partial(_look, given), cluster._replace(fleet=fleet))
    fleet = cluster.fleet
    assert fleet is not None
    return cluster._replace(fleet=fleet._replace(next_s=jnp.minimum(fleet.look_s, fleet.ready_s.min())))


def _look(given: Given, cluster: ClusterState) -> ClusterState:
    policy = given.together.fleet
    assert policy is not None
    counts_kv = policy.metric == METRICS.index("kv")
    cluster = catch_up(given, cluster, counts_kv & given.rules.on_demand.any())
    fleet, now = cluster.fleet, cluster.state.clock
    assert fleet is not None
    seen_latencies = cluster.state.seen_latencies
    assert seen_latencies is not None
    first, whole = (policy.metric == METRICS.index(name) for name in LATENCIES)
    summed = jnp.where(fleet.serving(), _measured(given, cluster, policy), 0.0).sum()
    rate = fleet.came_tokens / policy.every_s
    rated = (policy.metric == METRICS.index(PROMPT_RATE)) | (policy.metric == METRICS.index(OUTPUT_RATE))
    total = jnp.select([first, whole, rated], [seen_latencies.ttft_s, seen_latencies.tpot_s, rate], summed)
    weight = jnp.select([first, whole], [seen_latencies.started, seen_latencies.done], 1.0)
    more, fewer, fleet = _decide(given, policy, fleet, now, total, weight)
    # Anew for each look: differences of a sum over the day would lose digits.
    nobody = SeenLatencies(*[jnp.zeros_like(total)] * len(SeenLatencies._fields))
    cluster = cluster._replace(state=cluster.state._replace(seen_latencies=nobody))
    before = fleet.condition
    fleet = _start(given, policy, fleet, now, more)
    cluster = _as_new(given, cluster, (before == FREE) & (fleet.condition != FREE))
    return cluster._replace(fleet=_stop(fleet, cluster.counts[:, REQUESTS], now, fewer))


def _as_new(given: Given, cluster: ClusterState, some: FlagPerReplica) -> ClusterState:
    """Some replicas, at which nobody is, forget what was there before: all else of an empty slot is as of a new one."""
    # LightLLM looks at its queue by decode iterations.
    replicas, cache, shape = cluster.replicas, cluster.state.cache, given.structure.cache
    replicas = replicas._replace(
        decode_iterations=jnp.where(some, 0, replicas.decode_iterations),
        last_look=jnp.where(some, 0, replicas.last_look),
    )
    if cache is None or shape is None or replicas.blocks is None:
        return cluster._replace(replicas=replicas)
    counts = jax.tree.map(lambda column: jnp.where(some, 0, column), replicas.blocks)

    # One after the other, as many as start: a cache is emptied by writing all of its arrays.
    def empty(carry: tuple[FlagPerReplica, Runs]) -> tuple[FlagPerReplica, Runs]:
        left, runs = carry
        r = jnp.argmax(left).astype(jnp.int32)
        return write(left, r, jnp.zeros((), bool)), runs.emptied(r, shape.texts, shape.blocks)

    _, runs = lax.while_loop(lambda carry: carry[0].any(), empty, (some, cache.runs))
    state = cluster.state._replace(cache=cache._replace(runs=runs))
    return cluster._replace(state=state, replicas=replicas._replace(blocks=counts))


def _measured(given: Given, cluster: ClusterState, policy: Fleet) -> FloatPerReplica:
    """The metric of each replica."""
    requests = cluster.counts[:, REQUESTS]
    return jnp.select(
        [policy.metric == METRICS.index(name) for name in ("waiting", "kv", PROMPT_TOKENS)],
        [
            requests - not_waiting(cluster.replicas),
            cluster.replicas.kv / given.limits.kv_units,
            # Both lose a token with each that a decode gives, so that leaps under way do not matter.
            cluster.counts[:, WORK] - cluster.counts[:, OUTPUT],
        ],
        requests,
    )


def _decide(
    given: Given, policy: Fleet, fleet: FleetState, now: Float, total: Float, weight: Float
) -> tuple[Int, Int, FleetState]:
    """How many replicas more, or how many fewer, are wanted; and the fleet that remembers this look."""
    here = jnp.arange(given.structure.looks, dtype=jnp.int32) == fleet.looks % given.structure.looks
    looked_s = jnp.where(here, now, fleet.looked_s)
    totals, weights = jnp.where(here, total, fleet.total), jnp.where(here, weight, fleet.weight)
    # The last look counts whatever the window: without one the metric is as it is now.
    inside = (looked_s > now - policy.window_s) | here
    weight = jnp.where(inside, weights, 0.0).sum()
    metric = jnp.where(inside, totals, 0.0).sum() / jnp.maximum(weight, 1.0)
    metric = jnp.where(policy.trend, _foreseen(policy, now, inside, looked_s, totals, metric), metric)
    # Those that start count as if they served: else each look would start them anew.
    current = ((fleet.condition == SERVES) | (fleet.condition == STARTS)).sum(dtype=jnp.int32)
    wanted = _wanted(given, policy, fleet, metric, weight == 0.0, current)
    wanted_lately = jnp.where(here, wanted, fleet.wanted)
    most_wanted = jnp.where(looked_s >= now - policy.cooldown_s, wanted_lately, 0).max()
    more, fewer = jnp.maximum(wanted - current, 0), jnp.maximum(current - most_wanted, 0)
    fleet = fleet._replace(
        look_s=now + policy.every_s,
        looks=fleet.looks + 1,
        looked_s=looked_s,
        total=totals,
        weight=weights,
        wanted=wanted_lately,
        came_tokens=jnp.zeros_like(fleet.came_tokens),
    )
    return more, jnp.where(more > 0, 0, fewer), fleet


def _wanted(given: Given, policy: Fleet, fleet: FleetState, metric: Float, nothing: Flag, current: Int) -> Int:
    """How many replicas are wanted by a metric, unless ``nothing`` was seen."""
    # Of a sum the ratio is how many replicas are needed, of a latency how many for each that serves.
    latency = jnp.stack([policy.metric == METRICS.index(name) for name in LATENCIES]).any()
    serving = fleet.serving().sum(dtype=jnp.int32)
    ratio = metric / policy.target
    needed, basis = jnp.where(latency, ratio * serving, ratio), jnp.where(latency, serving, current)
    # Where nobody had a first token there is no metric, and nothing changes.
    near = (jnp.abs(needed / basis - 1.0) <= policy.tolerance) | nothing
    # 1e-9: 0.3 / 0.1 is a little more than 3, and would start a fourth. Beyond all replicas it makes no difference how
    # many are needed, and the number must fit 32 bits.
    most = given.together.replicas
    number = jnp.minimum(jnp.ceil(needed - 1e-9), most).astype(jnp.int32)
    number = jnp.where(near, current, number)
    of_one = jnp.where(latency, metric, metric / serving)
    stepped = current + jnp.where(~nothing, (of_one > policy.target).astype(jnp.int32) - (of_one < policy.lower), 0)
    return jnp.clip(jnp.where(policy.lower >= 0.0, stepped, number), policy.least, most)


def _foreseen(policy: Fleet, now: Float, inside: Flag, looked_s: Array, totals: Array, mean: Float) -> Float:
    """Where the line of least squares through the looks ``inside`` the window is, in the reference's words: at the end
    of the interval behind the start-up of a replica that is started now."""
    count = inside.sum()
    ago_s = jnp.where(inside, looked_s - now, 0.0)
    middle = ago_s.sum() / count
    apart = jnp.where(inside, ago_s - middle, 0.0)
    spread = (apart**2).sum()
    slope = (apart * jnp.where(inside, totals - mean, 0.0)).sum() / jnp.where(spread > 0.0, spread, 1.0)
    return jnp.maximum(mean + slope * (policy.start_up_s + policy.every_s - middle), 0.0)


def _start(given: Given, policy: Fleet, fleet: FleetState, now: Float, number: Int) -> FleetState:
    """So many start, in the first free slots: fewer where some still drain."""
    slots = jnp.arange(given.structure.replicas, dtype=jnp.int32) < given.together.replicas
    at_once = policy.start_up_s == 0.0

    def free(fleet: FleetState) -> FlagPerReplica:
        return slots & (fleet.condition == FREE)

    def start(carry: tuple[Int, FleetState]) -> tuple[Int, FleetState]:
        number, fleet = carry
        r, spans = jnp.argmax(free(fleet)).astype(jnp.int32), fleet.spans
        # Beyond the last row nothing is kept: the count tells that some are missing.
        row = jnp.minimum(spans.count, spans.began_s.shape[0] - 1)
        spans = Spans(spans.count + 1, write(spans.began_s, row, now), write(spans.gone_s, row, jnp.inf))
        return number - 1, fleet._replace(
            condition=write(fleet.condition, r, jnp.where(at_once, SERVES, STARTS)),
            span=write(fleet.span, r, spans.count - 1),
            ready_s=write(fleet.ready_s, r, jnp.where(at_once, jnp.inf, now + policy.start_up_s)),
            spans=spans,
        )

    fleet = fleet._replace(turn=jnp.where(at_once & (number > 0), 0, fleet.turn))
    return lax.while_loop(lambda carry: (carry[0] > 0) & free(carry[1]).any(), start, (number, fleet))[1]


def _stop(fleet: FleetState, requests: FloatPerReplica, now: Float, number: Int) -> FleetState:
    """So many stop. Those that do not serve yet go first, the newest of them; then those with the fewest requests."""

    def stop(carry: tuple[Int, FleetState]) -> tuple[Int, FleetState]:
        number, fleet = carry
        starting, serving = fleet.condition == STARTS, fleet.serving()
        starts = starting.any()
        fewest = serving & (requests == jnp.where(serving, requests, jnp.inf).min())
        r = fleet.newest_of(jnp.where(starts, starting, fewest))
        fleet = fleet._replace(turn=jnp.where(starts, fleet.turn, 0))
        empty = starts | (read(requests, r) == 0)
        fleet = fleet._replace(condition=write(fleet.condition, r, DRAINS))
        return number - 1, fleet.without(r, now, empty)

    return lax.while_loop(lambda carry: carry[0] > 0, stop, (number, fleet))[1]
