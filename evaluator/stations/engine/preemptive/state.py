"""What the loop of a lane carries from trip to trip.

A request passes through these places. It *waits* (``QueueHeap``); it is admitted and *running* (``State.running``);
while
no batch has taken the rest of its prompt it is in ``State.prompts``; with its prompt computed it *decodes* as a member
of a *decode group*; it finishes, or it is *preempted* and waits again.

A decode group is a set of sequences that decode in the same batches. In a pipeline several batches are in flight at
once, and
a sequence cannot be in two of them: its next token needs the one before. So each batch in flight has a decode group of
its
own, and one more decode group is *at rest*: the sequences that the next batch may take.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from evaluator.stations.engine.common import histogram
from evaluator.stations.engine.common.arrays import (
    Bins,
    Flag,
    FlagPerRank,
    Float,
    FloatPerGroup,
    FloatPerGroupRank,
    FloatPerRank,
    FloatPerRequest,
    Heap,
    Int,
    IntPerGroup,
    IntPerRank,
    IntPerRequest,
    Peaks,
    StepBits,
    StepCounts,
    StepLists,
    TimeHeap,
)
from evaluator.stations.engine.common.calendar import Calendar
from evaluator.stations.engine.common.leap import no_peaks
from evaluator.stations.engine.common.prompts import PromptSums
from evaluator.stations.engine.common.rings import NONE, WORD, read_once, write
from evaluator.stations.engine.common.speculation import AcceptedTokens, nothing_accepted
from evaluator.stations.engine.preemptive.cache import Cache, initial_cache
from evaluator.stations.engine.preemptive.lane import Given
from evaluator.stations.engine.preemptive.linked_lists import LinkedList


class QueueHeap(NamedTuple):
    """The waiting queue: a heap of requests with a priority, and behind it the arrivals, in order."""

    heap: Heap
    size: Int  # entries of the heap
    arrived: Int  # the next request that was neither in the heap nor admitted yet
    released: Int  # closed loop: requests sent so far


class QueueList(NamedTuple):
    """The waiting queue of one of several replicas that run together: a linked list, first come, first served."""

    first: Int  # or NONE
    last: Int
    next: IntPerRequest  # of the queues of all replicas
    released: Int  # closed loop: requests sent so far, to all replicas
    due: TimeHeap  # closed loop with a frontend: when answers reach their users
    due_size: Int
    lost_kv: Int | None = None  # where rooms are reserved: a stack of preempted requests, linked by ``next``


class Listed(NamedTuple):
    """Requests that something has happened to in this trip, as a linked list."""

    first: Int  # or NONE
    next: IntPerRequest

    def push(self, i: Int, on: Flag) -> Listed:
        """With ``i``, if ``on``; it must not be in it."""
        after = jnp.where(on, self.first, read_once(self.next, i))
        return Listed(jnp.where(on, i, self.first), write(self.next, i, after))


class KvReservation(NamedTuple):
    """KV under back-pressure that no running request holds.

    That is room reserved on a decode replica, and on a prefill replica what is still to be sent.
    """

    kept: Float  # units of the replica at hand; they are in ``State.kv`` as well
    since_s: FloatPerRequest  # when a request got room


class RouterCounts(NamedTuple):
    """What a trip has changed of what a router may count of a replica (``routing.record.COUNTERS``)."""

    completed: Float  # prompts that have come to their end: a token each
    again: Float  # tokens that preempted requests have to compute once more, less those found in a prefix cache
    waiting_units: Float  # KV units that the waiting requests will hold, more than before
    left_context: Float  # tokens of prompts and outputs of the requests that have finished


class Sequences(NamedTuple):
    """What has happened to each request so far; for a decoding sequence, up to the step at which it joined.

    A step adds a token to every member of a decode group. It would be slow to write that down for each of them, so a
    member
    keeps the numbers it joined with and the step ``since``, and what it has now follows from the decode group's step.
    """

    computed: IntPerRequest  # tokens whose KV is there or is being computed
    target: IntPerRequest  # tokens whose KV must be there before the next output token comes
    generated: IntPerRequest  # output tokens
    decode_group: IntPerRequest  # the decode group that it decodes with, or NONE
    since: IntPerRequest  # the step of that decode group at which it joined
    running_batch: IntPerRequest  # number of the last batch that computed a chunk of its prompt
    admission: IntPerRequest  # how many were admitted before it
    token_s: FloatPerRequest  # when its last token came, if it has joined since or waits
    scheduled_s: FloatPerRequest
    first_token_s: FloatPerRequest
    last_token_s: FloatPerRequest
    decoded: IntPerRequest | None = None  # with drafts: decode iterations, up to the step at which it joined
    slots: IntPerRequest | None = (
        None  # and the slots of KV that a decode held when it was taken out of its decode group
    )


class DecodeGroups(NamedTuple):
    """Sums over the members of each decode group."""

    step: IntPerGroup  # steps done
    decodes: FloatPerGroup  # members
    context: FloatPerGroup  # tokens that they attend to in the next step
    window_context: FloatPerGroup  # the same in windowed layers
    growing: FloatPerGroup  # members whose windowed context still grows
    gap_from: FloatPerGroup  # end of the last step
    joined: IntPerGroup  # list of members that have joined since the last step; ``next_joined`` has the links


class Rings(NamedTuple):
    """By decode group and step, as explained in ``common.rings``; cell ``decode_group * ring + step % ring``."""

    events: StepBits  # steps at whose end the batch changes; only leaps look at them, so with one decode group only
    leaving: StepLists  # requests that leave at the end of a step; ``next_leaving`` has the links
    crossing: StepCounts  # members whose window is full at that step; a single cell without windowed layers
    accepted: StepCounts  # KV units that the step needs more than the one before, with KV on demand


class RunningBatches(NamedTuple):
    """Batches on their way through the pipeline; batch number ``n`` has cell ``n % ranks``."""

    end_s: FloatPerRank
    decodes: FlagPerRank  # its decode group takes a step
    decode_group: IntPerRank  # without decodes an empty one
    completing: IntPerRank  # list of requests whose prompts are complete with it


class BatchPaces(NamedTuple):
    """What the last batch of each decode group took, for the batches of the same decodes that follow it
    (``rounds``)."""

    decodes: FloatPerGroup  # in it; 0 if it computed prompts, too
    step: IntPerGroup  # of the decode group when it was sent
    took_s: FloatPerGroupRank  # in each pipeline rank; cell ``decode_group * ranks + rank``
    slope_s: FloatPerGroupRank  # by how much each further batch takes longer
    alike: FloatPerGroup  # batches, the last one included, for which that holds
    touched: FloatPerGroup  # share of the experts that a batch touches


class FormingBatch(NamedTuple):
    """The batch that is being formed: sums for its time, and what happened meanwhile."""

    prompts: PromptSums
    decodes: Float  # sequences that take a token of the budget
    completing: Int  # list of requests whose prompts are complete with it; ``next_completing`` has the links
    admitted: Int
    short: Flag  # some running request did not get KV at once: no new request is admitted
    preempted: Flag  # some request was preempted
    grown: Flag  # the decodes have the KV of their next token


class State(NamedTuple):
    """A lane between two trips.

    Of several replicas that run together (``engine.coupled``) it is all of them where it has the axis ``request`` or
    ``decode_group`` (replica r has decode group r) or sums up what has happened; what is left is of the replica at
    hand.
    """

    clock: Float
    stuck: Flag  # nothing runs and no arrival is left that could be admitted: the lane never finishes
    waiting: QueueHeap | QueueList
    sequences: Sequences
    running: LinkedList  # admitted requests, oldest admission first
    prompts: LinkedList  # those of them with prompt tokens that no batch has taken
    by_end: LinkedList  # the running ones by their last step, if the structure has peaks
    decode_groups: DecodeGroups
    rings: Rings
    schedulable: Int  # the decode group that no batch in flight has
    running_batches: RunningBatches
    launched_batches: Int  # batches that have started
    completed_batches: Int  # batches that have ended
    free_s: FloatPerRank  # when each pipeline rank is free
    batch: FormingBatch
    next_leaving: IntPerRequest
    next_joined: IntPerRequest
    next_completing: IntPerRequest
    running_count: Float
    admissions: Int
    finished: Int
    preemptions: Int
    decode_iterations: Int
    last_look: Int  # LightLLM: ``decode_iterations`` at the last admission
    kv: Float  # units in use
    kv_max: Float
    kv_unit_s: Float
    busy_s: Float
    iterations: Float
    experts_touched: Float
    peaks: Peaks  # without a pipeline only
    itl_histogram: Bins
    batch_paces: BatchPaces | None = None  # of a pipeline that runs by itself
    router_counts: RouterCounts | None = None  # None for a single replica: there is no router that asks
    cache: Cache | None = None  # None without a prefix cache
    calendar: Calendar | None = None  # of users who think about answers: when they send which request
    listed: Listed | None = None  # of two sides: requests that are done here or, back-pressure, have begun
    kv_reservation: KvReservation | None = None  # None without back-pressure
    accepted: AcceptedTokens | None = None  # None where every decode gives one token; cells as of ``Rings``


def no_batch() -> FormingBatch:
    """An empty batch."""
    zero, false = jnp.zeros((), jnp.float64), jnp.zeros((), bool)
    return FormingBatch(PromptSums.empty(), zero, jnp.int32(NONE), jnp.int32(0), false, false, false)


def no_router_counts() -> RouterCounts:
    """Nothing has changed."""
    return RouterCounts(*(jnp.zeros((), jnp.float64),) * len(RouterCounts._fields))


def initial_state(given: Given) -> State:
    """An idle lane at time 0."""
    slots = given.requests.arrival_s.shape[0]
    several = given.structure.replicas > 1
    cells = slots + given.structure.replicas - 1  # of a chain: a sentinel for each replica
    zero, number = jnp.zeros((), jnp.float64), jnp.zeros((), jnp.int32)
    none = jnp.full(slots, NONE, jnp.int32)
    sentinel = slots - 1 + jnp.minimum(given.limits.requests, 0)  # traced, because ``LinkedList`` reads at it
    return State(
        clock=zero, stuck=jnp.zeros((), bool),
        waiting=_nobody_waits(given),
        sequences=_initial_sequences(given),
        running=LinkedList.empty(cells, sentinel), prompts=LinkedList.empty(cells, sentinel),
        by_end=LinkedList.empty(cells if given.structure.peaks else 1, sentinel),
        decode_groups=_initial_decode_groups(given), rings=_initial_rings(given), schedulable=number,
        running_batches=_initial_running_batches(given),
        launched_batches=number, completed_batches=number,
        free_s=jnp.zeros(given.structure.pipeline_ranks), batch=no_batch(),
        next_leaving=none, next_joined=none, next_completing=none,
        running_count=zero, admissions=number, finished=number, preemptions=number, decode_iterations=number,
        last_look=number, kv=zero, kv_max=zero, kv_unit_s=zero, busy_s=zero, iterations=zero, experts_touched=zero,
        peaks=no_peaks(given.pipeline_ranks[0]),
        itl_histogram=jnp.zeros(histogram.BINS * given.structure.pools),
        batch_paces=_initial_batch_paces(given),
        router_counts=no_router_counts() if several else None,
        cache=initial_cache(given),
        calendar=None if given.session_turns is None else Calendar.empty(slots),
        listed=Listed(none[0], none) if given.structure.phases > 1 else None,
        kv_reservation=KvReservation(zero, jnp.full(slots, jnp.inf)) if given.structure.kv_reservation else None,
        accepted=_initial_accepted(given),
    )  # fmt: skip


def _initial_accepted(given: Given) -> AcceptedTokens | None:
    if given.speculation is None:
        return None
    return nothing_accepted(given.structure.decode_groups() * given.structure.ring + 1, given.structure.windowed)


def _nobody_waits(given: Given) -> QueueHeap | QueueList:
    slots, number = given.requests.arrival_s.shape[0], jnp.zeros((), jnp.int32)
    if given.structure.replicas > 1:
        none = jnp.full(slots, NONE, jnp.int32)
        lost_kv = none[0] if given.structure.kv_reservation else None
        return QueueList(none[0], none[0], none, given.limits.users, jnp.full(slots + 1, jnp.inf), number, lost_kv)
    return QueueHeap(jnp.zeros(slots + 1, jnp.int64), number, number, given.limits.users)


def _initial_sequences(given: Given) -> Sequences:
    requests = given.requests
    slots = requests.arrival_s.shape[0]
    zeros, none = jnp.zeros(slots, jnp.int32), jnp.full(slots, NONE, jnp.int32)
    never = jnp.full(slots, jnp.inf)
    return Sequences(
        computed=requests.prompt_tokens - requests.compute_tokens, target=requests.prompt_tokens + 0, generated=zeros,
        decode_group=none, since=zeros, running_batch=none, admission=zeros,
        token_s=jnp.zeros(slots), scheduled_s=never, first_token_s=never, last_token_s=never,
        decoded=None if given.speculation is None else zeros,
        slots=None if given.speculation is None else zeros,
    )  # fmt: skip


def _initial_decode_groups(given: Given) -> DecodeGroups:
    count = given.structure.decode_groups()
    sums = jnp.zeros(count)
    return DecodeGroups(jnp.zeros(count, jnp.int32), sums, sums, sums, sums, sums, jnp.full(count, NONE, jnp.int32))


def _initial_batch_paces(given: Given) -> BatchPaces | None:
    """No decode group has been in a batch."""
    structure = given.structure
    if structure.pipeline_ranks == 1 or structure.replicas > 1 or given.speculation is not None:
        return None
    count = jnp.zeros(structure.decode_groups())
    times = jnp.zeros(structure.decode_groups() * structure.pipeline_ranks)
    return BatchPaces(count, count.astype(jnp.int32), times, times, count, count)


def _initial_rings(given: Given) -> Rings:
    cells = given.structure.decode_groups() * given.structure.ring
    counts = jnp.zeros(cells + 1, jnp.int64)
    return Rings(
        events=jnp.zeros(cells // WORD, jnp.uint64),
        leaving=jnp.full(cells + 1, NONE, jnp.int32),
        crossing=counts if given.structure.windowed else counts[:1],
        accepted=counts,
    )


def _initial_running_batches(given: Given) -> RunningBatches:
    """No batch in flight; decode group 0 is at rest and each cell of a flight has one of the others."""
    ranks = given.structure.pipeline_ranks
    return RunningBatches(
        end_s=jnp.full(ranks, jnp.inf),
        decodes=jnp.zeros(ranks, bool),
        decode_group=jnp.arange(1, ranks + 1, dtype=jnp.int32),
        completing=jnp.full(ranks, NONE, jnp.int32),
    )
