"""MLPerf's ``mlperf_log_summary.txt``, as LoadGen writes it: the Server and the Offline scenario of language models."""

from __future__ import annotations

import re
from typing import Any

from evaluator.errors import InputError
from evaluator.experiments.entry import as_number
from evaluator.experiments.generators.measured_run import AT_ONCE, MeasuredRun, open_loop, statistics_of

NAME = "MLPerf LoadGen"
_LINE = re.compile(r"^\s*([^:\n]+?)\s*:\s*(\S.*?)\s*$", re.MULTILINE)
_LATENCIES = {
    "ttft": ("first token latency (ns)", "first token latency (ns)"),
    "tpot": ("time per output token (ns)", "time to output token (ns)"),
    "e2e": ("latency (ns)", "latency (ns)"),
}
"""How its lines of a metric end: that of the mean, and those of percentiles. They count from the scheduled time."""


def recognised(text: str) -> bool:
    """Whether a text is of this generator."""
    return "MLPerf Results Summary" in text[:4096]


def read(text: str, label: str) -> list[MeasuredRun]:
    """The run of a summary. It does not say how long prompts and outputs are: they are the scenario's."""
    # In lower case: LoadGen writes "Completed samples per second" beside "target_qps".
    stated = {name.lower(): value for name, value in _LINE.findall(text)}
    kind = stated.get("scenario", "")
    if kind not in ("Server", "Offline"):
        raise InputError(f"the scenario {kind[:40]!r} is not compared; Server and Offline are")
    # Runs of accuracy answer the same samples without a load that would mean anything for their times.
    if stated.get("mode") not in (None, "PerformanceOnly"):
        raise InputError(f"the mode is {stated['mode'][:40]!r}; only runs of performance are compared")
    metrics: dict[str, float] = {}
    # Offline has no latencies that mean anything: all samples are there from the start.
    if kind == "Server":
        for metric, (mean, percentile) in _LATENCIES.items():
            given: dict[str, Any] = {"mean": stated.get(f"mean {mean}")}
            for name, value in stated.items():
                percent = re.fullmatch(r"(\d+\.\d+) percentile " + re.escape(percentile), name)
                if percent is not None:
                    given[f"p{float(percent[1]):g}"] = value
            metrics |= statistics_of(metric, given, 1e-9)
    rate = _number(stated, "completed samples per second", "samples per second")
    tokens = _number(stated, "completed tokens per second", "tokens per second")
    metrics |= {name: value for name, value in (("throughput_rps", rate), ("output_tok_per_s", tokens)) if value}
    # What was scheduled, not what was completed: in an overloaded run fewer complete than come.
    target = _number(stated, "scheduled samples per second", "target_qps")
    # Offline is one query of all samples: as many as the shortest run at the expected rate takes.
    least = (_number(stated, "min_duration (ms)") or 0) * 1e-3 * (rate or 0)
    # LoadGen goes on until all of its minima are met, and does not say how many queries it then had.
    requests = int(
        max(_number(stated, "min_query_count") or 0, _number(stated, "performance_sample_count") or 0, least)
    )
    # Prompts are not in a summary; outputs follow from two rates of the same samples.
    mean_output = tokens / rate if tokens and rate else None
    arrivals = dict(AT_ONCE) if kind == "Offline" else open_loop(target or 0, "the scheduled samples per second")
    invalid = ("LoadGen calls the result invalid",) if stated.get("result is") == "INVALID" else ()
    return [MeasuredRun(label, f"{NAME} {kind}", arrivals, requests, metrics, None, mean_output, notes=invalid)]


def _number(stated: dict[str, str], *names: str) -> float | None:
    for name in names:
        value = as_number(stated.get(name))
        if value is not None and 0 < value < float("inf"):
            return value
    return None
