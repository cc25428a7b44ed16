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

from evaluator.accuracy.cases import STATISTICS, plain
from evaluator.catalog import load_model
from evaluator.compare.expected import ROW
from evaluator.cost.batch import decode_batch, prefill_batch, together
from evaluator.cost.iteration import BatchStatistics, IterationCost, iteration_time, padded
from evaluator.cost.lockstep import Counts, Ranks, graph_tokens, launched_alone, rank_cost, steps_together, time_alone
from evaluator.cost.memory import model_window
from evaluator.cost.parallel import Parallel
from evaluator.cost.quantities import batch_tokens
from evaluator.replica import ReplicaSpec, build, passage
from tests.benchmarks.accuracy.coverage import told_by
from tests.benchmarks.accuracy.slices import judged, kind_of

FILE = "vllm_iterations.parquet"
HARDWARE = "b300-sxm"
MODELS = {"Qwen/Qwen3-32B": "qwen3-32b", "Qwen/Qwen3.6-35B-A3B": "qwen3.5-35b-a3b"}
LAYOUT = ["model", "tensor_parallel", "expert_parallel", "data_parallel"]
RELEASE = "0.20"
LARGEST_GRAPH = 512
MOST_SEQUENCES = 1024.0
AT_A_TIME = (0, 8, 16, 32, 1024)
"""Decodes that part the rows of a server, on a data-parallel rank; 32 requests were served at a time."""
FEWEST = 20
"""Iterations with prompts of which a mean is taken."""


def rows(data: Path) -> Iterator[pd.DataFrame]:
    """The errors of every iteration, and of episodes."""
    table = pd.read_parquet(data / FILE)
    table["predicted_ms"] = np.nan
    for layout, part in table.groupby(LAYOUT, observed=True):
        table.loc[part.index, "predicted_ms"] = predicted_ms(part, layout)
    used = table[table["used"]]
    kind = used["model"].astype(str).map({published: kind_of(load_model(name)) for published, name in MODELS.items()})
    drawn = {"at": used["decodes"], "kind": kind}
    yield judged("iterations", _slices(used), "iteration", used["predicted_ms"], used["iteration_ms"], **drawn)
    shifted = table[table["launch_shift"] & ~table["stall"]]
    episodes = shifted.groupby(["run", "segment", "episode"], observed=True)
    sums = episodes[["predicted_ms", "iteration_ms"]].sum().reset_index()
    part = [f"{run}, {segment}" for run, segment in zip(sums["run"], sums["segment"], strict=True)]
    yield judged("iterations", part, "episode", sums["predicted_ms"], sums["iteration_ms"])


def errors_of_cases(data: Path) -> pd.DataFrame:
    """Rows of the case that each server tells of (``told_by``): the mean time of iterations with decodes as ITL, by how
    many decode, and that of iterations with prompts as TTFT."""
    table = pd.read_parquet(data / FILE)
    # Pairs of which one waits for the other are right in sum (``launch_shift``).
    table = table[(table["used"] | table["launch_shift"]) & ~table["stall"] & (table["segment"] == "real")]
    listed = []
    for layout, part in table.groupby(LAYOUT, observed=True):
        name, tensor, expert, ranks = layout
        model = replace(load_model(MODELS[name]), nucleus_sampling=False)
        spec = ReplicaSpec(model, HARDWARE, parallel=Parallel(int(tensor), 1, int(expert), int(ranks)))
        times = part.assign(predicted_ms=predicted_ms(part, layout)).dropna(subset=["predicted_ms"])
        # What serves and how; ranks are told apart, since they are servers of their own.
        server = f"{tensor}, experts over {expert}, {ranks} ranks" if expert > 1 else str(tensor)
        case = told_by(spec, RELEASE)
        if case is not None:
            listed += [
                dict(zip(ROW, (case, FILE, run, stage, model.name, HARDWARE, server, at_once), strict=True)) | errors
                for run, stage, at_once, errors in _errors(times, int(ranks))
            ]
    return pd.DataFrame(listed).reindex(columns=[*ROW, *STATISTICS])


def _errors(times: pd.DataFrame, ranks: int) -> Iterator[tuple[str, int, float, dict[str, float]]]:
    """Of one server: run, stage, requests at a time, and the errors of its means."""
    run = str(times["run"].iloc[0])
    decoding = times[times["decodes"] > 0]
    for stage, (_, part) in enumerate(decoding.groupby(pd.cut(decoding["decodes"], AT_A_TIME), observed=True)):
        error = _off(part)
        yield run, stage, plain(ranks * part["decodes"].mean()), {"itl_mean": error, "e2e_mean": error}
    # Not those right in sum alone: the iteration before a prompt's has part of its time. Some layouts have few others.
    prompts = times[times["used"] & (times["prefill_tokens"] > 0)]
    if len(prompts) >= FEWEST:
        yield run, len(AT_A_TIME), plain(ranks * prompts["decodes"].mean()), {"ttft_mean": _off(prompts)}


def _off(times: pd.DataFrame) -> float:
    return round(float(times["iteration_ms"].sum() / times["predicted_ms"].sum() - 1.0), 5)


def predicted_ms(part: pd.DataFrame, layout: tuple) -> np.ndarray:
    """Of iterations of one layout, as ``evaluator.iteration_time`` has them."""
    model, tensor, expert, data = layout
    decodes, prompts = part["decodes"].to_numpy(), np.maximum(part["prefill_prompts"].to_numpy(), 1)
    computed, history = part["prefill_tokens"].to_numpy(), part["prefill_history_tokens"].to_numpy()
    # The file has what decodes attended to before; with the new token they attend to one more.
    context = np.where(decodes > 0, part["decode_kv_tokens"].to_numpy() / np.maximum(decodes, 1) + 1, 0)
    empty = computed + decodes == 0
    served = (part["segment"] != "sweep").to_numpy()

    asked = replace(load_model(MODELS[model]), nucleus_sampling=False)
    split = Parallel(int(tensor), 1, int(expert), int(data))

    def seconds(unequal: float | None) -> np.ndarray:
        spec = ReplicaSpec(asked, HARDWARE, parallel=split, unequal=unequal, engine_version=RELEASE)
        window = model_window(asked)
        computing = prefill_batch(prompts * (computed > 0), computed / prompts, window, history / prompts)
        decoding = decode_batch(np.where(empty, 1.0, decodes), context, window)
        cost = passage(build(spec)).cost
        # A sweep sends all ranks the same at once.
        return np.where(served, _seconds(cost, computing, decoding, int(data)), _seconds(cost, computing, decoding, 1))

    equal_s, twice_s = seconds(0.0), seconds(1.0)
    # Sweeps are of equal contexts; nobody recorded the longest of data-parallel ranks, which is then as in a chat.
    longest = part["decode_kv_longest_tokens"].to_numpy(float) + 1
    longer = np.where(part["segment"] == "sweep", 0, longest / np.maximum(context, 1) - 1)
    longer = np.where(decodes > 0, longer, 0)
    times = np.where(np.isnan(longer), seconds(None), equal_s + longer * (twice_s - equal_s))
    return np.where(empty, np.nan, 1e3 * times)


def _seconds(cost: IterationCost, computing: BatchStatistics, decoding: BatchStatistics, data: int) -> np.ndarray:
    """Of the rank that was recorded. Others have as many decodes and no prompts, which come so seldom that two ranks
    hardly compute one at the same time: of 8,000 tokens of one of eight ranks their experts see 1,000 a rank."""
    own = together(computing, decoding)
    if data == 1:
        return np.asarray(iteration_time(cost, own))
    device, batches = rank_cost(cost), (own, *(decoding,) * (data - 1))
    tokens = [np.maximum(batch_tokens(device, batch), 1.0) for batch in batches]
    seen = [padded(each, graph_tokens(device)) for each in tokens]
    alone = np.maximum(time_alone(device, own), time_alone(device, decoding))
    counts = Counts(np.maximum(*tokens[:2]), sum(tokens) / data, sum(seen) / data)
    # One iteration: how it goes on with other contexts does not matter.
    ranks = Ranks(counts, alone, 0.0, 0.0, launched_alone(device, own))
    return np.asarray(steps_together(cost, ranks, MOST_SEQUENCES).first_s)


def _slices(table: pd.DataFrame) -> list[str]:
    tokens = table["prefill_tokens"] + table["decodes"]
    kind = np.select(
        [table["prefill_tokens"] == 0, tokens <= LARGEST_GRAPH, tokens <= 4 * LARGEST_GRAPH],
        ["decodes", "prompts, up to 512 tokens", "prompts, 513 to 2048 tokens"],
        "prompts, more tokens",
    )
    return [f"{run}, {of}" for run, of in zip(table["run"], kind, strict=True)]
