"""An estimate as text."""

from __future__ import annotations

import math
import textwrap

import numpy as np

from evaluator.catalog.attention_kernels import AUTO
from evaluator.catalog.model import ALL_MODULES, Adapters
from evaluator.cost.feed_forward_apart import Apart
from evaluator.cost.parallel import GATHER
from evaluator.cost.steady import SteadyState
from evaluator.estimation import Estimate, PhaseEstimate
from evaluator.report.accuracy import WITHIN, in_words
from evaluator.report.table.columns import WIDTH
from evaluator.units import counted


def format_estimate(result: Estimate) -> str:
    """The estimate as text for a terminal: a summary and one table of operators per phase."""
    return "\n".join([*_summary(result), "", *_table("prefill", result.prefill), "", *_table("decode", result.decode)])


def _summary(result: Estimate) -> list[str]:
    split = result.parallel
    dtypes = result.precision
    memory = result.memory
    ranks = f", DP {split.data}" if split.data > 1 else ""
    ranks += f", {split.redundant} redundant experts" if split.redundant else ""
    ranks += f", {split.exchange}" if split.exchange != GATHER else ""
    ranks += f", DCP {split.context}" if split.context > 1 else ""
    ranks += f", PCP {split.prefill}" if split.prefill > 1 else ""
    ranks += ", two-batch overlap" if split.overlap is not None else ""
    ranks += f", attention by {result.attention_backend}" if result.attention_backend != AUTO else ""
    attention = "" if dtypes.attention is None else f" (attention {dtypes.attention})"
    per_rank = f" on each of {split.data} ranks" if split.data > 1 else ""
    lines = [
        f"{result.model} on {result.devices} x {result.hardware}"
        f" (TP {split.tensor}, PP {split.pipeline}, EP {split.expert}{ranks})",
        f"  weights {dtypes.weights}{attention}, activations {dtypes.activations}, KV {dtypes.kv}; "
        f"efficiencies: {result.calibration} ({result.provenance})",
        f"  batch {result.batch}{per_rank}, prompt {result.prompt_tokens}, output {result.output_tokens} tokens",
        *([] if result.apart is None else [_apart(result.apart)]),
        *([] if result.adapters is None else [_adapters(result.adapters)]),
        "",
        f"status            {result.status}",
        f"engine            {result.engine}, with its defaults where nothing is said (evaluator catalog engines)",
        f"weights           {_weights(result)} of {memory.usable_bytes / 1e9:.1f} GB usable",
        f"activations       {memory.activation_bytes / 1e9:.2f} GB, with driver and buffers: room for iterations of "
        f"{result.max_num_seqs:,} sequences and {result.max_num_batched_tokens:,} tokens",
        f"KV capacity       {_capacity(result)}, {result.max_sequences:,} sequences of this length{per_rank}",
        f"TTFT              {_milliseconds(result.ttft_s)}{_delay(result)}",
        *_one_iteration(result),
        f"TPOT              {_milliseconds(result.tpot_s)}",
        f"end to end        {_milliseconds(result.e2e_s)}",
        f"throughput        {result.output_tok_per_s:,.1f} output tokens/s, {result.total_tok_per_s:,.1f} with prompts",
        *_drafts(result),
        *_expected(result),
    ]
    return lines + ([] if result.load is None else _load_lines(result.load))


def _apart(apart: Apart) -> str:
    return (
        f"  attention in {counted(apart.ranks, 'rank')}, feed-forwards on {counted(apart.devices, 'device')}, "
        f"{apart.micro_batches:,} micro-batch{'es' * (apart.micro_batches != 1)}"
    )


def _weights(result: Estimate) -> str:
    """What a device holds of the weights: of attention and of feed-forwards where each has devices of its own."""
    held = f"{result.memory.weight_bytes / 1e9:.2f} GB per"
    if result.apart is None:
        return f"{held} device"
    return f"{held} attention device, {result.feed_forward_bytes / 1e9:.2f} GB per feed-forward device"


def _adapters(held: Adapters) -> str:
    named = sum(count for count, _ in held.popularity)
    modules = "all linear layers" if held.modules == ALL_MODULES else held.modules
    return f"  {held.resident:,} places for adapters of rank {held.rank} on {modules}, requests name {named:,.0f}"


def _delay(result: Estimate) -> str:
    """Why the TTFT is more than the prefill iteration; nothing where the set knows of no such time."""
    if result.client_delay_s == 0.0:
        return ""
    return f", of which {_milliseconds(result.client_delay_s)} before and after the engine (HTTP, planning ahead)"


def _one_iteration(result: Estimate) -> list[str]:
    """That the TTFT is that of one iteration, where the engine would take several for so many tokens of prompts."""
    # The estimate is of one iteration each: an engine would cut such a prefill up, and the first prompts would not
    # wait for the last.
    tokens = result.batch * result.prompt_tokens
    if tokens <= result.max_num_batched_tokens:
        return []
    return [
        f"{_UNDER}with all {tokens:,} prompt tokens in one iteration, which max_num_batched_tokens divides: simulate it"
    ]


def _drafts(result: Estimate) -> list[str]:
    """How far an iteration comes, and which part of it makes the drafts."""
    drafts = result.drafts
    if drafts is None:
        return []
    share = drafts.draft_s / (drafts.draft_s + drafts.verify_s)
    return [
        f"drafts            {drafts.speculative}: {drafts.iterations:,.1f} iterations of "
        f"{drafts.tokens_per_iteration:.2f} tokens each",
        f"{_UNDER}of an iteration {_milliseconds(drafts.draft_s)} to draft ({100 * share:.0f} %), "
        f"{_milliseconds(drafts.verify_s)} to verify",
    ]


def _expected(result: Estimate) -> list[str]:
    """How far a simulation of a server with these efficiencies is expected to be off, and what that rests on."""
    labels = ("TTFT", "TPOT", "E2E")
    errors = {label: np.array([error]) for label, error in zip(labels, result.model_error, strict=True)}
    errors_in_words = in_words(errors)
    basis = f"{WITHIN}, by {result.model_error_basis}" if errors_in_words else f"by {result.model_error_basis}"
    lines = textwrap.wrap(basis, WIDTH - len(_UNDER))
    return [f"expected error    {errors_in_words or 'not known'} in a server,", *(_UNDER + line for line in lines)]


_UNDER = 18 * " "


def _capacity(result: Estimate) -> str:
    if math.isinf(result.kv_capacity_tokens):
        return "no KV, a state of fixed size per sequence"
    return f"{result.kv_capacity_tokens:,.0f} tokens of {result.kv_bytes_per_token:,.0f} byte per device"


def _load_lines(load: SteadyState) -> list[str]:
    head = [
        "",
        f"at {load.rate_rps:g} requests/s (steady state, no queueing):",
        f"utilisation       {100 * load.utilisation:.1f} % of {load.capacity_rps:.3g} requests/s",
    ]
    # Nothing else is told then: a steady state that does not exist has no concurrency and no latency.
    if load.saturated:
        return [*head, "saturated         the queue grows without bound"]
    return [
        *head,
        f"concurrency       {load.concurrency:.1f} requests in the system, step {_milliseconds(load.step_s)}",
        f"TTFT, TPOT, e2e   {_milliseconds(load.ttft_s)}, {_milliseconds(load.tpot_s)}, {_milliseconds(load.e2e_s)}",
    ]


def _table(title: str, phase: PhaseEstimate) -> list[str]:
    """Operators in order; what takes no time in this phase is left out. Measured iterations know none."""
    head = f"{title} iteration: {_milliseconds(phase.time_s)}, MFU {100 * phase.mfu:.1f} %, MBU {100 * phase.mbu:.1f} %"
    if not phase.operators:
        return [head]
    lines = [
        head,
        f"  {'operator':<32}{'time':>12}{'share':>8}{'GFLOP':>12}{'memory MB':>13}{'sent MB':>13}  bound by",
    ]
    return lines + [
        f"  {operator.name:<32}{_milliseconds(operator.time_s):>12}{100 * operator.share:>7.1f}%"
        f"{operator.flops / 1e9:>12,.2f}{operator.bytes / 1e6:>13,.2f}"
        f"{operator.message_bytes / 1e6:>13,.2f}  {operator.bound}"
        for operator in phase.operators
        # Below it is the rounding of operators that do nothing in this phase or on one device (an all-reduce among
        # one).
        if operator.time_s > 1e-15
    ]


def _milliseconds(seconds: float) -> str:
    return "-" if math.isnan(seconds) else f"{1e3 * seconds:,.3f} ms"
