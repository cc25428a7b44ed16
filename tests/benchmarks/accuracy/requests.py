"""Whole runs, request by request: each request is sent when the client sent it, with the tokens that it had.

* vLLM 0.15.1 on H100 (``blis_requests.parquet``, ``blis_servers.csv``): ten runs of five models' servers by
  inference-perf. Prompts are a few fixed ones, over and over, so that the prefix cache has them
  (``experiments.traffic``). Seven of the runs are also among those that the serving sets were fitted to, there by their
  means: here by their own arrivals. Three are in overload: clients gave up after 300 s, so that means over the answers
  are of who was lucky; judged is who came before the first that gave up, all of whom were answered.
* vLLM on an RTX PRO 6000 (``lls_rtxpro6000_llama31_8b_requests.csv``): 300 requests in overload, as
  ``evaluator compare --scenario rtxpro6000-sharegpt`` has them. Nothing was fitted to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from evaluator.catalog.store import find
from evaluator.compare.requests import compare_requests
from evaluator.compare.servers import server
from evaluator.compare.simulate import simulate_server
from evaluator.experiments import Experiment
from evaluator.experiments.experiment import MeasuredWorkload
from evaluator.experiments.traffic import MeasuredRequests, computed_tokens
from evaluator.scenario import load_scenario
from tests.benchmarks.accuracy.slices import judged

FILE, SERVERS = "blis_requests.parquet", "blis_servers.csv"
RTX, SCENARIO = "lls_rtxpro6000_llama31_8b_requests.csv", "rtxpro6000-sharegpt"
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def rows(data: Path) -> Iterator[pd.DataFrame]:
    """The errors of every run's statistics."""
    requests, runs = pd.read_parquet(data / FILE), pd.read_csv(data / SERVERS)
    for run in runs.itertuples():
        yield from _of_run(run, requests[requests["run_id"] == run.run_id].sort_values("arrival_s", kind="stable"))
    if (data / RTX).exists():
        table, _ = compare_requests(data / RTX, load_scenario(find("scenarios", SCENARIO)))
        measured = table[["ttft_s", "e2e_s", "output_tokens"]]
        predicted = measured.assign(ttft_s=table["predicted_ttft_s"], e2e_s=table["predicted_e2e_s"])
        yield from _statistics("rtx-pro-6000, llama-3.1-8b, overload", predicted, measured)


def _of_run(run, measured: pd.DataFrame) -> Iterator[pd.DataFrame]:
    overload = measured["failed"].any()
    judged_ones = np.ones(len(measured), dtype=bool)
    if overload:
        gave_up = int(measured["failed"].to_numpy().argmax())
        # Who comes later than this can change nothing for those who are judged.
        until_s = measured["arrival_s"].iloc[gave_up] + run.timeout_s
        measured = measured[measured["arrival_s"] < until_s]
        judged_ones = np.arange(len(measured)) < gave_up
    experiment = _experiment(run)
    (times,) = simulate_server(server(experiment), [load_of(experiment, measured)])
    predicted = measured.assign(ttft_s=times.ttft_s, e2e_s=times.e2e_s)[judged_ones]
    name = run.name.split("-", 2)[2]
    yield from _statistics(f"h100-sxm, {name}{', overload' if overload else ''}", predicted, measured[judged_ones])


def _experiment(run) -> Experiment:
    # Without stages of its own: requests come when they came.
    workload = MeasuredWorkload(
        run.workload, (), run.num_unique_system_prompts, run.num_users_per_system_prompt, run.system_prompt_len,
        run.question_len, run.output_len,
    )  # fmt: skip
    return Experiment(
        run.run_id, run.name, run.model, "H100", run.tensor_parallel, max_num_seqs=run.max_num_seqs,
        max_num_batched_tokens=run.max_num_batched_tokens, max_model_tokens=run.max_model_len, kv_blocks=run.kv_blocks,
        block_tokens=run.block_size_tokens, workload=workload,
    )  # fmt: skip


def load_of(experiment: Experiment, measured: pd.DataFrame) -> MeasuredRequests:
    """All generate what was asked for (``ignore_eos``), of which the client counted fewer in the text that it got. Who
    gave up, whose prompt nobody counted, sent the fixed one of its turn."""
    workload = experiment.workload
    turn = np.arange(len(measured)) % (workload.groups * workload.prompts_per_group)
    prompts = measured["prompt_tokens"].astype(float)
    prompt = prompts.fillna(prompts.groupby(turn).transform("median")).round().astype(np.int64).to_numpy()
    compute = computed_tokens(experiment, prompt, np.zeros_like(turn))
    output = np.full(len(turn), workload.output_tokens)
    return MeasuredRequests(measured["arrival_s"].to_numpy(), measured["stage"].to_numpy(int), prompt, compute, output)


def _statistics(part: str, predicted: pd.DataFrame, measured: pd.DataFrame) -> Iterator[pd.DataFrame]:
    found = [_figures(table) for table in (predicted, measured)]
    for metric in found[0]:
        yield judged("requests", [part], metric, *(pd.Series([figures[metric]]) for figures in found))


def _figures(table: pd.DataFrame) -> dict[str, float]:
    figures = {}
    for metric in ("ttft", "e2e"):
        seconds = table[f"{metric}_s"].to_numpy(float)
        figures[f"{metric}_mean"] = float(seconds.mean())
        figures |= {f"{metric}_{name}": float(np.quantile(seconds, at)) for name, at in QUANTILES.items()}
    # Of all tokens together: a client that counts two tokens of a text of 200 has seen no gap of a second.
    return figures | {"tpot_mean": float((table["e2e_s"] - table["ttft_s"]).mean())}
