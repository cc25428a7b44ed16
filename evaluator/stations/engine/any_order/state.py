"""What the loop of a lane carries from trip to trip.

A request passes through these places. It *waits* (``Waiting``); it is admitted and *running* (``State.running``); while
no batch has taken the rest of its prompt it is in ``State.prompts``; with its prompt computed it *decodes* as a member
of a *cohort*; it finishes, or it is *preempted* and waits again.

A cohort is a set of sequences that decode in the same batches. In a pipeline several batches are in flight at once, and
a sequence cannot be in two of them: its next token needs the one before. So each batch in flight has a cohort of its
own, and one more cohort is *at rest*: the sequences that the next batch may take.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from evaluator.stations.engine.any_order.cache import Cache, initial_cache
from evaluator.stations.engine.any_order.chains import Chain
from evaluator.stations.engine.any_order.lane import Given
from evaluator.stations.engine.common import histogram
from evaluator.stations.engine.common.arrays import (
    Bins,
    Flag,
    FlagPerRank,
    Float,
    FloatPerCohort,
    FloatPerCohortRank,
    FloatPerRank,
    FloatPerRequest,
    Heap,
    Int,
    IntPerCohort,
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
from evaluator.stations.engine.common.speculation import Growth, no_growth


class Waiting(NamedTuple):
    """The waiting queue: a heap of requests with a priority, and behind it the arrivals, in order."""

    heap: Heap
    size: Int  # entries of the heap
    arrived: Int  # the next request that was neither in the heap nor admitted yet
    released: Int  # closed loop: requests sent so far


class Line(NamedTuple):
    """The waiting queue of one of several replicas that run together: a linked list, first come, first served."""

    first: Int  # or NONE
    last: Int
    next: IntPerRequest  # of the queues of all replicas
    released: Int  # closed loop: requests sent so far, to all replicas
    due: TimeHeap  # closed loop with a frontend: when answers reach their users
    due_size: Int
    homeless: Int | None = None  # where rooms are reserved: a stack of preempted requests, linked by ``next``


class Listed(NamedTuple):
    """Requests that something has happened to in this trip, as a linked list."""

    first: Int  # or NONE
    next: IntPerRequest

    def push(self, i: Int, on: Flag) -> Listed:
        """With ``i``, if ``on``; it must not be in it."""
        after = jnp.where(on, self.first, read_once(self.next, i))
        return Listed(jnp.where(on, i, self.first), write(self.next, i, after))


class Rooms(NamedTuple):
    """KV under back-pressure that no running request holds.

    That is room reserved on a decode replica, and on a prefill replica what is still to be sent.
    """

    kept: Float  # units of the replica at hand; they are in ``State.kv`` as well
    since_s: FloatPerRequest  # when a request got room


class Tally(NamedTuple):
    """What a trip has changed of what a router may count of a replica (``routing.record.COUNTERS``)."""

    completed: Float  # prompts that have come to their end: a token each
    again: Float  # tokens that preempted requests have to compute once more, less those found in a prefix cache
    waiting_units: Float  # KV units that the waiting requests will hold, more than before
    left_context: Float  # tokens of prompts and outputs of the requests that have finished


class Sequences(NamedTuple):
    """What has happened to each request so far; for a decoding sequence, up to the step at which it joined.

    A step adds a token to every member of a cohort. It would be slow to write that down for each of them, so a member
    keeps the numbers it joined with and the step ``since``, and what it has now follows from the cohort's step.
    """

    computed: IntPerRequest  # tokens whose KV is there or is being computed
    target: IntPerRequest  # tokens whose KV must be there before the next output token comes
    generated: IntPerRequest  # output tokens
    cohort: IntPerRequest  # the cohort that it decodes with, or NONE
    since: IntPerRequest  # the step of that cohort at which it joined
    flight: IntPerRequest  # number of the last batch that computed a chunk of its prompt
    admission: IntPerRequest  # how many were admitted before it
    token_s: FloatPerRequest  # when its last token came, if it has joined since or waits
    scheduled_s: FloatPerRequest
    first_token_s: FloatPerRequest
    last_token_s: FloatPerRequest
    decoded: IntPerRequest | None = None  # with drafts: decode iterations, up to the step at which it joined
    slots: IntPerRequest | None = None  # and the slots of KV that a decode held when it was taken out of its cohort


class Cohorts(NamedTuple):
    """Sums over the members of each cohort."""

    step: IntPerCohort  # steps done
    decodes: FloatPerCohort  # members
    context: FloatPerCohort  # tokens that they attend to in the next step
    window_context: FloatPerCohort  # the same in windowed layers
    growing: FloatPerCohort  # members whose windowed context still grows
    gap_from: FloatPerCohort  # end of the last step
    fresh: IntPerCohort  # list of members that have joined since the last step; ``next_fresh`` has the links


class Rings(NamedTuple):
    """By cohort and step, as explained in ``common.rings``; cell ``cohort * ring + step % ring``."""

    events: StepBits  # steps at whose end the batch changes; only leaps look at them, so with one cohort only
    leaving: StepLists  # requests that leave at the end of a step; ``next_leaving`` has the links
    crossing: StepCounts  # members whose window is full at that step; a single cell without windowed layers
    growth: StepCounts  # KV units that the step needs more than the one before, with KV on demand


class Flights(NamedTuple):
    """Batches on their way through the pipeline; batch number ``n`` has cell ``n % ranks``."""

    end_s: FloatPerRank
    decodes: FlagPerRank  # its cohort takes a step
    cohort: IntPerRank  # without decodes an empty one
    completing: IntPerRank  # list of requests whose prompts are complete with it


class Paces(NamedTuple):
    """What the last batch of each cohort took, for the batches of the same decodes that follow it (``rounds``)."""

    decodes: FloatPerCohort  # in it; 0 if it computed prompts, too
    step: IntPerCohort  # of the cohort when it was sent
    took_s: FloatPerCohortRank  # in each pipeline rank; cell ``cohort * ranks + rank``
    slope_s: FloatPerCohortRank  # by how much each further batch takes longer
    alike: FloatPerCohort  # batches, the last one included, for which that holds
    touched: FloatPerCohort  # share of the experts that a batch touches


class Batch(NamedTuple):
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
    ``cohort`` (replica r has cohort r) or sums up what has happened; what is left is of the replica at hand.
    """

    clock: Float
    stuck: Flag  # nothing runs and no arrival is left that could be admitted: the lane never finishes
    waiting: Waiting | Line
    sequences: Sequences
    running: Chain  # admitted requests, oldest admission first
    prompts: Chain  # those of them with prompt tokens that no batch has taken
    by_end: Chain  # the running ones by their last step, if the structure has peaks
    cohorts: Cohorts
    rings: Rings
    at_rest: Int  # the cohort that no batch in flight has
    flights: Flights
    sent: Int  # batches that have started
    landed: Int  # batches that have ended
    free_s: FloatPerRank  # when each pipeline rank is free
    batch: Batch
    next_leaving: IntPerRequest
    next_fresh: IntPerRequest
    next_completing: IntPerRequest
    running_count: Float
    admissions: Int
    finished: Int
    preemptions: Int
    decode_iterations: Int
    looked_at: Int  # LightLLM: ``decode_iterations`` at the last admission
    kv: Float  # units in use
    kv_max: Float
    kv_unit_s: Float
    busy_s: Float
    iterations: Float
    experts_touched: Float
    peaks: Peaks  # without a pipeline only
    itl_histogram: Bins
    paces: Paces | None = None  # of a pipeline that runs by itself
    tally: Tally | None = None  # None for a single replica: there is no router that asks
    cache: Cache | None = None  # None without a prefix cache
    calendar: Calendar | None = None  # of users who think about answers: when they send which request
    listed: Listed | None = None  # of two sides: requests that are done here or, back-pressure, have begun
    rooms: Rooms | None = None  # None without back-pressure
    growth: Growth | None = None  # None where every decode gives one token; cells as of ``Rings``


def no_batch() -> Batch:
    """An empty batch."""
    zero, false = jnp.zeros((), jnp.float64), jnp.zeros((), bool)
    return Batch(PromptSums.empty(), zero, jnp.int32(NONE), jnp.int32(0), false, false, false)


def no_tally() -> Tally:
    """Nothing has changed."""
    return Tally(*(jnp.zeros((), jnp.float64),) * len(Tally._fields))


def initial_state(given: Given) -> State:
    """An idle lane at time 0."""
    slots = given.requests.arrival_s.shape[0]
    several = given.structure.replicas > 1
    cells = slots + given.structure.replicas - 1  # of a chain: a sentinel for each replica
    zero, number = jnp.zeros((), jnp.float64), jnp.zeros((), jnp.int32)
    none = jnp.full(slots, NONE, jnp.int32)
    sentinel = slots - 1 + jnp.minimum(given.limits.requests, 0)  # traced, because ``Chain`` reads at it
    return State(
        clock=zero, stuck=jnp.zeros((), bool),
        waiting=_nobody_waits(given),
        sequences=_initial_sequences(given),
        running=Chain.empty(cells, sentinel), prompts=Chain.empty(cells, sentinel),
        by_end=Chain.empty(cells if given.structure.peaks else 1, sentinel),
        cohorts=_initial_cohorts(given), rings=_initial_rings(given), at_rest=number, flights=_initial_flights(given),
        sent=number, landed=number, free_s=jnp.zeros(given.structure.pipeline_ranks), batch=no_batch(),
        next_leaving=none, next_fresh=none, next_completing=none,
        running_count=zero, admissions=number, finished=number, preemptions=number, decode_iterations=number,
        looked_at=number, kv=zero, kv_max=zero, kv_unit_s=zero, busy_s=zero, iterations=zero, experts_touched=zero,
        peaks=no_peaks(given.pipeline_ranks[0]),
        itl_histogram=jnp.zeros(histogram.BINS * given.structure.pools),
        paces=_initial_paces(given),
        tally=no_tally() if several else None,
        cache=initial_cache(given),
        calendar=None if given.talks is None else Calendar.empty(slots),
        listed=Listed(none[0], none) if given.structure.sides > 1 else None,
        rooms=Rooms(zero, jnp.full(slots, jnp.inf)) if given.structure.rooms else None,
        growth=_initial_growth(given),
    )  # fmt: skip


def _initial_growth(given: Given) -> Growth | None:
    if given.speculation is None:
        return None
    return no_growth(given.structure.cohorts() * given.structure.ring + 1, given.structure.windowed)


def _nobody_waits(given: Given) -> Waiting | Line:
    slots, number = given.requests.arrival_s.shape[0], jnp.zeros((), jnp.int32)
    if given.structure.replicas > 1:
        none = jnp.full(slots, NONE, jnp.int32)
        homeless = none[0] if given.structure.rooms else None
        return Line(none[0], none[0], none, given.limits.users, jnp.full(slots + 1, jnp.inf), number, homeless)
    return Waiting(jnp.zeros(slots + 1, jnp.int64), number, number, given.limits.users)


def _initial_sequences(given: Given) -> Sequences:
    requests = given.requests
    slots = requests.arrival_s.shape[0]
    zeros, none = jnp.zeros(slots, jnp.int32), jnp.full(slots, NONE, jnp.int32)
    never = jnp.full(slots, jnp.inf)
    return Sequences(
        computed=requests.prompt_tokens - requests.compute_tokens, target=requests.prompt_tokens + 0, generated=zeros,
        cohort=none, since=zeros, flight=none, admission=zeros,
        token_s=jnp.zeros(slots), scheduled_s=never, first_token_s=never, last_token_s=never,
        decoded=None if given.speculation is None else zeros,
        slots=None if given.speculation is None else zeros,
    )  # fmt: skip


def _initial_cohorts(given: Given) -> Cohorts:
    count = given.structure.cohorts()
    sums = jnp.zeros(count)
    return Cohorts(jnp.zeros(count, jnp.int32), sums, sums, sums, sums, sums, jnp.full(count, NONE, jnp.int32))


def _initial_paces(given: Given) -> Paces | None:
    """No cohort has been in a batch."""
    structure = given.structure
    if structure.pipeline_ranks == 1 or structure.replicas > 1 or given.speculation is not None:
        return None
    count = jnp.zeros(structure.cohorts())
    times = jnp.zeros(structure.cohorts() * structure.pipeline_ranks)
    return Paces(count, count.astype(jnp.int32), times, times, count, count)


def _initial_rings(given: Given) -> Rings:
    cells = given.structure.cohorts() * given.structure.ring
    counts = jnp.zeros(cells + 1, jnp.int64)
    return Rings(
        events=jnp.zeros(cells // WORD, jnp.uint64),
        leaving=jnp.full(cells + 1, NONE, jnp.int32),
        crossing=counts if given.structure.windowed else counts[:1],
        growth=counts,
    )


def _initial_flights(given: Given) -> Flights:
    """No batch in flight; cohort 0 is at rest and each cell of a flight has one of the others."""
    ranks = given.structure.pipeline_ranks
    return Flights(
        end_s=jnp.full(ranks, jnp.inf),
        decodes=jnp.zeros(ranks, bool),
        cohort=jnp.arange(1, ranks + 1, dtype=jnp.int32),
        completing=jnp.full(ranks, NONE, jnp.int32),
    )
