"""Which replicas are the data-parallel ranks of one, and what an arrival at one of them finds; see ``lockstep``.

The ranks of a replica have numbers in a row. Of several pools each has as many as it says, one where it has none, so
that all that is done here holds for a replica that goes by itself, too.
"""

from __future__ import annotations

import jax.numpy as jnp

from evaluator.stations.engine.common.arrays import Flag, FlagPerReplica, Int
from evaluator.stations.engine.common.rings import read
from evaluator.stations.engine.joint.state import ClusterState
from evaluator.stations.engine.preemptive.lane import Given


def first_rank(given: Given, r: Int) -> Int:
    """The first data-parallel rank of the replica that rank r is of."""
    # One pool has one number of ranks, so that the first follows from the number; pools differ, and are told it.
    lockstep = None if given.network is None else given.network.lockstep
    return r - r % ranks_of(given, r) if lockstep is None else read(lockstep.first, r)


def ranks_of(given: Given, r: Int) -> Int:
    """How many ranks that replica has."""
    if given.network is not None and given.network.lockstep is not None:
        return read(given.network.lockstep.ranks, r)
    assert given.together.ranks is not None
    return given.together.ranks


def of_replica(cluster: ClusterState, first: Int, ranks: Int) -> FlagPerReplica:
    """The ranks of the replica whose first rank is ``first``."""
    # A mask over all replicas, and no slice: how many ranks there are is a number, and slices have fixed sizes.
    numbers = jnp.arange(cluster.running_batches.end_s.shape[0], dtype=jnp.int32)
    return (numbers >= first) & (numbers < first + ranks)


def waits_together(given: Given, cluster: ClusterState, r: Int) -> Flag:
    """No rank of the replica of rank r has a batch under way."""
    mine = of_replica(cluster, first_rank(given, r), ranks_of(given, r))
    return jnp.where(mine, cluster.running_batches.end_s, jnp.inf).min() == jnp.inf


def cut_together(given: Given, cluster: ClusterState, r: Int, on: Flag) -> ClusterState:
    """The leap of the replica of rank r ends with the iteration under way, if ``on``."""
    running_batches = cluster.running_batches
    # A rank that has no batch computes a dummy one in step with the others (vLLM ``execute_dummy_batch``): the record
    # of its iterations is theirs, so that an arrival there ends the leap of all of them.
    running_batch = running_batches.row(r)
    cut = on & (running_batch.iterations > 1.0)
    iterations = jnp.where(cut, running_batch.under_way(cluster.state.clock), running_batch.iterations)
    mine = of_replica(cluster, first_rank(given, r), ranks_of(given, r))
    end_s = jnp.where(
        cut & mine & (running_batches.end_s < jnp.inf), running_batch.end_of(iterations), running_batches.end_s
    )
    following = jnp.argmin(end_s).astype(jnp.int32)  # several ends have moved, so that the least is looked for anew
    return cluster._replace(
        running_batches=running_batches._replace(
            iterations=jnp.where(mine, iterations, running_batches.iterations), end_s=end_s
        ),
        next_s=read(end_s, following),
        next_replica=following,
    )
