"""The replica that a router by prefixes chooses, as ``routing.PrefixRule`` and ``routing.scores`` say.

What it knows is what the caches have, had some time ago (``late_caches``), or what it has sent (``sent_blocks``).
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from evaluator.routing import COUNTERS
from evaluator.routing.scores import ALIKE
from evaluator.stations.engine.common.arrays import Flag, FlagPerReplica, FloatPerReplica, Int, IntPerReplica
from evaluator.stations.engine.common.rings import read, write
from evaluator.stations.engine.joint.late_caches import Heard, hear, late_blocks
from evaluator.stations.engine.joint.pools import given_at
from evaluator.stations.engine.joint.sent_blocks import remember, remembered_blocks, with_time, without_expired
from evaluator.stations.engine.joint.state import ClusterState, not_waiting, row_of
from evaluator.stations.engine.preemptive.lane import ByPrefix, Given, Late, ScoreWeights
from evaluator.stations.engine.preemptive.prefix_cache import look_up, unnamed_blocks

REQUESTS = COUNTERS.index("requests")


def looks_at_kv(by: ByPrefix) -> Flag:
    """A router by prefixes goes by the caches as of now, by their events, or by how full they are."""
    if by.remembered is None or by.scores is None:
        return by.chosen
    return by.chosen & (~by.remembered.chosen | by.scores.chosen)


def choose_by_prefix(
    given: Given, cluster: ClusterState, by: ByPrefix, i: Int, choosable: FlagPerReplica
) -> tuple[ClusterState, Int]:
    """The replica, one of the ``choosable``, that request ``i`` is sent to; the cluster as the router remembers it."""
    if cluster.sent is not None:
        sent = with_time(given, cluster.sent, i, cluster.state.clock, _remembers(by))
        sent = without_expired(given, sent, cluster.state.clock, _remembers(by))
        cluster = cluster._replace(sent=sent)
    cluster, hits, known = _known_blocks(given, cluster, by, i, choosable)
    chosen = _by_rule(given, cluster, by, i, choosable, hits, known)
    if by.scores is not None:
        requests = cluster.counts[:, REQUESTS]
        block, used = given.block(), cluster.replicas.kv / given.limits.kv_units
        # llm-d counts blocks, of which a prompt has whole ones alone; one of less than a block has none anywhere.
        share = hits / jnp.maximum(read(given.requests.prompt_tokens, i) // block, 1)
        waiting = requests - not_waiting(cluster.replicas)
        scored = _by_scores(by.scores, choosable, requests, share, waiting, used)
        chosen = jnp.where(by.scores.chosen, scored, chosen)
    if cluster.sent is not None:
        cluster = cluster._replace(sent=remember(given, cluster.sent, i, chosen, cluster.state.clock, _remembers(by)))
    return cluster, chosen


def _remembers(by: ByPrefix) -> Flag:
    """What was sent counts, alone or beside what events tell."""
    assert by.remembered is not None
    return by.remembered.chosen if by.late is None else by.remembered.chosen | by.late.predicts


def _known_blocks(
    given: Given, cluster: ClusterState, by: ByPrefix, i: Int, choosable: FlagPerReplica
) -> tuple[ClusterState, IntPerReplica, IntPerReplica]:
    """By replica: blocks of the prompt that it is thought to have, and all that it is thought to know.

    The cluster where the router has heard of what it is to hear of by now.
    """
    blocks, sent, remembered, late = cluster.replicas.blocks, cluster.sent, by.remembered, by.late
    assert blocks is not None
    if sent is None or remembered is None:
        return cluster, _found_blocks(given, cluster, i, choosable, by.chosen), blocks.known
    exact = by.chosen & ~remembered.chosen
    known = jnp.where(remembered.chosen, sent.known, blocks.known)
    hits = remembered_blocks(given, sent, i, remembered.chosen)
    if late is None:
        return cluster, hits + _found_blocks(given, cluster, i, choosable, exact), known
    cluster = _hear(given, cluster, late)
    assert cluster.late is not None
    hits = hits + _found_blocks(given, cluster, i, choosable, exact & ~late.chosen)
    hits = hits + late_blocks(given, cluster.late, sent, i, late.chosen, late.predicts)
    known_late = cluster.late.known + jnp.where(late.predicts, sent.known, 0)
    return cluster, hits, jnp.where(late.chosen, known_late, known)


def _hear(given: Given, cluster: ClusterState, late: Late) -> ClusterState:
    """The cluster where the router has heard of what happened so long ago."""
    cache, queues = cluster.state.block_cache, cluster.replicas.events
    assert cluster.late is not None and cache.events is not None and queues is not None
    heard = hear(given, Heard(cluster.late, cache.events, queues), cluster.state.clock, late.delay_s)
    return cluster._replace(
        late=heard.late,
        state=cluster.state._replace(cache=cache._replace(events=heard.events)),
        replicas=cluster.replicas._replace(events=heard.queues),
    )


def _found_blocks(given: Given, cluster: ClusterState, i: Int, choosable: FlagPerReplica, on: Flag) -> IntPerReplica:
    """How many blocks of the prompt each cache has, if ``on``; an empty one has nothing of it."""

    # Caches are walked one by one: what is found depends on what each has evicted up to now, of which there is no index
    # over all replicas (SGLang's router keeps an approximate tree of its own; here the caches themselves are asked).
    def look(carry: tuple[Int, IntPerReplica]) -> tuple[Int, IntPerReplica]:
        r, hits = carry
        here = cluster.state._replace(replica=row_of(cluster, r))
        pool_given = given_at(given, r, cluster.several)
        return r + 1, write(hits, r, look_up(pool_given, here, i, on & read(choosable, r))[0])

    start = (jnp.int32(0), jnp.zeros(choosable.shape, jnp.int32))
    return lax.while_loop(lambda carry: carry[0] < given.together.replicas, look, start)[1]


def _unnamed_blocks(given: Given, cluster: ClusterState, on: Flag) -> IntPerReplica:
    """How many blocks each cache knows that have yet to get their names, if ``on``."""

    def count(carry: tuple[Int, IntPerReplica]) -> tuple[Int, IntPerReplica]:
        r, blocks = carry
        here = cluster.state._replace(replica=row_of(cluster, r))
        return r + 1, write(blocks, r, unnamed_blocks(given_at(given, r, cluster.several), here, on))

    start = (jnp.int32(0), jnp.zeros(cluster.counts.shape[0], jnp.int32))
    stop = jnp.where(on, given.together.replicas, 0)
    return lax.while_loop(lambda carry: carry[0] < stop, count, start)[1]


def _by_rule(
    given: Given,
    cluster: ClusterState,
    by: ByPrefix,
    i: Int,
    choosable: FlagPerReplica,
    hits: IntPerReplica,
    blocks_known: IntPerReplica,
) -> Int:
    """``routing.PrefixRule.choose``."""
    requests = cluster.counts[:, REQUESTS]
    most, least = jnp.where(choosable, requests, -jnp.inf).max(), jnp.where(choosable, requests, jnp.inf).min()
    uneven = (most - least > by.imbalance) & (most > by.imbalance_ratio * least)
    longest = hits.max()
    # Pools of one side have blocks of one size under this router (``plan.phases``).
    block = given_at(given, jnp.argmax(choosable).astype(jnp.int32), cluster.several).block()
    share = longest * block / read(given.requests.prompt_tokens, i)
    # SGLang's cache-aware router: the longest prefix where enough of the prompt is found, else, or where loads are too
    # uneven, the fewest requests (``routing.PrefixAware``).
    prefers = (longest > 0) & (share >= by.threshold) & ~uneven
    having = choosable & (~prefers | (hits == longest))
    fewest = having & (requests == jnp.where(having, requests, jnp.inf).min())
    if given.structure.names_late:
        asked = by.chosen if by.remembered is None else by.chosen & ~by.remembered.chosen
        blocks_known = blocks_known + _unnamed_blocks(given, cluster, asked & ~prefers)
    known = jnp.where(prefers, 0, blocks_known)  # of several with as few requests the one that knows the least
    return jnp.argmin(jnp.where(fewest, known, jnp.iinfo(jnp.int32).max)).astype(jnp.int32)


def _by_scores(
    weights: ScoreWeights,
    choosable: FlagPerReplica,
    requests: FloatPerReplica,
    share: FloatPerReplica,
    waiting: FloatPerReplica,
    used: FloatPerReplica,
) -> Int:
    """``routing.scores.PrefixScores.choose``."""
    most, least = jnp.where(choosable, waiting, -jnp.inf).max(), jnp.where(choosable, waiting, jnp.inf).min()
    short = jnp.where(most > least, (most - waiting) / (most - least), 1.0)
    score = weights.prefix * share + weights.queue * short + weights.kv * (1.0 - used)
    having = choosable & (score >= (1.0 - ALIKE) * jnp.where(choosable, score, -jnp.inf).max())
    return jnp.argmin(jnp.where(having, requests, jnp.inf)).astype(jnp.int32)
