"""One replica: puts batches together, sends them through its ranks, and hands out the tokens they made."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from evaluator.cost.iteration import BatchStatistics, IterationCost, alike_steps, decode_growth
from evaluator.cost.quantities import PEAKS, raised
from evaluator.policies import policy as policy_named
from evaluator.reference.adapter_places import AdapterPlaces
from evaluator.reference.batch import Batch, exact_statistics, statistics
from evaluator.reference.kv import CountedKv
from evaluator.reference.kv_sizes import KvSizes
from evaluator.reference.limits import Limits
from evaluator.reference.pipeline import RankPipeline
from evaluator.reference.queues import Queues
from evaluator.reference.request import Request
from evaluator.reference.running_batch import Iteration, RunningBatch
from evaluator.reference.schedulers import limits_under, scheduler


class Replica:
    """Batches of a queue, one after the other or, with ranks, several under way; ``HostReplica`` spills its cache.

    ``tokens``: the time of every token is recorded and no iteration is leapt over (as without ``leap``).

    Nor is any where drafts are verified: contexts then grow unevenly.
    """

    leaps = True  # iterations of an unchanged batch may be computed as one
    keeps_empty = False  # an empty batch takes its turn without a batch queue, too, even where it preempted a request

    def __init__(
        self,
        index: int,
        costs: Sequence[IterationCost],
        policy: str,
        limits: Limits,
        *,
        window: int | None = None,
        leap: bool = True,
        tokens: bool = False,
        observe: Callable[[Iteration], None] | None = None,
    ) -> None:
        record = policy_named(policy)
        self.index = index
        self.limits = limits_under(record, limits)
        self.pipeline = RankPipeline(costs)
        self.window = window or 0
        self.queues = self._make_queues()
        self.adapters = AdapterPlaces(self.limits.max_adapters) if self.limits.max_adapters else None
        self.running_batches: deque[RunningBatch] = deque()
        self.granted: list[Request] = []  # requests that got a KV reservation since the station last took them
        self.announced = 0  # requests that were ever sent here
        self.outstanding = 0  # of these, those that have not finished
        self.keeps = 0  # requests that have finished, and whose KV stays until it has been sent on
        self.iterations = 0
        self.kv_units_max = 0
        self.kv_unit_s = 0.0  # KV units in use, integrated over time
        self.experts_touched = 0.0  # fraction of the experts touched, summed over iterations; 0 without experts
        self.decoded = 0  # with drafts: decode iterations, summed over the sequences
        self.decoded_tokens = 0  # output tokens that they gave
        self.peaks = (0.0,) * len(PEAKS)  # largest quantities of any iteration, under a fitted cost
        self.kv_since_s = 0.0  # up to when that is done, and since when the KV is as it is
        self._schedule = scheduler(record)
        self._policy = record
        self._tokens = tokens
        # A leap stands for iterations that differ in the lengths of contexts alone. Over several pipeline ranks the
        # batches of other ranks lie between two iterations of this one, drafts make contexts grow unevenly, and a
        # batch planned asynchronously is known before its tokens are: none of these leaps. Nor do KV groups, whose
        # windows give blocks back on the way.
        self._leap = (leap and self.leaps) and not (
            tokens or len(self.pipeline) > 1 or limits.drafts or limits.asynchronous or limits.kv_groups
        )
        self._most_batches = 2 if limits.asynchronous else len(self.pipeline)
        self._queued = limits.batch_queue and self._most_batches > 1
        self._batches: deque[RunningBatch | None] = deque()  # with a batch queue: under way; None for an empty one
        self._waits = False  # with a batch queue: for its oldest batch
        self._observe = observe
        self._preempted: list[Request] = []  # since the last batch was sent
        self.report: Callable[[Replica, int, float], None] | None = None  # told who waits, before and after a batch
        self._unseen = 0  # arrivals since the last batch was formed
        self.lockstep_ranks: tuple[Replica, ...] = (self,)  # whose batches start and end with those of this one

    def _make_queues(self) -> Queues:
        return Queues(self.limits, self.window)

    def announce(self, request: Request) -> None:
        """A request is to be served here, now or later."""
        request.replica, request.order = self.index, self.announced
        self.announced += 1
        self.outstanding += 1
        self.queues.announce(request)

    def submit(self, request: Request, now: float) -> RunningBatch | None:
        """A request arrives. A leap that may keep it waiting ends with the iteration under way.

        Returned is the running batch whose end was brought forward, if there is one.
        """
        queues = self.queues
        if self.limits.max_queued is not None and len(queues.waiting) >= self.limits.max_queued:
            # Before it is announced: routers never count it. Who is preempted counts as waiting, as in SGLang's queue.
            request.replica, request.refused = self.index, True
            request.scheduled_s = request.first_token_s = request.last_token_s = now
            return None
        if request.replica < 0:
            self.announce(request)
        if self.limits.aging and not request.aged:
            request.priority, request.aged = request.priority + self.limits.aging * request.arrival_s, True
        self._unseen += 1
        return self._arrive(request, now)

    def _arrive(self, request: Request, now: float) -> RunningBatch | None:
        queues = self.queues
        # A leap was sent because no request could be admitted before its end. That stays true for an arrival that
        # stands behind others; one that may stand first could be admitted in the next iteration. With adapters one that
        # may not be admitted yet is passed by those behind it.
        joins_early = not queues.waiting or not queues.waiting.stable or self.adapters is not None
        queues.arrive(request)
        return self._cut_short(now) if joins_early else None

    def expect(self, request: Request, now: float) -> RunningBatch | None:
        """A request will come when there is room for its KV: at once, or when requests leave; see ``submit``.

        Where KV is taken on demand, iterations under way have yet to take theirs, and KV is reserved between them.
        """
        self.announce(request)
        self.queues.reservations.expected.append(request)
        # Under reservation KV changes hands when requests leave only, so that what is free now can be given at once,
        # in the middle of an iteration. On demand the iterations of a leap have yet to take their blocks, and who
        # runs goes before who is to come.
        if self.queues.on_demand:
            return self._cut_short(now)
        self.catch_up(now)  # blocks that a leap has filled by now can be found
        self._integrate_kv(now)
        self._reserve()
        # A request without a reservation may find more of its prompt with every block that is filled, and need less.
        return self._cut_short(now) if self.queues.reservations.expected and self.limits.prefix_caching else None

    def report_before(self, now: float) -> None:
        """Report waiting requests before the next batch is formed, to a router of ranks (``report``; None: no such)."""
        if not self.running_batches and self.report is not None:
            self._unseen = 0
            self.report(self, len(self.queues.waiting), now)

    def report_after(self, now: float) -> None:
        """Report them after a batch, without those that arrived during it: the engine has not read its inputs yet."""
        if self.report is not None:
            self.report(self, len(self.queues.waiting) - self._unseen, now)

    def _reserve(self, tokens_left: int = 1) -> None:
        self.granted += self.queues.reservations.grant(self.queues, tokens_left)
        self.kv_units_max = max(self.kv_units_max, self._kv_used())

    def release(self, request: Request, now: float) -> None:
        """The KV of a request that is done here, and was held, has been sent."""
        self._integrate_kv(now)
        self.keeps -= 1
        self.queues.kv.release(request)

    def _cut_short(self, now: float) -> RunningBatch | None:
        """End a leap with the iteration under way, here and where batches end together; what ``cut_short`` gives."""
        if len(self.lockstep_ranks) > 1:
            for rank in self.lockstep_ranks:
                if rank is not self:
                    rank.cut_short(now)
        return self.cut_short(now)

    def cut_short(self, now: float) -> RunningBatch | None:
        """The same, at this replica alone."""
        if self._leap and self.running_batches and self.running_batches[0].iterations > 1:
            running_batch, end_s = self.running_batches[0], self.running_batches[0].end_s
            running_batch.iterations = running_batch.iterations_until(now)
            running_batch.end_s = running_batch.end_of(running_batch.iterations)
            return running_batch if running_batch.end_s != end_s else None
        return None

    def fail(self, now: float) -> None:
        """The replica is down: iterations that have ended gave their tokens, what is under way gives nothing."""
        self.catch_up(now)
        leap = self.running_batches[0] if self.running_batches and self.running_batches[0].iterations > 1 else None
        done = 0
        if leap is not None:
            done = leap.iterations_until(now)
            done -= leap.end_of(done) > now
        if leap is not None and done:
            # No request has its last token before the last iteration of a leap.
            leap.iterations, leap.end_s = done, leap.end_of(done)
            self.finish(leap)
            self.pipeline.busy_s += now - leap.end_s
        else:
            self.pipeline.cut(now)
        self._integrate_kv(now)
        for running_batch in self.running_batches:
            running_batch.end_s = math.inf  # in the station's calendar, which thus passes over it
        self.running_batches.clear()
        self.queues.under_way.clear()

    def discard_cache(self) -> None:
        """Drop the caches of a replica that is gone for good, whose totals alone are asked for: they take megabytes."""
        self.queues.kv = CountedKv(self.limits)
        self.queues.sizes = KvSizes(self.limits, self.queues.kv)

    def launch(self, now: float) -> list[RunningBatch]:
        """Launch batches until as many are in flight as there are pipeline ranks, or no request is left to run."""
        if self._queued:
            return self._fill_batch_queue(now)
        launched = []
        # One batch for each pipeline rank (vLLM's virtual engines): the next one is put together when the first rank
        # is free.
        while len(self.running_batches) < len(self.pipeline):
            batch = self.form(now)
            running_batch = self._send(batch, now) if batch else self._wait(batch, now)
            if running_batch is None:
                break
            launched.append(running_batch)
        return launched

    def _wait(self, batch: Batch, now: float) -> RunningBatch | None:
        """Nobody can take part: what stands for the time until the next look; None where that comes with an arrival."""
        return None

    def _fill_batch_queue(self, now: float) -> list[RunningBatch]:
        """Plan batches as the engine core does, until it waits for the oldest of them or has nothing to do.

        Where nobody can take part the batch is an empty one, which has its place in the queue until it is the oldest
        (vLLM ``EngineCore.step_with_batch_queue``).
        """
        launched: list[RunningBatch] = []
        while not self._waits:
            # Who is to come is among vLLM's waiting, so that an idle engine looks for its KV, too.
            if self.queues.running or self.queues.waiting or self.queues.reservations.expected:
                batch = self.form(now)
                running_batch = self._send(batch, now) if batch else None
                # An empty batch with nothing under way and no request preempted stays empty for ever: stop planning, or
                # this loop would not end.
                if running_batch is None and not self.running_batches and not self.queues.preempted:
                    self._batches.clear()
                    break  # who waits can never be admitted
                launched += [running_batch] if running_batch else []
                self._batches.append(running_batch)
                if len(self._batches) < self._most_batches:
                    continue
            elif not self._batches:
                if self._policy.token_ratio:
                    self.form(now)  # without requests SGLang's ratio starts anew
                break
            if self._batches[0] is None:
                self._batches.popleft()
            else:
                self._waits = True
        return launched

    def form(self, now: float) -> Batch:
        """The next batch, maybe empty, which is to be sent at once."""
        self._integrate_kv(now)
        batch = self._next_batch()
        decodes = len(batch.decodes) * self.limits.decode_tokens if batch.decodes is not None else 0
        taken = decodes + sum(chunk.high - chunk.low + chunk.padding for chunk in batch.chunks)
        self._reserve(self.limits.max_num_batched_tokens - taken)
        return batch

    def _next_batch(self) -> Batch:
        while True:
            self.queues.begin()
            batch = self._schedule(self.queues, self._policy)
            self._preempted += self.queues.preempted
            if batch or not self.queues.preempted or self._queued or self.keeps_empty:
                batch.decodes = batch.decodes or None
                return batch
            # All that ran were preempted: that takes no time, and the next look may admit them.

    def _send(self, batch: Batch, now: float) -> RunningBatch:
        sums, copy_s = self.weigh(batch)
        costs = self.pipeline.costs
        if self.adapters is not None:
            named, loads = self.adapters.take(batch)
            # Who names another adapter was admitted just now, so that no leap repeats a load.
            costs, copy_s = self.pipeline.naming(named), copy_s + loads * self.limits.adapter_load_s
        start, end = self.pipeline.enter(now, sums, copy_s, costs)
        running_batch = self.take_off(batch, sums, start, end)
        running_batch.experts_touched = self.pipeline.experts_touched(sums)
        if batch.decodes is not None and self._leap:
            # The leap ends where the time is no longer affine in the number of iterations (``alike_steps``: at the
            # knots of measured iterations; under a roofline it always is) or where the batch itself changes
            # (``alike``).
            cost = costs[0]
            iterations = min(self.alike(batch), alike_steps(cost, sums))
            running_batch.repeat(iterations, decode_growth(cost, sums, batch.decodes.growing))
        return running_batch

    def weigh(self, batch: Batch) -> tuple[BatchStatistics, float]:
        """What the time of a batch depends on: its sums, and the seconds in which KV is copied before it."""
        take = exact_statistics if self._tokens else statistics
        copy_s = self.queues.moved_units * self.limits.swap_unit_s
        self.queues.moved_units = 0
        return take(batch, self.window), copy_s

    def take_off(self, batch: Batch, sums: BatchStatistics, start: float, end: float) -> RunningBatch:
        """A batch is under way; an empty one is that of a rank which waits for others."""
        running_batch = RunningBatch(
            batch,
            sums,
            start,
            end,
            preempted=self._preempted,
            cached=self.queues.cached,
            planned_units=self._kv_used(),
            busy=bool(batch),
        )
        self._preempted = []
        self.running_batches.append(running_batch)
        self.queues.under_way.append(batch)
        if self._observe:
            _say_members(running_batch)
        for chunk in batch.chunks:
            if chunk.request.scheduled_s == math.inf:
                chunk.request.scheduled_s = start
        if self.limits.kv_groups:
            running_batch.tokens = {chunk.request: chunk.high - chunk.low for chunk in batch.chunks}
            for request in batch.decodes.members if batch.decodes else ():
                running_batch.tokens[request] = self.limits.decode_tokens
            for request, tokens in running_batch.tokens.items():
                request.under_way += tokens
        # Beside a prompt that is computed alone they decode in a later batch: this one is their first all the same.
        for request in self.queues.newcomers:
            request.scheduled_s = min(request.scheduled_s, start)
        if batch.decodes is not None:
            self._send_decodes(batch, running_batch)
        # The decodes that were left out of this batch are those of the next one, until this batch has ended.
        if self.queues.aside is not None:
            self.queues.decoding, self.queues.aside = self.queues.aside, None
        self.kv_units_max = max(self.kv_units_max, self._kv_used())
        if self.limits.asynchronous:
            # Each decode has a token, and each prompt is complete, when the next batch is planned; who leaves keeps its
            # KV and its place until this batch has ended (vLLM ``AsyncScheduler``: ``num_output_placeholders``).
            running_batch.finished = self._complete(running_batch)
            self.queues.leaving.update(dict.fromkeys(running_batch.finished))
        return running_batch

    def _send_decodes(self, batch: Batch, running_batch: RunningBatch) -> None:
        queues, group = self.queues, batch.decodes
        assert group is not None
        # A newcomer that was preempted for want of KV since, or left out of this batch, has no token with it.
        running_batch.newcomers = [request for request in queues.newcomers if request.group is group]
        queues.newcomers = [request for request in queues.newcomers if request.group not in (None, group)]
        queues.decode_iterations += 1
        # The group is in flight as a whole; who gets its first token meanwhile decodes with the batch of another
        # rank.
        if len(self.pipeline) > 1:
            queues.decoding = queues.new_group()

    def alike(self, batch: Batch) -> int:
        """How many iterations, this one included, are the same but for contexts that grow, if nobody arrives."""
        queues, group = self.queues, batch.decodes
        if group is None or not self._leap:
            return 1
        # After a prompt the next batch has one decode more; after an admission the next request may be admitted;
        # short of KV, the next iteration may preempt again.
        if batch.chunks or queues.admitted or queues.short_of_kv:
            return 1
        if (queues.waiting or queues.reservations.expected) and self.limits.prefix_caching:
            return 1  # what the head finds in the cache may change
        # Until the first member has its last token, or fills its window of attention. On demand also no further than
        # the free blocks last: the iteration that finds none has to preempt, and is put together by itself.
        most = min(group.steps_to_event(), batch.most)
        return group.steps_within(queues.kv.free, most) if queues.on_demand else most

    def _kv_used(self) -> int:
        return self.queues.kv.capacity - self.queues.kv.free

    def _integrate_kv(self, until: float) -> None:
        self.kv_unit_s += self._kv_used() * (until - self.kv_since_s)
        self.kv_since_s = until

    def finish(self, running_batch: RunningBatch) -> list[Request]:
        """The oldest running batch is over: its requests have their tokens. Those with the last one are returned."""
        assert running_batch is self.running_batches[0]
        self.running_batches.popleft()
        self.queues.under_way.popleft()
        for request, tokens in running_batch.tokens.items():
            request.under_way -= tokens
        queues, now = self.queues, running_batch.end_s
        self.iterations += running_batch.iterations if running_batch.busy else 0
        self.experts_touched += running_batch.iterations * running_batch.experts_touched
        # Contexts grow within a leap, so that its last iteration is the largest.
        self.peaks = raised(self.pipeline.costs[0], self.peaks, running_batch.sums, running_batch.iterations)
        if running_batch.iterations > 1:
            self._finish_leap(running_batch)
        self._integrate_kv(now)
        if self._observe and running_batch.busy:
            self._observe(self._report(running_batch))
        self._has_written(running_batch)
        if self._queued:
            self._waits = False
            if not running_batch.waits:
                self._batches.popleft()
        if self.limits.asynchronous:  # but who lost its last token meanwhile (``Queues.retract``)
            finished = [request for request in running_batch.finished if request.finished]
        else:
            finished = self._complete(running_batch)
        for request in finished:
            if self.limits.asynchronous:
                self._leave_late(request)
            elif request in queues.running:
                queues.depart(request)
        self.outstanding -= len(finished)
        self.keeps += sum(request.held for request in finished)
        return finished

    def _has_written(self, running_batch: RunningBatch) -> None:
        """The device has written the KV of this batch: called before finished requests give their blocks back."""

    def _leave_late(self, request: Request) -> None:
        """A request whose last token was planned leaves; one that was preempted meanwhile holds no seat or KV."""
        queues = self.queues
        if request not in queues.leaving:
            queues.context_tokens -= request.context_tokens  # routers count it until its last token is there
        else:
            del queues.leaving[request]
            queues.give_up_seats(request)
            # The KV of the last token is never written, because nothing attends to it: the block that it would have
            # filled is not whole.
            queues.kv.register(request, request.known_tokens - 1)
            queues.depart(request)

    def _complete(self, running_batch: RunningBatch) -> list[Request]:
        """The tokens of a batch; those with their last one are returned."""
        queues, batch, now = self.queues, running_batch.batch, running_batch.end_s
        finished = self._finish_decodes(running_batch) if batch.decodes is not None else []
        for request, low, high, completes, _ in batch.chunks:
            request.batches_under_way -= 1
            queues.work_tokens -= high - low
            if request not in queues.running:  # preempted in flight
                if completes:
                    self._deliver(request, now, finished)
            elif completes:
                self._finish_prompt(request, now, finished)
        if self.limits.batch_queue:
            # The order in which blocks get free is the order in which they are taken again, and with prefix caching
            # that decides what is forgotten first. vLLM goes through ``Scheduler.running``, which is in order of
            # admission.
            finished.sort(key=lambda request: request.admission)
        return finished

    def _deliver(self, request: Request, now: float, finished: list[Request]) -> None:
        """The token of a request that was preempted in flight."""
        if self._tokens:
            request.token_s.append(now)
        if self.queues.deliver(request, now):
            finished.append(request)

    def _finish_leap(self, running_batch: RunningBatch) -> None:
        """What the iterations after the first have added to totals, and the KV that they have taken."""
        queues, group = self.queues, running_batch.batch.decodes
        self.pipeline.busy_s += running_batch.end_s - running_batch.start_s - running_batch.first_s
        # In lockstep a rank without work runs the dummy batches of the others' iterations: it is busy, and has no KV
        # to take.
        if group is None:
            return  # a dummy batch, while others decode
        queues.decode_iterations += running_batch.iterations - 1
        if queues.watches_blocks:
            self._grow(running_batch, running_batch.iterations)
            self.kv_units_max = max(self.kv_units_max, self._kv_used())

    def _grow(self, running_batch: RunningBatch, iterations: int) -> None:
        """Take the KV of a leap up to the last of so many iterations, each when it begins."""
        group = running_batch.batch.decodes
        assert group is not None
        # A router or an arrival may have looked in the middle of the leap (``catch_up``); what is taken already is
        # not taken again.
        noted = running_batch.grown
        # Most iterations of a small batch open no block, and only those that do change what is in use.
        for ahead in self.queues.growing_ahead(group, range(running_batch.grown, iterations)):
            running_batch.grown_units += [self._kv_used()] * (ahead - noted)
            noted = ahead
            self._integrate_kv(running_batch.end_of(ahead))
            self.queues.grow_ahead(group, ahead)
        running_batch.grown_units += [self._kv_used()] * (iterations - noted)
        running_batch.grown = max(running_batch.grown, iterations)

    def catch_up(self, now: float) -> None:
        """Put the KV in its state as of an arrival: the iterations of a leap that began before have taken theirs."""
        for running_batch in self.running_batches:
            if running_batch.iterations > 1 and self.queues.watches_blocks and running_batch.batch.decodes is not None:
                self._grow(running_batch, running_batch.iterations_until(now))

    def _finish_decodes(self, running_batch: RunningBatch) -> list[Request]:
        queues, group, now = self.queues, running_batch.batch.decodes, running_batch.end_s
        assert group is not None
        tokens = group.tokens(running_batch.iterations)
        queues.add_tokens(tokens)
        if self.limits.drafts:
            self.decoded += running_batch.iterations * len(group)
            self.decoded_tokens += tokens
        for request in group.members if self._tokens else ():
            request.token_s += [now] * group.gain(request)
        for request in running_batch.newcomers:
            request.first_token_s = min(request.first_token_s, now)
        finished, narrower = group.advance(running_batch.iterations)
        for request in narrower if self.limits.asynchronous else (*finished, *narrower):
            queues.give_up_seats(request)
        for request in finished:
            request.last_token_s = now
        # Preempted while its batch was under way: the token of this batch counts all the same, and its KV is computed
        # anew with that of the prompt.
        for request in group.preempted:
            request.batches_under_way -= 1
            self._deliver(request, now, finished)
        group.preempted.clear()
        # Groups are merged by moving members one by one. Where no other decodes are there, the group itself is the next
        # one, which saves that for the plain case: a single rank.
        if not queues.decoding:
            queues.decoding = group
        elif group is not queues.decoding:
            queues.decoding.absorb(group)
        return finished

    def _finish_prompt(self, request: Request, now: float, finished: list[Request]) -> None:
        self.queues.add_tokens(request.width)
        request.computed = request.target = request.known_tokens  # of each branch
        request.generated += 1
        if not (self.limits.asynchronous and request.finished):
            self.queues.give_up_seats(request)
        request.first_token_s = min(request.first_token_s, now)
        if self._tokens:
            request.token_s.append(now)
        if request.finished:
            request.last_token_s = now
            finished.append(request)
        else:
            self.queues.decoding.join(request)

    def _report(self, running_batch: RunningBatch) -> Iteration:
        return Iteration(
            replica=self.index,
            start_s=running_batch.start_s,
            end_s=running_batch.end_s,
            iterations=running_batch.iterations,
            decodes=running_batch.decodes,
            chunks=tuple(
                (chunk.request.index, chunk.high - chunk.low + chunk.padding) for chunk in running_batch.batch.chunks
            ),
            preempted=tuple(request.index for request in running_batch.preempted),
            kv_units=self._kv_used(),
            waiting=len(self.queues.waiting),
            completed=running_batch.completed,
            first_s=running_batch.first_s,
            slope_s=running_batch.slope_s,
            cached=tuple(running_batch.cached),
            planned_units=running_batch.planned_units,
            grown_units=tuple(running_batch.grown_units),
            loaded=tuple(running_batch.loaded),
            host_blocks=running_batch.host_blocks,
        )

    def tokens_of_leaps(self, now: float) -> int:
        """Tokens made by the iterations that have ended by now of a leap under way."""
        tokens = 0
        for running_batch in self.running_batches:
            if running_batch.iterations > 1 and running_batch.batch.decodes is not None:
                # The router sees a replica as of the arrival: an iteration that is under way has given no token yet.
                under_way = running_batch.iterations_until(now)
                done = under_way if running_batch.end_of(under_way) <= now else under_way - 1
                tokens += done * len(running_batch.batch.decodes)
        return tokens

    def units_of_leaps(self, now: float) -> int:
        """KV units that a leap under way has taken since its first iteration."""
        units = 0
        for running_batch in self.running_batches:
            if running_batch.iterations > 1 and running_batch.batch.decodes is not None:
                units += self.queues.units_ahead(running_batch.batch.decodes, running_batch.iterations_until(now))
        return units

    @property
    def busy_s(self) -> float:
        """Time in which the ranks worked, averaged over them."""
        return self.pipeline.busy_s


def _say_members(running_batch: RunningBatch) -> None:
    """Write down for observers whose decodes and whose last chunks are in a batch, before its end changes them."""
    batch = running_batch.batch
    decodes = _sequences(batch.decodes.members) if batch.decodes else ()
    running_batch.decodes = tuple(sorted((*decodes, *(request.index for request in batch.in_vain))))
    running_batch.completed = _sequences([chunk.request for chunk in batch.chunks if chunk.completes])


def _sequences(requests: Iterable[Request]) -> tuple[int, ...]:
    """The numbers of requests, each as often as it has sequences that go on."""
    numbers: list[int] = []
    for request in requests:
        # Who is one sequence has its last token to come: that is most of them, and all of their iterations.
        numbers += [request.index] * (request.width_at(request.generated_by_now) if request.branches else 1)
    return tuple(numbers)
