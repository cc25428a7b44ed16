"""Measured conversations in a closed loop, with and without host memory under the prefix cache, beside the reference.

``python -m tests.benchmarks.multi_turn`` simulates the runs ``multiturn_b200_*`` of ``EVALUATOR_DATA`` (one B200, vLLM
0.15, Llama-3.3-70B in NVFP4): each client sends the turns that it was recorded to send, each as soon as it has the
answer before, and all clients at once. ``--clients 512`` takes some of them.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from evaluator.catalog.attention_kernels import AUTO, BACKENDS
from evaluator.cost.frontend import delay_s
from evaluator.cost.iteration import CostParameters
from evaluator.plan import StationPlan, plan
from evaluator.plan.station import host_space
from evaluator.reference import HostLimits, Iteration, Limits, Request, simulate
from evaluator.reference.network import Follows
from evaluator.scenario import load_scenario

TEMPLATE_TOKENS = 56
"""Of the chat template, on average of a request: the server's counter of prompt tokens beside the client's."""

LINK = 46.7e9
"""Bytes per second: the most that the device received in any second of the runs (``pcie_rx_mb_per_s``)."""

METRICS = {"ttft_s": "TTFT, s", "tpot_s": "TPOT, ms", "e2e_s": "E2E, s", "tok_per_s": "output tokens/s"}


def station_of(run: Mapping[str, Any], attention_backend: str = AUTO) -> StationPlan:
    """The server of a run, as a scenario describes it."""
    offload = {"offload_bytes": run["cpu_kv_gib"] * 2.0**30, "offload_bandwidth": LINK}
    scenario = {
        "workload": {
            "arrivals": {"process": "poisson", "rate_rps": 1},
            "lengths": {"source": "fixed", "prompt_tokens": 8192, "output_tokens": 4096},
            "sessions": {"turns": 2, "think_s": 1},
        },
        "deployment": {
            "model": "llama-3.1-70b", "hardware": "b200-sxm", "engine": "vllm", "engine_version": "0.15",
            "attention_backend": attention_backend,
            "precision": {"weights": "nvfp4", "kv": "fp8"},
            "batching": {"max_num_seqs": int(run["max_num_seqs"]), "max_num_batched_tokens": 8192},
            "kv": {"capacity_tokens": int(run["kv_cache_tokens"]), "prefix_caching": True, "admission": "on_demand",
                   **(offload if run["cpu_kv_gib"] else {})},
        },
    }  # fmt: skip
    (configuration,) = plan(load_scenario(scenario), simulator="token").configurations
    (station,) = configuration.stations
    return station


def limits_of(station: StationPlan) -> Limits:
    """What the reference is told of the server."""
    kv, batching = station.deployment.kv, station.deployment.batching
    blocks, block_s = host_space(station) if kv.offload_bytes else (0, 0.0)
    return Limits(
        max_num_seqs=batching.max_num_seqs,
        max_num_batched_tokens=station.max_num_batched_tokens,
        kv_units=station.design.ready.kv.capacity_units,
        admission="on_demand",
        block_tokens=station.design.ready.kv.block_tokens,
        prefix_caching=True,
        full_prompt=kv.full_prompt,
        batch_queue=True,
        host=HostLimits(blocks, not kv.offload_answers, block_s, block_s) if blocks else None,
    )


def requests_of(recorded: pd.DataFrame, block: int) -> tuple[list[Request], Follows]:
    """The turns, and the one that each follows at its client: none before the first."""
    requests, follows, last = [], list[tuple[int, ...]](), dict[int, int]()
    for index, row in enumerate(recorded.itertuples(index=False)):
        prompt, output = int(row.input_tokens) + TEMPLATE_TOKENS, int(row.output_tokens)
        held = prompt + output - 1
        # The answers are the history of the next turn, so that all turns of a conversation have one row of blocks.
        content = tuple((int(row.conversation) << 20) + at for at in range(held // block))
        requests.append(Request(index, 0.0, prompt, prompt, output, -(-held // block), content))
        follows.append((last[row.client],) if row.client in last else ())
        last[row.client] = index
    at_once = [0.0] * len(requests)
    return requests, Follows(follows, at_once, at_once)


def served(
    run: Mapping[str, Any], recorded: pd.DataFrame, more: Sequence[float] = (0.0, 0.0), attention_backend: str = AUTO
) -> dict[str, float]:
    """The run's figures by the reference; ``more``: seconds that the server takes beyond the catalog's set for it, for
    an iteration and for each token that a decode attends to."""
    station = station_of(run, attention_backend)
    limits = limits_of(station)
    (cost,) = station.design.ready.pipeline_ranks
    assert isinstance(cost, CostParameters)
    # FlashInfer's own kernel splits contexts into even parts, and waits for none of them (``late_s``).
    cost = cost._replace(iteration_s=cost.iteration_s + more[0], context_s=cost.context_s + more[1], late_s=0.0)
    requests, follows = requests_of(recorded, limits.block_tokens)

    def late_s(request: Request) -> float:
        return float(delay_s(station.frontend, request.first_token_s, request.last_token_s, request.output_tokens))

    loaded: list[int] = []

    def watch(iteration: Iteration) -> None:
        loaded.extend(tokens for _, tokens in iteration.loaded)

    found = simulate(cost, "chunked", limits, requests, follows=follows, delay_s=late_s, observe=watch, leap=True)
    columns = (
        "arrival_s",
        "first_token_s",
        "last_token_s",
        "output_tokens",
        "prompt_tokens",
        "hit_tokens",
        "host_tokens",
    )
    of = {name: np.array([getattr(request, name) for request in requests], dtype=float) for name in columns}
    delay = delay_s(station.frontend, of["first_token_s"], of["last_token_s"], of["output_tokens"])
    several = of["output_tokens"] > 1
    gaps = (of["last_token_s"] - of["first_token_s"])[several] / (of["output_tokens"][several] - 1)
    return {
        "ttft_s": float((of["first_token_s"] + delay - of["arrival_s"]).mean()),
        "tpot_s": float(gaps.mean()) * 1e3,
        "e2e_s": float((of["last_token_s"] + delay - of["arrival_s"]).mean()),
        "tok_per_s": float(of["output_tokens"].sum() / (of["last_token_s"] + delay).max()),
        "device": float(of["hit_tokens"].sum() / of["prompt_tokens"].sum()),
        "host": float(of["host_tokens"].sum() / of["prompt_tokens"].sum()),
        "loaded": sum(loaded) / float(of["prompt_tokens"].sum()),
        "preemptions": found.preemptions,
    }


def measured(run: Mapping[str, Any], recorded: pd.DataFrame) -> dict[str, float]:
    """The same figures as the clients saw them."""
    return {
        "ttft_s": recorded.ttft_ms.mean() / 1e3,
        "tpot_s": recorded.tpot_ms[recorded.output_tokens > 1].mean(),
        "e2e_s": recorded.e2e_ms.mean() / 1e3,
        "tok_per_s": run["output_tokens_per_s"],
    }


def main() -> None:
    """Prints measured and computed, run by run."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--clients", type=int, nargs="+", default=[32, 128, 512])
    arguments.add_argument(
        "--more", type=float, nargs=2, default=(0.0, 0.0), metavar=("ITERATION_S", "CONTEXT_S"),
        help="seconds beyond the catalog's set, for an iteration and for each token that a decode attends to",
    )  # fmt: skip
    arguments.add_argument("--attention-backend", choices=BACKENDS, default=AUTO, help="whose kernels decodes run on")
    arguments.add_argument("--offload", choices=("on", "off"), help="those runs alone")
    asked, data = arguments.parse_args(), Path(os.environ.get("EVALUATOR_DATA", "../shared/data"))
    runs = pd.read_csv(data / "multiturn_b200_runs.csv")
    requests = pd.read_parquet(data / "multiturn_b200_requests.parquet")
    runs = runs[runs.clients.isin(asked.clients) & ((asked.offload is None) | (runs.kv_offload == asked.offload))]
    for run in runs.to_dict("records"):
        recorded = requests[requests.run_id == run["run_id"]].sort_values("send_s", kind="stable")
        started = time.process_time()
        ours = served(run, recorded, asked.more, asked.attention_backend)
        theirs = measured(run, recorded)
        print(f"{run['run_id']} ({time.process_time() - started:.0f} s)", flush=True)
        for name, title in METRICS.items():
            print(f"  {title:<18} {theirs[name]:10.3f} {ours[name]:10.3f} {ours[name] / theirs[name] - 1:+7.1%}")
        print(f"  measured: preemptions {run['preemptions']}; ours: {ours}", flush=True)


if __name__ == "__main__":
    main()
