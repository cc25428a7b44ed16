"""The project's reference on a case of SGLang's scheduler: its log, iteration by iteration."""

from __future__ import annotations

from evaluator.reference import Limits, Request
from tests.oracle.cases import ITERATION_TICKS, TICK_S, Log
from tests.oracle.ours import log_of
from tests.oracle.sglang_cases import SglangCase
from tests.reference.build import linear_cost

COST = linear_cost(iteration_s=ITERATION_TICKS * TICK_S, token_s=TICK_S)


def limits_of(case: SglangCase) -> Limits:
    """The case's limits as the reference takes them."""
    return Limits(
        max_num_seqs=case.max_num_seqs,
        max_num_batched_tokens=case.chunk or 1 << 40,
        kv_units=case.blocks,
        block_tokens=case.block_tokens,
        packing="longest_prefix" if case.policy == "lpm" else "fcfs",
        prefix_caching=case.prefix_caching,
        mixed_chunk=case.mixed_chunk,
        max_prefill_tokens=case.max_prefill_tokens,
        conservativeness=case.conservativeness,
        whole_prompts=case.chunk is None,
        ignore_eos=case.ignore_eos,
        batch_queue=case.overlap,
        asynchronous=case.overlap,
    )


def requests_of(case: SglangCase) -> list[Request]:
    """The case's requests, fresh."""
    return [
        Request(
            index, ask.arrival_ticks * TICK_S, ask.prompt_tokens, ask.prompt_tokens, ask.output_tokens,
            -(-(ask.prompt_tokens + ask.output_tokens - 1) // case.block_tokens), ask.content,
            max_tokens=ask.max_tokens,
        )
        for index, ask in enumerate(case.requests)
    ]  # fmt: skip


def serve(case: SglangCase) -> Log:
    """All iterations of a case on the reference."""
    return log_of(COST, "token_ratio", limits_of(case), requests_of(case), 1)
