"""GuideLLM's ``benchmarks.json``: a run for every benchmark of a sweep, with its requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from evaluator.errors import InputError
from evaluator.experiments.entry import as_number
from evaluator.experiments.generators.measured_run import AT_ONCE, MeasuredRun, closed_loop, open_loop, statistics_of

NAME = "GuideLLM"
METRICS = {
    "ttft": ("time_to_first_token_ms", 1e-3),
    "tpot": ("inter_token_latency_ms", 1e-3),
    "e2e": ("request_latency", 1.0),
}
"""Its inter-token latency is our TPOT; its time per output token counts the first token, and the wait for it, too."""


def recognised(content: Mapping[str, Any]) -> bool:
    """Whether an object of JSON is of this generator, by the keys that it alone has."""
    listed = content.get("benchmarks")
    return isinstance(listed, Sequence) and bool(listed) and isinstance(listed[0], Mapping) and "metrics" in listed[0]


def read(content: Mapping[str, Any], label: str) -> list[MeasuredRun]:
    """A run for each benchmark of the file."""
    runs = []
    for number, benchmark in enumerate(content["benchmarks"], 1):
        where = f"benchmarks[{number - 1}]"
        if not isinstance(benchmark, Mapping):
            raise InputError(f"{where} must be an object")
        try:
            runs.append(_run(benchmark, label if len(content["benchmarks"]) == 1 else f"{label} #{number}"))
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
    return runs


def _run(benchmark: Mapping[str, Any], label: str) -> MeasuredRun:
    metrics: dict[str, float] = {}
    for ours, (theirs, seconds) in METRICS.items():
        answered = _successful(benchmark, theirs)
        percentiles = answered.get("percentiles")
        # Percentiles last: p50 is the median again, and the same number.
        given = {name: answered.get(name) for name in ("mean", "median")}
        metrics |= statistics_of(ours, given | (dict(percentiles) if isinstance(percentiles, Mapping) else {}), seconds)
    prompts: np.ndarray | float | None = as_number(_successful(benchmark, "prompt_token_count").get("mean"))
    outputs: np.ndarray | float | None = as_number(_successful(benchmark, "output_token_count").get("mean"))
    count = as_number(_successful(benchmark, "request_latency").get("count")) or 0
    requests, begun = benchmark.get("requests"), None
    listed = requests.get("successful") if isinstance(requests, Mapping) else None
    if isinstance(listed, Sequence) and listed and not isinstance(listed, str):
        columns = _requests(listed)
        if columns is not None:
            prompts, outputs, begun = columns
            count = len(columns[0])
    # Its own mean rate is of the gaps between completions, which one long gap decides: requests over time are ours.
    duration = as_number(benchmark.get("duration"))
    if duration and duration > 0 and count:
        metrics["throughput_rps"] = count / duration
    arrivals = _load(benchmark)
    totals = benchmark["metrics"].get("request_totals") if isinstance(benchmark.get("metrics"), Mapping) else None
    # Those that its limit of time cut off (``incomplete``) are no failures: every such run has some at its end.
    errored = int(as_number(totals.get("errored")) or 0) if isinstance(totals, Mapping) else 0
    return MeasuredRun(
        label,
        NAME,
        arrivals,
        int(count),
        metrics,
        prompts,
        outputs,
        # A closed loop sends when an answer comes: its times are of the measured server, and would make of the
        # simulated one an open loop.
        begun if arrivals["process"] != "closed_loop" else None,
        model=_model(benchmark),
        failed=max(0, errored),
        notes=(f"{errored:,} requests failed",) if errored > 0 else (),
    )


def _successful(benchmark: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    metrics = benchmark.get("metrics")
    metric = metrics.get(name) if isinstance(metrics, Mapping) else None
    successful = metric.get("successful") if isinstance(metric, Mapping) else None
    # All figures are of requests that were answered: of those that failed or were cut off, times are of no whole
    # answer.
    return successful if isinstance(successful, Mapping) else {}


def _requests(listed: Sequence[Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Prompt tokens, output tokens and times of sending; None where some request lacks one of them."""
    names = ("prompt_tokens", "output_tokens", "request_start_time")
    rows = [[as_number(request.get(name)) for name in names] for request in listed if isinstance(request, Mapping)]
    # All or none: dropping the one would drop its load, too, and the others would be simulated on an emptier server.
    if len(rows) != len(listed) or any(value is None or not 0 < value < float("inf") for row in rows for value in row):
        return None
    table = np.array(rows, dtype=np.float64)
    # Requests are listed as they ended; a closed loop and a replay want them as they were sent.
    table = table[np.argsort(table[:, 2], kind="stable")]
    return table[:, 0], table[:, 1], table[:, 2] - table[0, 2]


def _load(benchmark: Mapping[str, Any]) -> dict[str, Any]:
    for key in ("config", "args"):  # args up to version 0.3
        section = benchmark.get(key)
        strategy = section.get("strategy") if isinstance(section, Mapping) else None
        if isinstance(strategy, Mapping):
            break
    else:
        raise InputError("config.strategy is missing, which says how requests were sent")
    kind = str(strategy.get("type_"))
    # One request after the other is a closed loop of a single user.
    if kind == "synchronous":
        return closed_loop(1, "streams")
    if kind == "concurrent":
        return closed_loop(as_number(strategy.get("streams")) or 0, "strategy.streams")
    if kind == "throughput":
        return dict(AT_ONCE)
    if kind in ("constant", "poisson", "async"):
        return open_loop(as_number(strategy.get("rate")) or 0, "strategy.rate", 1.0 if kind == "poisson" else 0.0)
    raise InputError(
        f"requests sent by the strategy {kind[:40]!r} are not compared; concurrent, poisson and constant are"
    )


def _model(benchmark: Mapping[str, Any]) -> str | None:
    config = benchmark.get("config")
    backend = config.get("backend") if isinstance(config, Mapping) else benchmark.get("worker")
    name = (backend.get("model") or backend.get("backend_model")) if isinstance(backend, Mapping) else None
    return name if isinstance(name, str) and name else None
