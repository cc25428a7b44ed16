"""Data-parallel ranks of one replica, whose iterations start together and end with the slowest (``cost.lockstep``).

Ranks of a replica have numbers in a row. They are launched together: one after the other forms its batch, and what the
time of the common iteration depends on is put down in ``Together``; then all of them are launched for the same times. A
leap ends where any rank's batch changes, or another rank gets ahead. A rank without a batch launches none, but an
arrival there ends the leap of the others early. In a pipeline (``send_together``) nothing leaps, and a rank without a
batch sends a dummy one.

The first rank of a replica stands for all of them in ``ClusterState.ready``.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from evaluator.cost.iteration import BatchStatistics, decode_growth, padded, share_touched
from evaluator.cost.lockstep import (
    Counts,
    LockstepSteps,
    Ranks,
    graph_tokens,
    launched_alone,
    overtaken_after,
    rank_cost,
    splits,
    steps_together,
    time_alone,
    tokens_brought,
)
from evaluator.cost.quantities import batch_tokens
from evaluator.stations.engine.common.arrays import FlagPerReplica, Float, FloatPerReplica, Int
from evaluator.stations.engine.common.leap import UNBOUNDED
from evaluator.stations.engine.common.rings import NONE, read, where, write
from evaluator.stations.engine.joint.kv_reservation import reserve_between
from evaluator.stations.engine.joint.lockstep_leap import of_replica, ranks_of
from evaluator.stations.engine.joint.pools import given_at
from evaluator.stations.engine.joint.routing import add_counts, counts_row, has_room
from evaluator.stations.engine.joint.state import (
    ClusterState,
    Together,
    anybody_waits,
    at_hand,
    ends_at,
    kv_unit_s,
    put_back,
    with_kv_unit_s,
)
from evaluator.stations.engine.joint.transfers import ask_early
from evaluator.stations.engine.preemptive.batch import Scheduled, form_batch
from evaluator.stations.engine.preemptive.iteration import LaunchedBatch, alike_iterations, leap_kv
from evaluator.stations.engine.preemptive.lane import Given
from evaluator.stations.engine.preemptive.pipeline import Passage, oldest_end, send_batch


def launch_together(given: Given, cluster: ClusterState) -> ClusterState:
    """The ranks of a replica where something has happened send their batches, if any has something to do."""
    first = cluster.ready.top
    mine = of_replica(cluster, first, ranks_of(given, first))
    # vLLM's ranks agree on each step by an all-reduce (``coordinate_batch_across_dp``): all batches are known before
    # the time of any of them is.
    cluster = _launch_batch(given, _form_all(given, cluster, first, mine), first, mine)
    return cluster._replace(
        ready=cluster.ready.pop(~jnp.zeros((), bool)),
        ending=jnp.zeros((), bool),
    )


def _form_all(given: Given, cluster: ClusterState, first: Int, mine: FlagPerReplica) -> ClusterState:
    """One rank after the other forms its batch; what follows for the time is in ``Together``."""
    beyond = first + ranks_of(given, first)

    def form_next(carry: tuple[Int, ClusterState]) -> tuple[Int, ClusterState]:
        r, cluster = carry
        works = (read(cluster.replicas.running_count, r) > 0) | anybody_waits(cluster, r)
        if cluster.several is not None and cluster.several.reserved is not None:
            works = works | (read(cluster.several.reserved.first, r) >= 0)  # room is given when a batch was formed
        cluster = where(works, lambda cluster: _form(given, cluster, r), cluster)
        # If all that ran was preempted the rank looks once more, before the next one does: that takes no time.
        again = read(_together(cluster).again, r)
        return jnp.where(again, r, r + 1), cluster

    together = _together(cluster)
    # A rank with nothing to do forms nothing, and what its columns say of an earlier batch must not count.
    together = together._replace(has_batch=together.has_batch & ~mine, again=together.again & ~mine)
    cluster = cluster._replace(together=together)
    return lax.while_loop(lambda carry: carry[0] < beyond, form_next, (first, cluster))[1]


def _together(cluster: ClusterState) -> Together:
    assert cluster.together is not None
    return cluster.together


def _form(given: Given, cluster: ClusterState, r: Int) -> ClusterState:
    """Rank r forms its next batch. If all that ran there was preempted, it does so ``again``: some may be admitted."""
    pool_given = given_at(given, r, cluster.several)
    whole = pool_given.pipeline_ranks[0]
    cost = rank_cost(whole)
    piped = cluster.replicas.pipeline is not None
    state = at_hand(cluster, r)
    start_s = jnp.maximum(state.clock, state.pipeline.free_s[0]) if piped else state.clock
    state, batch = form_batch(pool_given, state, start_s, ~jnp.zeros((), bool))
    if pool_given.structure.kv_reservation:
        cluster, state = reserve_between(given, cluster, r, state, batch.nonempty | ~state.batch.preempted)
    sums, zero = batch.sums, jnp.zeros((), jnp.float64)
    # Only how many iterations its KV suffices for: what they take depends on the other ranks. In a pipeline none leaps.
    if piped:
        alike = jnp.ones(())
    else:
        alike = leap_kv(pool_given, state, alike_iterations(pool_given, state, batch), zero, zero).iterations
    growing = read(state.decode_groups.growing, state.schedulable)
    # What drafts passes the ranks together as well, with a token of every sequence (``cost.lockstep``).
    sequences = None if given.speculation is None else jnp.maximum(sums.decodes + sums.prefill_sequences, 1.0)
    mine = Together(
        has_batch=batch.nonempty,
        again=~batch.nonempty & state.batch.preempted,
        own_s=time_alone(cost, sums),
        growth_s=jnp.where(batch.decodes, decode_growth(cost, sums, growing), zero),
        fastest_s=jnp.where(batch.decodes, decode_growth(cost, sums, sums.decodes), zero),
        launched_s=launched_alone(cost, sums),
        tokens=jnp.maximum(batch_tokens(cost, sums), 1.0),
        sequences=sequences,
        alike=alike,
        touched=zero,
        weight=zero,
        brought=tokens_brought(whole, sums) if splits(whole) else None,
    )
    router_counts, running_batches = state.router_counts, cluster.running_batches
    assert router_counts is not None
    more = counts_row(work_tokens=router_counts.again, kv_units=router_counts.waiting_units)
    running_batches = running_batches._replace(
        seen=write(running_batches.seen, r, jnp.float64(1.0)),
        completing=write(running_batches.completing, r, state.batch.completing),
        sums=running_batches.sums.with_row(r, sums),
    )
    cluster = put_back(cluster, r, state)._replace(
        counts=add_counts(cluster.counts, r, more),
        running_batches=running_batches,
        together=jax.tree.map(lambda column, value: write(column, r, value), _together(cluster), mine),
    )
    return ask_early(given, cluster, r) if given.structure.kv_reservation else cluster


def _sizes(
    given: Given, cluster: ClusterState, mine: FlagPerReplica, with_batch: FlagPerReplica
) -> tuple[Counts, Counts | None]:
    """Tokens, and with drafts sequences, in the batches of the ranks ``mine``: one in each that is not ``with_batch``.

    Ranks without a batch run a dummy one beside the others, for experts and collectives need all of them (vLLM
    ``DPEngineCoreProc.run_busy_loop``: ``execute_dummy_batch``).
    """
    together, ranks = _together(cluster), mine.sum()
    graph = graph_tokens(rank_cost(given.pipeline_ranks[0]))

    def counts(batches: FloatPerReplica) -> Counts:
        tokens = jnp.where(with_batch, batches, 1.0)  # a dummy batch has one token
        whole, filled = (jnp.where(mine, counted, 0.0) for counted in (tokens, padded(tokens, graph)))
        return Counts(whole.max(), whole.sum() / ranks, filled.sum() / ranks)

    return counts(together.tokens), None if together.sequences is None else counts(together.sequences)


def _brought(together: Together, mine: FlagPerReplica, with_batch: FlagPerReplica) -> Float | None:
    """The least that any of the ranks ``mine`` brings, which is nothing in a dummy batch (``cost.lockstep``)."""
    if together.brought is None:
        return None
    return jnp.where(mine, jnp.where(with_batch, together.brought, 0.0), jnp.inf).min()


def _next_steps(
    given: Given, cluster: ClusterState, mine: FlagPerReplica, with_batch: FlagPerReplica
) -> tuple[LockstepSteps, Float]:
    """The iterations that the ranks ``mine`` run together, and how many of them are alike.

    ``with_batch``: the ranks among them that have a batch. If none has, what is returned means nothing.
    """
    together = _together(cluster)
    tokens, sequences = _sizes(given, cluster, mine, with_batch)
    ahead_s = jnp.where(with_batch, together.own_s, -jnp.inf).max()
    growth_s = jnp.where(with_batch & (together.own_s == ahead_s), together.growth_s, -jnp.inf).max()
    # Of equally slow ranks the one whose time grows fastest leads: it is the slowest from the next iteration on.
    sums = Ranks(
        tokens=tokens,
        sequences=sequences,
        ahead_s=ahead_s,
        growth_s=growth_s,
        fastest_s=jnp.where(with_batch, together.fastest_s, 0.0).max(),
        launched_s=jnp.where(with_batch, together.launched_s, 0.0).max(),
        brought=_brought(together, mine, with_batch),
    )
    steps = steps_together(given.pipeline_ranks[0], sums, given.limits.max_num_seqs)
    # The slowest rank sets the pace until another one, whose contexts grow faster, is slower than it.
    overtaken = overtaken_after(ahead_s - together.own_s, together.growth_s - growth_s)
    alike = jnp.where(with_batch, jnp.minimum(together.alike, overtaken), UNBOUNDED).min()
    return steps, jnp.minimum(alike, steps.alike)


def _launch_batch(given: Given, cluster: ClusterState, first: Int, mine: FlagPerReplica) -> ClusterState:
    """The batches that were formed are launched; there may be none."""
    together, running_batches, clock = _together(cluster), cluster.running_batches, cluster.state.clock
    with_batch = mine & together.has_batch
    pool_given = given_at(given, first, cluster.several)
    steps, iterations = _next_steps(pool_given, cluster, mine, with_batch)
    first_s, launches = steps.first_s, with_batch.any()
    sums = running_batches.sums.of_all()
    running_batch = LaunchedBatch(clock, jnp.inf, iterations, first_s, steps.slope_s, 1.0, 0, sums)
    # Only ranks with a batch have an end to come to; but all have the record of the iterations, which an arrival at an
    # idle rank cuts short (``cut_together``).
    end_s = jnp.where(with_batch, running_batch.end_of(iterations), running_batches.end_s)
    on, following = mine & launches, jnp.argmin(end_s).astype(jnp.int32)
    # What is reserved for those who are still elsewhere counts from the time it was (``kv_reservation``).
    kv, reserved = cluster.replicas.kv, cluster.replicas.reserved
    running = kv if reserved is None else kv - reserved
    held_unit_s = jnp.where(with_batch, running, 0.0).sum() * first_s
    # On demand the first iteration is integrated here and the others as routers ask or the leap ends (``grow_to``), of
    # all ranks in the sum of the first: those of one pool are told together.
    taken = launches & pool_given.on_demand()  # of reserved KV the integral is taken at the end
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
            weight=jnp.where(on, mine.sum() / jnp.maximum(with_batch.sum(), 1), together.weight),
        ),
        next_s=read(end_s, following),
        next_replica=following,
    )


def send_together(given: Given, cluster: ClusterState) -> ClusterState:
    """The same in a pipeline: the ranks of a replica send a batch each, which pass its pipeline ranks together.

    A rank that has none sends a dummy batch, so that all have as many under way; in each pipeline rank all take as long
    as the slowest (``reference.lockstep``).
    """
    first = cluster.ready.top
    pool_given, mine = given_at(given, first, cluster.several), of_replica(cluster, first, ranks_of(given, first))
    cluster = _form_all(given, cluster, first, mine)
    with_batch = mine & _together(cluster).has_batch
    passage, launches = _passage(pool_given, cluster, mine, with_batch), with_batch.any()

    def send(carry: tuple[Int, ClusterState]) -> tuple[Int, ClusterState]:
        r, cluster = carry
        state, present, launched = at_hand(cluster, r), read(with_batch, r), cluster.running_batches
        # A rank with nothing to do has formed nothing: its columns are those of a batch that has long ended.
        sums = BatchStatistics(*(jnp.where(present, value, 0.0) for value in launched.sums.row(r)))
        completing = jnp.where(present, read(launched.completing, r), NONE)
        state = state._replace(batch=state.batch._replace(completing=completing))
        batch = Scheduled(sums, sums.decodes > 0, present)
        start_s = jnp.maximum(state.clock, state.pipeline.free_s[0])
        state = send_batch(given_at(given, r, cluster.several), state, batch, start_s, ~jnp.zeros((), bool), passage)
        return r + 1, ends_at(put_back(cluster, r, state), r, oldest_end(state))

    # Where nobody has a batch none is sent, not even a dummy one: the replica waits for an arrival.
    beyond = jnp.where(launches, first + ranks_of(given, first), first)
    _, cluster = lax.while_loop(lambda carry: carry[0] < beyond, send, (first, cluster))
    # Any rank says whether there is room, for all have as many batches under way.
    again = launches & has_room(pool_given, cluster, first)
    return cluster._replace(ready=cluster.ready.pop(~again), ending=jnp.zeros((), bool))


def _passage(given: Given, cluster: ClusterState, mine: FlagPerReplica, with_batch: FlagPerReplica) -> Passage:
    """How long each pipeline rank takes: as for the slowest batch of the ranks ``with_batch`` among ``mine``."""
    tokens, sequences = _sizes(given, cluster, mine, with_batch)
    # No iteration follows another of the same batches, so that how fast they grow is not asked.
    zero, steps = jnp.zeros(()), []
    for cost in given.pipeline_ranks:
        device, sums = rank_cost(cost), cluster.running_batches.sums.of_all()  # of every replica's batch, (replica,)
        ahead_s = jnp.where(with_batch, time_alone(device, sums), -jnp.inf).max()
        launched_s = jnp.where(with_batch, launched_alone(device, sums), 0.0).max()
        brought = _brought(_together(cluster), mine, with_batch)
        ranks = Ranks(tokens, ahead_s, zero, zero, launched_s, sequences, brought)
        steps.append(steps_together(cost, ranks, given.limits.max_num_seqs))
    return Passage(tuple(rank_steps.first_s for rank_steps in steps), steps[0].touched)


def own_part(given: Given, cluster: ClusterState, r: Int) -> tuple[Float, Float]:
    """(fraction of the experts that an iteration of rank r touches, ranks of its replica for each that has a batch).

    All ranks of a replica are busy while any of them has a batch: the batches that end stand for those of the others.
    """
    together = _together(cluster)
    touched, weight = read(together.touched, r), read(together.weight, r)
    if given.network is None:
        return touched, weight
    # Beside ranks in lockstep other pools have replicas that go by themselves.
    pool_given = given_at(given, r, cluster.several)
    sums = cluster.running_batches.sums.row(r)
    alone = share_touched(pool_given.pipeline_ranks[0], batch_tokens(pool_given.pipeline_ranks[0], sums))
    apart = ranks_of(given, r) == 1
    return jnp.where(apart, alone, touched), jnp.where(apart, 1.0, weight)
