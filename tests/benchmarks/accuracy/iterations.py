"""Iterations of vLLM 0.20.1 on B300, one by one (``vllm_iterations.parquet``); greedy, so that nothing is sorted.

Rows whose time is not theirs alone (a kernel compiled, another rank's prompts, a launch that delays the answer before)
are left out; of the last, whose sum is right, whole episodes are judged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

import evaluator
from evaluator.catalog import load_model
from tests.benchmarks.accuracy.slices import judged

FILE = "vllm_iterations.parquet"
HARDWARE = "b300-sxm"
MODELS = {"Qwen/Qwen3-32B": "qwen3-32b", "Qwen/Qwen3.6-35B-A3B": "qwen3.5-35b-a3b"}
LAYOUT = ["model", "tensor_parallel", "expert_parallel", "data_parallel"]
LARGEST_GRAPH = 512


def rows(data: Path) -> Iterator[pd.DataFrame]:
    """The errors of every iteration, and of episodes."""
    table = pd.read_parquet(data / FILE)
    table["predicted_ms"] = np.nan
    for layout, part in table.groupby(LAYOUT, observed=True):
        table.loc[part.index, "predicted_ms"] = predicted_ms(part, layout)
    used = table[table["used"]]
    yield judged("iterations", _slices(used), "iteration", used["predicted_ms"], used["iteration_ms"])
    shifted = table[table["launch_shift"] & ~table["stall"]]
    episodes = shifted.groupby(["run", "segment", "episode"], observed=True)
    sums = episodes[["predicted_ms", "iteration_ms"]].sum().reset_index()
    part = [f"{run}, {segment}" for run, segment in zip(sums["run"], sums["segment"], strict=True)]
    yield judged("iterations", part, "episode", sums["predicted_ms"], sums["iteration_ms"])


def predicted_ms(part: pd.DataFrame, layout: tuple) -> np.ndarray:
    """Of iterations of one layout, as ``evaluator.iteration_time`` has them."""
    model, tensor, expert, data = layout
    decodes, prompts = part["decodes"].to_numpy(), np.maximum(part["prefill_prompts"].to_numpy(), 1)
    computed, history = part["prefill_tokens"].to_numpy(), part["prefill_history_tokens"].to_numpy()
    # The file has what decodes attended to before; with the new token they attend to one more.
    context = np.where(decodes > 0, part["decode_kv_tokens"].to_numpy() / np.maximum(decodes, 1) + 1, 0)
    empty = computed + decodes == 0

    def seconds(unequal: float | None) -> np.ndarray:
        return evaluator.iteration_time(
            replace(load_model(MODELS[model]), nucleus_sampling=False), HARDWARE,
            prompt_tokens=computed / prompts, history_tokens=history / prompts, prompts=prompts,
            decodes=np.where(empty, 1, decodes), context_tokens=context, unequal=unequal,
            tensor_parallel=int(tensor), expert_parallel=int(expert), data_parallel=int(data),
        )  # fmt: skip

    equal_s, twice_s = seconds(0.0), seconds(1.0)
    # Sweeps are of equal contexts; nobody recorded the longest of data-parallel ranks, which is then as in a chat.
    longest = part["decode_kv_longest_tokens"].to_numpy(float) + 1
    longer = np.where(part["segment"] == "sweep", 0, longest / np.maximum(context, 1) - 1)
    longer = np.where(decodes > 0, longer, 0)
    times = np.where(np.isnan(longer), seconds(None), equal_s + longer * (twice_s - equal_s))
    return np.where(empty, np.nan, 1e3 * times)


def _slices(table: pd.DataFrame) -> list[str]:
    tokens = table["prefill_tokens"] + table["decodes"]
    kind = np.select(
        [table["prefill_tokens"] == 0, tokens <= LARGEST_GRAPH, tokens <= 4 * LARGEST_GRAPH],
        ["decodes", "prompts, up to 512 tokens", "prompts, 513 to 2048 tokens"],
        "prompts, more tokens",
    )
    return [f"{run}, {of}" for run, of in zip(table["run"], kind, strict=True)]
