"""Which rows of the tables a fit uses, and which it keeps aside to judge itself."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from evaluator.calibrate.devices import Processors
from evaluator.calibrate.errors import LONG_S
from evaluator.calibrate.kernels import classes
from evaluator.calibrate.table import COLUMNS, Table
from evaluator.catalog import load_hardware
from evaluator.catalog.engines import ENGINES
from evaluator.catalog.hardware import Hardware
from evaluator.cost.dtypes import BYTES
from evaluator.errors import InputError

SHORTEST_S = 5e-6
"""Shorter calls are launches, and timers resolve them badly."""

HEAD_DIMS = (64, 256)
"""Head sizes from .. to: larger ones run on other kernels."""

VECTOR = 16
"""Triton's kernels load vectors where strides are multiples of this; other widths are of no model at a usual split."""

MOST_EXPERT_RANKS = 8
"""Experts spread over more devices than a server has run on kernels that are chosen as if all visits came to the few
experts that are held: tiles are far larger than what fills them, and a fit between both kinds meets neither."""

READ_SHARE = 0.1
"""A decode whose KV takes less of its time to read from memory is as long on KV in the cache: it is all overhead."""

HELD_OUT = 4  # one shape of so many

SMALL = 300
"""A class with no more rows is fitted on all of them and judged by rotation: one shape of four left out at a time."""

_SHAPES = {
    "gemm": ("n", "k"),
    "grouped_gemm": ("hidden", "intermediate", "experts", "top_k", "expert_parallel"),
    "attention_prefill": ("heads", "kv_heads", "head_dim", "window"),
    "attention_decode": ("heads", "kv_heads", "head_dim", "window"),
    "mla_prefill": ("heads", "new_tokens"),
    "mla_decode": ("heads", "past_tokens"),
    "attention_mixed": ("new_tokens", "decodes", "heads"),
    "elementwise": ("kernel", "bytes"),
    "iteration": ("model", "prompt_tokens", "context"),
}
"""What makes a shape: rows of one shape are all fitted or all kept aside. Collectives: by message."""


@dataclass(frozen=True)
class ClassRows:
    """Rows of one class, all on one device; ``fitted`` marks those that a fit may use, the rest are held out."""

    label: str  # class, with _8bit or _4bit where it applies
    op_class: str
    rows: pd.DataFrame
    fold: np.ndarray  # 0 .. HELD_OUT - 1, the same for all rows of a shape
    fitted: np.ndarray


def select(
    tables: Sequence[Table], hardware: str | Hardware, processors: Processors, engine: str | None = None
) -> tuple[tuple[ClassRows, ...], dict[str, int]]:
    """Usable rows of this hardware by class, and how many were left out and why. InputError where none is left.

    Of the kernels of several serving engines those of ``engine`` are used, and for a class that it has no rows of those
    of a library that another engine called: FlashInfer's kernels are the same in vLLM as in SGLang. InputError where
    the engine must be said and is not.
    """
    device = load_hardware(hardware) if isinstance(hardware, str) else hardware
    hardware = device.name
    rows = pd.concat([table.rows for table in tables], ignore_index=True)
    left: dict[str, int] = {}

    def keep(wanted: pd.Series, why: str) -> None:
        nonlocal rows
        if not wanted.all():
            left[why] = left.get(why, 0) + int((~wanted).sum())
            rows = rows[wanted.to_numpy()].reset_index(drop=True)

    devices_there = sorted(set(rows["hardware"].unique()) - {""})
    keep(rows["hardware"].isin([hardware, ""]), "other hardware")
    if not len(rows):
        raise InputError(f"the tables hold no measurement of {hardware}; there are: {', '.join(devices_there)}")
    # Of other engines only calls of libraries stay, which the engine may call as well.
    others = rows["engine"].isin(_other_engines(rows, hardware, engine))
    keep(~others | (rows["library"] != ""), "other engines")
    if not len(rows):
        raise InputError(f"the tables hold no measurement of {engine} on {hardware}")
    keep(rows["dtype"].isin(BYTES), "dtype without a peak of its own (block scales)")
    keep(rows["kv_dtype"].isin(("bf16", "fp16", "fp32")), "KV in 8 bits: other kernels")
    keep(rows["mode"] == "graph", "eager launches")
    if "head_dim" in rows:
        keep(rows["head_dim"].isna() | rows["head_dim"].between(*HEAD_DIMS), "head size beyond the usual kernels")
    if "intermediate" in rows:
        keep(~(rows["intermediate"] % VECTOR > 0), f"experts whose width is no multiple of {VECTOR}")
    if "expert_parallel" in rows:
        wide = (rows["op_class"] == "grouped_gemm") & (rows["expert_parallel"] > MOST_EXPERT_RANKS)
        keep(~wide, f"experts over more than {MOST_EXPERT_RANKS} devices")
    keep(
        ~_cached(rows, processors, device.memory_bandwidth),
        "decode attention whose KV fits into the cache, as it never does in an engine",
    )
    keep((rows["op_class"] == "iteration") | (rows["time_s"] >= SHORTEST_S), f"under {SHORTEST_S * 1e6:g} us")
    # Behind the filters above: of a dtype that is not known it has no class.
    rows["label"] = classes(rows)[0]
    # The last, as it goes by which classes the engine has usable rows of.
    keep(~_not_needed(rows, engine), "kernels of libraries, of which the engine has its own")
    return tuple(_of_class(str(label), part) for label, part in rows.groupby("label")), left


def _of_class(label: str, rows: pd.DataFrame) -> ClassRows:
    # Columns of other classes are all empty here, and would be numbers of nothing.
    rows = rows.dropna(axis=1, how="all").reset_index(drop=True)
    op_class = str(rows["op_class"].iloc[0])
    fold = folds(rows, op_class)
    # Fold 0 is kept aside, unless the class is so small that it is judged by rotation.
    return ClassRows(label, op_class, rows, fold, (fold > 0) | (len(rows) <= SMALL))


def _other_engines(rows: pd.DataFrame, hardware: str, engine: str | None) -> set[str]:
    """The serving engines whose kernels are not wanted; what is no engine's (NCCL) is wanted always."""
    engines_there = set(rows["engine"].unique()) & set(ENGINES)
    if engine is None and len(engines_there) > 1:
        raise InputError(
            f"the tables hold kernels of {' and '.join(sorted(engines_there))} on {hardware}; choose one with --engine"
        )
    return engines_there - {engine} if engine is not None else set()


def _not_needed(rows: pd.DataFrame, engine: str | None) -> pd.Series:
    """Rows of other engines' calls of a library, in classes of which there are rows of the engine's own."""
    of_engine = rows["engine"].isin(set(ENGINES) if engine is None else {engine})
    foreign = rows["engine"].isin(ENGINES) & ~of_engine
    return foreign & rows["label"].isin(rows.loc[of_engine, "label"].unique())


def _cached(rows: pd.DataFrame, processors: Processors, bandwidth: float) -> pd.Series:
    """Decode attention on KV in the cache, in tables of isolated calls; of MLA only where it took any time to read."""
    decodes = rows["op_class"].isin(("attention_decode", "mla_decode"))
    if not decodes.any():
        return decodes
    # What a decode attends to: its context, or of it the window.
    seen = rows["past_tokens"].where(rows["window"] == 0, np.minimum(rows["past_tokens"], rows["window"]))
    elements = pd.Series(np.nan, rows.index)
    if "head_dim" in rows:
        # Keys and values; of MLA, whose rows have no head_dim, the latent with its rotary part, once for both.
        elements = 2 * rows["kv_heads"] * rows["head_dim"]
    if "kv_rank" in rows:
        elements = elements.fillna(rows["kv_rank"] + rows["rope_dim"])
    read = rows["batch"] * seen * elements * rows["kv_dtype"].map(BYTES)
    # Calls so short that reading takes next to nothing of them tell of overheads, in the cache or out of it.
    short = (rows["op_class"] == "mla_decode") & (rows["time_s"] < LONG_S)
    free = short & (read / bandwidth < READ_SHARE * rows["time_s"])
    return decodes & (read < processors.cache_bytes) & ~free


def folds(rows: pd.DataFrame, op_class: str) -> np.ndarray:
    """The fold of every row by a hash of its shape, the same in every run; fold 0 is kept aside."""
    names = [name for name in _SHAPES.get(op_class, COLUMNS[op_class]) if name in rows]
    shapes = rows[names].drop_duplicates()  # far fewer than rows, whose texts would take longer than all the rest
    keys = map("|".join, zip(*(shapes[name].astype(str) for name in names), strict=True))
    unique = np.array([zlib.crc32(key.encode()) % HELD_OUT for key in keys])
    return unique[rows.groupby(names, sort=False, dropna=False).ngroup()]


def thin(part: ClassRows, most: int) -> np.ndarray:
    """Indices of at most ``most`` rows to fit, evenly over the sizes of their times."""
    candidates = np.flatnonzero(part.fitted)
    if len(candidates) <= most:
        return candidates
    # Every n-th of those sorted by time: a random choice would be of the many small shapes alone.
    order = candidates[np.argsort(part.rows["time_s"].to_numpy()[candidates], kind="stable")]
    return np.sort(order[np.linspace(0, len(order) - 1, most).round().astype(int)])
