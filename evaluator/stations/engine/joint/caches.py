"""Prefix caches of replicas that run together: what each has of its own, and the router that goes by what they hold."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from evaluator.routing import COUNTERS
from evaluator.stations.engine.common.arrays import Counts, Flag, Float, Int, IntPerReplica
from evaluator.stations.engine.common.rings import read, write
from evaluator.stations.engine.preemptive.cache import Cache
from evaluator.stations.engine.preemptive.lane import Given
from evaluator.stations.engine.preemptive.prefix_cache import block_tokens, look_up
from evaluator.stations.engine.preemptive.state import State

REQUESTS = COUNTERS.index("requests")


class ByPrefix(NamedTuple):
    """The keys of the router ``prefix_aware`` (``routing.PrefixAware``), if it is ``chosen``."""

    chosen: Flag
    threshold: Float
    imbalance: Float
    imbalance_ratio: Float


class CacheRows(NamedTuple):
    """By replica: the numbers of ``Cache`` that are one replica's."""

    joined: IntPerReplica
    known: IntPerReplica


def no_rows(given: Given) -> CacheRows | None:
    """Of empty caches; None where there is none."""
    ints = jnp.zeros(given.structure.replicas, jnp.int32)
    return None if given.structure.cache is None else CacheRows(ints, ints)


def cache_at_hand(cache: Cache | None, rows: CacheRows | None, r: Int) -> Cache | None:
    """The cache as of replica r."""
    if cache is None or rows is None:
        return None
    sentinels = cache.users.shape[0] - rows.joined.shape[0]  # behind the blocks of all replicas
    idle = cache.idle._replace(sentinel=sentinels + r)
    return cache._replace(replica=r, idle=idle, joined=read(rows.joined, r), known=read(rows.known, r))


def rows_put_back(rows: CacheRows | None, cache: Cache | None, r: Int) -> CacheRows | None:
    """The rows after replica r has done something."""
    if cache is None or rows is None:
        return None
    return CacheRows(write(rows.joined, r, cache.joined), write(rows.known, r, cache.known))


def choose_by_prefix(
    given: Given, state: State, rows: CacheRows, counts: Counts, by: ByPrefix, i: Int, replicas: Int
) -> Int:
    """The replica of request ``i``, as ``routing.PrefixAware.choose`` says: an empty cache has nothing of it."""
    width = given.structure.replicas

    def look(carry: tuple[Int, IntPerReplica]) -> tuple[Int, IntPerReplica]:
        r, hits = carry
        here = state._replace(cache=cache_at_hand(state.cache, rows, r))
        return r + 1, write(hits, r, look_up(given, here, i, by.chosen)[0])

    start = (jnp.int32(0), jnp.zeros(width, jnp.int32))
    hits = lax.while_loop(lambda carry: carry[0] < replicas, look, start)[1]
    there = jnp.arange(width, dtype=jnp.int32) < replicas
    requests = counts[:, REQUESTS]
    most, least = jnp.where(there, requests, -jnp.inf).max(), jnp.where(there, requests, jnp.inf).min()
    uneven = (most - least > by.imbalance) & (most > by.imbalance_ratio * least)
    longest = hits.max()
    share = longest * block_tokens(given) / read(given.requests.prompt_tokens, i)
    prefers = (longest > 0) & (share >= by.threshold) & ~uneven
    having = there & (~prefers | (hits == longest))
    fewest = having & (requests == jnp.where(having, requests, jnp.inf).min())
    known = jnp.where(prefers, 0, rows.known)  # of several with as few requests the one that knows the least
    return jnp.argmin(jnp.where(fewest, known, jnp.iinfo(jnp.int32).max)).astype(jnp.int32)
