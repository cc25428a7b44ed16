"""Clients who wait for answers, and batches that are sent at once.

* Conversations on one B200 (``multiturn_b200_*``, vLLM 0.15, Llama-3.3-70B in NVFP4, FlashInfer's kernels), the same
  turns by the same clients through the reference (``tests.benchmarks.multi_turn``); nothing is read off these runs.
* Argonne's batches of 16 to 256 equal requests on MI300X, H100, A100 and GH200 (``argonne_runs.csv``): the time from
  sending a batch to its last token, here one iteration of all prompts and those of the answers, at their mean context.
  The engines are those of 2024 (vLLM before its engine v1), which is what most of the error is of: they say how designs
  compare, not how fast today's engine is. Batches that do not fit into the KV cache at once are left out, since what
  these engines did then is not known, and batches of 1, of which some include the warm-up. Weights are taken to be in
  16 bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

import evaluator
from evaluator.catalog import load_model
from evaluator.cost.parallel import Parallel
from evaluator.errors import InputError
from evaluator.experiments.names import model_name
from evaluator.replica import ReplicaSpec, build
from tests.benchmarks import multi_turn
from tests.benchmarks.accuracy.slices import judged, kind_of

FILE, TURNS, RUNS = "argonne_runs.csv", "multiturn_b200_requests.parquet", "multiturn_b200_runs.csv"
FULL = 512
"""Clients whose conversations outgrow the cache."""
GPUS = {"MI300X": "mi300x", "H100": "h100-sxm", "A100": "a100-sxm", "GH200": "gh200"}
ENGINES = {"vLLM": "vllm", "TensorRT-LLM": "trtllm"}
BATCHES = (1, 16, 32, 64, 256)
METRICS = {"ttft_mean": "ttft_s", "tpot_mean": "tpot_s", "e2e_mean": "e2e_s", "output_tok_per_s": "tok_per_s"}


def rows(data: Path) -> Iterator[pd.DataFrame]:
    """The errors of every run of conversations, and of every batch whose model the catalog has."""
    yield from _conversations(data)
    yield batches(data)


def _conversations(data: Path) -> Iterator[pd.DataFrame]:
    turns = pd.read_parquet(data / TURNS)
    for run in pd.read_csv(data / RUNS).to_dict("records"):
        # Host memory changes nothing where the conversations fit on the device, and takes as long to compute.
        if run["kv_offload"] == "on" and run["clients"] < FULL:
            continue
        recorded = turns[turns["run_id"] == run["run_id"]].sort_values("send_s", kind="stable")
        computed = multi_turn.served(run, recorded, attention_backend="flashinfer")
        measured = multi_turn.measured(run, recorded)
        host = ", host memory" if run["kv_offload"] == "on" else ""
        part = f"conversations, b200-sxm, {run['clients']:3} clients{host}"
        for metric, name in METRICS.items():
            yield judged("closed loops", [part], metric, pd.Series([computed[name]]), pd.Series([measured[name]]))


def batches(data: Path) -> pd.DataFrame:
    """The errors of Argonne's batches."""
    table = pd.read_csv(data / FILE)
    known = (table["table"] == "all_results") & ~table["is_repeated_key"] & (table["batch_size"] > 1)
    table = table[known & table["gpu"].isin(list(GPUS)) & table["engine"].isin(list(ENGINES))]
    predicted = pd.Series(np.nan, table.index)
    for (gpu, engine, name, devices), part in table.groupby(["gpu", "engine", "model", "num_gpus"]):
        model = _model(name)
        if model is not None:
            predicted[part.index] = _batch_s(part, model, GPUS[gpu], ENGINES[engine], int(devices))
    batch = pd.cut(table["batch_size"], BATCHES).map(lambda of: f"{of.left + 1:3} to {of.right:3} at a time")
    part = [
        f"batches, {gpu}, {engine} of 2024, {of}"
        for gpu, engine, of in zip(table["gpu"].map(GPUS), table["engine"], batch, strict=True)
    ]
    kind = [kind_of(load_model(model)) if (model := _model(name)) else "" for name in table["model"]]
    drawn = {"at": table["batch_size"], "kind": kind}
    return judged("closed loops", part, "e2e_mean", predicted, table["latency_s"], **drawn)


def _batch_s(part: pd.DataFrame, model: str, hardware: str, engine: str, devices: int) -> np.ndarray:
    """Seconds of whole batches of one server; NaN of those that do not fit into its KV cache."""
    batch, prompt, output = (part[name].to_numpy(float) for name in ("batch_size", "input_tokens", "output_tokens"))
    server = {"tensor_parallel": devices, "engine": engine, "unequal": 0.0}
    built = build(ReplicaSpec(model, hardware, "auto", parallel=Parallel(devices), engine=engine))
    capacity = 0.0 if built.problem is not None else built.ready.kv.capacity_tokens
    asked = load_model(model), hardware
    prompts_s = evaluator.iteration_time(*asked, prompt_tokens=prompt, prompts=batch, **server)
    token_s = evaluator.iteration_time(*asked, decodes=batch, context_tokens=prompt + output / 2, **server)
    return np.where(batch * (prompt + output) <= capacity, prompts_s + (output - 1) * token_s, np.nan)


@cache
def _model(published: str) -> str | None:
    try:
        name = model_name(published.rsplit("/", 1)[-1].lower().removesuffix("-hf").replace("meta-", ""))
        load_model(name)
    except InputError:
        return None
    return name
