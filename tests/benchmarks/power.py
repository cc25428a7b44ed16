"""The power of a busy device (``evaluator.metrics.power``), from measured runs:
``python -m tests.benchmarks.power DATA``.

An A100's is fitted to Splitwise's runs (``splitwise_perf_model.csv``), an H100's to batches of ML.ENERGY's chat that
were held full (``mlenergy_h100_chat.csv``, as ``accuracy.closed_batches`` reads them). It prints each law's constants,
and signed and absolute errors of the power of an H100 by batch: of the law of the A100, of its own, and of laws that
were fitted without the model that they are asked about.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from evaluator.catalog import load_hardware
from evaluator.cost.batch import decode_batch, prefill_batch, together
from evaluator.cost.iteration import share_touched
from evaluator.cost.memory import model_window
from evaluator.cost.parallel import Parallel
from evaluator.cost.quantities import batch_tokens
from evaluator.cost.utilisation import ideal_time
from evaluator.errors import InputError
from evaluator.metrics.power import A100, H100, PowerLaw, busy_power
from evaluator.replica import ReplicaSpec, build, passage
from tests.benchmarks.accuracy import closed_batches

SPLITWISE = "splitwise_perf_model.csv"
MODELS = {"llama2-70b": (69e9, 2 * 2 * 8 * 128 * 80), "bloom-176b": (176e9, 2 * 2 * 14336 * 70)}  # parameters, KV bytes
BATCHES = (0, 8, 16, 32, 64, 128, 256, 1024)


def a100_runs(data: Path) -> pd.DataFrame:
    """MFU, MBU and power (as a part of the TDP) of Splitwise's runs on A100, means over prefill and decode."""
    device = load_hardware("a100-sxm")
    table = pd.read_csv(data / SPLITWISE)
    known = (table["gpu"] == "a100-80gb") & table["average_power_fraction"].notna() & (table["prompt_tokens"] < 8192)
    table = table[known & ~table["is_suspect"] & ~table["is_exact_duplicate"]]
    weights, kv = (table["model"].map({name: figures[at] for name, figures in MODELS.items()}) for at in (0, 1))
    devices, batch = table["tensor_parallel_size"], table["batch_size"]
    prompt_s, token_s = table["prompt_time_s"], table["token_time_s"]
    share = prompt_s / (prompt_s + token_s * (table["output_tokens"] - 1))
    context = (table["prompt_tokens"] + table["output_tokens"] / 2) * batch
    prefill_flops = 2 * weights * table["prompt_tokens"] * batch / prompt_s
    decode_bytes = (2 * weights + kv * context) / token_s
    flops = share * prefill_flops + (1 - share) * 2 * weights * batch / token_s
    moved = share * 2 * weights / prompt_s + (1 - share) * decode_bytes
    return pd.DataFrame(
        {
            "model": table["model"],
            "batch": batch,
            "mfu": flops / devices / device.peak_flops["bf16"],
            "mbu": moved / devices / device.memory_bandwidth,
            "part": table["average_power_fraction"],
        }
    )


def h100_runs(data: Path) -> pd.DataFrame:
    """The same of ML.ENERGY's batches on H100, of mean iterations with their prompts; rows of unknown models left out.

    What an iteration computes and reads is the model's, as of any simulated run; the time is the measured one.
    """
    table = pd.read_csv(data / closed_batches.FILE)
    work = pd.DataFrame([_at_peak_s(row) for _, row in table.iterrows()], index=table.index, columns=["flops", "bytes"])
    measured_s = table["avg_batch_size"] / table["output_throughput_tokens_per_sec"]
    tdp = load_hardware(closed_batches.HARDWARE).power_w
    runs = pd.DataFrame(
        {
            "model": table["model_id"],
            "batch": table["max_num_seqs"],
            "mfu": work["flops"] / measured_s,
            "mbu": work["bytes"] / measured_s,
            "part": table["avg_power_watts"] / table["num_gpus"] / tdp,
        }
    )
    return runs.dropna()


def _at_peak_s(row: pd.Series) -> tuple[float, float]:
    """Seconds that the work of a mean iteration would take at the peak FLOP/s, and at the full bandwidth."""
    try:
        server = closed_batches.design(row)
    except InputError:
        return np.nan, np.nan
    layout = Parallel(server.tensor_parallel, 1, server.expert_parallel, 1)
    spec = ReplicaSpec(
        server.model, closed_batches.HARDWARE, "auto", server.precision, layout, engine_version=closed_batches.RELEASE
    )
    # With the rows that this release's kernels fill experts up with: they take power, too.
    through, window = passage(build(spec)), model_window(server.model)
    seats, output = row["avg_batch_size"], row["avg_output_len"]
    decodes = decode_batch(seats, closed_batches.PROMPT_TOKENS + closed_batches.GENERATED * output, window)
    # Prompts come as often as answers end. What they compute adds to the iteration; its weights are read once for all.
    batch = together(prefill_batch(seats / output, closed_batches.PROMPT_TOKENS, window), decodes)
    touched = share_touched(through.cost, batch_tokens(through.cost, decodes))
    return (
        float(ideal_time(through.executed_compute, batch, touched=touched)),
        float(ideal_time(through.executed_memory, batch, touched=touched)),
    )


def part_of_tdp(law: Sequence[float], runs: pd.DataFrame) -> np.ndarray:
    """The power that a law says of runs, as a part of the TDP."""
    ones = np.ones(len(runs))
    return busy_power(ones, 0.0 * ones, np.asarray(law), runs["mfu"].to_numpy(), runs["mbu"].to_numpy())


def fitted(runs: pd.DataFrame, relative: bool = True) -> PowerLaw:
    """The law of least squares, of errors relative to the power or to the TDP."""
    measured = runs["part"].to_numpy()
    scale = measured if relative else 1.0
    return PowerLaw(*least_squares(lambda law: (part_of_tdp(law, runs) - measured) / scale, (0.5, 0.5, 0.5)).x)


def left_out(runs: pd.DataFrame) -> np.ndarray:
    """Of each run what a law says that was fitted to the runs of all other models."""
    said = np.full(len(runs), np.nan)
    for model in runs["model"].unique():
        mine = (runs["model"] == model).to_numpy()
        said[mine] = part_of_tdp(fitted(runs[~mine]), runs[mine])
    return said


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the constants, and the errors of the H100 by batch."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.power", description=__doc__)
    parser.add_argument("data", type=Path)
    data = parser.parse_args(arguments).data
    of_a100, runs = a100_runs(data), h100_runs(data)
    for name, law, of in (("A100", fitted(of_a100, relative=False), of_a100), ("H100", fitted(runs), runs)):
        off = np.abs(part_of_tdp(law, of) - of["part"]).mean()
        figures = ", ".join(f"{figure} {value:.3f}" for figure, value in law._asdict().items())
        print(f"{name}: {figures}; {len(of)} runs, off by {100 * off:.1f} % of the TDP")
    said = {"A100's": part_of_tdp(A100, runs), "H100's": part_of_tdp(H100, runs), "others'": left_out(runs)}
    errors = pd.DataFrame({law: 100 * (part / runs["part"] - 1) for law, part in said.items()})
    groups = [(str(group), of) for group, of in errors.groupby(pd.cut(runs["batch"], BATCHES), observed=True)]
    for title, of in [*groups, ("all", errors)]:
        shown = (f"{law} {of[law].median():+6.1f} ({of[law].abs().mean():4.1f})" for law in errors)
        print(f"{title:>14}, {len(of):3} runs, % signed in the median (mean absolute): {', '.join(shown)}")


if __name__ == "__main__":
    main()
