"""What the loop of a lane carries from trip to trip.

A request passes through these places. It *waits* (``waiting``); it is admitted and *running* (``State.running``); while
no batch has taken the rest of its prompt it is in ``State.prompts``; with its prompt computed it *decodes* as a member
of a *decode group*; it finishes, or it is *preempted* and waits again.

What is known by request or by step is in arrays that all replicas share; what a replica has of its own are the numbers
of ``ReplicaState``. Of several replicas that run together (``engine.joint``) each of these numbers is a column, and the
state holds the row of the replica at hand. So all functions here are of one replica and know of no other.

A decode group is a set of sequences that decode in the same batches. In a pipeline several batches are in flight at
once, and a sequence cannot be in two of them: its next token needs the one before. So each batch in flight has a decode
group of its own, and one more decode group is *schedulable*: the sequences that the next batch may take.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp

from evaluator.metrics.use import PoolTotals
from evaluator.stations.engine.common import histogram
from evaluator.stations.engine.common.arrays import (
    Array,
    Bins,
    Flag,
    FlagPerRank,
    FlagPerRequest,
    Float,
    FloatPerGroup,
    FloatPerGroupRank,
    FloatPerRank,
    FloatPerRequest,
    Int,
    IntPerGroup,
    IntPerRank,
    IntPerRequest,
    StepBits,
    StepCounts,
    StepLists,
)
from evaluator.stations.engine.common.calendar import Calendar
from evaluator.stations.engine.common.columns import Columns
from evaluator.stations.engine.common.kv_growth import no_growth
from evaluator.stations.engine.common.leap import no_peaks
from evaluator.stations.engine.common.prompts import PromptSums
from evaluator.stations.engine.common.rings import NONE, WORD, read_once, write
from evaluator.stations.engine.common.speculation import AcceptedTokens, nothing_accepted
from evaluator.stations.engine.preemptive.block_runs import BlockCounts
from evaluator.stations.engine.preemptive.cache import Cache, initial_cache
from evaluator.stations.engine.preemptive.cache_events import EventQueue
from evaluator.stations.engine.preemptive.lane import Given
from evaluator.stations.engine.preemptive.linked_lists import LinkedList


class QueueEnds(NamedTuple):
    """Where the waiting queue of a replica begins and ends, see ``waiting``."""

    first: Int  # of the line, or NONE; with a loop of its own the next arrival
    last: Int  # of the line
    top: Int  # of the heap, or NONE
    preempted: Int | None = None  # where room is reserved: how many wait that lost theirs in a preemption


class QueueLinks(Columns):
    """The waiting queues of all replicas."""

    next: IntPerRequest  # the one behind it in the line, or in the heap its next sibling; NONE: there is none
    child: IntPerRequest  # the first of those that it is above in the heap, or NONE
    priority: IntPerRequest  # in the heap: the lowest goes first, ties by request number


class Listed(NamedTuple):
    """Requests that something has happened to in this trip, as a linked list."""

    first: Int  # or NONE
    next: IntPerRequest

    def push(self, i: Int, on: Flag) -> Listed:
        """With ``i``, if ``on``; it must not be in it."""
        after = jnp.where(on, self.first, read_once(self.next, i))
        return Listed(jnp.where(on, i, self.first), write(self.next, i, after))


class SwappedKv(NamedTuple):
    """Of a replica that copies the KV of preempted requests to host memory (``swapping``)."""

    in_host_memory: FlagPerRequest
    units: Float  # in all
    moved: Float  # copied in either direction since a batch was launched


class PlannedAhead(NamedTuple):
    """Of a replica that plans its next batch before the tokens of the one under way are known (``asynchronous``)."""

    end_s: Float  # when the batch that was planned last ends
    leaving: Listed  # requests whose last token comes with it: they hold their seats and KV until it has ended
    # Where tokens of a batch under way may be lost (``token_ratio``), of the last step that the decodes were planned:
    before_s: Float | None = None  # when the one before ends,
    gap_s: Float | None = None  # and the gap between their tokens


class NewTokens(NamedTuple):
    """Of a replica that admits by a ratio of new tokens (``token_ratio``): what it remembers from batch to batch."""

    ratio: Float  # the part of the tokens that they may still generate which running requests are expected to
    full: Flag  # an admission failed, and nobody has left since
    prompts: Flag  # the last batch was one of prompts
    decodes: Float  # who decoded when it was formed
    decode_iterations: Int  # until then
    finished: Int  # requests until then
    arrived: Int  # requests until the last retraction
    behind: IntPerRequest  # of a retracted request: as many had arrived before
    # Planned ahead: when the token came that was before the one with which the prompt was complete.
    before_s: FloatPerRequest | None = None


class SeenLatencies(NamedTuple):
    """Of requests since an autoscaler looked (``joint.autoscaler``): those with a first token, and with their last."""

    started: Float  # how many had the first
    ttft_s: Float  # summed over them
    done: Float  # and how many the last, of more than one
    tpot_s: Float  # summed over them


class RouterCounts(NamedTuple):
    """What a trip has changed of what a router may count of a replica (``routing.record.COUNTERS``)."""

    completed: Float  # prompts that have come to their end: a token each
    again: Float  # tokens that preempted requests have to compute once more, less those found in a prefix cache
    waiting_units: Float  # KV units that the waiting requests will hold, more than before
    left_context: Float  # tokens of prompts and outputs of the requests that have finished


class Sequences(Columns):
    """What has happened to each request so far; for a decoding sequence, up to the step at which it joined.

    A step adds a token to every member of a decode group. It would be slow to write that down for each of them, so a
    member keeps the numbers it joined with and the step ``since``, and what it has now follows from the group's step.
    """

    computed: IntPerRequest  # tokens whose KV is there or is being computed
    target: IntPerRequest  # tokens whose KV must be there before the next output token comes
    generated: IntPerRequest  # output tokens
    decode_group: IntPerRequest  # the decode group that it is in, or NONE
    since: IntPerRequest  # the step of that group at which it joined
    admission: IntPerRequest | None  # how many were admitted before it, where requests may be preempted
    token_s: FloatPerRequest  # when its last token came, if it has joined since or waits
    scheduled_s: FloatPerRequest
    first_token_s: FloatPerRequest
    last_token_s: FloatPerRequest
    # Links of lists: requests that leave at the end of a step, that have joined a decode group since its last step, and
    # whose prompts are complete with a batch.
    next_leaving: IntPerRequest
    next_joined: IntPerRequest
    next_completing: IntPerRequest
    running_batch: IntPerRequest | None  # in a pipeline: the last batch that computed a chunk of its prompt
    decoded: IntPerRequest | None  # with drafts: decode iterations, up to the step at which it joined
    slots: IntPerRequest | None  # and the slots of KV that it held when it was taken out of its decode group


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
    """By decode group and step, as explained in ``common.rings``; cells by ``Structure.cell``."""

    events: StepBits  # steps at whose end the batch changes; only leaps look at them, so with one decode group only
    leaving: StepLists  # requests that leave at the end of a step; ``next_leaving`` has the links
    crossing: StepCounts  # members whose window is full at that step; a single cell without windowed layers
    # KV units that the step needs more than the one before, with KV on demand; ``StepCounts``, or by remainders of the
    # steps (``Structure.block_tokens``).
    kv_growth: Array


class RunningBatches(NamedTuple):
    """Batches on their way through the pipeline; batch number ``n`` has cell ``n % ranks``."""

    end_s: FloatPerRank
    decodes: FlagPerRank  # its decode group takes a step
    decode_group: IntPerRank  # without decodes an empty one
    completing: IntPerRank  # list of requests whose prompts are complete with it


class PipelineState(NamedTuple):
    """Of a replica with several pipeline ranks."""

    schedulable: Int  # the decode group that no batch in flight has
    launched_batches: Int  # batches that have started
    completed_batches: Int  # batches that have ended
    running_batches: RunningBatches
    free_s: FloatPerRank  # when each pipeline rank is free
    prefill_tokens: FloatPerRank  # of each batch in flight, for routers; cells as in ``RunningBatches``


class ReplicaState(NamedTuple):
    """What one replica has of its own."""

    number: Int
    sentinel: Int  # of its lists of requests; traced, because ``LinkedList`` reads at it
    queue: QueueEnds
    running_count: Float
    decode_iterations: Int
    last_look: Int  # LightLLM: ``decode_iterations`` at the last admission
    kv: Float  # units in use
    reserved: Float | None = None  # back-pressure: those that no running request holds (``joint.kv_reservation``)
    pipeline: PipelineState | None = None  # None: one rank
    blocks: BlockCounts | None = None  # None: no prefix cache
    counted_s: Float | None = None  # up to when the integral of the KV in use goes (``Structure.integrates``)
    unseated: Float | None = None  # planned ahead: who was preempted when the last token was to come (``PlannedAhead``)
    events: EventQueue | None = None  # of its prefix cache, where a router hears of them later
    own_kv: Any = None  # of a user's KV manager, what its hooks carry (``kv.KvPart.initial``)


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


class AwaitedAnswers(NamedTuple):
    """Of requests that wait for several answers (``lane.AgentCalls``)."""

    missing: IntPerRequest  # answers that are not there yet
    seen_s: FloatPerRequest  # when the last of those that are there was


class State(NamedTuple):
    """A lane between two trips."""

    clock: Float
    stuck: Flag  # nothing runs and no arrival is left that could be admitted: the lane never finishes
    replica: ReplicaState  # the one at hand
    totals: PoolTotals  # those that it adds to; what drafts gave is counted in ``accepted`` or by pool, and None here
    queue_links: QueueLinks
    released: Int  # closed loop: requests sent so far; of users who think about answers, sessions opened so far
    sequences: Sequences
    running: LinkedList  # admitted requests, oldest admission first, if the structure lists them
    prompts: LinkedList  # those of them with prompt tokens that no batch has taken
    by_end: LinkedList  # the running ones by their last step, if the structure has peaks
    decode_groups: DecodeGroups
    rings: Rings
    batch: FormingBatch
    admissions: Int
    finished: Int
    itl_histogram: Bins
    batch_paces: BatchPaces | None = None  # of a pipeline that runs by itself
    router_counts: RouterCounts | None = None  # None for a single replica: there is no router that asks
    cache: Cache | None = None  # None without a prefix cache
    answers: Calendar | None = None  # on their way to users, who then send a request: which, if it is one of theirs
    # Of two sides, or with stages: requests that are done here or, back-pressure, have begun.
    listed: Listed | None = None
    room_since_s: FloatPerRequest | None = None  # back-pressure: when a request got room
    accepted: AcceptedTokens | None = None  # None where every decode gives one token; cells as of ``Rings``
    swapped: SwappedKv | None = None  # None: preempted requests are computed anew
    planned: PlannedAhead | None = None  # None: a batch is planned when the one before has ended
    new_tokens: NewTokens | None = None  # None: another policy than SGLang's
    seen_latencies: SeenLatencies | None = None  # None: no autoscaler looks
    awaited: AwaitedAnswers | None = None  # None: nobody waits for several answers

    def at_replica(self, **changes: Any) -> State:
        """With other values of ``ReplicaState``."""
        return self._replace(replica=self.replica._replace(**changes))

    def in_totals(self, **changes: Any) -> State:
        """With other values of ``PoolTotals``."""
        return self._replace(totals=self.totals._replace(**changes))

    @property
    def block_cache(self) -> Cache:
        """The prefix caches, which there are."""
        assert self.cache is not None
        return self.cache

    @property
    def pipeline(self) -> PipelineState:
        """That of the replica, which has several ranks."""
        assert self.replica.pipeline is not None
        return self.replica.pipeline

    def in_pipeline(self, **changes: Any) -> State:
        """With other values of ``PipelineState``."""
        return self.at_replica(pipeline=self.pipeline._replace(**changes))

    @property
    def schedulable(self) -> Int:
        """The decode group that the next batch may take; without a pipeline a replica has only one."""
        pipeline = self.replica.pipeline
        return self.replica.number if pipeline is None else pipeline.schedulable


def no_batch() -> FormingBatch:
    """An empty batch."""
    zero, false = jnp.zeros((), jnp.float64), jnp.zeros((), bool)
    return FormingBatch(PromptSums.empty(), zero, jnp.int32(NONE), jnp.int32(0), false, false, false)


def no_router_counts() -> RouterCounts:
    """Nothing has changed."""
    return RouterCounts(*(jnp.zeros((), jnp.float64),) * len(RouterCounts._fields))


def initial_state(given: Given) -> State:
    """An idle lane at time 0."""
    structure, slots = given.structure, given.requests.arrival_s.shape[0]
    cells = slots + structure.replicas - 1  # of a linked list: a sentinel for each replica
    zero: Float = jnp.zeros((), jnp.float64)
    number: Int = jnp.zeros((), jnp.int32)
    not_counted: Any = None  # no leaf of the loop
    none = jnp.full(slots, NONE, jnp.int32)
    return State(
        clock=zero, stuck=jnp.zeros((), bool),
        replica=initial_replica(given),
        totals=PoolTotals(
            busy_s=zero, iterations=zero, preemptions=number, experts_touched=zero, kv_unit_s=zero, kv_units_max=zero,
            decoded=not_counted, decoded_tokens=not_counted,
            peaks=no_peaks(given.pipeline_ranks[0]),  # without a pipeline only
        ),
        queue_links=_initial_links(given, none),
        released=given.limits.users if given.session_turns is None else number,
        sequences=_initial_sequences(given),
        running=LinkedList.empty(cells if structure.lists_running else 1), prompts=LinkedList.empty(cells),
        by_end=LinkedList.empty(cells if structure.peaks else 1),
        decode_groups=_initial_decode_groups(given), rings=_initial_rings(given), batch=no_batch(),
        admissions=number, finished=number,
        itl_histogram=jnp.zeros(histogram.BINS * structure.histograms),
        batch_paces=_initial_batch_paces(given),
        router_counts=None if structure.alone else no_router_counts(),
        cache=initial_cache(given),
        answers=Calendar.empty(slots) if structure.frontend or given.session_turns is not None else None,
        listed=Listed(none[0], none) if structure.phases > 1 or structure.servers else None,
        room_since_s=jnp.full(slots, jnp.inf) if structure.kv_reservation else None,
        accepted=_initial_accepted(given),
        swapped=None if given.host_memory is None else SwappedKv(jnp.zeros(slots, bool), zero, zero),
        planned=_nothing_planned(given, none) if structure.asynchronous else None,
        new_tokens=_initial_new_tokens(given),
        seen_latencies=SeenLatencies(zero, zero, zero, zero) if structure.looks else None,
        awaited=_initial_awaited(given),
    )  # fmt: skip


def _initial_links(given: Given, none: IntPerRequest) -> QueueLinks:
    if given.structure.alone and not given.structure.has_heap:  # a range of numbers, see ``waiting``
        none = none[:1]
    return QueueLinks(next=none, child=none, priority=none)


def _initial_awaited(given: Given) -> AwaitedAnswers | None:
    calls = None if given.session_turns is None else given.session_turns.calls
    if calls is None:
        return None
    return AwaitedAnswers(calls.waits + 0, jnp.zeros(calls.waits.shape[0]))


def _nothing_planned(given: Given, none: IntPerRequest) -> PlannedAhead:
    zero: Float = jnp.zeros((), jnp.float64)
    lost = None if given.new_tokens is None else zero
    return PlannedAhead(zero, Listed(none[0], none), lost, lost)


def _initial_new_tokens(given: Given) -> NewTokens | None:
    if given.new_tokens is None:
        return None
    zero, number, false = jnp.zeros((), jnp.float64), jnp.zeros((), jnp.int32), jnp.zeros((), bool)
    slots = given.requests.arrival_s.shape[0]
    behind, before_s = jnp.zeros(slots, jnp.int32), jnp.zeros(slots) if given.structure.asynchronous else None
    return NewTokens(given.new_tokens.initial, false, false, zero, number, number, number, behind, before_s)


def initial_replica(given: Given) -> ReplicaState:
    """An idle replica, which has number 0."""
    structure, zero, number = given.structure, jnp.zeros((), jnp.float64), jnp.zeros((), jnp.int32)
    nobody = number if structure.alone else jnp.int32(NONE)
    return ReplicaState(
        number=number,
        sentinel=given.requests.arrival_s.shape[0] - 1 + jnp.minimum(given.limits.requests, 0),
        queue=QueueEnds(nobody, nobody, jnp.int32(NONE), number if structure.kv_reservation else None),
        running_count=zero, decode_iterations=number, last_look=number, kv=zero,
        reserved=zero if structure.kv_reservation else None,
        pipeline=_initial_pipeline(given),
        blocks=None if structure.cache is None else BlockCounts(number, number, number),
        counted_s=zero if structure.integrates else None,
        unseated=zero if structure.asynchronous and not structure.alone else None,
        events=EventQueue(jnp.int32(NONE), jnp.int32(NONE)) if structure.cache and structure.cache.events else None,
        own_kv=None if structure.kv_manager is None else structure.kv_manager.hooks.initial(given),
    )  # fmt: skip


def _initial_accepted(given: Given) -> AcceptedTokens | None:
    if given.speculation is None:
        return None
    return nothing_accepted(given.structure.decode_groups() * given.structure.ring + 1, given.structure.windowed)


def _initial_sequences(given: Given) -> Sequences:
    requests = given.requests
    slots = requests.arrival_s.shape[0]
    zeros, none = jnp.zeros(slots, jnp.int32), jnp.full(slots, NONE, jnp.int32)
    never = jnp.full(slots, jnp.inf)
    return Sequences(
        computed=requests.prompt_tokens - requests.compute_tokens, target=requests.prompt_tokens + 0, generated=zeros,
        decode_group=none, since=zeros,
        admission=zeros if given.structure.preempts else None,
        token_s=jnp.zeros(slots), scheduled_s=never, first_token_s=never, last_token_s=never,
        next_leaving=none, next_joined=none, next_completing=none,
        running_batch=None if given.structure.pipeline_ranks == 1 else none,
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
    parts = structure.cache is not None or given.speculation is not None  # whose steps are all looked at
    if structure.pipeline_ranks == 1 or not structure.alone or parts:
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
        kv_growth=_initial_growth(given, counts),
    )


def _initial_growth(given: Given, counts: StepCounts) -> Array:
    if not given.structure.preempts:
        return counts[:1]
    return no_growth(given.structure.block_tokens) if given.structure.block_tokens else counts


def _initial_pipeline(given: Given) -> PipelineState | None:
    """No batch in flight; the first decode group of the replica is schedulable, each cell of a flight has one of the
    others."""
    ranks = given.structure.pipeline_ranks
    if ranks == 1:
        return None
    number = jnp.zeros((), jnp.int32)
    running_batches = RunningBatches(
        end_s=jnp.full(ranks, jnp.inf),
        decodes=jnp.zeros(ranks, bool),
        decode_group=jnp.arange(1, ranks + 1, dtype=jnp.int32),
        completing=jnp.full(ranks, NONE, jnp.int32),
    )
    return PipelineState(number, number, number, running_batches, jnp.zeros(ranks), jnp.zeros(ranks))
