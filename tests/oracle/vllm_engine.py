"""vLLM's own scheduler and KV manager under a virtual clock: what its engine core would do, with made-up tokens.

``serve`` is ``EngineCore.step_with_batch_queue`` (vllm/v1/engine/core.py) without a device: batches are planned by
``Scheduler.schedule`` as long as the batch queue has room, the engine then waits for the oldest of them, and
``Scheduler.update_from_output`` is told of tokens that the case has written beforehand. Imports vLLM, so that it runs
only in the environment of ``make oracle``.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import deque
from functools import cache
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
import vllm
from vllm.config import (
    CacheConfig,
    KVTransferConfig,
    LoRAConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
)
from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    KVCacheTensor,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from tests.oracle.cases import ITERATION_TICKS, Case, Log, Step

VERSION = vllm.__version__
MOST_TOKENS = 1 << 20  # of a sequence
_LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
    "num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 8, "vocab_size": 1 << 30,
    "max_position_embeddings": MOST_TOKENS, "torch_dtype": "float32",
}  # fmt: skip


@cache
def _model() -> ModelConfig:
    folder = Path(tempfile.mkdtemp())
    (folder / "config.json").write_text(json.dumps(_LLAMA))
    init_none_hash(sha256)
    return ModelConfig(model=str(folder), skip_tokenizer_init=True, dtype="float32", max_model_len=MOST_TOKENS)


def _scheduler(case: Case, blocks: int) -> Scheduler:
    blocks += 1  # one is vLLM's null block
    scheduling = SchedulerConfig(
        max_num_seqs=case.max_num_seqs,
        max_num_batched_tokens=case.max_num_batched_tokens,
        max_model_len=MOST_TOKENS,
        enable_chunked_prefill=True,
        is_encoder_decoder=False,
        long_prefill_token_threshold=case.long_prefill_token_threshold,
        scheduler_reserve_full_isl=case.full_prompt,
        watermark=(case.watermark_blocks + 0.5) / blocks if case.watermark_blocks else 0.0,
        policy="priority" if case.priority else "fcfs",
        async_scheduling=case.asynchronous,
    )
    caching = CacheConfig(block_size=case.block_tokens, enable_prefix_caching=case.prefix_caching)
    offload = _host_memory(case) if case.host_blocks else None
    config = VllmConfig(
        model_config=_model(), scheduler_config=scheduling, cache_config=caching, kv_transfer_config=offload
    )
    # Set behind the checks of devices and draft models: the scheduler reads nothing else of them.
    config.parallel_config.pipeline_parallel_size = case.pipeline_ranks
    config.parallel_config.decode_context_parallel_size = case.context_parallel
    config.scheduler_config.async_scheduling = case.asynchronous
    if case.max_loras:
        config.lora_config = LoRAConfig(max_loras=case.max_loras)
    if case.drafts:
        config.speculative_config = SpeculativeConfig(
            method="ngram", num_speculative_tokens=case.drafts, prompt_lookup_max=2,
            target_model_config=_model(), target_parallel_config=ParallelConfig(),
        )  # fmt: skip
    caching.block_size = case.block_tokens // case.context_parallel
    caching.num_gpu_blocks = blocks
    specs = [_spec(case, group) for group in case.groups or (0,)]
    groups = [KVCacheGroupSpec([f"layer {at}"], spec) for at, spec in enumerate(specs)]
    tensors = [KVCacheTensor(size=blocks * _HOST_BLOCK, shared_by=["layer 0"])] if offload else []
    kv = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=tensors, kv_cache_groups=groups)
    kind = AsyncScheduler if case.asynchronous else Scheduler
    longest = max(spec.block_size for spec in specs) * case.context_parallel
    return kind(config, kv, StructuredOutputManager(config), block_size=longest, hash_block_size=case.block_tokens)


_HOST_BLOCK = 1 << 12  # bytes; with stores vLLM maps all of host memory, in whole pages


def _host_memory(case: Case) -> KVTransferConfig:
    """What ``--kv-offloading-size`` makes of it (``VllmConfig._post_init_kv_transfer_config``), in whole blocks."""
    more: dict[str, Any] = {
        "cpu_bytes_to_use": case.host_blocks * _HOST_BLOCK,
        "offload_prompt_only": case.host_prompts_only,
    }
    if case.stores:
        kinds = ("blocks", "block_ticks", "latency_ticks")
        tier = {"type": "ScriptedTier", "module_path": "tests.oracle.vllm_stores"}
        more["spec_name"] = "TieringOffloadingSpec"
        more["secondary_tiers"] = [tier | dict(zip(kinds, store, strict=True)) for store in case.stores]
    return KVTransferConfig(kv_connector="OffloadingConnector", kv_role="kv_both", kv_connector_extra_config=more)


def _spec(case: Case, group: int) -> KVCacheSpec:
    """What vLLM is told of a group of layers; without prefix caching a state has one block, as long as a sequence."""
    if group == -1:
        return MambaSpec(block_size=MOST_TOKENS, shapes=((1,),), dtypes=(torch.float32,))
    attention = {
        "block_size": case.block_tokens // case.context_parallel,
        "num_kv_heads": 1,
        "head_size": 1,
        "dtype": torch.float32,
    }
    if group < 0:
        return ChunkedLocalAttentionSpec(**attention, attention_chunk_size=-group)
    return SlidingWindowSpec(**attention, sliding_window=group) if group else FullAttentionSpec(**attention)


class _Tokens:
    """The tokens of every request by their place: known content where the case says it, else like no other's."""

    def __init__(self, case: Case) -> None:
        self._case = case

    def at(self, request: int, place: int) -> int:
        content, block = self._case.requests[request].content, place // self._case.block_tokens
        return content[block] if block < len(content) else 1000 + (request << 20) + place


def _request(case: Case, tokens: _Tokens, index: int, output_tokens: int) -> Request:
    ask = case.requests[index]
    hasher = get_request_block_hasher(case.block_tokens, sha256) if case.prefix_caching else None
    return Request(
        request_id=str(index),
        prompt_token_ids=[tokens.at(index, place) for place in range(ask.prompt_tokens)],
        sampling_params=SamplingParams(max_tokens=output_tokens or ask.output_tokens, ignore_eos=True),
        pooling_params=None,
        arrival_time=ask.arrival_ticks + index / 1e6,  # breaks ties of priority by the number
        priority=ask.priority,
        block_hasher=hasher,
        lora_request=LoRARequest(str(ask.adapter), ask.adapter, "/adapters") if ask.adapter else None,
    )


class Engine:
    """The scheduler with what is recorded of it."""

    def __init__(self, case: Case, blocks: int = 0) -> None:
        self.case, self.scheduler, self.tokens = case, _scheduler(case, blocks or case.blocks), _Tokens(case)
        self.requests: dict[str, Request] = {}
        self.preempted: list[int] = []
        self.decoded = [0] * len(case.requests)  # decode iterations of each, with drafts
        self.first = [-1] * len(case.requests)
        self.last = [-1] * len(case.requests)
        preempt = self.scheduler._preempt_request

        def noted(request: Request, *more: Any, **options: Any) -> None:
            self.preempted.append(int(request.request_id))
            preempt(request, *more, **options)

        self.scheduler._preempt_request = noted

    def submit(self, index: int, output_tokens: int = 0) -> None:
        """A request arrives; ``output_tokens``: where it is asked for fewer than the case says."""
        request = _request(self.case, self.tokens, index, output_tokens)
        self.requests[request.request_id] = request
        self.scheduler.add_request(request)

    def samples(self, output: Any) -> dict[str, int]:
        """How many tokens each request of a planned batch gives, as far as the batch decides it."""
        given = {}
        for name in output.num_scheduled_tokens:
            if self.requests[name].is_prefill_chunk:
                given[name] = 0
                continue
            drafted = output.scheduled_spec_decode_tokens.get(name, ())
            given[name] = 1
            if (drafted and drafted[0] != -1) or (self.case.asynchronous and drafted):
                index = int(name)
                curve, at = self.case.requests[index].curve, self.decoded[index]
                given[name] = min(curve[at + 1] - curve[at], 1 + len(drafted))
                self.decoded[index] += 1
        return given

    def update(self, output: Any, given: dict[str, int], now: int) -> None:
        """The batch has ended: its tokens are told."""
        names, sampled = list(output.num_scheduled_tokens), []
        for name in names:
            request = self.requests[name]
            sampled.append([self.tokens.at(int(name), request.num_tokens + n) for n in range(given[name])])
        known = {name: self.requests[name].num_output_tokens for name in names}
        self.scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=names, req_id_to_index={name: at for at, name in enumerate(names)}, sampled_token_ids=sampled
            ),
        )
        for name in names:
            request, index = self.requests[name], int(name)
            if known[name] == 0 and request.num_output_tokens:
                self.first[index] = now
            if request.is_finished() and self.last[index] < 0:
                self.last[index] = now
        if self.case.drafts and not self.case.asynchronous:
            going = [name for name in names if given[name] and not self.requests[name].is_finished()]
            drafts = [[5 + n for n in range(self.case.drafts)] for _ in going]
            self.scheduler.update_draft_token_ids(DraftTokenIds(going, drafts))

    def step(self, output: Any, start: int, end: int) -> Step:
        """The record of a planned batch."""
        cached = output.scheduled_cached_reqs
        admitted = [(each.req_id, each.num_computed_tokens) for each in output.scheduled_new_reqs]
        admitted += [
            (name, found)
            for name, found in zip(cached.req_ids, cached.num_computed_tokens, strict=True)
            if name in cached.resumed_req_ids
        ]
        preempted, self.preempted = tuple(self.preempted), []
        return Step(
            start, end,
            tuple(sorted((int(name), count) for name, count in output.num_scheduled_tokens.items())),
            preempted,
            tuple(sorted((int(name), found) for name, found in admitted)),
            self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
        )  # fmt: skip


def iteration_ticks(output: Any) -> int:
    """How long a planned batch takes."""
    drafts = sum(map(len, output.scheduled_spec_decode_tokens.values()))
    return ITERATION_TICKS + output.total_num_scheduled_tokens - drafts


def serve(case: Case, most: int = 100_000) -> Log:
    """All iterations of a case. Errors: RuntimeError where its requests never finish."""
    if case.lockstep:
        from tests.oracle import vllm_lockstep

        return vllm_lockstep.serve(case)
    if case.data_parallel > 1:
        from tests.oracle import vllm_data_parallel  # which imports this module

        return vllm_data_parallel.serve(case)
    if case.prefill_blocks:
        from tests.oracle import vllm_apart

        return vllm_apart.serve(case)
    if case.host_blocks:
        from tests.oracle import vllm_host

        return vllm_host.serve(case)
    engine = Engine(case)
    scheduler = engine.scheduler
    room = max(case.pipeline_ranks, 2 if case.asynchronous else 1)  # VllmConfig.max_concurrent_batches
    queue: deque[tuple[Any, dict[str, int], int]] = deque()
    free = [0] * case.pipeline_ranks  # when each pipeline rank is done with what it has
    steps: list[Step] = []
    now, arrived = 0, 0
    order = sorted(range(len(case.requests)), key=lambda index: case.requests[index].arrival_ticks)
    for _ in range(most):
        while arrived < len(order) and case.requests[order[arrived]].arrival_ticks <= now:
            engine.submit(order[arrived])
            arrived += 1
        if scheduler.has_requests():
            output = scheduler.schedule()
            given, end = engine.samples(output), now
            if output.total_num_scheduled_tokens:
                took = iteration_ticks(output)
                start = end = max(now, free[0])
                for rank in range(case.pipeline_ranks):
                    end = free[rank] = max(end, free[rank]) + took
                steps.append(engine.step(output, start, end))
            queue.append((output, given, end))
            if len(queue) < room and (output.total_num_scheduled_tokens or scheduler.has_requests()):
                continue
        elif not queue:
            if arrived == len(order):
                return Log(tuple(steps), tuple(engine.first), tuple(engine.last))
            now = case.requests[order[arrived]].arrival_ticks
            continue
        output, given, end = queue.popleft()
        now = max(now, end)
        engine.update(output, given, now)
    raise RuntimeError(f"{case.feature} {case.seed} goes on beyond {most} batches")
