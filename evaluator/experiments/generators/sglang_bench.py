"""``python -m sglang.bench_serving --output-file FILE [--output-details]``: a line of JSON for every run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from evaluator.experiments.entry import ConfigEntry, as_number
from evaluator.experiments.generators.measured_run import MeasuredRun, mean_of, rates_of
from evaluator.experiments.generators.vllm_bench import latencies, lengths_of, load_of

NAME = "sglang.bench_serving"
METRICS = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2e_latency"}
RATES = {
    "throughput_rps": "request_throughput",
    "output_tok_per_s": "output_throughput",
    "total_tok_per_s": "total_throughput",
}
_LAYOUT = {"tensor_parallel": "tp_size", "pipeline_parallel": "pp_size", "data_parallel": "dp_size",
           "expert_parallel": "ep_size"}  # fmt: skip


def recognised(content: Mapping[str, Any]) -> bool:
    """Whether an object of JSON is of this generator, by the keys that it alone has."""
    return "mean_e2e_latency_ms" in content and "mean_ttft_ms" in content


def read(content: Mapping[str, Any], label: str) -> list[MeasuredRun]:
    """The run of one line. Its TPOT is ours; its ITL is per chunk, or per token of a chunk with speculation."""
    entry = ConfigEntry(content, label)
    requests = entry.count("completed")
    prompts: np.ndarray | float | None = mean_of(as_number(content.get("total_input_tokens")), requests)
    outputs: np.ndarray | float | None = mean_of(as_number(content.get("total_output_tokens")), requests)
    failed = 0  # without the single requests the file does not tell
    if content.get("input_lens") is not None and content.get("output_lens") is not None:
        given = lengths_of(content)
        # A request that failed has an output of 0 tokens.
        answered = (given[0] > 0) & (given[1] > 0)
        prompts, outputs = given[0][answered], given[1][answered]
        requests, failed = len(prompts), int((~answered).sum())
    arrivals, notes = load_of(content, requests)
    if failed:
        notes.append(f"{failed:,} of {failed + requests:,} requests failed")
    server = content.get("server_info")
    info = server if isinstance(server, Mapping) else {}
    model = info.get("model_path")
    return [
        MeasuredRun(
            label,
            NAME,
            arrivals,
            requests,
            latencies(content, METRICS) | rates_of(content, RATES),
            prompts,
            outputs,
            model=model if isinstance(model, str) else None,
            deployment=_deployment(info),
            failed=failed,
            notes=tuple(notes),
        )
    ]


def _deployment(said: Mapping[str, Any]) -> dict[str, Any]:
    """What a server says of itself when it is asked for its `server_info`."""
    # Of other backends the section is missing, and the layout is the scenario's.
    layout: dict[str, Any] = {
        ours: int(value) for ours, theirs in _LAYOUT.items() if (value := as_number(said.get(theirs))) and value >= 1
    }
    if said.get("enable_dp_attention"):
        # SGLang states the devices of all ranks as tp_size where attention is data parallel.
        layout["tensor_parallel"] = max(1, layout.get("tensor_parallel", 1) // layout.get("data_parallel", 1))
    # `tp_size` is told by SGLang's servers alone.
    return layout | ({"engine": "sglang"} if "tp_size" in said else {})
