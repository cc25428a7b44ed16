"""Who takes part in the next iteration: one order of decisions per file, and which of them a policy has.

A policy (``evaluator.policies``) is one of these orders, with its own limits and its own size of prompts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from evaluator.policies import BatchingPolicy
from evaluator.reference.batch import Batch
from evaluator.reference.limits import Limits
from evaluator.reference.queues import Queues
from evaluator.reference.radix_cache import RadixCache
from evaluator.reference.schedulers.by_token_ratio import ByTokenRatio
from evaluator.reference.schedulers.decodes_first import decodes_first
from evaluator.reference.schedulers.drained import drained
from evaluator.reference.schedulers.looking import looking
from evaluator.reference.schedulers.prompts_first import prompts_first

Scheduler = Callable[[Queues, BatchingPolicy], Batch]

UNBOUNDED = 1 << 60
"""Tokens of an iteration that no batch can reach."""


def scheduler(policy: BatchingPolicy) -> Scheduler:
    """What puts the batches of a policy together."""
    if policy.token_ratio:
        return ByTokenRatio()
    if policy.by_future_peak:
        return looking
    if policy.drain_first:
        return drained
    return prompts_first if policy.prefill_alone else decodes_first


def limits_under(policy: BatchingPolicy, limits: Limits) -> Limits:
    """The limits as a policy takes them: its own way to deal out KV, and no token budget where it has none.

    Errors: ValueError for blocks of several tokens under a policy that counts KV by the token.
    """
    if policy.by_future_peak and limits.block_tokens != 1:
        raise ValueError(f"policy {policy.name} needs block_tokens = 1, got {limits.block_tokens}")
    packing = "retracted_last" if policy.token_ratio and limits.packing == "fcfs" else limits.packing
    budget = limits.max_num_batched_tokens if policy.token_budget else UNBOUNDED
    return replace(
        limits,
        admission=policy.admission or limits.admission,
        max_num_batched_tokens=budget,
        packing=packing,
        # The estimate has the whole prompt in it, so that vLLM's default adds nothing.
        full_prompt=limits.full_prompt and not policy.token_ratio,
        manager=RadixCache if policy.token_ratio and limits.prefix_caching else limits.manager,
        look_every=limits.look_every or policy.look_every,
    )
