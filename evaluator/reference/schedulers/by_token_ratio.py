"""SGLang's order: prompts before decodes, and admission by an estimate of what running requests will still generate.

The names are those of ``PrefillAdder`` (sglang/srt/managers/schedule_policy.py) and ``Scheduler`` (scheduler.py) of
SGLang 0.5.23, which ``make oracle-sglang`` compares it with.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from evaluator.policies import BatchingPolicy
from evaluator.policies.token_ratio import MOST_NEW_TOKENS, RETRACT_STEPS, ratios
from evaluator.reference.batch import Batch, PromptChunk
from evaluator.reference.limits import Limits
from evaluator.reference.packing import LongestPrefix
from evaluator.reference.queues import Queues
from evaluator.reference.radix_cache import RadixCache
from evaluator.reference.request import Request

TOUCH_EVERY, MOST_LOOKED_AT = 32, 128  # WAITING_PREFIX_REFRESH_INTERVAL, WAITING_QUEUE_PREFIX_MATCH_MAX
LITTLE_FOUND, MUCH_SHARED = 32, 32  # tokens: IN_BATCH_PREFIX_CACHING_CHECK_THRESHOLD, .._DEPRIORITIZE_THRESHOLD
RESERVE_TOKENS = 1  # IGNORE_EOS_RESERVE_TOKENS: of each request that goes on, where all answers run to their limit


class ByTokenRatio:
    """The scheduler of one replica: what it remembers from batch to batch.

    ``ratio``: the part of the tokens that a running request may still generate that it is expected to; it falls with
    every decode and rises at a retraction. ``full``: admission failed, and nobody has left since.
    """

    def __init__(self) -> None:
        self._ratio: _TokenRatio | None = None
        self._order: list[Request] = []  # who decodes, in the order of the batch: of equals the last is retracted first
        self._sent: list[Request] = []  # prompts of the last batch, and the decodes mixed with them
        # With a radix cache, of batches that were not looked at since they ended: who took part, and of whose prompts
        # the batch computes the last token, which is that one.
        self._results: deque[tuple[list[Request], dict[Request, int]]] = deque()
        self._walks = 0  # looks at who waits
        self._chunked: Request | None = None  # whose prompt goes on
        self._full = False
        self._decays = False  # the last batch was one of decodes alone
        self._seen = 0  # decode iterations up to the last batch

    def __call__(self, queues: Queues, policy: BatchingPolicy) -> Batch:
        """Prompts, alone unless ``mixed_chunk``; a token for every decoding request where nobody can be admitted."""
        ratio = self._ratio = self._ratio or _TokenRatio(queues.limits)
        # A leap stands for several decodes, each of which lets the ratio decay.
        ratio.decay(queues.decode_iterations - self._seen - 1 if self._decays else 0)
        self._decays = False
        self._merge(queues)
        chunks = self._prompts(queues)
        batch = Batch(chunks)
        if chunks:
            self._sent = [chunk.request for chunk in chunks]
            page = queues.limits.block_tokens
            # Of the last page of each prompt SGLang does not ask whether there is a place in it.
            _settle(queues, sum(chunk.high - chunk.low for chunk in chunks) + len(chunks) * page * (page > 1))
            if queues.limits.mixed_chunk and self._order:
                self._leave_out(queues)
            # Decodes that find no KV beside the prompts sit this batch out (``Scheduler._get_new_batch_prefill_raw``).
            if queues.limits.mixed_chunk and self._order and _decodes_fit(queues, self._order):
                batch.in_vain = self._grow(queues)
                self._sent, self._order = self._sent + self._order, []
                batch.decodes = queues.decoding
        elif self._order and self._decode(queues, ratio):
            # Waiting requests are looked at before every decode, but where the batch counts as full; and a tree is
            # grown and evicted from step by step.
            replans = (queues.waiting and not self._full) or isinstance(queues.kv, RadixCache)
            batch = Batch(decodes=queues.decoding, most=1 if replans else 1 << 30, in_vain=self._grow(queues))
        elif not queues.waiting and not queues.under_way:
            ratio.reset()  # Scheduler.on_idle
        self._seen = queues.decode_iterations
        if batch:
            self._remember(queues, batch)
        return batch

    def _remember(self, queues: Queues, batch: Batch) -> None:
        """What is to be known of a batch when the next ones are planned."""
        requests = self._sent or self._order
        computed = {chunk.request: chunk.high for chunk in batch.chunks if chunk.completes}
        if queues.limits.asynchronous:
            batch.gives = {request for request in requests if request is not self._chunked}.difference(batch.in_vain)
        if isinstance(queues.kv, RadixCache):
            self._results.append((list(requests), computed))

    def _merge(self, queues: Queues) -> None:
        """Requests whose prompt is computed join the decodes (``Scheduler.get_next_batch_to_run``)."""
        if isinstance(queues.kv, RadixCache):
            self._share(queues, queues.kv)
        if self._sent:
            stay = [request for request in self._sent if request in queues.running and request is not self._chunked]
            self._full = self._full and len(stay) == len(self._sent)
            # Where no request decoded the batch of prompts takes the place of the running one, whose flag goes with it.
            self._full = self._full and not (stay and not self._order)
            self._order = self._order + stay
            self._sent = []
        running = [request for request in self._order if request in queues.running]
        self._full = self._full and len(running) == len(self._order)
        self._order = running

    def _share(self, queues: Queues, tree: RadixCache) -> None:
        """The tree gets what a batch has computed when it has ended, in its order (``process_batch_result``)."""
        while len(self._results) > len(queues.under_way):
            requests, computed = self._results.popleft()
            for request in requests:
                if tree.ended(request):
                    tree.leave(request)
                elif request in computed and request in queues.running:
                    tree.checkpoint(request, computed[request])
        # A chunk is shared already when the one after it is planned (``stash_chunked_request``).
        if self._chunked is not None:
            tree.checkpoint(self._chunked, self._chunked.computed)

    def _prompts(self, queues: Queues) -> list[PromptChunk]:
        self._full = self._full and bool(self._order)
        if (self._full or not queues.waiting) and self._chunked is None:
            return []
        # Who decodes no more keeps its row until the batch under way has ended (``get_num_allocatable_reqs``).
        seats = queues.limits.max_num_seqs - len(queues.running) + (self._chunked is not None)
        if seats <= 0 and self._chunked is None:
            self._full = True
            return []
        if isinstance(queues.kv, RadixCache) and queues.waiting:
            self._look(queues, queues.kv)
        adder = _PrefillAdder(queues, self._order, self.ratio)
        chunks: list[PromptChunk] = []
        if self._chunked is not None:
            chunk = adder.go_on(self._chunked)
            chunks.append(chunk)
            if chunk.completes:
                self._chunked = None
        while queues.waiting and not adder.spent():
            if len(chunks) >= seats:
                self._full = True
                break
            admitted, goes_on = adder.admit(queues.waiting.head(), [chunk.request for chunk in chunks])
            if admitted is not None:
                chunks.append(admitted)
                if not admitted.completes:
                    self._chunked = admitted.request
            if not goes_on:
                self._full = (adder.out_of_kv and bool(chunks or self._order)) or self._full
                break
        return chunks

    def _look(self, queues: Queues, tree: RadixCache) -> None:
        """The tree before anybody is admitted: who waits by its longest prefix, or what those who wait would find."""
        waiting = list(queues.waiting)
        if isinstance(queues.waiting, LongestPrefix) and len(waiting) <= MOST_LOOKED_AT:
            queues.waiting.arrange(_by_longest_prefix(waiting, tree, queues.limits.block_tokens))
            return
        # It is kept from being the least recently used (``_touch_waiting_prefixes``).
        if self._walks % TOUCH_EVERY == 0:
            for request in reversed(waiting[:MOST_LOOKED_AT]):
                tree.touch(request)
        self._walks += 1

    @property
    def ratio(self) -> float:
        """``new_token_ratio``."""
        assert self._ratio is not None
        return self._ratio.current

    def _decode(self, queues: Queues, ratio: _TokenRatio) -> bool:
        """Whether any request decodes (``update_running_batch``): the ratio then falls, or some are retracted."""
        leave = self._leave_out(queues)
        if not self._order:
            self._full = False
            return False
        if not _decodes_fit(queues, self._order):
            self._full = False
            # Their KV is free when the batch under way has ended: the others wait for that.
            if leave:
                return False
            self._retract(queues)
            ratio.after_retraction(queues, self._order)
        else:
            ratio.decay(1)
        self._decays = True
        return True

    def _leave_out(self, queues: Queues) -> bool:
        """Leave out requests that reach their token limit with the batch under way (``_reqs_finishing_inflight``)."""
        stay = [
            request
            for request in self._order
            if not queues.gives(request) or queues.told(request) + 1 < request.most_tokens
        ]
        leave = len(stay) < len(self._order)
        self._order, self._full = stay, self._full and not leave
        return leave

    def _grow(self, queues: Queues) -> list[Request]:
        """KV for the next token of all that decode; those of them that do so in vain."""
        vain = [request for request in self._order if request in queues.leaving]
        queues.grow_decodes()
        for request in vain:
            request.computed += 1
            fits = queues.kv.extend(request, queues.kv.units(request.computed))
            assert fits
        _settle(queues, len(self._order) * queues.limits.block_tokens)
        return vain

    def _retract(self, queues: Queues) -> None:
        """Who has generated least gives up its KV, of equals the longest prompt, until there is KV for the others.

        ``ScheduleBatch.retract_decode``. Those retracted go to the end of the queue.
        """
        keep = sorted(self._order, key=lambda request: (queues.told(request), -request.prompt_tokens), reverse=True)
        while len(keep) > 1:
            request = keep.pop()
            if isinstance(queues.kv, RadixCache):
                queues.kv.drop(request)
                queues.kv.make_room(len(keep) * RETRACT_STEPS)
            queues.retract(request)
            if _decodes_fit(queues, keep):
                break
        self._order = keep  # in this order from now on: ``filter_batch(keep_indices=sorted_indices)``


def _by_longest_prefix(waiting: list[Request], tree: RadixCache, page: int) -> list[Request]:
    """Who finds most goes first (``--schedule-policy lpm``, ``SchedulePolicy._compute_prefix_matches``).

    Of those who find little and share a beginning only the first does, so that the others find it after that.
    """
    keys: dict[Request, float] = {}
    first: list[Request] = []
    for request in waiting:
        cached_tokens = tree.touch(request) * page
        keys[request] = -min(cached_tokens, request.target - 1)
        if cached_tokens <= LITTLE_FOUND:
            if any(_common_tokens(request, other, page) >= MUCH_SHARED for other in first):
                keys[request] = math.inf
            else:
                first.append(request)
    return sorted(waiting, key=keys.__getitem__)


def _common_tokens(first: Request, second: Request, page: int) -> int:
    most = min(len(first.content), len(second.content))
    pages = next((place for place in range(most) if first.content[place] != second.content[place]), most)
    return min(pages * page, first.target, second.target)


def _decodes_fit(queues: Queues, order: list[Request]) -> bool:
    """Whether KV is left for the next token of every decode, once unused blocks are evicted (``check_decode_mem``)."""
    vain = (request for request in order if request in queues.leaving)
    units = queues.decode_units() + sum(queues.kv.units(request.computed + 1) - request.units for request in vain)
    if isinstance(queues.kv, RadixCache):
        return queues.kv.make_room(units * queues.limits.block_tokens)
    return units <= queues.kv.free


def _settle(queues: Queues, tokens: int) -> None:
    if isinstance(queues.kv, RadixCache):
        queues.kv.settle(tokens)


@dataclass
class _TokenRatio:
    """``NewTokenRatioTracker``."""

    limits: Limits
    current: float = field(init=False)

    def __post_init__(self) -> None:
        self._initial, self._least, self._step = ratios(self.limits.conservativeness)
        self.reset()

    def reset(self) -> None:
        self.current = self._initial

    def decay(self, decodes: int) -> None:
        # One after the other, as SGLang does: the sum is another one in floating point.
        for _ in range(decodes):
            if self.current == self._least:
                break
            self.current = max(self.current - self._step, self._least)

    def after_retraction(self, queues: Queues, decoding: list[Request]) -> None:
        generated = sum(queues.told(request) for request in decoding)
        allowed = sum(request.most_tokens for request in decoding)
        self.current = min(1.0, (generated + RETRACT_STEPS * len(decoding)) / (allowed + 1))


class _PrefillAdder:
    """What a batch of prompts may still take; in tokens, of which SGLang's budgets count whole pages."""

    def __init__(self, queues: Queues, running: list[Request], ratio: float) -> None:
        limits = queues.limits
        self._queues, self._running = queues, running
        self._page = limits.block_tokens
        # Where answers are known to run to their limit there is nothing to be hoped for.
        self._ratio = 1.0 if limits.ignore_eos else ratio
        mixed = len(running) if limits.mixed_chunk else 0
        self._input = limits.max_prefill_tokens - mixed
        # A chunk is no bound where prompts are computed whole.
        self._chunk = math.inf if limits.whole_prompts else limits.max_num_batched_tokens - mixed
        self._total_offset: float = mixed  # promised: prompts of this batch, and what all will generate
        self._current_offset = mixed  # promised: prompts of this batch
        self._total_offset += sum(self._left(request) * self._ratio for request in running)
        self._tree = queues.kv if isinstance(queues.kv, RadixCache) else None
        self._taken = 0  # units of this batch, whose prompts the offsets count
        self._states: list[tuple[float, int]] | None = None
        self.out_of_kv = False

    def _left(self, request: Request) -> int:
        """Tokens that it may still generate, for estimates."""
        return min(request.most_tokens - self._queues.told(request), MOST_NEW_TOKENS)

    def _paged(self, tokens: int) -> int:
        return -(-tokens // self._page) * self._page

    @property
    def _free(self) -> int:
        return (self._queues.kv.free + self._taken) * self._page

    @property
    def _total(self) -> float:
        return self._free - self._total_offset

    @property
    def _current(self) -> int:
        return self._free - self._current_offset

    def spent(self) -> bool:
        """The batch is large enough (``budget_state``: OTHER); one that is short of KV is told by the next request."""
        return self._total > 0 and self._current > 0 and (self._input <= 0 or self._chunk <= 0)

    def _reserve(self, tokens: int, new_tokens: int, loaded: int = 0) -> None:
        """Tokens that the batch computes; ``loaded``: whose KV comes from elsewhere and takes room alone."""
        paged, held = self._paged(tokens), self._paged(tokens + loaded)
        self._total_offset += held + self._page + new_tokens
        self._current_offset += held + self._page
        self._input -= paged
        self._chunk -= paged

    def go_on(self, request: Request) -> PromptChunk:
        """The next chunk of a prompt under way, which goes on however little KV is promised (``add_chunked_req``)."""
        rest = request.target - request.computed
        room = min(self._chunk, int(self._total))
        tokens = int(min(rest, room if room > 0 else self._chunk))
        self._reserve(tokens, 0 if tokens < rest else min(request.most_tokens, MOST_NEW_TOKENS))
        self._taken -= request.units
        chunk = self._queues.go_on(request, tokens)
        self._taken += request.units
        return chunk

    def admit(self, request: Request, before: list[Request]) -> tuple[PromptChunk | None, bool]:
        """The first chunk of the first waiting request, behind others of the batch, if it fits; whether to go on."""
        hit = 0
        if self._tree is not None:
            hit = self._tree.find(request)
        chunk, goes_on = self._fit(request, before, hit)
        if chunk is None and self._tree is not None:
            self._tree.unlock(request)
        return chunk, goes_on

    def _fit(self, request: Request, before: list[Request], hit: int) -> tuple[PromptChunk | None, bool]:
        start = max(request.computed, hit)
        rest, held = request.target - start, request.target - hit
        alone = self._queues.limits.ignore_eos and not self._queues.limits.prefix_caching
        fits = self._lasts(request, held, before) if alone else held + self._left(request) + self._page < self._total
        if not fits:
            self.out_of_kv = True
            return None, False
        tokens = rest
        if alone:
            tokens = int(min(rest, self._chunk))
        elif self._chunk == math.inf:
            if before and self._paged(rest) >= self._input:
                return None, False
        elif self._paged(rest) > self._chunk:
            # A prompt is cut where a page ends.
            end = (start + int(self._chunk) // self._page * self._page) // self._page * self._page
            tokens = end - start
        if tokens <= 0:
            return None, False
        self._reserve(tokens, 0 if tokens < rest else min(request.most_tokens, MOST_NEW_TOKENS), start - hit)
        chunk = self._queues.admit(request, start, tokens, hit)
        self._taken += request.units - hit // self._page
        self.out_of_kv = not (self._total > 0 and self._current > 0)
        return chunk, not self.out_of_kv and self._input > 0 and self._chunk > 0

    def _lasts(self, request: Request, held: int, before: list[Request]) -> bool:
        """KV lasts until every request has left, one after the other, each with all the tokens that it may have.

        ``add_one_req_ignore_eos``: who leaves first frees what it has now.
        """
        paged = self._paged(held) + self._page
        if paged > min(self._current, self._total):
            return False
        if self._states is None:
            self._states = []
            for present in (request, *self._running, *before):
                self._states += self._state(present)
            self._states.sort(key=lambda state: state[0])
        else:
            for state in self._state(request):
                # Before the first that has as much left; the last one stays the last (``add_req_state``).
                places = [place for place, other in enumerate(self._states) if state[0] <= other[0]]
                self._states.insert(places[0] if places else max(len(self._states) - 1, 0), state)
        free, freed = self._current - paged, 0
        for departed, (left, occupied) in enumerate(self._states):
            going = len(self._states) - departed
            if free + freed - left * going <= RESERVE_TOKENS * going:
                return False
            freed += occupied
        return True

    def _state(self, request: Request) -> list[tuple[float, int]]:
        generated = self._queues.told(request)
        left = request.most_tokens * self._ratio - generated
        return [(left, request.prompt_tokens + generated)] if left > 0 else []
