"""inference-perf's ``stage_N_lifecycle_metrics.json`` and ``summary_lifecycle_metrics.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evaluator.errors import InputError
from evaluator.experiments.entry import ConfigEntry, as_number
from evaluator.experiments.generators.measured_run import MeasuredRun, closed_loop, open_loop, rates_of, statistics_of

NAME = "inference-perf"
METRICS = {"ttft": "time_to_first_token", "tpot": "time_per_output_token", "e2e": "request_latency"}
"""Its time per output token is our TPOT. Its ITL is not read: versions that count every token twice do not say so."""
RATES = {
    "throughput_rps": "requests_per_sec",
    "output_tok_per_s": "output_tokens_per_sec",
    "total_tok_per_s": "total_tokens_per_sec",
}


def recognised(content: Mapping[str, Any]) -> bool:
    """Whether an object of JSON is of this generator, by the keys that it alone has."""
    return "load_summary" in content and isinstance(content.get("successes"), Mapping)


def read(content: Mapping[str, Any], label: str) -> list[MeasuredRun]:
    """The run of a stage; a summary of several stages has no one load and is refused."""
    successes = content["successes"]
    metrics: dict[str, float] = {}
    # Some versions have the metrics on the level above.
    latency = successes.get("latency", successes)
    for ours, theirs in METRICS.items():
        given = latency.get(theirs) if isinstance(latency, Mapping) else None
        if isinstance(given, Mapping):
            metrics |= statistics_of(ours, given, 1.0)
    throughput = successes.get("throughput")
    if isinstance(throughput, Mapping):
        metrics |= rates_of(throughput, RATES)
    load = ConfigEntry(content["load_summary"], f"{label}: load_summary").value
    users, rate = as_number(load.get("concurrency")), as_number(load.get("requested_rate"))
    # Stages differ in their rate, so that a summary of several has neither; a mean rate of theirs was never sent.
    if not users and not rate:
        raise InputError(
            "load_summary says neither requested_rate nor concurrency, as the summary of several stages: give the file "
            "of each stage, stage_0_lifecycle_metrics.json"
        )
    failures = content.get("failures")
    failed = as_number(failures.get("count")) if isinstance(failures, Mapping) else None
    count = as_number(successes.get("count")) or 0
    return [
        MeasuredRun(
            label,
            NAME,
            closed_loop(users, "concurrency") if users else open_loop(rate or 0, "requested_rate"),
            int(count),
            metrics,
            _mean(successes, "prompt_tokens", "prompt_len"),
            _mean(successes, "output_tokens", "output_len"),
            failed=int(failed or 0),
            notes=(f"{failed:,.0f} requests failed",) if failed else (),
        )
    ]


def _mean(successes: Mapping[str, Any], *names: str) -> float | None:
    for name in names:
        given = successes.get(name)
        value = as_number(given.get("mean")) if isinstance(given, Mapping) else None
        if value:
            return value
    return None
