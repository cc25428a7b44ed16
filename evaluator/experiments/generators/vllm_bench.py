"""``vllm bench serve --save-result [--save-detailed]``, ``benchmark_serving.py`` before it: one JSON object a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from evaluator.errors import InputError
from evaluator.experiments.entry import ConfigEntry, as_number
from evaluator.experiments.generators.measured_run import (
    AT_ONCE,
    MeasuredRun,
    closed_loop,
    mean_of,
    open_loop,
    per_request,
    rates_of,
    statistics_by_ending,
)

NAME = "vllm bench serve"
METRICS = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2el"}
"""Our names of metrics -> its names. Its TPOT is ours: (E2E - TTFT) / (output tokens - 1) of a request."""
RATES = {
    "throughput_rps": "request_throughput",
    "output_tok_per_s": "output_throughput",
    "total_tok_per_s": "total_token_throughput",
}


def recognised(content: Mapping[str, Any]) -> bool:
    """Whether an object of JSON is of this generator, by the keys that it alone has."""
    # SGLang's benchmark began as a copy of vLLM's, and has its keys; E2E is `e2el` in vLLM alone.
    return "request_throughput" in content and "mean_ttft_ms" in content and "mean_e2e_latency_ms" not in content


def read(content: Mapping[str, Any], label: str) -> list[MeasuredRun]:
    """The run of one object."""
    entry = ConfigEntry(content, label)
    requests = entry.count("completed")
    # Those that failed were sent, too: whether a bound on concurrency holds requests back is decided by all of them.
    sent = entry.count("num_prompts", requests)
    # Without --save-detailed the file has totals alone, and lengths are their means.
    detailed = content.get("input_lens") is not None and content.get("output_lens") is not None
    prompts: np.ndarray | float | None = mean_of(as_number(content.get("total_input_tokens")), requests)
    outputs: np.ndarray | float | None = mean_of(
        as_number(content.get("total_output_tokens", content.get("total_output"))), requests
    )
    begun = None
    if detailed:
        prompts, outputs, begun = _requests(content)
        requests = len(prompts)
    arrivals, notes = load_of(content, sent)
    failed = as_number(content.get("failed")) or sent - entry.count("completed")
    if failed > 0:
        notes.append(f"{failed:,.0f} of {sent:,} requests failed")
    return [
        MeasuredRun(
            label,
            NAME,
            arrivals,
            requests,
            latencies(content, METRICS) | rates_of(content, RATES),
            prompts,
            outputs,
            # A closed loop sends when an answer comes: its times are of the measured server (see `guidellm`).
            begun if arrivals["process"] != "closed_loop" else None,
            model=entry.text("model_id", "") or None,
            failed=max(0, int(failed)),
            notes=tuple(notes),
        )
    ]


def latencies(content: Mapping[str, Any], metrics: Mapping[str, str]) -> dict[str, float]:
    """``mean_ttft_ms``, ``p99_ttft_ms`` and the like of each metric."""
    return statistics_by_ending(content, {ours: f"_{theirs}_ms" for ours, theirs in metrics.items()}, 1e-3)


def lengths_of(content: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """``input_lens`` and ``output_lens`` of all requests, answered or not."""
    prompts, outputs = (per_request(content[name], name) for name in ("input_lens", "output_lens"))
    if len(prompts) != len(outputs):
        raise InputError(f"input_lens has {len(prompts)} requests and output_lens {len(outputs)}")
    return prompts, outputs


def load_of(content: Mapping[str, Any], sent: int) -> tuple[dict[str, Any], list[str]]:
    """How the requests were sent, of ``request_rate``, ``burstiness`` and ``max_concurrency``."""
    # vLLM's `--ramp-up-strategy` raises the rate over the run.
    if content.get("ramp_up_strategy"):
        raise InputError("a run whose rate ramps up has no one load; send each rate in a run of its own")
    given = content.get("request_rate")
    if given == "trace":
        raise InputError(
            "its requests came at the times of a trace, which the file does not have; use --output-details"
        )
    rate = math.inf if given in (None, "inf") else as_number(given)
    users = content.get("max_concurrency")
    if rate is None or rate <= 0:
        raise InputError(f"request_rate must be a number above 0 or inf, got {str(given)[:40]!r}")
    # A bound above the number of requests never holds one back: such a run is of its rate alone.
    held_back = users is not None and (as_number(users) or 0) < sent
    if rate == math.inf:
        if not held_back:
            return dict(AT_ONCE), []
        return closed_loop(as_number(users) or 0, "max_concurrency"), []
    burstiness = as_number(content.get("burstiness", 1.0)) or 1.0
    # The gaps are gamma distributed with this shape; a shape k has a coefficient of variation of 1 / sqrt(k).
    notes = [f"max_concurrency {users} beside a rate is not modelled"] if held_back else []
    return open_loop(rate, "request_rate", round(burstiness**-0.5, 12)), notes


def _requests(content: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Prompt and output tokens of the requests that were answered, in order of sending, and when each was sent."""
    prompts, outputs = lengths_of(content)
    begun = None
    if content.get("start_times") is not None:
        begun = per_request(content["start_times"], "start_times")
        if len(begun) != len(prompts):
            raise InputError(f"input_lens has {len(prompts)} requests and start_times {len(begun)}")
    # A request that failed has an output of 0 tokens, and one whose prompt was not counted tells no load.
    answered = (outputs > 0) & (prompts > 0)
    if not answered.any():
        raise InputError("no request was answered")
    order = np.flatnonzero(answered) if begun is None else np.argsort(np.where(answered, begun, np.inf), kind="stable")
    # Those that were not answered are at infinity, behind all others.
    order = order[: int(answered.sum())]
    return prompts[order], outputs[order], None if begun is None else begun[order] - begun[order[0]]
