"""What a replica can hold and compute at once, and how it deals out its KV cache."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from evaluator.reference.grouped_kv import KvGroup
from evaluator.reference.host_cache import HostLimits


@dataclass(frozen=True)
class Limits:
    """The limits of one replica. ``kv_units`` is the capacity of the KV cache in units (blocks of full attention).

    As vLLM demands, ``max_num_batched_tokens`` must not be below ``max_num_seqs``, nor, for policies that compute whole
    prompts, below the longest sequence: a prompt that is never admitted blocks the queue.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    kv_units: int
    admission: str = "reserve"  # reserve: all KV on admission; on_demand: as tokens come, preempting where it runs out
    block_tokens: int = 16
    units_of_blocks: Callable[[int], int] | None = None  # of a sequence; None: a unit is a block. May grow by 0 or 1.
    # (prompt tokens, tokens) of a sequence that shares the whole blocks of its prompt with others, without these; and
    # these by prompt tokens. None: a unit is a block.
    units_of_branch: Callable[[int, int], int] | None = None
    units_of_prefix: Callable[[int], int] | None = None
    watermark_units: int = 0  # on_demand: an admission leaves this much free (vLLM v0: 1 % of the cache; v1: none)
    preemption: str = "recompute"  # or swap
    swap_units: float = math.inf  # room in host memory; where it is full, preemption is by recompute
    swap_unit_s: float = 0.0  # time to copy a unit in or out; the iteration takes so much longer
    long_prefill_token_threshold: int = 0  # chunked: most prompt tokens of one request in an iteration; 0: no bound
    packing: str = (
        "fcfs"  # or least_work_left, priority, retracted_last, longest_prefix: which waiting request is looked at first
    )
    aging: float = 0.0  # priority: by how much the one of a request is larger for each second that it comes later
    # The engine core plans a batch when one has ended, or when it idles: as many ahead as pipeline ranks, or two if it
    # is asynchronous. It then waits for the oldest and looks at no arrival before. Requests in batches under way are
    # preempted like any other (vLLM ``EngineCore.step_with_batch_queue``). False: a batch is planned as soon as a
    # pipeline rank is free for it.
    batch_queue: bool = False
    asynchronous: bool = False  # the next batch is planned before the tokens of the one under way are known
    max_queued: int | None = None  # who comes to find so many waiting is refused (SGLang ``--max-queued-requests``)
    full_prompt: bool = False  # on_demand: a request is admitted only where its whole prompt would fit (vLLM PR 37307)
    prefix_caching: bool = False
    kv_reserved: bool = False  # requests come with KV that was reserved for them: see ``queues.Queues.reserve``
    # Of a hybrid model: its groups of layers, which take blocks from one pool of ``kv_units``: see ``grouped_kv``.
    kv_groups: tuple[KvGroup, ...] = ()
    host: HostLimits | None = None  # where blocks of the prefix cache are copied to: see ``host_cache``
    max_adapters: int = 0  # distinct LoRA adapters in a batch, for which a device has places; 0: no bound
    adapter_load_s: float = 0.0  # time to load one; the iteration takes so much longer
    drafts: int = 0  # speculative decoding: tokens that a decode verifies in an iteration beside the one it is sure of
    manager: Callable[[Limits], Any] | None = None  # makes the cache of a user's KV manager, see ``kv.Kv``
    # Of a policy that admits by a token ratio (SGLang's names: --enable-mixed-chunk, --max-prefill-tokens,
    # --schedule-conservativeness, --chunked-prefill-size -1; and whether all answers run to their limit):
    mixed_chunk: bool = False
    max_prefill_tokens: int = 16384
    conservativeness: float = 1.0
    whole_prompts: bool = False
    ignore_eos: bool = False
    look_every: int = 0  # of a policy that looks at who waits now and then: 0 stands for the policy's own number

    def __post_init__(self) -> None:
        for name, allowed in (
            ("admission", ("reserve", "on_demand")),
            ("preemption", ("recompute", "swap")),
            ("packing", ("fcfs", "least_work_left", "priority", "retracted_last", "longest_prefix")),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        # Blocks are found by their content: KV in windows, or states of fixed size, is no row of whole blocks.
        if self.prefix_caching and self.units_of_blocks is not None:
            raise ValueError("prefix_caching needs KV units that are blocks")
        if self.kv_groups and (self.admission != "on_demand" or self.preemption == "swap" or self.units_of_blocks):
            raise ValueError("kv_groups go with KV on demand, units that are blocks and preemption by recompute")
        if self.kv_groups and self.prefix_caching and any(group.state for group in self.kv_groups):
            raise ValueError("prefix_caching needs kv_groups of attention")
        if self.host and not (self.prefix_caching and self.admission == "on_demand" and self.packing == "fcfs"):
            raise ValueError("host needs prefix_caching, admission on_demand and packing fcfs")
        if self.host and (self.kv_groups or self.drafts or self.kv_reserved or self.manager):
            raise ValueError("host goes without kv_groups, drafts, kv_reserved and manager")
        if self.asynchronous and not self.batch_queue:
            raise ValueError("asynchronous needs batch_queue")
        if self.prefix_caching and self.preemption == "swap":
            raise ValueError("prefix_caching goes with preemption by recompute")

    @property
    def decode_tokens(self) -> int:
        """What a decode takes of the token budget of an iteration, and on demand of the KV slots."""
        return 1 + self.drafts
