"""Servers of TensorRT-LLM under MLPerf Inference 4.1 and 5.1 (``mlperf_runs.csv``), which no set was fitted to.

Runs give the tokens per second and the mean time per token. Their product is how many requests were in decode, on a
replica its share of them (Little's law); the mean iteration with so many is predicted, and compared with the mean time
per token. So nothing of a queue is judged, which near saturation a few per cent of a service make as long as one likes.
Prompts come as often as answers end, and are computed whole. Lengths are the data set's, outputs scaled to the mean of
the run (``mlperf_lengths.parquet``). Answers are greedy, as the benchmark's rules ask for (``language/*/SUT_*.py`` of
mlcommons/inference: top-k 1, or no sampling), so that nothing is sorted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

import evaluator
from evaluator.accuracy.cases import STATISTICS, plain
from evaluator.catalog import load_model
from evaluator.catalog.model import Model
from evaluator.compare.expected import ROW
from evaluator.cost.parallel import Parallel
from evaluator.cost.precision import Precision
from evaluator.replica import ReplicaSpec
from tests.benchmarks.accuracy.coverage import told_by
from tests.benchmarks.accuracy.slices import judged, kind_of

FILE, LENGTHS = "mlperf_runs.csv", "mlperf_lengths.parquet"
ENGINES = {"TensorRT-LLM": "trtllm"}
"""Of other engines no run on GPUs of NVIDIA says how it was laid out."""
GPUS = {
    "NVIDIA H100-SXM-80GB": "h100-sxm",
    "NVIDIA H200-SXM-141GB": "h200-sxm",
    "NVIDIA H200-SXM-141GB-CTS": "h200-sxm",
    "NVIDIA GH200 Grace Hopper Superchip 144GB": "gh200",
    "NVIDIA B200-SXM-180GB": "b200-sxm",
    "NVIDIA GB200": "gb200",
    "NVIDIA GB300": "gb300",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "rtx-pro-6000-server",
}
MODELS = {
    "llama2-70b": "llama-2-70b",
    "mixtral-8x7b": "mixtral-8x7b",
    "llama3.1-405b": "llama-3.1-405b",
    "llama3.1-8b": "llama-3.1-8b",
    "deepseek-r1": "deepseek-r1",
}
DTYPES = {"fp8": "fp8", "fp4": "nvfp4"}


def rows(data: Path) -> Iterator[pd.DataFrame]:
    """The errors of every run that says how it was laid out, by device and model."""
    table = _runs(data)
    part = [f"{gpu}, {model}" for gpu, model in zip(table["hardware"], table["model"], strict=True)]
    drawn = {"at": table["decodes"], "kind": [kind_of(load_model(model)) for model in table["model"]]}
    yield judged("mlperf, TensorRT-LLM", part, "tpot_mean", table["predicted_ms"], table["tpot_mean_ms"], **drawn)


def errors_of_cases(data: Path) -> pd.DataFrame:
    """Rows of the case that each run tells of (``told_by``); the mean iteration is of an E2E all but its TTFT."""
    listed = []
    for number, row in _runs(data).iterrows():
        spec = ReplicaSpec(
            _greedy(row["model"]), row["hardware"], "auto", _precision(row), _layout(row), engine=row["engine"]
        )
        case = told_by(spec, None)
        if case is None:
            continue
        error = round(row["tpot_mean_ms"] / row["predicted_ms"] - 1.0, 5)
        run = f"{row['submitter']}, {row['benchmark']} {row['scenario']}, row {number}"
        of_server = (row["model"], row["hardware"], str(_layout(row).tensor), plain(row["decodes"]))
        described = dict(zip(ROW, (case, FILE, run, 0, *of_server), strict=True))
        listed.append(described | {"itl_mean": error, "e2e_mean": error})
    return pd.DataFrame(listed).reindex(columns=[*ROW, *STATISTICS])


def _runs(data: Path) -> pd.DataFrame:
    """The runs with a time per token and a known layout, with what is predicted of each."""
    table = pd.read_csv(data / FILE)
    short = table["benchmark"].str.replace("llama3_1", "llama3.1").str.extract(f"^({'|'.join(MODELS)})", expand=False)
    table = table.assign(
        engine=table["engine"].map(ENGINES), hardware=table["gpu"].map(GPUS), model=short.map(MODELS),
        weights=table["precision"].map(DTYPES),
    )  # fmt: skip
    stated = ["engine", "hardware", "model", "weights", "tensor_parallel", "tpot_mean_ms", "length_set"]
    table = table[table[stated].notna().all(axis=1) & ~table["is_repeated_run"]]
    # A run in place of the reference's own model (pruned, fine-tuned) is another model.
    table = table[table["benchmark"].str.match(rf"({'|'.join(MODELS)}|llama3_1-(405b|8b))(-99(\.9)?)?$")]
    lengths = _lengths(data)
    return table.assign(
        **pd.DataFrame([_predicted(row, *lengths[row["length_set"]]) for _, row in table.iterrows()], index=table.index)
    )


def _lengths(data: Path) -> dict[str, tuple[float, float]]:
    """By data set: the mean prompt, and how much of a mean answer a decode has generated at a random moment."""
    found = {}
    for name, part in pd.read_parquet(data / LENGTHS).groupby("length_set"):
        answers = part["reference_output_tokens"].dropna().to_numpy(float)
        # Long answers are met more often; without references all are of one length, cut at the benchmark's limit.
        share = 0.5 if not len(answers) else float((answers**2).mean() / (2.0 * answers.mean() ** 2))
        found[str(name)] = (float(part["input_tokens"].mean()), share)
    return found


def _predicted(row: pd.Series, prompt: float, generated: float) -> dict[str, float]:
    """How many requests a replica has in decode, and its mean iteration."""
    layout, ranks = _layout(row), _layout(row).pipeline  # batches under way
    replicas = row["num_accelerators"] / layout.devices
    decodes = row["tokens_per_s"] * 1e-3 * row["tpot_mean_ms"] / replicas / layout.data
    answer = row["mean_output_tokens"]
    batch = {"decodes": decodes / ranks, "context_tokens": prompt + generated * answer}
    split = {"tensor_parallel": layout.tensor, "pipeline_parallel": layout.pipeline}
    split |= {"expert_parallel": layout.expert, "data_parallel": layout.data}
    asked = {"precision": _precision(row), "engine": row["engine"], **split}

    def seconds(**prompts: float) -> float:
        return float(evaluator.iteration_time(_greedy(row["model"]), row["hardware"], **asked, **batch, **prompts))

    per_iteration = decodes / ranks / answer
    share = -np.expm1(-per_iteration)  # of the iterations that have a prompt, or more
    alone_s, with_s = seconds(), seconds(prompt_tokens=prompt, prompts=per_iteration / share)
    return {"decodes": decodes, "predicted_ms": 1e3 * (alone_s + share * (with_s - alone_s))}


def _greedy(name: str) -> Model:
    return replace(load_model(name), nucleus_sampling=False)


def _layout(row: pd.Series) -> Parallel:
    """As the configuration has it; with attention in data-parallel ranks each device is one."""
    tensor, pipeline = int(row["tensor_parallel"]), int(np.nan_to_num(row["pipeline_parallel"], nan=1.0))
    expert = int(np.nan_to_num(row["expert_parallel"], nan=1.0))
    if row["attention_dp"] is True or row["attention_dp"] == "True":
        return Parallel(1, pipeline, expert, tensor)
    return Parallel(tensor, pipeline, expert)


def _precision(row: pd.Series) -> Precision:
    """KV in fp8, as all of these configurations say that say a dtype."""
    return Precision(row["weights"], kv="fp8")
