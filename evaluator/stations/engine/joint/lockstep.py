"""Data-parallel ranks of one replica, whose iterations start together and end with the slowest (``cost.lockstep``).

Ranks of a replica have numbers in a row. They are launched together: one after the other forms its batch, and what the
time of the common iteration depends on is put down in ``Together``; then all of them are launched for the same times. A
leap ends where any rank's batch changes, or another rank gets ahead. A rank without a batch launches none, but an
arrival there ends the leap of the others early.

The first rank of a replica stands for all of them in ``ClusterState.ready``.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from evaluator.cost.iteration import decode_growth, padded
from evaluator.cost.lockstep import (
    Counts,
    LockstepSteps,
    Ranks,
    graph_tokens,
    launched_alone,
    overtaken_after,
    rank_cost,
    steps_together,
    time_alone,
)
from evaluator.cost.quantities import batch_tokens
from evaluator.stations.engine.common.arrays import FlagPerReplica, Float, FloatPerReplica, Int
from evaluator.stations.engine.common.leap import UNBOUNDED
from evaluator.stations.engine.common.rings import read, write
from evaluator.stations.engine.joint.lockstep_leap import of_replica
from evaluator.stations.engine.joint.routing import add_counts, counts_row
from evaluator.stations.engine.joint.state import (
    ClusterState,
    Together,
    anybody_waits,
    kv_unit_s,
    put_back,
    replica_at_hand,
    where,
    with_kv_unit_s,
)
from evaluator.stations.engine.preemptive.batch import form_batch
from evaluator.stations.engine.preemptive.iteration import LaunchedBatch, alike_iterations, leap_kv
from evaluator.stations.engine.preemptive.lane import Given


def launch_together(given: Given, cluster: ClusterState) -> ClusterState:
    """The ranks of a replica where something has happened send their batches, if any has something to do."""
    first, ranks = cluster.ready.top, ranks_of(given)
    beyond = first + ranks

    def form_next(carry: tuple[Int, ClusterState]) -> tuple[Int, ClusterState]:
        r, cluster = carry
        works = (read(cluster.replicas.running_count, r) > 0) | anybody_waits(cluster, r)
        cluster = where(works, lambda cluster: _form(given, cluster, r), cluster)
        again = read(_together(cluster).again, r)
        return jnp.where(again, r, r + 1), cluster

    mine = of_replica(cluster, first, ranks)
    together = _together(cluster)
    together = together._replace(there=together.there & ~mine, again=together.again & ~mine)
    _, cluster = lax.while_loop(
        lambda carry: carry[0] < beyond, form_next, (first, cluster._replace(together=together))
    )
    cluster = _launch_batch(given, cluster, first, mine)
    return cluster._replace(
        ready=cluster.ready.pop(~jnp.zeros((), bool)),
        ending=jnp.zeros((), bool),
    )


def ranks_of(given: Given) -> Int:
    """Data-parallel ranks of a replica."""
    assert given.together.ranks is not None
    return given.together.ranks


def _together(cluster: ClusterState) -> Together:
    assert cluster.together is not None
    return cluster.together


def _form(given: Given, cluster: ClusterState, r: Int) -> ClusterState:
    """Rank r forms its next batch. If all that ran there was preempted, it does so ``again``: some may be admitted."""
    cost = rank_cost(given.pipeline_ranks[0])
    state = replica_at_hand(cluster, r)
    state, batch = form_batch(given, state, state.clock, ~jnp.zeros((), bool))
    sums, zero = batch.sums, jnp.zeros((), jnp.float64)
    # Only how many iterations its KV suffices for: what they take depends on the other ranks.
    leap = leap_kv(given, state, alike_iterations(given, state, batch), zero, zero)
    growing = read(state.decode_groups.growing, state.schedulable)
    sequences = None if given.speculation is None else jnp.maximum(sums.decodes + sums.prefill_sequences, 1.0)
    mine = Together(
        there=batch.there,
        again=~batch.there & state.batch.preempted,
        own_s=time_alone(cost, sums),
        growth_s=jnp.where(batch.decodes, decode_growth(cost, sums, growing), zero),
        fastest_s=jnp.where(batch.decodes, decode_growth(cost, sums, sums.decodes), zero),
        launched_s=launched_alone(cost, sums),
        tokens=jnp.maximum(batch_tokens(cost, sums), 1.0),
        sequences=sequences,
        alike=leap.iterations,
        touched=zero,
        weight=zero,
    )
    router_counts, running_batches = state.router_counts, cluster.running_batches
    assert router_counts is not None
    more = counts_row(work_tokens=router_counts.again, kv_units=router_counts.waiting_units)
    running_batches = running_batches._replace(
        seen=write(running_batches.seen, r, jnp.float64(1.0)),
        completing=write(running_batches.completing, r, state.batch.completing),
        sums=jax.tree.map(lambda column, value: write(column, r, value), running_batches.sums, sums),
    )
    return put_back(cluster, r, state)._replace(
        counts=add_counts(cluster.counts, r, more),
        running_batches=running_batches,
        together=jax.tree.map(lambda column, value: write(column, r, value), _together(cluster), mine),
    )


def _next_steps(
    given: Given, cluster: ClusterState, mine: FlagPerReplica, there: FlagPerReplica
) -> tuple[LockstepSteps, Float]:
    """The iterations of the batches ``there`` on the ranks ``mine``, and how many are alike; of no batches anything."""
    together, ranks = _together(cluster), ranks_of(given)
    ahead_s = jnp.where(there, together.own_s, -jnp.inf).max()
    growth_s = jnp.where(there & (together.own_s == ahead_s), together.growth_s, -jnp.inf).max()
    # Ranks without a batch run a dummy one beside the others, for experts and collectives need all of them.
    graph = graph_tokens(rank_cost(given.pipeline_ranks[0]))

    def counts(batches: FloatPerReplica) -> Counts:
        own = jnp.where(there, batches, 1.0)  # a dummy batch has one token
        whole, filled = (jnp.where(mine, each, 0.0) for each in (own, padded(own, graph)))
        return Counts(whole.max(), whole.sum() / ranks, filled.sum() / ranks)

    sums = Ranks(
        tokens=counts(together.tokens),
        sequences=None if together.sequences is None else counts(together.sequences),
        ahead_s=ahead_s,
        growth_s=growth_s,
        fastest_s=jnp.where(there, together.fastest_s, 0.0).max(),
        launched_s=jnp.where(there, together.launched_s, 0.0).max(),
    )
    steps = steps_together(given.pipeline_ranks[0], sums, given.limits.max_num_seqs)
    # The slowest rank sets the pace until another one, whose contexts grow faster, is slower than it.
    overtaken = overtaken_after(ahead_s - together.own_s, together.growth_s - growth_s)
    alike = jnp.where(there, jnp.minimum(together.alike, overtaken), UNBOUNDED).min()
    return steps, jnp.minimum(alike, steps.alike)


def _launch_batch(given: Given, cluster: ClusterState, first: Int, mine: FlagPerReplica) -> ClusterState:
    """The batches that were formed are launched; there may be none."""
    together, running_batches, clock = _together(cluster), cluster.running_batches, cluster.state.clock
    there = mine & together.there
    steps, iterations = _next_steps(given, cluster, mine, there)
    first_s, flies = steps.first_s, there.any()
    running_batch = LaunchedBatch(clock, jnp.inf, iterations, first_s, steps.slope_s, 1.0, 0, running_batches.sums)
    end_s = jnp.where(there, running_batch.end_of(iterations), running_batches.end_s)
    on, following = mine & flies, jnp.argmin(end_s).astype(jnp.int32)
    held_unit_s = jnp.where(there, cluster.replicas.kv, 0.0).sum() * first_s
    taken = flies & given.rules.on_demand  # of reserved KV the integral is taken at the end
    cluster = with_kv_unit_s(cluster, first, kv_unit_s(cluster, first) + jnp.where(taken, held_unit_s, 0.0))
    return cluster._replace(
        running_batches=running_batches._replace(
            start_s=jnp.where(on, clock, running_batches.start_s),
            end_s=end_s,
            iterations=jnp.where(on, iterations, running_batches.iterations),
            first_s=jnp.where(on, first_s, running_batches.first_s),
            slope_s=jnp.where(on, steps.slope_s, running_batches.slope_s),
        ),
        together=together._replace(
            touched=jnp.where(on, steps.touched, together.touched),
            # Totals are sums over ranks. Those in dummy batches are busy as well, and no batch of theirs ends.
            weight=jnp.where(on, ranks_of(given) / jnp.maximum(there.sum(), 1), together.weight),
        ),
        next_s=read(end_s, following),
        next_replica=following,
    )


def own_part(cluster: ClusterState, r: Int) -> tuple[Float, Float]:
    """(fraction of the experts that an iteration of rank r touches, ranks of its replica for each that has a batch).

    All ranks of a replica are busy while any of them has a batch: the batches that end stand for those of the others.
    """
    together = _together(cluster)
    return read(together.touched, r), read(together.weight, r)
