"""Where arrivals go: what a router counts of the replicas, and the queue that a request comes into."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax

from evaluator.routing import COUNTERS
from evaluator.scenario.autoscaling import METRICS, OUTPUT_RATE
from evaluator.stations.engine.common.arrays import (
    Array,
    Flag,
    FlagPerReplica,
    Float,
    FloatPerReplica,
    Int,
)
from evaluator.stations.engine.common.calendar import Calendar
from evaluator.stations.engine.common.lane import refused_at
from evaluator.stations.engine.common.rings import NONE, read, read_once, where, write
from evaluator.stations.engine.joint.lockstep_leap import cut_together, first_rank, waits_together
from evaluator.stations.engine.joint.pools import given_at
from evaluator.stations.engine.joint.prefix_choice import choose_by_prefix, looks_at_kv
from evaluator.stations.engine.joint.state import (
    ClusterState,
    ends_at,
    kv_unit_s,
    not_waiting,
    put_back,
    replica_at_hand,
    row_of,
    with_kv_unit_s,
)
from evaluator.stations.engine.preemptive.decode_groups import known_tokens
from evaluator.stations.engine.preemptive.lane import Given
from evaluator.stations.engine.preemptive.preemption import growth_of
from evaluator.stations.engine.preemptive.prefix_cache import at_step, next_due, step_to, take, take_step
from evaluator.stations.engine.preemptive.state import State
from evaluator.stations.engine.preemptive.waiting import Queue, arrival_goes_first, come_in

BY_TOKEN = tuple(
    {"work_tokens": -1.0, "output_tokens": -1.0, "context_tokens": 1.0}.get(name, 0.0) for name in COUNTERS
)
"""What one more output token adds to each of the counters."""
KV = COUNTERS.index("kv_units")
REQUESTS, WORK, OUTPUT = (COUNTERS.index(name) for name in ("requests", "work_tokens", "output_tokens"))


def counts_row(**values: Float | Int) -> Array:
    """Values of the counters by name, float64 (counter,); 0 where nothing is said."""
    return jnp.stack([jnp.asarray(values.get(name, 0.0), jnp.float64) for name in COUNTERS])


def add_counts(counts: Array, r: Int, more: Array) -> Array:
    """The counters of the replicas with ``more`` (counter,) at replica r."""
    # A row at once: writing counter by counter would be five updates, each of which XLA orders after the last.
    place = r, jnp.int32(0)
    row = lax.dynamic_slice(counts, place, (1, len(COUNTERS)), allow_negative_indices=False)
    return lax.dynamic_update_slice(counts, row + more[None], place, allow_negative_indices=False)


def decoded_tokens(before: State, after: State, steps: Float) -> Float:
    """Output tokens that decodes have given between two states: one for each of their ``steps``, with drafts more."""
    if before.accepted is None or after.accepted is None:
        return steps
    return after.accepted.decoded_tokens - before.accepted.decoded_tokens


def next_arrival(given: Given, cluster: ClusterState) -> Float:
    """When the next request is sent; infinite if none will be before another has finished."""
    i, state = cluster.arrived, cluster.state
    if given.session_turns is not None:
        return jnp.maximum(_next_of_talks(given, cluster)[0], state.clock)
    at_s, comes = read(given.requests.arrival_s, _in_order(given, i)), i < state.released
    # Users behind a frontend: beyond the first ``released`` a request is sent when the next answer reaches its user,
    # and answers reach them in another order than that in which they were given (``Calendar``).
    if state.answers is not None:
        at_s = jnp.where(comes, at_s, state.answers.first()[0])
        comes = comes | (state.answers.size > 0)
    return jnp.where(comes & (i < given.limits.requests), jnp.maximum(at_s, state.clock), jnp.inf)


def _next_of_talks(given: Given, cluster: ClusterState) -> tuple[Float, Int, Flag, Flag]:
    """By users who think about answers: when the next request is sent, which one, whether somebody has waited for an
    answer to send it, and whether it opens a session."""
    session_turns, answers = given.session_turns, cluster.state.answers
    assert session_turns is not None and answers is not None
    opened = cluster.state.released
    opens = opened < session_turns.openings
    first = read(session_turns.opening, opened)
    opens_s = jnp.where(opens, read(given.requests.arrival_s, first), jnp.inf)
    due_s, code = answers.first()
    due = code.astype(jnp.int32)
    # Ties by number, as the reference's calendar has them (``reference.network.Clients``): NONE, a session that a user
    # opens, comes before all others.
    sooner = (due_s < opens_s) | ((due_s == opens_s) & (due < first))
    follows = sooner & (due >= 0)
    return jnp.minimum(due_s, opens_s), jnp.where(follows, due, first), sooner, ~follows


def _in_order(given: Given, count: Int) -> Int:
    """The request that is sent when so many have been sent before it."""
    order = None if given.network is None else given.network.order
    return count if order is None else read(order, count)


def next_request(given: Given, cluster: ClusterState) -> tuple[ClusterState, Int]:
    """The request that is sent now, and the cluster where it is no longer due."""
    state, i = cluster.state, cluster.arrived
    answers = state.answers
    if answers is None:
        return cluster, _in_order(given, i)
    # Always true. The clock has gone to the time on top of the calendar, and XLA must have read that before it is taken
    # off: else it copies the calendar for each request (``common.rings``).
    read_before = state.clock >= 0.0
    if given.session_turns is None:
        taken = (i >= state.released) & read_before
        return cluster._replace(state=state._replace(answers=answers.without_first(taken))), i
    _, i, waited, opens = _next_of_talks(given, cluster)
    opened = state.released + opens
    # Users who are free after the last session was opened leave. Their entries are taken out when they are on top,
    # where they would stand in front of others: a sort of all of them at once is not in place, and took four times as
    # long as all else that a request takes.
    all_opened = opened == given.session_turns.sessions

    def leaves(answers: Calendar) -> Flag:
        return all_opened & (answers.size > 0) & (answers.first()[1] == NONE)

    answers = answers.without_first(waited & read_before)
    answers = lax.while_loop(leaves, lambda answers: answers.without_first(leaves(answers)), answers)
    return cluster._replace(state=state._replace(answers=answers, released=opened)), i


def send(given: Given, cluster: ClusterState) -> ClusterState:
    """The next request is sent at the time of the clock: it comes into the queue of the replica chosen for it."""
    # The router chooses before the request is counted anywhere, as vLLM's client does.
    cluster, i = next_request(given, cluster)
    cluster, r = choice(given, cluster, i)

    def enters(cluster: ClusterState) -> ClusterState:
        return come_to(given, announce(given, cluster, i, r), i, r)

    bound = given.together.max_queued
    if bound is None:
        cluster = enters(cluster)
    else:
        waiting = read(cluster.counts[:, REQUESTS], r) - read(not_waiting(cluster.replicas), r)
        refused = waiting >= bound
        cluster = where(refused, functools.partial(_refuse, i=i, r=r), cluster)
        cluster = where(~refused, enters, cluster)
    if cluster.fleet is not None:
        assert given.together.fleet is not None
        outputs = given.together.fleet.metric == METRICS.index(OUTPUT_RATE)
        prompt, output = read(given.requests.compute_tokens, i), read(given.requests.output_tokens, i)
        came_tokens = cluster.fleet.came_tokens + jnp.where(outputs, output, prompt)
        cluster = cluster._replace(fleet=cluster.fleet._replace(came_tokens=came_tokens))
    return cluster._replace(arrived=cluster.arrived + 1)


def _refuse(cluster: ClusterState, i: Int, r: Int) -> ClusterState:
    """Request i is sent away by replica r: it leaves at once, and is counted nowhere."""
    state, now = cluster.state, cluster.state.clock
    sequences = state.sequences
    sequences = sequences._replace(
        scheduled_s=write(sequences.scheduled_s, i, now),
        first_token_s=write(sequences.first_token_s, i, now),
        last_token_s=write(sequences.last_token_s, i, now),
    )
    return cluster._replace(
        state=state._replace(sequences=sequences, finished=state.finished + 1),
        replica=write(cluster.replica, i, refused_at(r)),
    )


def announce(given: Given, cluster: ClusterState, i: Int, r: Int) -> ClusterState:
    """Job i is to be served at replica r, now or later: routers count it there."""
    pool_given = given_at(given, r, cluster.several)
    # Counted from when it is sent on its way, though it may be an iteration, or a transfer, until the replica knows of
    # it (vLLM ``DPLBAsyncMPClient.get_core_engine_for_request`` counts one more that waits at once).
    output, context = read(pool_given.requests.output_tokens, i), known_tokens(pool_given, i, 0)
    more = counts_row(
        requests=1.0,
        work_tokens=read(pool_given.requests.compute_tokens, i) + output,
        output_tokens=output,
        kv_units=pool_given.kv_units(i),
        context_tokens=context,
    )
    return cluster._replace(counts=add_counts(cluster.counts, r, more), replica=write(cluster.replica, i, r))


def come_to(given: Given, cluster: ClusterState, i: Int, r: Int) -> ClusterState:
    """Job i comes into the queue of replica r.

    A leap under way there, which would keep it waiting, ends with the iteration under way.
    """
    pool_given = given_at(given, r, cluster.several)
    queue = cluster.replicas.queue
    # Before it comes in: whether it would be at the head. Behind others it waits for them anyhow, and no leap ends.
    first = arrival_goes_first(pool_given, read(queue.first, r) >= 0, read(queue.top, r) >= 0)
    cluster = _noted(given, _come_in(pool_given, cluster, i, r), i, r)
    may_come_in = first & (read(cluster.replicas.running_count, r) < pool_given.limits.max_num_seqs)
    return look_at(given, cluster, r, may_come_in)


def look_at(given: Given, cluster: ClusterState, r: Int, cuts: Flag) -> ClusterState:
    """Something came to replica r: it is to form a batch as soon as it may, which is now or when one ends.

    ``cuts``: a leap under way there ends with the iteration under way, because the batch after it may be another. In a
    pipeline nothing leaps.
    """
    first = first_rank(given, r) if given.structure.lockstep else r  # which stands for all ranks in lockstep with it
    # Ranks in lockstep form their batches together, when the last of theirs has ended; in a pipeline all have as many
    # under way, so that any of them says whether there is room.
    if given.structure.lockstep and cluster.replicas.pipeline is None:
        room = waits_together(given, cluster, r)
        cluster = cut_together(given, cluster, r, cuts & ~room)
        return cluster._replace(ready=cluster.ready.push(first, room))
    room = has_room(given_at(given, r, cluster.several), cluster, r)
    if cluster.replicas.pipeline is None:
        cluster = cut_short(cluster, r, cuts & ~room)
    return cluster._replace(ready=cluster.ready.push(first, room))


def _noted(given: Given, cluster: ClusterState, i: Int, r: Int) -> ClusterState:
    """Of several pools: when job i came, and whether it is the first measured one at replica r."""
    network, several = given.network, cluster.several
    if network is None or several is None:
        return cluster
    # Gaps between tokens count from the first token of a measured job on, at each replica of one of its own.
    known = read(several.first_measured, r)
    none = known == several.sent_s.shape[0] - 1
    first = jnp.where(none & read(network.measured, i), i, known)
    return cluster._replace(
        several=several._replace(
            sent_s=write(several.sent_s, i, cluster.state.clock),
            first_measured=write(several.first_measured, r, first),
        )
    )


def has_room(given: Given, cluster: ClusterState, r: Int) -> Flag:
    """Replica r may send a batch: none is under way, or fewer than it has pipeline ranks."""
    pipeline = cluster.replicas.pipeline
    if pipeline is None:
        return read(cluster.running_batches.end_s, r) == jnp.inf
    return read(pipeline.launched_batches, r) - read(pipeline.completed_batches, r) < given.batches_under_way()


def choice(given: Given, cluster: ClusterState, i: Int) -> tuple[ClusterState, Int]:
    """The replica of job i; the first of several with as little.

    Of several pools it is one of its phase with its model and, behind a prefill side with groups, of its group.
    """
    router, network = given.together.router, given.network
    phase, group = _place(given, cluster, i)
    counter, by = read(router.counter, phase), router.by_prefix
    if by is not None and network is not None:
        by = jax.tree.map(lambda values: read(values, phase), by)
    cluster, known = _from_table(given, cluster, i, group, counter < 0)
    fleet = cluster.fleet
    if fleet is not None:
        cluster = cluster._replace(fleet=fleet._replace(turn=fleet.turn + 1))

    def able() -> FlagPerReplica:
        if network is None:
            return _there(given)
        grouped = network.grouped & (phase > 0)
        able = (network.phase == phase) & (network.model == read(network.asks, i))
        return able & (~grouped | (network.group == group))

    def least() -> Int:
        load = _load(cluster, counter)
        if fleet is not None:
            serving = fleet.serving()
            return fleet.first_of(serving & (load == jnp.where(serving, load, jnp.inf).min()))
        if network is None:
            return _least(load, able())
        # All routers of all phases are in one expression, and which replicas are able is a mask: a phase that is not
        # asked costs as much, but a branch would be taken on both sides under ``vmap``.
        capacity = given.limits.kv_units[network.pool]  # of unequal pools KV counts by its share of all there is
        return _least(jnp.where(counter == KV, load / capacity, load), able())

    # Loads are sums over all replicas: a router with a table does not compute them (on a CPU; ``vmap`` does).
    # Of a fleet no table knows who serves: without a counter its replicas are dealt in turn.
    r = lax.cond(counter >= 0, least, (lambda: known) if fleet is None else fleet.in_turn)
    if by is None:
        return cluster, r
    cluster, by_prefix = choose_by_prefix(given, cluster, by, i, able())
    return cluster, jnp.where(by.chosen, by_prefix, r)


def _place(given: Given, cluster: ClusterState, i: Int) -> tuple[Int, Int]:
    """The phase of job i, and the group of the replica that computed its prompt, if its router minds."""
    network, none = given.network, jnp.int32(0)
    if network is None:
        return none, none
    # A job that another went before is of the second phase; what its prefill replica was is known since it left that.
    behind = read(network.before, i) >= 0
    phase = jnp.where(behind, 1, 0)
    if cluster.several is None or cluster.several.travel is None:
        return phase, none
    sender = read_once(cluster.several.travel.sender, i)
    return phase, jnp.where(network.grouped & behind, read(network.group, jnp.maximum(sender, 0)), none)


def _from_table(given: Given, cluster: ClusterState, i: Int, group: Int, on: Flag) -> tuple[ClusterState, Int]:
    """What a router chooses for job i that does not look at the replicas; if ``on``, it has taken its turn."""
    router = given.together.router
    groups, slots = router.assigned.shape
    # Requests that are sent in the order of their numbers have their choice by number; where the order is known only in
    # the run (users who think, a second phase), a table by kind says who gets the first, the second, ... of the kind.
    by_job = read(router.assigned.reshape(-1), group * slots + i)
    if router.kind is None or router.turns is None or cluster.taken is None:
        return cluster, by_job
    kind = read(router.kind, i)
    # Each kind in each group has turns of its own: a heavy request takes no turn of the light ones.
    row = jnp.maximum(kind, 0) * groups + group
    turn = read(cluster.taken, row)
    in_turn = read(router.turns.reshape(-1), row * slots + turn)
    cluster = cluster._replace(taken=write(cluster.taken, row, turn + (on & (kind >= 0))))
    return cluster, jnp.where(kind >= 0, in_turn, by_job)


def _there(given: Given) -> FlagPerReplica:
    """The replicas that there are, of those that the program has room for."""
    return jnp.arange(given.structure.replicas, dtype=jnp.int32) < given.together.replicas


def _load(cluster: ClusterState, counter: Int) -> FloatPerReplica:
    """What a router counts of every replica, as of the iterations that have ended by now."""
    running_batches = cluster.running_batches
    # Counters are those of the last ends of batches; of a leap under way the tokens that have come since are added.
    load = lax.dynamic_slice(
        cluster.counts, (jnp.int32(0), counter), (cluster.counts.shape[0], 1), allow_negative_indices=False
    )[:, 0]
    # In a pipeline nothing leaps, and of what ranks in lockstep note of their batches there no times are kept.
    if cluster.replicas.pipeline is None:
        by_token = read(jnp.array(BY_TOKEN), counter)

        def with_tokens() -> FloatPerReplica:
            batches = running_batches.of_all()
            # Those of a batch that has ended have been counted.
            decodes = jnp.where(batches.end_s < jnp.inf, batches.sums.decodes, 0.0)
            return load + by_token * batches.done(cluster.state.clock) * decodes

        load = lax.cond(by_token != 0.0, with_tokens, lambda: load)
    return load + jnp.where(counter == KV, cluster.replicas.kv, 0.0)


def _least(load: FloatPerReplica, able: FlagPerReplica) -> Int:
    return jnp.argmin(jnp.where(able, load, jnp.inf)).astype(jnp.int32)


def _come_in(given: Given, cluster: ClusterState, i: Int, r: Int) -> ClusterState:
    state, replicas = cluster.state, cluster.replicas
    # The links are by request and shared by all queues; only where this one begins and ends is the replica's own.
    ends = jax.tree.map(lambda column: read(column, r), replicas.queue)
    queue = come_in(given, state.sequences, Queue(ends, state.queue_links), i)
    ends = jax.tree.map(lambda column, value: write(column, r, value), replicas.queue, queue.ends)
    return cluster._replace(state=state._replace(queue_links=queue.links), replicas=replicas._replace(queue=ends))


def cut_short(cluster: ClusterState, r: Int, on: Flag) -> ClusterState:
    """The leap of replica r ends with the iteration under way, if ``on``."""
    running_batches = cluster.running_batches
    running_batch = running_batches.row(r)
    # The iteration under way is not broken off: an engine looks at its queue between iterations.
    cut = on & (running_batch.iterations > 1.0)
    iterations = jnp.where(cut, running_batch.under_way(cluster.state.clock), running_batch.iterations)
    end_s = jnp.where(cut, running_batch.end_of(iterations), running_batch.end_s)
    cluster = cluster._replace(
        running_batches=running_batches._replace(iterations=write(running_batches.iterations, r, iterations))
    )
    return ends_at(cluster, r, end_s)


def sees_kv(given: Given, phase: Int) -> Flag:
    """Who chooses a replica for a job of a phase, or gives it room there, goes by the KV of the replicas as of now."""
    router = given.together.router
    # Reserved KV changes at ends of batches alone, where the counters do: nothing is to be caught up with.
    sees = (read(router.counter, phase) == KV) & given.rules.on_demand.any()
    if router.by_prefix is not None:
        chosen = looks_at_kv(router.by_prefix)
        sees = sees | (chosen if given.network is None else read(chosen, phase))
    if given.structure.cache is not None and given.structure.kv_reservation:  # on demand room is given between batches
        sees = sees | ((phase > 0) & ~given.rules.on_demand.all())
    return sees


def catch_up(given: Given, cluster: ClusterState, on: Flag) -> ClusterState:
    """Every replica's KV as of the iteration under way, and with prefix caches its blocks, if ``on``."""
    # In a pipeline, and where batches are planned ahead, nothing leaps: the KV of every replica is always as of now.
    if cluster.replicas.pipeline is not None or cluster.planned is not None:
        return cluster

    def count_one(carry: tuple[Int, ClusterState]) -> tuple[Int, ClusterState]:
        r, cluster = carry
        running_batches = cluster.running_batches
        until = running_batches.row(r).under_way(cluster.state.clock)
        # Else the record is that of an earlier batch. Most replicas have nothing to catch up with.
        runs = (read(running_batches.end_s, r) < jnp.inf) & (read(running_batches.seen, r) < until)
        if given.network is not None and cluster.state.cache is None:
            runs = runs & given_at(given, r, cluster.several).rules.on_demand
        return r + 1, where(runs, lambda cluster: grow_to(given, cluster, r, until), cluster)

    # As many steps as there are replicas, at every arrival: this is why ``least_kv`` on demand is slower than the rest.
    stop = jnp.where(on, given.together.replicas, 0)
    return lax.while_loop(lambda carry: carry[0] < stop, count_one, (jnp.int32(0), cluster))[1]


def grow_to(given: Given, cluster: ClusterState, r: Int, until: Float) -> ClusterState:
    """The KV that the leap of replica r has taken up to its iteration number ``until``, and its integral over time.

    With KV on demand, decodes take more of it in every step after the first, which had it when the batch was formed.
    """
    if given.structure.names_late:
        return _take_blocks_at_once(given, cluster, r, until)
    if cluster.state.cache is not None:
        return _take_blocks(given, cluster, r, until)
    pool_given, running_batches, state, replicas = (
        given_at(given, r, cluster.several),
        cluster.running_batches,
        cluster.state,
        cluster.replicas,
    )
    reserved = 0.0 if replicas.reserved is None else read(replicas.reserved, r)
    step, first_s, slope_s = (
        read(state.decode_groups.step, r),
        read(running_batches.first_s, r),
        read(running_batches.slope_s, r),
    )

    # The state is not taken out for this: a router may ask for the KV of all replicas at every arrival.
    def grow(carry: tuple[Float, Float, Float]) -> tuple[Float, Float, Float]:
        # The KV of an iteration is taken when it begins, so that it is held for all of it: its time times what is in
        # use.
        seen, kv, unit_s = carry
        kv = kv + growth_of(pool_given, state, r, step + seen.astype(jnp.int32))
        return seen + 1.0, kv, unit_s + (kv - reserved) * (first_s + slope_s * seen)

    start = (read(running_batches.seen, r), read(replicas.kv, r), kv_unit_s(cluster, r))
    seen, kv, unit_s = lax.while_loop(lambda carry: carry[0] < until, grow, start)
    return with_kv_unit_s(cluster, r, unit_s)._replace(
        replicas=replicas._replace(kv=write(replicas.kv, r, kv)),
        running_batches=running_batches._replace(seen=write(running_batches.seen, r, seen)),
    )


def _take_blocks(given: Given, cluster: ClusterState, r: Int, until: Float) -> ClusterState:
    """The same in a prefix cache: the decodes take blocks and name those that they fill, whether KV is reserved or not.

    Of reserved KV the integral is taken at the end of the leap (``program._account``).
    """
    running_batches, state, pool_given = (
        cluster.running_batches,
        replica_at_hand(cluster, r),
        given_at(given, r, cluster.several),
    )
    start_s, step, first_s, slope_s = (
        read(running_batches.start_s, r),
        read(state.decode_groups.step, r),
        read(running_batches.first_s, r),
        read(running_batches.slope_s, r),
    )

    end = step + until.astype(jnp.int32)

    def begins_s(seen: Float) -> Float:
        return start_s + seen * (first_s + 0.5 * slope_s * (seen - 1.0))

    def take(carry: tuple[Float, State]) -> tuple[Float, State]:
        seen, state = carry
        boundary = step + seen.astype(jnp.int32)
        counted_s = state.replica.counted_s
        if state.block_cache.events is not None:
            state = at_step(state, begins_s(seen))
        if counted_s is not None:  # the KV before this step, whenever somebody has looked at it last
            held_s = jnp.maximum(begins_s(seen) - counted_s, 0.0)
            state = state.in_totals(kv_unit_s=state.totals.kv_unit_s + state.replica.kv * held_s)
            state = state.at_replica(counted_s=counted_s + held_s)
        state = take_step(pool_given, state, boundary, seen < until)
        # Up to the next step that opens or fills a block the KV is what it is now.
        steps = (next_due(pool_given, state, boundary + 1, end) - boundary).astype(jnp.float64)
        if counted_s is not None:
            return seen + steps, state
        held_s = steps * (first_s + slope_s * (seen + 0.5 * (steps - 1.0)))
        grown = jnp.where(pool_given.rules.on_demand, state.replica.kv * held_s, 0.0)
        return seen + steps, state.in_totals(kv_unit_s=state.totals.kv_unit_s + grown)

    seen, state = lax.while_loop(lambda carry: carry[0] < until, take, (read(running_batches.seen, r), state))
    if state.block_cache.events is not None:
        state = at_step(state, jnp.float64(-1.0))
    return put_back(cluster, r, state)._replace(
        running_batches=running_batches._replace(seen=write(running_batches.seen, r, seen))
    )


def _take_blocks_at_once(given: Given, cluster: ClusterState, r: Int, until: Float) -> ClusterState:
    """The same where blocks get their names when somebody looks for them: all are taken together."""
    running_batches, replicas, pool_given = (
        cluster.running_batches,
        cluster.replicas,
        given_at(given, r, cluster.several),
    )
    # Of the row of the replica only what changes is put back: a router asks at every arrival.
    state = cluster.state._replace(replica=row_of(cluster, r))
    step, on_demand = read(state.decode_groups.step, r), pool_given.rules.on_demand
    start_s, first_s, slope_s = (
        read(column, r) for column in (running_batches.start_s, running_batches.first_s, running_batches.slope_s)
    )
    by_events = state.replica.counted_s is not None
    counted_s = state.replica.counted_s if by_events else jnp.float64(jnp.inf)

    def grow(carry: tuple[Float, Float, Float, Float]) -> tuple[Float, Float, Float, Float]:
        seen, kv, unit_s, counted_s = carry
        begins_s = start_s + seen * (first_s + 0.5 * slope_s * (seen - 1.0))
        # Where the integral goes from event to event, the KV before this step since somebody has looked at it last.
        held_s = jnp.maximum(begins_s - counted_s, 0.0)
        unit_s, counted_s = unit_s + kv * held_s, counted_s + held_s
        kv = kv + jnp.where(on_demand, growth_of(pool_given, state, r, step + seen.astype(jnp.int32)), 0.0)
        if not by_events:
            unit_s = unit_s + jnp.where(on_demand, kv * (first_s + slope_s * seen), 0.0)
        return seen + 1.0, kv, unit_s, counted_s

    start = (read(running_batches.seen, r), state.replica.kv, kv_unit_s(cluster, r), counted_s)
    seen, kv, unit_s, counted_s = lax.while_loop(lambda carry: carry[0] < until, grow, start)
    state = take(pool_given, state, (kv - state.replica.kv).astype(jnp.int32))
    # Decodes that wait for an iteration of prompts (vLLM v0) take no step in it.
    state = step_to(state, step + until.astype(jnp.int32), read(running_batches.sums.decodes, r) > 0.0)
    blocks = jax.tree.map(lambda column, value: write(column, r, value), replicas.blocks, state.replica.blocks)
    replicas = replicas._replace(kv=write(replicas.kv, r, state.replica.kv), blocks=blocks)
    if by_events:
        replicas = replicas._replace(counted_s=write(replicas.counted_s, r, counted_s))
    cluster = cluster._replace(
        state=cluster.state._replace(cache=state.cache),
        replicas=replicas,
        running_batches=running_batches._replace(seen=write(running_batches.seen, r, seen)),
    )
    return with_kv_unit_s(cluster, r, unit_s)
