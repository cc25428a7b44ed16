"""Data-parallel ranks of one replica, whose iterations start together and end with the slowest (``cost.lockstep``).

Ranks of a replica have numbers in a row. They are launched together: one after the other forms its batch, and what the
time of the common iteration depends on is put down in ``Together``; then all of them take off with flights of the same
times. A leap ends where any rank's batch changes, or another rank gets ahead. A rank without a batch has no flight, but
an arrival there ends the leap of the others early.

The first rank of a replica stands for all of them in ``Fleet.touched``.
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
    overtaken_after,
    rank_cost,
    steps_together,
    time_alone,
)
from evaluator.cost.quantities import batch_tokens
from evaluator.stations.engine.common.arrays import FlagPerReplica, Float, FloatPerReplica, Int
from evaluator.stations.engine.common.leap import UNBOUNDED
from evaluator.stations.engine.common.rings import read, write
from evaluator.stations.engine.joint.lane import GivenPool
from evaluator.stations.engine.joint.leap import until_change
from evaluator.stations.engine.joint.lockstep_leap import of_replica
from evaluator.stations.engine.joint.routing import add_counts, counts_row
from evaluator.stations.engine.joint.state import Fleet, JointBatches, Together, put_back, replica_at_hand, where
from evaluator.stations.engine.preemptive.batch import form_batch, scheduled
from evaluator.stations.engine.preemptive.state import no_batch


def launch_together(pool: GivenPool, fleet: Fleet) -> Fleet:
    """The ranks of a replica where something has happened send their batches, if any has something to do."""
    first, ranks = fleet.touched.top, ranks_of(pool)
    beyond = first + ranks

    def form_next(carry: tuple[Int, Fleet]) -> tuple[Int, Fleet]:
        r, fleet = carry
        works = (read(fleet.rows.running_count, r) > 0) | (read(fleet.rows.first, r) >= 0)
        fleet = where(works, lambda fleet: _form(pool, fleet, r), fleet)
        again = read(_together(fleet).again, r)
        return jnp.where(again, r, r + 1), fleet

    mine = of_replica(fleet, first, ranks)
    together = _together(fleet)
    together = together._replace(there=together.there & ~mine, again=together.again & ~mine)
    _, fleet = lax.while_loop(lambda carry: carry[0] < beyond, form_next, (first, fleet._replace(together=together)))
    fleet = _launch_batch(pool, fleet, mine)
    return fleet._replace(
        touched=fleet.touched.pop(~jnp.zeros((), bool)),
        ending=jnp.zeros((), bool),
    )


def ranks_of(pool: GivenPool) -> Int:
    """Data-parallel ranks of a replica."""
    assert pool.ranks is not None
    return pool.ranks


def _together(fleet: Fleet) -> Together:
    assert fleet.together is not None
    return fleet.together


def _form(pool: GivenPool, fleet: Fleet, r: Int) -> Fleet:
    """Rank r forms its next batch. If all that ran there was preempted, it does so ``again``: some may be admitted."""
    given = pool.given
    cost = rank_cost(given.pipeline_ranks[0])
    state = replica_at_hand(fleet, r)._replace(batch=no_batch())
    state = form_batch(given, state, state.clock, ~jnp.zeros((), bool))
    batch = scheduled(given, state)
    sums, zero = batch.sums, jnp.zeros((), jnp.float64)
    growing = read(state.decode_groups.growing, state.schedulable)
    sequences = None if given.speculation is None else jnp.maximum(sums.decodes + sums.prefill_sequences, 1.0)
    mine = Together(
        there=batch.there,
        again=~batch.there & state.batch.preempted,
        own_s=time_alone(cost, sums),
        growth_s=jnp.where(batch.decodes, decode_growth(cost, sums, growing), zero),
        fastest_s=jnp.where(batch.decodes, decode_growth(cost, sums, sums.decodes), zero),
        tokens=jnp.maximum(batch_tokens(cost, sums), 1.0),
        sequences=sequences,
        alike=until_change(given, state, batch),
        touched=zero,
        weight=zero,
    )
    router_counts, running_batches = state.router_counts, fleet.running_batches
    assert router_counts is not None
    more = counts_row(work_tokens=router_counts.again, kv_units=router_counts.waiting_units)
    running_batches = running_batches._replace(
        seen=write(running_batches.seen, r, jnp.float64(1.0)),
        completing=write(running_batches.completing, r, state.batch.completing),
        sums=jax.tree.map(lambda column, value: write(column, r, value), running_batches.sums, sums),
    )
    return put_back(fleet, r, state)._replace(
        counts=add_counts(fleet.counts, r, more),
        running_batches=running_batches,
        together=jax.tree.map(lambda column, value: write(column, r, value), _together(fleet), mine),
    )


def _next_steps(
    pool: GivenPool, fleet: Fleet, mine: FlagPerReplica, there: FlagPerReplica
) -> tuple[LockstepSteps, Float]:
    """The iterations of the batches ``there`` on the ranks ``mine``, and how many are alike; of no batches anything."""
    together, ranks = _together(fleet), ranks_of(pool)
    ahead_s = jnp.where(there, together.own_s, -jnp.inf).max()
    growth_s = jnp.where(there & (together.own_s == ahead_s), together.growth_s, -jnp.inf).max()
    graph = graph_tokens(rank_cost(pool.given.pipeline_ranks[0]))

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
    )
    steps = steps_together(pool.given.pipeline_ranks[0], sums, pool.given.limits.max_num_seqs)
    overtaken = overtaken_after(ahead_s - together.own_s, together.growth_s - growth_s)
    alike = jnp.where(there, jnp.minimum(together.alike, overtaken), UNBOUNDED).min()
    return steps, jnp.minimum(alike, steps.alike)


def _launch_batch(pool: GivenPool, fleet: Fleet, mine: FlagPerReplica) -> Fleet:
    """The batches that were formed take off; there may be none."""
    together, running_batches, state = _together(fleet), fleet.running_batches, fleet.state
    there = mine & together.there
    steps, iterations = _next_steps(pool, fleet, mine, there)
    first_s, flies = steps.first_s, there.any()
    running_batch = JointBatches(state.clock, jnp.inf, iterations, first_s, steps.slope_s, 1.0, 0, running_batches.sums)
    end_s = jnp.where(there, running_batch.end_of(iterations), running_batches.end_s)
    on, following = mine & flies, jnp.argmin(end_s).astype(jnp.int32)
    kv_unit_s = jnp.where(there, fleet.rows.kv, 0.0).sum() * first_s
    taken = flies & pool.given.rules.on_demand  # of reserved KV the integral is taken at the end
    return fleet._replace(
        state=state._replace(kv_unit_s=state.kv_unit_s + jnp.where(taken, kv_unit_s, 0.0)),
        running_batches=running_batches._replace(
            start_s=jnp.where(on, state.clock, running_batches.start_s),
            end_s=end_s,
            iterations=jnp.where(on, iterations, running_batches.iterations),
            first_s=jnp.where(on, first_s, running_batches.first_s),
            slope_s=jnp.where(on, steps.slope_s, running_batches.slope_s),
        ),
        together=together._replace(
            touched=jnp.where(on, steps.touched, together.touched),
            weight=jnp.where(on, ranks_of(pool) / jnp.maximum(there.sum(), 1), together.weight),
        ),
        next_s=read(end_s, following),
        next_replica=following,
    )


def own_part(fleet: Fleet, r: Int) -> tuple[Float, Float]:
    """(fraction of the experts that an iteration of rank r touches, ranks of its replica for each that has a batch).

    All ranks of a replica are busy while any of them has a batch: the flights that land stand for those of the others.
    """
    together = _together(fleet)
    return read(together.touched, r), read(together.weight, r)
