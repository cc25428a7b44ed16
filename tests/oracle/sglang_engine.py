"""SGLang's own scheduler, prefix cache and allocators under a virtual clock: its event loops, with made-up tokens.

``serve`` is ``Scheduler.event_loop_normal`` and ``event_loop_overlap`` (sglang/srt/managers/scheduler.py) without a
device: ``get_next_batch_to_run`` plans a batch and ``process_batch_result`` is told tokens that the case has written
beforehand. All that these two call is SGLang's; what it reads of its command line is in ``_configure``. Its pools hold
the numbers of KV slots and no KV. Imports SGLang, so that it runs only in the environment of ``make oracle-sglang``.
"""

# ruff: noqa: E402, I001 - the stubs come before all of SGLang, and what is patched of it before those that import it

from __future__ import annotations

import importlib.metadata
import logging
from array import array
from collections import deque
from types import SimpleNamespace
from typing import Any

import torch

from tests.oracle.sglang_stubs import Nothing
import sglang.srt.runtime_context as context

from tests.oracle.cases import ITERATION_TICKS, Log, Step
from tests.oracle.sglang_cases import SglangCase

VERSION = importlib.metadata.version("sglang")
STOP = 7
"""The token that ends an answer before its ``max_tokens``."""

_settings = SimpleNamespace()


class _Off(SimpleNamespace):
    """Features of the server, all off but those that are said."""

    def __getattr__(self, name: str) -> bool:
        return False


def _configure(case: SglangCase) -> None:
    """What the scheduler would read of its command line."""
    _settings.schedule = SimpleNamespace(
        schedule_policy=case.policy, schedule_conservativeness=case.conservativeness, prefill_max_requests=None,
        schedule_low_priority_values_first=False, retraction_policy="length", chunked_prefill_size=case.chunk,
    )  # fmt: skip
    _settings.disagg = _Off(disaggregation_mode="null", disaggregation_decode_retraction_backup="none")
    _settings.exec = SimpleNamespace(mamba=_Off(), features=_Off(return_hidden_states_mode=None))
    _settings.memory = _Off(radix_eviction_policy="lru")
    _settings.parallel = SimpleNamespace(pp_max_micro_batch_size=case.max_num_seqs, dcp_enabled=False, pp_size=1)
    _settings.serving = _Off()
    _settings.observability = _Off()
    _settings.spec = SimpleNamespace(speculative_algorithm=None)


for _name in ("schedule", "disagg", "exec", "memory", "parallel", "serving", "observability", "spec"):
    setattr(context, f"get_{_name}", lambda name=_name: getattr(_settings, name))
context.attention_backends = lambda: ("torch_native", "torch_native")

from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.managers import schedule_batch as batches
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.managers.scheduler_components.batch_result_processor import (
    SchedulerBatchResultProcessor,
)
from sglang.srt.managers.scheduler_components.new_token_ratio_tracker import NewTokenRatioTracker
from sglang.srt.managers.schedule_policy import SchedulePolicy
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixCache
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

logging.disable(logging.WARNING)


class _Passes(Nothing):
    """Parts of the scheduler that hand a batch on as it is: data-parallel attention, n-gram embeddings."""

    def maybe_prepare_mlp_sync_batch(self, batch: Any, **_: Any) -> Any:
        return batch

    def maybe_convert_decode_to_extend(self, batch: Any) -> Any:
        return batch

    def prepare_for_forward(self, batch: Any, **_: Any) -> Any:
        return batch


class _Sampling(Nothing):
    """How tokens are drawn, which the case has written beforehand."""

    penalizer_orchestrator = SimpleNamespace(is_required=False)

    @classmethod
    def from_schedule_batch(cls, *_: Any) -> _Sampling:
        return cls()

    def filter_batch(self, *_: Any) -> None:
        pass

    merge_batch = filter_batch


batches.SamplingBatchInfo = _Sampling


class _NoneWait(Nothing):
    """Grammars and beams: there are none."""

    def has_waiting_grammars(self) -> bool:
        return False

    def pending_member_rows(self, batch: Any) -> int:
        return 0

    def commit_decode(self, batch: Any) -> set[int]:
        return set()


def _scheduler(case: SglangCase) -> Any:
    _configure(case)
    scheduler = Scheduler.__new__(Scheduler)
    longest = max(ask.prompt_tokens + max(ask.max_tokens, ask.output_tokens) for ask in case.requests) + 8
    rows = ReqToTokenPool(case.max_num_seqs, longest, "cpu", False)
    tokens = case.blocks * case.block_tokens
    if case.block_tokens == 1:
        slots: Any = TokenToKVPoolAllocator(tokens, torch.float16, "cpu", None, False)
    else:
        slots = PagedTokenToKVPoolAllocator(tokens, case.block_tokens, torch.float16, "cpu", None, False)
        slots.use_triton_kernels = False
    tree = RadixCache(CacheInitParams(not case.prefix_caching, rows, slots, case.block_tokens))
    model = _Off(vocab_size=1 << 30, num_key_value_heads=1, think_end_ids=None)
    nothing: dict[str, Any] = dict.fromkeys(
        ("dllm_config", "chunked_req", "min_free_slots_delayer", "dynamic_chunk_sizer", "lora_drainer",
         "prefill_delayer", "decode_offload_manager", "hisparse_coordinator", "truncation_align_size",
         "_pending_chunked_abort_req")
    )  # fmt: skip
    off = dict.fromkeys(
        ("enable_hisparse", "require_mlp_sync", "enable_priority_preemption", "is_hybrid_swa", "enable_lora",
         "enable_hicache_storage", "enable_lmcache", "enable_hierarchical_cache", "enable_priority_scheduling",
         "enable_unified_cache_external_linker", "enable_skip_finishing_decode", "enable_metrics"), False
    )  # fmt: skip
    zero = dict.fromkeys(
        ("_prefill_decode_interval_remaining", "prefill_decode_interval", "prefill_decode_interval_min_bs",
         "processed_tokens_counter", "priority_scheduling_preemption_threshold", "max_prefill_bs", "forward_ct"), 0
    )  # fmt: skip
    scheduler.__dict__.update(
        nothing | off | zero,
        req_to_token_pool=rows, token_to_kv_pool_allocator=slots, tree_cache=tree, model_config=model,
        page_size=case.block_tokens, max_prefill_tokens=case.max_prefill_tokens, chunked_prefill_size=case.chunk,
        max_running_requests=case.max_num_seqs, is_mixed_chunk=case.mixed_chunk and case.chunk is not None,
        enable_overlap=case.overlap, spec_algorithm=SpeculativeAlgorithm.NONE, waiting_queue=[], result_queue=deque(),
        running_batch=batches.ScheduleBatch(reqs=[], batch_is_full=False), last_batch=None,
        dp_attn_adapter=_Passes(), ngram_embedding_manager=_Passes(), grammar_manager=_NoneWait(),
        beam_coordinator=_NoneWait(), load_inquirer=Nothing(), metrics_reporter=Nothing(),
        scheduler_stage_metrics=None,
        tp_worker=SimpleNamespace(model_runner=SimpleNamespace(attn_backend=object(), prefill_aware_swa=False)),
        policy=SchedulePolicy(case.policy, tree, False, False, False), disaggregation_mode=DisaggregationMode.NULL,
        new_token_ratio_tracker=NewTokenRatioTracker.from_config(),
    )  # fmt: skip
    scheduler.enable_skip_finishing_decode = case.overlap
    for skipped in ("_process_hicache_events", "_prefetch_kvcache"):
        setattr(scheduler, skipped, lambda *_: None)
    scheduler._set_or_validate_priority = lambda _: True
    scheduler._abort_on_queued_limit = lambda _: False
    return scheduler


class _Results(Nothing):
    forward_ct_decode = 0
    num_generated_tokens = 0


def _results(scheduler: Any, case: SglangCase) -> Any:
    return SchedulerBatchResultProcessor(
        is_generation=True, disaggregation_mode=DisaggregationMode.NULL, enable_overlap=case.overlap,
        enable_overlap_mlx=False, model_config=scheduler.model_config,
        token_to_kv_pool_allocator=scheduler.token_to_kv_pool_allocator, tree_cache=scheduler.tree_cache,
        hisparse_coordinator=None, req_to_token_pool=scheduler.req_to_token_pool, decode_offload_manager=None,
        metrics_collector=None, metrics_reporter=_Results(), draft_worker=None, model_worker=None,
        logprob_result_processor=None, output_streamer=Nothing(), beam_coordinator=_NoneWait(),
        abort_request=lambda *_: None,
    )  # fmt: skip


class _Engine:
    """The scheduler with what is recorded of it."""

    def __init__(self, case: SglangCase) -> None:
        self.case, self.scheduler = case, _scheduler(case)
        self.results = _results(self.scheduler, case)
        self.last_told = 0
        self.retracted: list[int] = []
        self.first = [-1] * len(case.requests)
        self.last = [-1] * len(case.requests)
        requeue = self.scheduler._add_request_to_queue

        def noted(request: Any, is_retracted: bool = False) -> None:
            if is_retracted:
                self.retracted.append(int(request.rid))
            requeue(request, is_retracted)

        self.scheduler._add_request_to_queue = noted

    def submit(self, index: int) -> None:
        ask = self.case.requests[index]
        sampling = SamplingParams(
            max_new_tokens=ask.max_tokens or ask.output_tokens, stop_token_ids=[STOP], ignore_eos=self.case.ignore_eos
        )
        sampling.normalize(None)
        prompt = array("q", (self.case.token_at(index, place) for place in range(ask.prompt_tokens)))
        request = batches.Req(str(index), "", prompt, sampling, vocab_size=1 << 30)
        request.time_stats = Nothing()
        request.priority = None
        self.scheduler._add_request_to_queue(request)

    def plan(self) -> Any:
        scheduler = self.scheduler
        plan = scheduler.get_next_batch_to_run(running_batch=scheduler.running_batch, last_batch=scheduler.last_batch)
        scheduler.running_batch = plan.running_batch
        scheduler.forward_ct += plan.batch_to_run is not None
        return plan.batch_to_run

    def step(self, batch: Any, start: int) -> Step:
        """The record of a planned batch."""
        if batch.forward_mode.is_decode():
            tokens = [(int(request.rid), 1) for request in batch.reqs]
            cached = []
        else:
            tokens = [(int(request.rid), n) for request, n in zip(batch.reqs, batch.extend_lens, strict=True)]
            prompts = [request for request in batch.reqs if request not in (batch.decoding_reqs or [])]
            # A chunk that goes on has its beginning in the cache, too: only first chunks are admissions.
            cached = [(int(request.rid), request.prefix_len) for request in prompts if request.extend_batch_idx == 1]
        free = self.scheduler.token_to_kv_pool_allocator.available_size() + self.scheduler.tree_cache.evictable_size()
        retracted, self.retracted = tuple(self.retracted), []
        took = ITERATION_TICKS + sum(count for _, count in tokens)
        return Step(
            start, start + took, tuple(sorted(tokens)), retracted, tuple(sorted(cached)),
            free // self.case.block_tokens,
        )  # fmt: skip

    def update(self, batch: Any, now: int) -> None:
        """The batch has ended: its tokens are told."""
        known = [len(request.output_ids) for request in batch.reqs]
        made = [self._token(request) for request in batch.reqs]
        logits = None
        result = GenerationBatchResult(logits_output=logits, next_token_ids=torch.tensor(made))
        if batch.forward_mode.is_decode():
            self.results.process_batch_result_decode(batch, result)
        else:
            self.results.process_batch_result_prefill(batch, result)
        for request, before in zip(batch.reqs, known, strict=True):
            index = int(request.rid)
            if self.first[index] < 0 and before == 0 and len(request.output_ids):
                self.first[index] = now
            if request.finished() and self.last[index] < 0:
                self.last[index] = now

    def _token(self, request: Any) -> int:
        index, ask = int(request.rid), self.case.requests[int(request.rid)]
        if not self.case.ignore_eos and len(request.output_ids) + 1 >= ask.output_tokens < ask.max_tokens:
            return STOP
        return self.case.token_at(index, ask.prompt_tokens + len(request.output_ids))


def serve(case: SglangCase, most: int = 100_000) -> Log:
    """All iterations of a case. Errors: RuntimeError where its requests never finish."""
    engine = _Engine(case)
    scheduler = engine.scheduler
    under_way: deque[tuple[Any, int]] = deque()
    steps: list[Step] = []
    now = arrived = idle = 0
    order = sorted(range(len(case.requests)), key=lambda index: case.requests[index].arrival_ticks)
    for _ in range(most):
        while arrived < len(order) and case.requests[order[arrived]].arrival_ticks <= now:
            engine.submit(order[arrived])
            arrived += 1
        batch = engine.plan()
        if batch is not None:
            start = max(now, under_way[-1][1] if under_way else 0)
            steps.append(engine.step(batch, start))
            under_way.append((batch.copy() if case.overlap else batch, steps[-1].end_ticks))
            scheduler.result_queue.append(under_way[-1])
        # With overlap the batch before this one ends while this one is under way; else this one does.
        if under_way and (len(under_way) > 1 or not case.overlap or batch is None):
            ended, now = under_way.popleft()
            scheduler.result_queue.popleft()
            engine.update(ended, now)
        scheduler.last_batch = batch
        idle = 0 if batch is not None or under_way else idle + 1
        if batch is None and not under_way and not scheduler.waiting_queue and scheduler.running_batch.is_empty():
            scheduler.new_token_ratio_tracker.reset()  # Scheduler.on_idle
            if arrived == len(order):
                return Log(tuple(steps), tuple(engine.first), tuple(engine.last))
            now = max(now, case.requests[order[arrived]].arrival_ticks)
        elif idle > 3:
            raise RuntimeError(f"{case.feature} {case.seed}: requests wait that can never be admitted")
    raise RuntimeError(f"{case.feature} {case.seed} goes on beyond {most} batches")
