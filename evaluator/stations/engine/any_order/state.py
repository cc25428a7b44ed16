"""What the loop of a lane carries from trip to trip."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from evaluator.cost.iteration import Array
from evaluator.stations.engine.any_order.chains import Chain
from evaluator.stations.engine.any_order.lane import GeneralLane, GeneralStructure
from evaluator.stations.engine.common import histogram
from evaluator.stations.engine.common.lane import Requests
from evaluator.stations.engine.common.rings import WORD
from evaluator.stations.engine.in_order.state import NOBODY, no_peaks


class Waiting(NamedTuple):
    """Who waits: a heap of those that have a place of their own, and behind it the arrivals, in order."""

    heap: Array  # (request + 2,) int64, rank << 32 | request
    size: Array  # int32
    arrived: Array  # int32, the next request to come that was never in the heap nor admitted
    released: Array  # int32, closed loop: requests sent so far


class Sequences(NamedTuple):
    """What has happened to each request so far, (request + 1,), int32 unless said; decoding, as of ``since``."""

    computed: Array  # tokens whose KV is there or is being computed
    target: Array  # tokens whose KV must be there before the next output token comes
    generated: Array  # output tokens
    group: Array  # the sequences that it decodes with, or NOBODY
    since: Array  # the step of that group at which it joined
    flight: Array  # the last batch that computed a chunk of its prompt
    admission: Array  # how many were admitted before it
    token_s: Array  # float64, when its last token came, if it has joined since or waits
    scheduled_s: Array  # float64
    first_token_s: Array  # float64
    last_token_s: Array  # float64


class Groups(NamedTuple):
    """Sequences that decode together, (group,): one group in each batch in flight and one at rest."""

    step: Array  # int32, steps done
    decodes: Array
    context: Array  # tokens that they attend to in the next step, summed
    window_context: Array
    growing: Array  # members whose windowed context still grows
    gap_from: Array  # end of the last step
    fresh: Array  # int32, list of those that have joined since


class Rings(NamedTuple):
    """By group and step, as in ``engine.common.rings``; a last cell takes writes that are not meant."""

    events: Array  # uint64, one group only: a bit per step at which something changes
    leaving: Array  # int32, lists of requests by the step after which they leave
    crossing: Array  # int64, tagged counts of those whose window is full at that step
    growth: Array  # int64, tagged counts of KV units that the step needs more than the one before


class Flights(NamedTuple):
    """Batches on their way through the pipeline, by number modulo ranks, (rank,)."""

    end_s: Array
    decodes: Array  # bool: its group takes a step
    group: Array  # int32; without decodes an empty one
    completing: Array  # int32, list of requests whose prompts are complete with it


class Batch(NamedTuple):
    """The batch that is being put together: sums for its time, and what happened meanwhile."""

    tokens: Array
    sequences: Array
    area: Array
    window_area: Array
    context: Array
    window_context: Array
    decodes: Array  # sequences that take a token of the budget
    completing: Array  # int32, list of requests whose prompts are complete with it
    admitted: Array  # int32
    short: Array  # somebody did not get KV at once: nobody new comes in
    preempted: Array  # somebody was preempted
    grown: Array  # decodes have the KV of their next token


class State(NamedTuple):
    """A lane between two trips. Scalars are float64 (times, token and unit counts) or int32 (requests, steps)."""

    clock: Array
    stuck: Array  # nobody runs, nobody comes, and who waits cannot be admitted
    waiting: Waiting
    sequences: Sequences
    running: Chain  # admitted, in that order
    prompts: Chain  # those of them with prompt tokens that no batch has taken
    by_end: Chain  # the running ones by their last step, if the structure has peaks
    groups: Groups
    rings: Rings
    at_rest: Array  # int32, the group that no batch in flight has
    flights: Flights
    sent: Array  # int32, batches
    landed: Array
    free_s: Array  # (rank,) when each rank is free
    batch: Batch
    next_leaving: Array  # links of the lists, (request + 1,) int32
    next_fresh: Array
    next_completing: Array
    running_count: Array
    admissions: Array  # int32
    finished: Array  # int32
    preemptions: Array  # int32
    decode_iterations: Array  # int32
    looked_at: Array  # int32, LightLLM: decode iterations when somebody was admitted last
    kv: Array  # units in use
    kv_max: Array
    kv_unit_s: Array
    busy_s: Array
    iterations: Array
    experts_touched: Array
    peaks: Array  # as in the other program's state; without a pipeline only
    itl_histogram: Array  # (bin,)


def no_batch() -> Batch:
    """Nobody is in it yet."""
    zero, false = jnp.zeros((), jnp.float64), jnp.zeros((), bool)
    return Batch(*(zero,) * 7, jnp.int32(NOBODY), jnp.int32(0), false, false, false)


def initial_state(given: GeneralLane, requests: Requests, structure: GeneralStructure) -> State:
    """An idle lane at time 0."""
    slots, ring, pipeline_ranks = requests.arrival_s.shape[0], structure.ring, structure.pipeline_ranks
    groups = group_count(structure)
    zero, number = jnp.zeros((), jnp.float64), jnp.zeros((), jnp.int32)
    numbers, nobody = jnp.zeros(slots, jnp.int32), jnp.full(slots, NOBODY, jnp.int32)
    never, sums = jnp.full(slots, jnp.inf), jnp.zeros(groups)
    sentinel = slots - 1 + jnp.minimum(given.lane.requests, 0)
    tags = jnp.zeros(groups * ring + 1, jnp.int64)
    return State(
        clock=zero, stuck=jnp.zeros((), bool),
        waiting=Waiting(jnp.zeros(slots + 1, jnp.int64), number, number, given.lane.users),
        sequences=Sequences(
            requests.prompt_tokens - requests.compute_tokens, requests.prompt_tokens + 0, numbers, nobody, numbers,
            nobody, numbers, jnp.zeros(slots), never, never, never,
        ),
        running=Chain.empty(slots, sentinel), prompts=Chain.empty(slots, sentinel),
        by_end=Chain.empty(slots if structure.peaks else 1, sentinel),
        groups=Groups(
            jnp.zeros(groups, jnp.int32), sums, sums, sums, sums, sums, jnp.full(groups, NOBODY, jnp.int32)
        ),
        rings=Rings(
            jnp.zeros(groups * ring // WORD, jnp.uint64), jnp.full(groups * ring + 1, NOBODY, jnp.int32),
            tags if structure.windowed else tags[:1], tags,
        ),
        at_rest=number,
        flights=Flights(
            jnp.full(pipeline_ranks, jnp.inf), jnp.zeros(pipeline_ranks, bool),
            jnp.arange(1, pipeline_ranks + 1, dtype=jnp.int32),
            jnp.full(pipeline_ranks, NOBODY, jnp.int32),
        ),
        sent=number, landed=number, free_s=jnp.zeros(pipeline_ranks), batch=no_batch(),
        next_leaving=nobody, next_fresh=nobody, next_completing=nobody,
        running_count=zero, admissions=number, finished=number, preemptions=number, decode_iterations=number,
        looked_at=number, kv=zero, kv_max=zero, kv_unit_s=zero, busy_s=zero, iterations=zero, experts_touched=zero,
        peaks=no_peaks(given.pipeline_ranks[0]),
        itl_histogram=jnp.zeros(histogram.BINS),
    )  # fmt: skip


def group_count(structure: GeneralStructure) -> int:
    """Groups of decoding sequences: without a pipeline the one group is never at rest and in flight at once."""
    return 1 if structure.pipeline_ranks == 1 else structure.pipeline_ranks + 1
