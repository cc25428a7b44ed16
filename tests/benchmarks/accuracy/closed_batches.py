"""Batches held full on H100: vLLM 0.11.1, ML.ENERGY's chat (``mlenergy_h100_chat.csv``).

The median time between chunks is that of an iteration without prompts, seats over throughput that of the mean
iteration. What the file does not say is taken from the benchmark's own code (ml-energy/benchmark @ c1d6557f,
``mlenergy/benchmark/llm/benchmark.py``): asynchronous scheduling, 8,192 tokens per iteration, and requests with
temperature 0.8, top-p 0.95 and a repetition penalty of 1.1.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
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
from evaluator.errors import InputError
from evaluator.experiments.names import model_name
from evaluator.huggingface.importing import import_config
from evaluator.keys import Place
from evaluator.replica import ReplicaSpec
from evaluator.scenario.token_sampling import asked_of_sampler
from tests.benchmarks.accuracy.coverage import told_by
from tests.benchmarks.accuracy.slices import judged

FILE = "mlenergy_h100_chat.csv"
HARDWARE = "h100-sxm"
RELEASE = "0.11.1"
PROMPT_TOKENS = 270.0
GENERATED = 0.83
"""Prompts are not published. Where fewer sequences ran than there were seats, the KV cache was full, and the mean
context follows from what fits: 530 to 660 tokens with answers of 350 to 410 (Llama), 830 to 930 with answers of 640
(Qwen3). That is a prompt of so many tokens and this part of the mean answer, which is more than half of it because long
answers stay longer. The context is uncertain by some 10 %, which is 1 to 4 % of an iteration of 256."""
MODELS = {"qwen3-30b-a3b-instruct-2507": "qwen3-30b-a3b", "qwen3-235b-a22b-instruct-2507": "qwen3-235b-a22b"}
CONFIGS = Path(__file__).resolve().parents[2] / "huggingface" / "published_configs.jsonl"
IMPORTED = {"nvidia-nemotron-nano-12b-v2": "nemotron-nano-12b-v2-vl"}
"""A model that is not in the catalog, and that of CONFIGS whose language model it is."""
DTYPES = {"bfloat16": "bf16", "fp8": "fp8"}
BLOCK_SCALES = ("Qwen/",)
"""Whose fp8 has a scale per block of 128 x 128 weights (``weight_block_size`` of the published configurations)."""
OWN_FP8 = ("meta-llama/Llama-3.1-405B-Instruct-FP8",)
"""Whose fp8 is of feed-forwards alone: "we do not quantize parameters in the self-attention layers of the model"
(The Llama 3 Herd of Models, arXiv:2407.21783, section 6.2; the first and last layer, in 16 bits too, are not told)."""
PLACE = Place("closed batches", "sampling")
BATCHES = (0, 8, 16, 32, 64, 128, 256, 1024)


@dataclass(frozen=True)
class Design:
    """What of a row ``evaluator.iteration_time`` is asked with."""

    model: Model
    tensor_parallel: int
    expert_parallel: int
    precision: Precision

    def seconds(self, **batch: float) -> float:
        """Of one iteration."""
        split = {"tensor_parallel": self.tensor_parallel, "expert_parallel": self.expert_parallel}
        asked = {"precision": self.precision, "engine_version": RELEASE}
        return float(evaluator.iteration_time(self.model, HARDWARE, **asked, **split, **batch))


def design(row: pd.Series) -> Design:
    """The server of a row. InputError for a model that is not in the catalog.

    ``tensor_parallel`` of the file is 1 where experts are spread: attention is still split over all GPUs, since the
    benchmark starts every server with ``--tensor-parallel-size`` of its GPUs.
    """
    short = row["model_id"].rsplit("/", 1)[-1].lower().removesuffix("-fp8")
    model = imported(IMPORTED[short]) if short in IMPORTED else load_model(MODELS.get(short) or model_name(short))
    weights = DTYPES[row["weight_precision"]]
    if weights == "fp8" and row["model_id"].startswith(BLOCK_SCALES):
        weights = "fp8_block"
    if row["model_id"] in OWN_FP8:
        model, weights = replace(model, checkpoint=replace(model.checkpoint, feed_forward="fp8")), "checkpoint"
    # Every request asks for top-p and a penalty, whatever the model's own configuration says.
    asked = replace(model, nucleus_sampling=True, penalties=True)
    return Design(asked, row["num_gpus"], row["expert_parallel"], Precision(weights))


@cache
def imported(name: str) -> Model:
    """The model of a published configuration that the tests keep."""
    found = (json.loads(line) for line in CONFIGS.read_text().splitlines())
    return import_config(next(entry["config"] for entry in found if entry["name"] == name), name)


def rows(data: Path) -> Iterator[pd.DataFrame]:
    """The errors of every row whose model the catalog has."""
    table = pd.read_csv(data / FILE)
    times = pd.DataFrame([predicted(row) for _, row in table.iterrows()], index=table.index)
    kind = table["architecture"].str.split(" |-").str[0].map({"Dense": "dense", "MoE": "experts", "Mamba": "state"})
    part = [f"{of}, {batch}" for of, batch in zip(kind, pd.cut(table["max_num_seqs"], BATCHES).map(shown), strict=True)]
    drawn = {"at": table["avg_batch_size"], "kind": kind}
    yield judged("closed batches", part, "itl_p50", times["itl_ms"], table["median_itl_ms"], **drawn)
    mean_ms = 1e3 * table["avg_batch_size"] / table["output_throughput_tokens_per_sec"]
    yield judged("closed batches", part, "mean_iteration", times["mean_ms"], mean_ms, **drawn)


def errors_of_cases(data: Path) -> pd.DataFrame:
    """Rows of the case that each server tells of (``told_by``).

    The mean iteration, prompts included, is the mean time per token of long answers, and of an E2E all but its TTFT.
    """
    table = pd.read_csv(data / FILE)
    listed = []
    for number, row in table.iterrows():
        mean_ms = predicted(row)["mean_ms"]
        if not np.isfinite(mean_ms):
            continue
        server, seats = design(row), row["avg_batch_size"]
        error = round(1e3 * seats / row["output_throughput_tokens_per_sec"] / mean_ms - 1.0, 5)
        # Two rows may be of one server at the same load, and are two runs.
        run = f"{row['model_id'].rsplit('/', 1)[-1]}, {row['num_gpus']} GPUs, {row['max_num_seqs']} at a time"
        layout = Parallel(server.tensor_parallel, 1, server.expert_parallel, 1)
        spec = ReplicaSpec(
            server.model, HARDWARE, "auto", server.precision, layout, asked=asked_of_sampler(None, PLACE)
        )
        of_server = (server.model.name, HARDWARE, str(server.tensor_parallel), plain(seats))
        case = told_by(spec, RELEASE)
        if case is not None:
            described = dict(zip(ROW, (case, FILE, f"{run}, row {number}", 0, *of_server), strict=True))
            listed.append(described | {"itl_mean": error, "e2e_mean": error})
    return pd.DataFrame(listed).reindex(columns=[*ROW, *STATISTICS])


def shown(batch: pd.Interval) -> str:
    return f"{batch.left + 1:4.0f} to {batch.right:4.0f} at a time"


def predicted(row: pd.Series) -> dict[str, float]:
    """An iteration without prompts, and the mean one: prompts come as often as answers end."""
    try:
        server = design(row)
    except InputError:
        return {"itl_ms": np.nan, "mean_ms": np.nan}
    seats, output = row["avg_batch_size"], row["avg_output_len"]
    decodes = {"decodes": seats, "context_tokens": PROMPT_TOKENS + GENERATED * output}
    alone_s = server.seconds(**decodes)
    per_iteration = seats / output
    share = -np.expm1(-per_iteration)  # of the iterations that have a prompt, or more
    with_s = server.seconds(prompt_tokens=PROMPT_TOKENS, prompts=per_iteration / share, **decodes)
    return {"itl_ms": 1e3 * alone_s, "mean_ms": 1e3 * (alone_s + share * (with_s - alone_s))}
