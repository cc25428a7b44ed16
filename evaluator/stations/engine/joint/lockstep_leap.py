"""Which replicas are the data-parallel ranks of one, and what an arrival at one of them finds; see ``lockstep``.

The ranks of a replica have numbers in a row, ``ranks`` of them each.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from evaluator.stations.engine.common.arrays import Flag, FlagPerReplica, Int
from evaluator.stations.engine.common.rings import read
from evaluator.stations.engine.joint.state import ClusterState


def first_rank(r: Int, ranks: Int) -> Int:
    """The first data-parallel rank of the replica that rank r is of."""
    return r - r % ranks


def of_replica(cluster: ClusterState, first: Int, ranks: Int) -> FlagPerReplica:
    """The ranks of the replica whose first rank is ``first``."""
    numbers = jnp.arange(cluster.running_batches.end_s.shape[0], dtype=jnp.int32)
    return (numbers >= first) & (numbers < first + ranks)


def waits_together(ranks: Int, cluster: ClusterState, r: Int) -> Flag:
    """No rank of the replica of rank r has a batch under way."""
    mine = of_replica(cluster, first_rank(r, ranks), ranks)
    return jnp.where(mine, cluster.running_batches.end_s, jnp.inf).min() == jnp.inf


def cut_together(ranks: Int, cluster: ClusterState, r: Int, on: Flag) -> ClusterState:
    """The leap of the replica of rank r ends with the iteration under way, if ``on``."""
    running_batches = cluster.running_batches
    running_batch = jax.tree.map(lambda column: read(column, r), running_batches)
    cut = on & (running_batch.iterations > 1.0)
    iterations = jnp.where(cut, running_batch.under_way(cluster.state.clock), running_batch.iterations)
    mine = of_replica(cluster, first_rank(r, ranks), ranks)
    end_s = jnp.where(
        cut & mine & (running_batches.end_s < jnp.inf), running_batch.end_of(iterations), running_batches.end_s
    )
    following = jnp.argmin(end_s).astype(jnp.int32)
    return cluster._replace(
        running_batches=running_batches._replace(
            iterations=jnp.where(mine, iterations, running_batches.iterations), end_s=end_s
        ),
        next_s=read(end_s, following),
        next_replica=following,
    )
