"""What a penalty for what was said takes of the host: seconds per sequence, and per generated token.

``python -m tests.benchmarks.penalties mlenergy_h100_chat.csv`` fits either to batches of ML.ENERGY's chat on H100
(vLLM 0.11.1, dense models in 16 bits) by least squares of relative errors of the median time between chunks, beside an
iteration by the shipped set without it. It prints each with the mean absolute and median error of the rows that it was
fitted to, of models left out, and of models with experts, which no fit saw.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from evaluator.catalog import load_calibration
from evaluator.errors import InputError
from tests.benchmarks.accuracy import closed_batches
from tests.benchmarks.accuracy.closed_batches import HARDWARE


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a block of lines per form."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.penalties", description=__doc__)
    parser.add_argument("data", type=Path)
    table = pd.read_csv(parser.parse_args(arguments).data)
    rows = table[table["weight_precision"] == "bfloat16"]
    rows = rows.assign(beside_s=[_beside_s(row) for _, row in rows.iterrows()]).dropna(subset="beside_s")
    model, kind = rows["model_id"].str.rsplit("/", n=1).str[-1], rows["architecture"].str.split(" ").str[0]
    dense, llama = kind == "Dense", model.str.startswith("Llama-3")
    generated = closed_batches.GENERATED * rows["avg_output_len"]
    for unit, scale, each in (("us a sequence", 1e6, 1.0), ("ns a generated token", 1e9, generated)):
        units = rows["avg_batch_size"] * each
        print(_told("all dense", rows, units, dense, dense, unit, scale))
        for name in model[dense].unique():
            print(_told(f"without {name}", rows, units, dense & (model != name), model == name, unit, scale))
        print(_told("by Llama's alone", rows, units, dense & llama, dense & ~llama, unit, scale))
        print(_told("by the others' alone", rows, units, dense & ~llama, dense & llama, unit, scale))
        for name in model[kind == "MoE"].unique():
            print(_told(f"all dense, of {name}", rows, units, dense, model == name, unit, scale))


def _beside_s(row: pd.Series) -> float:
    """An iteration of decodes whose penalties take the host nothing; NaN for a model that is not known."""
    try:
        server = closed_batches.design(row)
    except InputError:
        return np.nan
    context = closed_batches.PROMPT_TOKENS + closed_batches.GENERATED * row["avg_output_len"]
    whole_s = server.seconds(decodes=row["avg_batch_size"], context_tokens=context)
    # The set's own time per sequence adds to all else of an iteration of decodes.
    return whole_s - row["avg_batch_size"] * load_calibration("h100-sxm-vllm.serving", HARDWARE).penalty_sequence_s


def _told(
    what: str, rows: pd.DataFrame, units: pd.Series, fitted: pd.Series, judged: pd.Series, unit: str, scale: float
) -> str:
    measured_s = 1e-3 * rows["median_itl_ms"]
    slope, rest = units / measured_s, 1.0 - rows["beside_s"] / measured_s
    each_s = (slope * rest)[fitted].sum() / (slope**2)[fitted].sum()
    errors = (each_s * slope - rest)[judged]
    return (
        f"{what:48}{scale * each_s:6.1f} {unit}; {judged.sum():3d} rows off by {100 * errors.abs().mean():4.1f} % "
        f"({100 * errors.median():+.1f} % in the median)"
    )


if __name__ == "__main__":
    main()
