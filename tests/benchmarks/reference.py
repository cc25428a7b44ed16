"""Requests per second of the reference on an hour of chat traffic, beside the engine on the same one replica."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from evaluator.cost import kv_units
from evaluator.device import configure
from evaluator.reference import Limits, PoolOutcome, Request, simulate
from evaluator.scenario.trace import read_trace
from tests.benchmarks.engine import fcfs_reserved_input, run_job
from tests.benchmarks.registry import Row, benchmark
from tests.benchmarks.timing import ROOT, best_of
from tests.benchmarks.workload import KV_TOKENS, MAX_NUM_SEQS, Work, work

MODEL = "llama-3.1-8b"
TRACE = "azure_llm_trace_conv_2023.csv"  # 19,366 requests, prompts of about 1,150 and outputs of about 210 tokens
RUNS: dict[str, dict[str, Any]] = {
    "leaping": {},
    "leaping, KV on demand": {"admission": "on_demand"},
    "leaping, on demand in a tenth of the KV": {"admission": "on_demand", "share": 0.1},
    "leaping, prefix cache": {"admission": "on_demand", "prefix_caching": True},
    "every token": {"tokens": True},
}


@benchmark("reference")
def reference(quick: bool) -> Iterator[Row]:
    """Requests/s of the reference on the Azure conversation hour, one replica; and how close the engine is."""
    configure()
    given, source = hour()
    requests = given.arrival_s.shape[1]
    served: dict[str, PoolOutcome] = {}
    for label, options in RUNS.items():

        def run(label: str = label, options: dict[str, Any] = options) -> None:
            served[label] = _simulate(given, **options)

        rate = requests / best_of(run, repeats=1 if quick else 2).cpu_s
        note = f"per core; {served[label].iterations:,} iterations, {served[label].preemptions:,} preemptions"
        yield Row(label, rate, "requests/s", note)
    job = fcfs_reserved_input(given)
    rate = requests / best_of(lambda: run_job(job)).cpu_s
    yield Row("the engine on the same replica", rate, "requests/s", f"per core; {source}")
    ends = np.array([request.last_token_s for request in served["leaping"].requests])
    apart = np.max(np.abs(np.asarray(run_job(job).last_token_s)[0] / ends - 1))
    yield Row("largest relative difference of completion times", float(apart), "")


def hour() -> tuple[Work, str]:
    """One lane of the engine's workload; with the arrivals and lengths of the trace where there is its file."""
    given = work(MODEL, lanes=1, requests=20_000)
    path = Path(os.environ.get("EVALUATOR_DATA", ROOT.parent / "shared" / "data")) / TRACE
    if not path.is_file():
        return given, "no trace: Poisson arrivals, lognormal lengths"
    trace = read_trace(str(path))
    assert trace.arrival_s is not None and trace.prompt_tokens is not None and trace.output_tokens is not None
    units = kv_units(given.kv, trace.prompt_tokens + trace.output_tokens - 1)
    lengths = {"prompt_tokens": trace.prompt_tokens, "output_tokens": trace.output_tokens, "kv_units": units}
    return replace(given, arrival_s=trace.arrival_s[None], **lengths), "Azure conversation hour"


def _simulate(given: Work, *, share: float = 1.0, tokens: bool = False, **options: Any) -> PoolOutcome:
    columns = (given.arrival_s[0], given.prompt_tokens, given.prompt_tokens, given.output_tokens, given.kv_units)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    requests = [Request(index, *row) for index, row in enumerate(rows)]
    units = int(share * KV_TOKENS) // given.kv.block_tokens
    limits = Limits(MAX_NUM_SEQS, given.max_num_batched_tokens, units, block_tokens=given.kv.block_tokens, **options)
    return simulate(given.costs[0], given.policy, limits, requests, tokens=tokens, window=given.kv.window)
