"""BestServe's simulation of whole requests, algorithms 2 to 7, in plain Python.

Batched prompts on one side (``prefill``), decode boxes on the other (``decode``), or both on the same instances
(``collocated``). Nothing happens between the start and the end of a batch or a decode: that makes it cheap, and wrong
where what happens in between matters (``pseudo_batch``).

The algorithms are those of the paper with these changes, of which each is what its text describes:

* *Time goes to the next event.* As printed (algorithm 2, line 21) it goes to the later of the next arrival and the
  next end of a busy instance, so that an idle instance waits for a busy one, and for ever where no other is busy. In
  algorithms 6 and 7 a blocked decode lets arriving prompts wait, which are to be served first.
* *A request arrives by its arrival time*, where algorithms 3 and 7 ask for ``A < T``.
* *Suspension postpones the last token*, too. Algorithm 6 leaves ``suspend_decode`` open and sets the departure once, on
  insertion.
* *Prompts enter the decode queue when they are computed*; algorithm 6 (line 10) queues them when they start, so that a
  batch still in work could block requests behind it.
* *Shuffling* the instances at each step means that any that could take a request takes it alike; here a number drawn
  for the request decides, so that a run can be repeated (``draw_one``).

Two liberties of the paper stay: KV caches move between instances in no time, also on collocated ones, where a request
may decode on another instance than its prompt; and the memory for them has no end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from evaluator.cost.request_times import PhaseTimes, PromptBatch


@dataclass
class WholeRequest:
    """A request and its times, absolute seconds. The draws are in [0, 1)."""

    arrival_s: float
    prompt_tokens: float
    output_tokens: float
    prefill_draw: float = 0.0
    decode_draw: float = 0.0
    scheduled_s: float = math.inf
    first_token_s: float = math.inf
    last_token_s: float = math.inf
    instance: int = -1  # that computed its prompt
    decode_scheduled_s: float = math.inf
    second_token_s: float = math.inf  # on a decode side, where tokens come evenly spaced; a single one: when it left
    decode_instance: int = -1


@dataclass(frozen=True)
class Instances:
    """So many identical instances of so much each. ``tau``: see ``pseudo_batch``."""

    cost: PhaseTimes
    count: int
    max_prompts: int = 1
    max_decodes: int = 1
    tau: float = 2.5
    max_prompt_tokens: float = math.inf  # of a batch; a longer prompt is a batch alone


@dataclass
class Box:
    """Room for one decoding sequence."""

    idle_s: float = 0.0
    holder: WholeRequest | None = None


@dataclass
class CollocatedInstance:
    """One that does both. ``resume_s`` is finite while it computes prompts and its decodes are suspended."""

    boxes: list[Box]
    resume_s: float = math.inf
    batch: list[WholeRequest] = field(default_factory=list)

    @property
    def prefilling(self) -> bool:
        """The status of the paper's instances."""
        return self.resume_s < math.inf

    def free_s(self) -> float:
        """When it can take a decode; inf while it computes prompts."""
        return math.inf if self.prefilling else min(box.idle_s for box in self.boxes)


def draw_one(able: Sequence[bool], draw: float) -> int:
    """The place of one of those that are able; all have the same probability."""
    places = [number for number, is_able in enumerate(able) if is_able]
    return places[math.floor(draw * len(places))]


def pseudo_batch(boxes: Sequence[Box], now: float, tau: float) -> float:
    """Equation 9: the batch in which a request decodes all the time, from the batch that it finds."""
    busy = sum(box.idle_s > now for box in boxes)
    return float(max(math.floor((busy + 1) / tau), 1))


def take_batch(instances: Instances, waiting: list[WholeRequest], now: float) -> list[WholeRequest]:
    """BestServe's BATCH: as many waiting requests as fit, the first at least; they are taken out of ``waiting``."""
    batch: list[WholeRequest] = []
    tokens = 0.0
    for request in waiting[: instances.max_prompts]:
        tokens += request.prompt_tokens
        # The first is taken however long it is, or it would never be computed.
        if request.arrival_s > now or (batch and tokens > instances.max_prompt_tokens):
            break
        batch.append(request)
    del waiting[: len(batch)]
    return batch


def prompts_s(instances: Instances, batch: Sequence[WholeRequest]) -> float:
    """ESTIMATE_TIME of a batch of prompts."""
    tokens = [request.prompt_tokens for request in batch]
    area = sum(0.5 * count * (count + 1.0) for count in tokens)
    return float(instances.cost.prompts_s(PromptBatch(float(len(batch)), sum(tokens), max(tokens), area)))


def prefill(instances: Instances, requests: Sequence[WholeRequest]) -> None:
    """Algorithm 2, for requests in order of arrival: sets ``scheduled_s`` and ``first_token_s``."""
    waiting = list(requests)
    idle_s = [0.0] * instances.count
    while waiting:
        now = max(min(idle_s), waiting[0].arrival_s)
        chosen = draw_one([idle_from_s <= now for idle_from_s in idle_s], waiting[0].prefill_draw)
        batch = take_batch(instances, waiting, now)
        idle_s[chosen] = now + prompts_s(instances, batch)
        for request in batch:
            request.scheduled_s, request.first_token_s, request.instance = now, idle_s[chosen], chosen


def decode(instances: Instances, requests: Sequence[WholeRequest]) -> None:
    """Algorithm 3, for requests with their first token: sets ``last_token_s``."""
    pool = [[Box() for _ in range(instances.max_decodes)] for _ in range(instances.count)]
    for request in sorted(requests, key=lambda request: request.first_token_s):
        soonest_s = [min(box.idle_s for box in boxes) for boxes in pool]
        now = max(min(soonest_s), request.first_token_s)
        request.decode_instance = draw_one([idle_from_s <= now for idle_from_s in soonest_s], request.decode_draw)
        if request.output_tokens <= 1:  # it has left before, and takes no box
            request.decode_scheduled_s = request.second_token_s = request.last_token_s = request.first_token_s
            continue
        took_s = _enter(instances, pool[request.decode_instance], request, now)
        request.decode_scheduled_s, request.last_token_s = now, now + took_s
        request.second_token_s = now + took_s / (request.output_tokens - 1.0)


def _enter(instances: Instances, boxes: list[Box], request: WholeRequest, now: float) -> float:
    """The request decodes in a free box from now on: so many seconds, if nothing suspends it."""
    together = pseudo_batch(boxes, now, instances.tau)
    took_s = float(instances.cost.decodes_s(together, request.prompt_tokens, request.output_tokens))
    box = min(boxes, key=lambda box: box.idle_s)
    box.idle_s, box.holder = now + took_s, request
    return took_s


def collocated(instances: Instances, requests: Sequence[WholeRequest]) -> None:
    """Algorithm 4, for requests in order of arrival: sets all their times."""
    waiting = list(requests)  # P
    ready: list[WholeRequest] = []  # Q
    pool = [CollocatedInstance([Box() for _ in range(instances.max_decodes)]) for _ in range(instances.count)]
    now = 0.0
    while waiting or ready or any(instance.prefilling for instance in pool):
        prefill_s = _when_prefill(pool, waiting, now)
        resume_s = min(instance.resume_s for instance in pool)
        decode_s = _when_decode(pool, ready, now)
        now = min(prefill_s, resume_s, decode_s)  # WHAT_COMES_NEXT; at one time in this order
        if now == prefill_s:
            _start_prompts(instances, pool, waiting, ready, now)
        elif now == resume_s:
            _resume(min(pool, key=lambda instance: instance.resume_s), ready)
        else:
            _start_decode(instances, pool, ready, now)
    for instance in pool:
        for box in instance.boxes:
            _leave(box)


def _when_prefill(pool: list[CollocatedInstance], waiting: list[WholeRequest], now: float) -> float:
    """Algorithm 5: a prompt can start at once on an instance that decodes, else when its prompts are computed."""
    if not waiting:
        return math.inf
    return max(now, waiting[0].arrival_s, min(instance.resume_s if instance.prefilling else 0.0 for instance in pool))


def _when_decode(pool: list[CollocatedInstance], ready: list[WholeRequest], now: float) -> float:
    """Algorithm 5: a decode can start where no prompts are computed and a box is free."""
    if not ready:
        return math.inf
    if ready[0].output_tokens <= 1:
        return now
    return max(now, min(instance.free_s() for instance in pool))


def _start_prompts(
    instances: Instances,
    pool: list[CollocatedInstance],
    waiting: list[WholeRequest],
    ready: list[WholeRequest],
    now: float,
) -> None:
    """Algorithm 6."""
    able = [not instance.prefilling or instance.resume_s <= now for instance in pool]
    chosen = draw_one(able, waiting[0].prefill_draw)
    instance = pool[chosen]
    # The batch before ends at this very time and has not been resumed: at one time prompts come first.
    if instance.prefilling:
        _resume(instance, ready)  # its decodes are suspended further
    batch = take_batch(instances, waiting, now)
    took_s = prompts_s(instances, batch)
    for request in batch:
        request.scheduled_s, request.first_token_s, request.instance = now, now + took_s, chosen
    instance.batch, instance.resume_s = batch, now + took_s
    for box in instance.boxes:
        # The decodes of this instance stand still while the prompts are computed.
        if box.idle_s > now:
            box.idle_s += took_s


def _resume(instance: CollocatedInstance, ready: list[WholeRequest]) -> None:
    """The prompts of a batch are computed: they may decode, and so may those that were suspended."""
    ready += instance.batch
    instance.batch, instance.resume_s = [], math.inf


def _start_decode(instances: Instances, pool: list[CollocatedInstance], ready: list[WholeRequest], now: float) -> None:
    """Algorithm 7. A request whose only token is there leaves at once."""
    request = ready.pop(0)
    if request.output_tokens <= 1:
        request.last_token_s = request.first_token_s
        return
    request.decode_instance = draw_one([instance.free_s() <= now for instance in pool], request.decode_draw)
    instance = pool[request.decode_instance]
    _leave(min(instance.boxes, key=lambda box: box.idle_s))
    _enter(instances, instance.boxes, request, now)
    request.decode_scheduled_s = now


def _leave(box: Box) -> None:
    """Once the box is taken again, or at the end, nothing suspends the request any more that was in it."""
    if box.holder is not None:
        box.holder.last_token_s = box.idle_s
