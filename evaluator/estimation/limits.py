"""What one replica may take: the engine's own limits, and those that are said in their place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from evaluator.catalog.engines import SchedulerDefaults
from evaluator.errors import InputError
from evaluator.policies import policy
from evaluator.replica import default_budget


def limits(
    usual: SchedulerDefaults, said: Mapping[str, float | None], decode_tokens: int, prompt_tokens: int
) -> SchedulerDefaults:
    """The engine's own limits with those that are said (None: is not), for decodes of so many tokens."""
    stated: dict[str, Any] = {name: value for name, value in said.items() if value is not None}
    for name, value in stated.items():
        if name != "memory_fraction" and value < 1:
            raise InputError(f"{name}: must be at least 1, not {value}")
    used = replace(usual.within(stated.get("max_num_batched_tokens"), decode_tokens), **stated)
    if not 0 < used.memory_fraction <= 1:
        raise InputError(f"memory_fraction: must be above 0 and at most 1, not {used.memory_fraction}")
    decodes = used.max_num_seqs * decode_tokens
    if "max_num_batched_tokens" not in stated:
        budget = default_budget(used.policy, used.max_num_batched_tokens, decodes, prompt_tokens)
        return replace(used, max_num_batched_tokens=budget)
    record = policy(used.policy)
    if record.whole_prompts and prompt_tokens > used.max_num_batched_tokens:
        raise InputError(
            f"max_num_batched_tokens: {used.max_num_batched_tokens:,} are fewer than the {prompt_tokens:,} of a "
            f"prompt, which policy {used.policy} computes whole; raise it or shorten the prompt"
        )
    if used.max_num_batched_tokens < decodes and not record.prefill_alone:
        drafts = f", each with {decode_tokens - 1} drafts," if decode_tokens > 1 else ""
        raise InputError(
            f"max_num_batched_tokens: {used.max_num_batched_tokens:,} are fewer than {used.max_num_seqs:,} sequences"
            f"{drafts} decode in an iteration; raise it or lower max_num_seqs"
        )
    return used
