"""The queues of a replica and the moves that schedulers are made of: admit, go on with a prompt, grow, preempt."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from evaluator.reference.batch import Batch, PromptChunk
from evaluator.reference.grouped_kv import GroupedKv
from evaluator.reference.kv import CountedKv, Kv
from evaluator.reference.kv_reservations import KvReservations
from evaluator.reference.kv_sizes import KvSizes
from evaluator.reference.limits import Limits
from evaluator.reference.packing import PACKINGS, ReservedFirst, WaitingQueue
from evaluator.reference.prefix_cache import PrefixCache
from evaluator.reference.request import DecodeGroup, Request


class Queues:
    """``waiting`` have arrived, ``running`` are admitted: they hold KV and a place.

    Of the running ones, ``prompts`` have tokens of their prompt that no batch has taken yet, ``decoding`` wait for the
    batch that gives them their next token; the others are in flight with a last chunk or, in a pipeline, with a token.

    What a scheduler must not do is in the moves: a request is admitted only if it has a place, and with on-demand KV if
    its tokens of this iteration fit beside the watermark, else if all its tokens will; whoever needs more KV later has
    precedence over those admitted after it, and takes it from the last of them.
    """

    def __init__(self, limits: Limits, window: int) -> None:
        self.limits = limits
        of_the_engine = GroupedKv if limits.kv_groups else PrefixCache if limits.prefix_caching else CountedKv
        self.kv: Kv = (limits.manager or of_the_engine)(limits)
        self.sizes = KvSizes(limits, self.kv)
        self.reservations = KvReservations()
        self.on_demand = limits.admission == "on_demand"
        self.by_priority = limits.packing == "priority"
        packing = PACKINGS[limits.packing]
        self.waiting: WaitingQueue = (
            ReservedFirst(packing, in_order=limits.batch_queue) if limits.kv_reserved else packing()
        )
        self.preempted_waiting = 0  # of the waiting, those that were preempted
        self.running: dict[Request, None] = {}  # in order of admission
        self.seats = 0  # sequences of them
        self.prompts: dict[Request, None] = {}
        self._window = window
        self.decoding = self.new_group()
        self.decode_iterations = 0  # so far
        self.looked_at = 0  # decode iterations when lightllm last admitted
        self.preempted: list[Request] = []  # in this iteration
        self.short_of_kv = False  # in this iteration a running request did not get KV at once: none is admitted
        self.admitted = 0  # in this iteration
        self.continued = False  # in this iteration a prompt under way goes on
        self.newcomers: list[Request] = []  # since the last batch with decodes: who had nothing to compute
        self.cached: list[tuple[int, int]] = []  # of them all: (request, tokens found in the prefix cache)
        self.moved_units = 0  # swapped in or out since a batch was sent
        self.preemptions = 0
        self.work_tokens = 0  # tokens to compute and to generate of all requests here
        self.output_tokens = 0  # tokens to generate of them
        self.context_tokens = 0  # their prompts and tokens so far
        self.waiting_units = 0  # KV that the waiting ones will hold when they finish
        self._admissions = 0
        self._swapped_units = 0
        self._fills: list[tuple[Request, int]] | None = None  # what is to be named in order of admission
        self.leaving: dict[Request, None] = {}  # planned asynchronously: the batch under way gives their last token
        self.under_way: deque[Batch] = deque()  # batches that have been sent and have not ended
        self.aside: DecodeGroup | None = None  # decodes that the next batch leaves out

    def new_group(self) -> DecodeGroup:
        """An empty group of decoding sequences."""
        # A window may pass a block with any token, so that groups of layers look at every decode in every iteration.
        block = 1 if self.limits.kv_groups else self.limits.block_tokens
        return DecodeGroup(self._window, block if self.watches_blocks else 0, self.limits.drafts)

    @property
    def watches_blocks(self) -> bool:
        """Whether it matters which step fills a block or opens one."""
        return self.on_demand or self.limits.prefix_caching

    def begin(self) -> None:
        """A new iteration is to be put together."""
        self.preempted = []
        self.cached = []
        # ``take_off`` puts aside what was left out of a batch that was sent; this batch was empty, so that nothing
        # was.
        if self.aside is not None:  # the batch before was empty
            self.aside.absorb(self.decoding)
            self.decoding, self.aside = self.aside, None
        self.short_of_kv = False
        self.admitted = 0
        self.continued = False

    def announce(self, request: Request) -> None:
        """A request will come here: routers count it from now on."""
        self.work_tokens += request.work_tokens
        self.output_tokens += request.left_tokens
        self.context_tokens += request.context_tokens
        self.waiting_units += request.kv_units

    def arrive(self, request: Request) -> None:
        """A request that was announced is here."""
        self.waiting.push(request)

    def add_tokens(self, count: int) -> None:
        """So many output tokens have come."""
        self.work_tokens -= count
        self.output_tokens -= count
        self.context_tokens += count

    # -- admission

    def head_computes(self) -> bool:
        """Somebody waits, and the first has tokens to compute before it can decode."""
        if not self.waiting:
            return False
        head = self.waiting.head()
        return head.computed < head.target

    def admit_all(
        self,
        room: int,
        *,
        whole: bool,
        whole_kv: bool = False,
        wanted: Callable[[], bool] | None = None,
    ) -> list[PromptChunk]:
        """Admit waiting requests, in turn, as long as the first of them fits into ``room`` tokens and all limits.

        Their chunks are returned; those with no prompt to compute join ``decoding`` and take one token of the room for
        each of their sequences, or with drafts as many as it verifies.
        ``whole``: prompts are computed in one go; else the last may be cut. ``whole_kv``: KV on demand is given for the
        whole prompt at once. ``wanted`` may stop before each.
        """
        chunks = []
        # Only where the rest of the batch decodes: no prompt under way goes on, and some request decodes.
        pads = self.limits.batch_queue and self.limits.drafts and len(self.decoding) and not self.continued
        skipped: list[Request] = []
        # vLLM ``Scheduler.schedule``, ``scheduled_loras``: of those that take part in the batch. Planned ahead, who has
        # its last token in the batch under way does not.
        bound = self.limits.max_adapters
        named = {request.adapter for request in self.running if request not in self.leaving} if bound else set[int]()
        while room > 0 and self.waiting and (wanted is None or wanted()):
            request = self.waiting.head()
            # Its adapter has no place beside those of the batch; those behind it may go on with one that has. Or it was
            # preempted while it is in flight, and cannot go on before the token that is to come is known.
            without_place = bound and len(named) >= bound and request.adapter not in named
            if (without_place or request.batches_under_way) and self.seats < self.limits.max_num_seqs:
                skipped.append(self.waiting.pop())
                continue
            hit = self.found(request)
            passes = self.may_pass(request, hit)
            if passes is False:
                break
            if passes is None:
                skipped.append(self.waiting.pop())
                continue
            # ``computed`` is above 0 before admission where a prefix comes from elsewhere (a KV store, a prefill
            # replica) or was swapped out.
            start = max(request.computed, hit)
            tokens = self._share(max(request.target - start, 0), room, whole)
            beside = request.width * self.limits.decode_tokens
            # Nothing to compute: the prompt's KV came from a prefill replica, or was swapped out. It decodes at once,
            # and needs room in the token budget for that.
            if tokens == 0 and beside > room:
                break
            # vLLM ``Scheduler.schedule``: where one token is left to compute and all others decode, it takes as many
            # slots as a decode with drafts, so that the whole batch has one shape.
            padding = self.limits.drafts if pads and request.target - start == 1 else 0
            if padding and 1 + padding > room:
                break
            # The first that does not fit ends the admissions, even where a smaller one behind it would fit: vLLM
            # breaks, too, so that a long prompt is not overtaken for ever.
            if tokens is None or not self._place(request, start, tokens, hit, whole_kv, padding):
                break
            named.add(request.adapter)
            if not tokens:
                # A prompt that came from a prefill side can be found from now on (vLLM
                # ``_update_waiting_for_remote_kv``: ``cache_blocks`` when its KV has come). Its first output
                # token came with it, so that a block which that one fills has a name from this batch on, too
                # (``allocate_slots`` caches up to ``min(num_computed_tokens + num_new_tokens, request.num_tokens)``).
                self.register(request, request.computed + 1)
                self.decoding.join(request)
                self.newcomers.append(request)
                room -= beside
            else:
                chunks.append(self._chunk(request, tokens, padding))
                room -= tokens + padding
        self.waiting.skip(skipped)
        return chunks

    def found(self, request: Request) -> int:
        """Tokens of a waiting request that the prefix cache has."""
        if request.units:  # it was looked up with its KV reservation (``KvReservations.grant``)
            return request.hit_tokens
        # KV that was swapped out comes back whole, so that the prefix cache has nothing to add.
        return 0 if request.swapped else self.kv.lookup(request)

    def may_pass(self, request: Request, hit: int) -> bool | None:
        """Whether the first waiting request may be admitted; None: it waits for its blocks, and others may pass it."""
        return True

    def admit(self, request: Request, start: int, tokens: int, hit: int) -> PromptChunk:
        """Admit the first waiting request, for which there is a place and KV, with the first chunk of its prompt."""
        placed = self._place(request, start, tokens, hit, whole_kv=False)
        assert placed, f"request {request.index} was to be admitted without a place or KV"
        return self._chunk(request, tokens)

    def go_on(self, request: Request, tokens: int) -> PromptChunk:
        """The next chunk of a prompt under way, for which there is KV."""
        fits = self.kv.extend(request, self.sizes.computed(request, request.computed + tokens))
        assert fits, f"the prompt of request {request.index} was to go on without KV"
        return self._chunk(request, tokens)

    def _share(self, rest: int, room: int, whole: bool) -> int | None:
        """How many of the rest of a prompt this iteration computes; None: it has to wait."""
        if whole:
            # A policy of whole prompts never cuts one; ``max_num_batched_tokens`` is at least the longest prompt
            # (``plan.checks``), so that the request gets its turn in an iteration that begins with it.
            return rest if rest <= room else None
        return min(rest, room, self.limits.long_prefill_token_threshold or rest)

    def _place(self, request: Request, start: int, tokens: int, hit: int, whole_kv: bool, padding: int = 0) -> bool:
        """Give the first waiting request a place and KV, if there are; ``padding``: slots beside those of its
        tokens."""
        # A request with branches needs a seat for each of them before its prompt is computed: they start together.
        if self.seats + request.width > self.limits.max_num_seqs:
            return False
        units, keep_free, fits = request.kv_units, 0, 0
        if self.on_demand:
            units, keep_free, fits = self._units_on_demand(request, start, tokens, whole_kv, padding)
        if not self.kv.admit(request, units, hit, keep_free, fits):
            return False
        self.waiting.pop()
        # Who was admitted before counted as waiting only since its preemption.
        returns = request.admission >= 0
        self.preempted_waiting -= returns
        if returns or not self.limits.kv_reserved:  # else it has had its KV reservation
            self.waiting_units -= request.kv_units
        self.running[request] = None
        self.seats += request.width
        if start < request.target:
            self.prompts[request] = None
        self._swap_in(request)
        # Only the first admission counts as a hit. After a preemption a request finds its own blocks again, which
        # says nothing of what requests share.
        if request.admission < 0:
            request.hit_tokens = hit
        self.work_tokens -= start - request.computed
        request.computed = start
        # A preempted request gets a new place in the order, behind all that run: it is among the first to be
        # preempted again (vLLM appends it to ``Scheduler.running``).
        request.admission = self._admissions
        self.cached.append((request.index, hit))
        self._admissions += 1
        self.admitted += 1
        return True

    def _units_on_demand(
        self, request: Request, start: int, tokens: int, whole_kv: bool, padding: int
    ) -> tuple[int, int, int]:
        """KV units that an admission takes, those that it must leave free, and those of the whole prompt, where these
        must fit, too (0: they need not)."""
        # A policy of whole prompts asks for the blocks of the whole prompt, one of chunks for those of this chunk. A
        # request that only decodes needs the slot of its next token (and of its drafts).
        slots = max(request.target if whole_kv else 0, start + (tokens or self.limits.decode_tokens))
        units = self.sizes.computed(request, slots + padding) if tokens else self.sizes.decoding(request, slots)
        # vLLM ``allocate_slots``: no watermark where nothing runs, or a request might never be admitted. Nor of one
        # that has a KV reservation, which takes no more.
        is_reserved = self.limits.kv_reserved and request.units > 0
        keep_free = self.limits.watermark_units if self.running and not is_reserved else 0
        return units, keep_free, self.sizes.computed(request, request.target) if self.limits.full_prompt else 0

    def told(self, request: Request) -> int:
        """Output tokens that are known of a request: not that of a batch under way."""
        return request.generated_by_now - self.gives(request)

    def gives(self, request: Request) -> bool:
        """The batch under way gives it a token."""
        return bool(self.under_way) and request in self.under_way[-1].gives

    def _swap_in(self, request: Request) -> None:
        if request.swapped:
            request.swapped = False
            units = self.sizes.computed(request, request.computed)
            self._swapped_units -= units
            self.moved_units += units

    # -- prompts that are under way

    def continue_prompts(self, room: int) -> list[PromptChunk]:
        """The next chunk of each prompt under way, in order of admission, as far as the room goes."""
        chunks = []
        # A copy, since making room may preempt prompts that are still to come.
        for request in list(self.prompts):
            if room <= 0 or request not in self.prompts:
                continue
            tokens = self._share(request.target - request.computed, room, whole=False)
            assert tokens is not None
            if self.on_demand and not self._make_room(request, self.sizes.computed(request, request.computed + tokens)):
                break
            chunks.append(self._chunk(request, tokens))
            self.continued = True
            room -= tokens
        return chunks

    def _chunk(self, request: Request, tokens: int, padding: int = 0) -> PromptChunk:
        low, high = request.computed, request.computed + tokens
        request.computed = high
        request.batches_under_way += 1
        self.register(request, high)
        completes = high == request.target
        if completes:
            del self.prompts[request]
        return PromptChunk(request, low, high, completes, padding)

    def run_in_order(self) -> tuple[list[PromptChunk], int]:
        """KV and chunks for all that run, in order of admission, and the token budget that is left.

        By priority the one that is preempted may have been given its part of the iteration already: that is taken back
        (vLLM ``Scheduler.schedule``, ``SchedulingPolicy.PRIORITY``).
        """
        room, drafts = self.limits.max_num_batched_tokens, self.limits.decode_tokens
        chunks: dict[Request, PromptChunk] = {}
        taken: dict[Request, int] = {}
        pending = deque(self.running)
        while pending and room > 0:
            request = pending.popleft()
            if request not in self.running or (request.group is None and request not in self.prompts):
                continue
            decodes = request.group is not None
            tokens = drafts if decodes else self._share(request.target - request.computed, room, whole=False)
            assert tokens is not None
            slots = self.decoding.computed(request) + drafts if decodes else request.computed + tokens
            while not self.kv.extend(request, self.sizes.computed(request, slots)):
                self.short_of_kv = True
                victim = self._preempt_one(chunks)
                room += taken.pop(victim, 0)
                # Nothing of lower priority is left: it goes itself. vLLM ends its loop over the running ones here, so
                # that those behind it wait for the next iteration.
                if victim is request:
                    self._set_aside(pending)
                    return list(chunks.values()), room
            if decodes:
                # Planned asynchronously, the token before is not known yet: see ``grow_decodes``.
                self.kv.register(request, self.decoding.computed(request) + (not self.limits.asynchronous))
            else:
                chunks[request] = self._chunk(request, tokens)
                self.continued = True
            taken[request] = tokens
            room -= tokens
        return list(chunks.values()), room

    def _preempt_one(self, chunks: dict[Request, PromptChunk]) -> Request:
        """Preempt one of those that run, which is returned; its chunk in this iteration is taken back.

        By priority vLLM preempts the lowest that runs, of equals the last to arrive; it may be one that has been served
        in this very iteration, whose tokens are then free for others. Without, it is the last admitted.
        """
        victim = (
            max(self.running, key=lambda other: (other.priority, other.index))
            if self.by_priority
            else next(reversed(self.running))
        )
        if victim in chunks:
            chunk = chunks.pop(victim)
            victim.computed, victim.batches_under_way = chunk.low, victim.batches_under_way - 1
        self._preempt(victim)
        return victim

    def _set_aside(self, requests: Iterable[Request]) -> None:
        """Decodes behind one that found no KV do not take part in the next batch."""
        self.aside = self.new_group()
        for request in requests:
            if request.group is self.decoding:
                self.decoding.leave(request)
                self.aside.join(request)

    # -- decodes

    def grow_decodes(self) -> None:
        """KV for the next token of every decoding sequence, in order of admission; preempts where there is none.

        With drafts each of them has a slot, too; the slots of rejected ones are written again by the next iteration. So
        a block of a prefix cache gets its name when the tokens that are known of the request fill it, as in vLLM
        (``KVCacheManager.allocate_slots``: drafts are not cached).
        Branches that have their first token get a copy each of the last block of their prompt, where it is not full.
        """
        if not self.watches_blocks:
            return
        if self.on_demand:
            due = {**dict.fromkeys(self.decoding.due()), **self.decoding.forked}
            # In order of admission, so that the blocks go to those who came first, and the last ones are preempted
            # for them.
            ordered = sorted(due, key=lambda request: request.admission)
            for request in ordered:
                if request.group is self.decoding:  # not preempted meanwhile
                    slots = self.decoding.computed(request) + self.limits.decode_tokens
                    units = self.sizes.decoding(request, slots)
                    self._make_room(request, units)
        if self.limits.asynchronous:
            # The token before is not known yet, so that the block that it fills has its name an iteration later (vLLM
            # ``allocate_slots`` caches up to ``request.num_tokens``).
            for request in self.decoding.due() if self.limits.prefix_caching else ():
                self.register(request, self.decoding.computed(request))
        else:
            self._register_filled(self.decoding, 0)

    def decode_units(self) -> int:
        """KV units that the next token of every decoding sequence takes beyond what they have."""
        due = {**dict.fromkeys(self.decoding.due()), **self.decoding.forked}
        return self.sizes.lacking(self.decoding, due, self.limits.decode_tokens)

    def grow_ahead(self, group: DecodeGroup, ahead: int) -> None:
        """The same for the step after ``ahead`` more, in a leap: it fits."""
        if self.on_demand:
            for request in group.due(ahead):
                # ``steps_within`` ended the leap before the first step for which there is no block.
                fits = self.kv.extend(request, self.sizes.decoding(request, group.computed(request) + ahead + 1))
                assert fits
        self._register_filled(group, ahead)

    def growing_ahead(self, group: DecodeGroup, steps: range) -> Sequence[int]:
        """The steps ahead for which ``grow_ahead`` has anything to do."""
        return group.opening(steps, self.on_demand, self.limits.prefix_caching)

    def units_ahead(self, group: DecodeGroup, step: int) -> int:
        """KV units that the members of a group take between its next step and the ``step``-th, on demand."""
        return self.sizes.lacking(group, group.members, step) if self.on_demand else 0

    def register(self, request: Request, tokens: int) -> None:
        """A request's first ``tokens`` are computed: named now, or once all have their part of an iteration."""
        if self._fills is None:
            self.kv.register(request, tokens)
        else:
            self._fills.append((request, tokens))

    def collect_fills(self) -> None:
        """Blocks get their names in order of admission, decodes or not (vLLM goes through ``Scheduler.running`` once).

        It decides which of two equal blocks is found. Decodes come behind a prompt only where prompts are cut short.
        """
        if self.limits.prefix_caching and self.limits.batch_queue and self.limits.long_prefill_token_threshold:
            self._fills = []

    def name_fills(self) -> None:
        """The end of ``collect_fills``."""
        fills, self._fills = self._fills, None
        for request, tokens in sorted(fills or (), key=lambda fill: fill[0].admission):
            if request in self.running:
                self.kv.register(request, tokens)

    def _register_filled(self, group: DecodeGroup, ahead: int) -> None:
        if self.limits.prefix_caching:
            for request in group.due(ahead + 1):  # the token before fills a block
                self.register(request, group.computed(request) + ahead + 1)

    def _make_room(self, request: Request, units: int) -> bool:
        """So many KV units for a running request. Who was admitted last is preempted until it fits.

        False if it is the request itself that had to go; in a pipeline without a batch queue, where those in flight are
        left alone, also if it is in flight with a chunk and none after it can be preempted: it waits.
        """
        while not self.kv.extend(request, units):
            self.short_of_kv = True
            # The last of the running that can be taken. In a pipeline without a batch queue one whose chunk or token is
            # on its way through the ranks cannot: its blocks are being written to.
            victim = next(
                (other for other in reversed(self.running) if self.limits.batch_queue or self._at_rest(other)), None
            )
            # Everybody who was admitted later is in flight: it waits an iteration rather than take from one with
            # precedence.
            if victim is None or victim.admission < request.admission:
                return False
            self._preempt(victim)
            if victim is request:
                return False
        return True

    def retract(self, request: Request) -> None:
        """A decoding request gives up its KV for the others, and with it the token that is under way."""
        self.short_of_kv = True
        if self.gives(request):
            self._take_back(request)
        self._preempt(request)

    def _take_back(self, request: Request) -> None:
        """Take back a request's token of the batch under way, which was counted already (SGLang ``is_retracted``)."""
        self.under_way[-1].gives.remove(request)
        if request.group is not None:
            request.group.leave(request)
        self.leaving.pop(request, None)
        self.add_tokens(-1)
        request.generated -= 1
        request.last_token_s = math.inf
        if not request.generated:
            request.first_token_s = math.inf
        if request.token_s:  # where they are recorded
            request.token_s.pop()

    def _at_rest(self, request: Request) -> bool:
        return not request.batches_under_way and (request.group is self.decoding or request in self.prompts)

    def _preempt(self, request: Request) -> None:
        """Back to the waiting, its KV freed; it is to be computed anew unless its KV finds room in host memory."""
        if request in self.leaving:  # its last token comes all the same, so that it need not wait
            del self.leaving[request], self.running[request]
            self.seats -= 1
            self._release(request)
            request.preemptions += 1
            self.preemptions += 1
            self.preempted.append(request)
            return
        group = request.group
        if group is not None:
            group.leave(request)
            # Its token is still to come and will be counted when the batch ends (``replica._finish_decodes``).
            if group is not self.decoding:  # in flight
                group.preempted.append(request)
                request.batches_under_way += 1
        self.prompts.pop(request, None)
        del self.running[request]
        self.seats -= request.width
        self.work_tokens -= request.work_tokens
        units = self.sizes.computed(request, request.computed)
        self._release(request)
        # Where host memory is full it is computed anew.
        if self.limits.preemption == "swap" and self._swapped_units + units <= self.limits.swap_units:
            request.swapped = True
            self._swapped_units += units
            self.moved_units += units
        else:
            request.restart()
        self.work_tokens += request.work_tokens
        request.preemptions += 1
        self.preemptions += 1
        self.preempted.append(request)
        self.preempted_waiting += 1
        self.waiting_units += request.kv_units
        # To the front of the queue, so that victims come back in the order in which they were admitted: the last one
        # to be preempted is the one that was admitted first.
        self.waiting.push_back(request)

    def _release(self, request: Request) -> None:
        """The KV of one that is preempted."""
        self.kv.release(request)

    # -- after an iteration

    def give_up_seats(self, request: Request) -> None:
        """A request has a token more on each branch. Those with their last one leave their seats and their KV."""
        generated = request.generated_by_now
        width = request.width_at(generated)
        self.seats -= request.width_at(generated - 1) - width
        if not width or not request.branches:
            return  # it goes on as it was, or is done and departs
        if self.on_demand:
            computed = request.computed if request.group is None else request.group.computed(request)
            self.kv.shrink(request, self.sizes.decoding(request, computed))
        else:
            self.kv.shrink(request, sum(request.branch_units[-width:]))

    def deliver(self, request: Request, now: float) -> bool:
        """The token of a request that was preempted in flight has come; whether it was the last."""
        self.add_tokens(1)
        request.generated += 1
        request.first_token_s = min(request.first_token_s, now)
        if request.finished:
            request.last_token_s = now
            self.waiting.remove(request)
            self.preempted_waiting -= 1
            self.waiting_units -= request.kv_units
            self.context_tokens -= request.context_tokens
            return True
        self.work_tokens += 1
        request.restart()
        return False

    def depart(self, request: Request) -> None:
        """A request has its last token."""
        del self.running[request]
        self.context_tokens -= request.context_tokens
        if not request.held:
            self.kv.release(request)
