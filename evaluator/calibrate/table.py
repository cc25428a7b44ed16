"""Measurement tables: our columns, and reading files of ours or of a known source.

A table has one measurement per row. ``op_class`` says of what; each class needs its ``COLUMNS``, everything in SI
(``time_s`` seconds, bytes, tokens) and per device: shapes are those that one device sees. calibration/README.md says
what each column is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from evaluator.calibrate.sources import CONVERTERS
from evaluator.errors import InputError

COLUMNS: dict[str, tuple[str, ...]] = {
    "gemm": ("m", "n", "k"),
    "grouped_gemm": ("tokens", "hidden", "intermediate", "top_k", "experts", "expert_parallel"),
    "attention_prefill": ("batch", "new_tokens", "past_tokens", "heads", "kv_heads", "head_dim"),
    "attention_decode": ("batch", "past_tokens", "heads", "kv_heads", "head_dim"),
    "mla_prefill": ("batch", "new_tokens", "past_tokens", "heads", "kv_rank", "nope_dim", "rope_dim", "value_dim"),
    "mla_decode": ("batch", "past_tokens", "heads", "kv_rank", "nope_dim", "rope_dim", "value_dim"),
    "attention_mixed": (
        "batch", "new_tokens", "past_tokens", "decodes", "decode_context", "heads", "kv_heads", "head_dim",
    ),
    "elementwise": ("bytes",),
    "all_reduce": ("devices", "message_bytes"),
    "all_gather": ("devices", "message_bytes"),
    "all_to_all": ("devices", "message_bytes"),
    "iteration": (
        "tensor_parallel", "expert_parallel", "prompts", "prompt_tokens", "past_tokens", "decodes", "context",
    ),
}  # fmt: skip
"""Numeric columns that each class needs."""

TEXT = {"dtype": "bf16", "activations": "", "kv_dtype": "bf16", "routing": "balanced", "mode": "graph", "model": "",
        "hardware": "", "engine": "any", "engine_version": "any", "kernel": "", "library": ""}  # fmt: skip
"""Text columns and what an absent one means."""

_ABSENT = {"expert_parallel": 1.0, "past_tokens": 0.0}
"""Numbers that an iteration may leave out, and what that means."""

LARGEST = 1e15
"""The most of any column: no device holds as many bytes or tokens, and products of two still fit integers."""

SUFFIXES = (".csv", ".parquet")

_SERVING = (
    "no table of kernels or iterations; to fit to runs of a server: "
    "evaluator compare SPECS.json ACTUALS.csv --fit FOLDER"
)


@dataclass(frozen=True)
class Table:
    """One file: its rows in our columns, and what identifies it."""

    name: str
    sha256: str
    source: str  # ours, or the converter's name
    rows: pd.DataFrame


def read_tables(paths: Sequence[str | Path]) -> tuple[Table, ...]:
    """The tables of these files; InputError for a file that is none."""
    return tuple(read_table(Path(path)) for path in paths)


def read_table(path: Path, some: Callable[[pd.DataFrame], pd.DataFrame] | None = None) -> Table:
    """One file of measurements, in our columns or in those of a known source. ``some`` takes the rows that are wanted
    of it, in its own columns."""
    if path.suffix == ".json":
        raise InputError(f"{path}: {_SERVING}")
    if path.suffix not in SUFFIXES:
        raise InputError(f"{path}: a table of measurements ends in {' or '.join(SUFFIXES)}")
    content = path.read_bytes()
    try:
        frame = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    except Exception as error:  # damaged files make pandas and Arrow fail in all ways
        raise InputError(f"{path}: not a readable table ({error})") from None
    if frame.empty:
        raise InputError(f"{path}: the table has no rows; a row is a measurement")
    source = "own"
    if some is not None:
        frame = some(frame)
    # A table without our column is one of a source that is known by its columns.
    if "op_class" not in frame:
        source, frame = _convert(path, frame)
    return Table(path.name, hashlib.sha256(content).hexdigest(), source, checked(frame, path.name))


def _convert(path: Path, frame: pd.DataFrame) -> tuple[str, pd.DataFrame]:
    for name, needed, convert in CONVERTERS:
        if needed <= set(frame.columns):
            try:
                return name, convert(frame)
            except (TypeError, ValueError, KeyError, ArithmeticError) as error:
                raise InputError(f"{path}: a table of {name} with values that it does not have ({error})") from None
    if "exp_id" in frame:
        raise InputError(f"{path}: {_SERVING}")
    raise InputError(
        f"{path}: neither a column op_class nor the columns of a known source "
        f"({', '.join(name for name, _, _ in CONVERTERS)}); calibration/README.md names ours"
    )


def checked(frame: pd.DataFrame, where: str) -> pd.DataFrame:
    """``frame`` with every text column, numbers as float64; InputError where a class lacks what it needs."""
    rows = frame.reset_index(drop=True).copy()
    if "time_s" not in rows:
        raise InputError(f"{where}: column time_s is missing")
    for name, absent in TEXT.items():
        # As objects: a column whose cells are all empty is read as numbers, which pandas fills with no text.
        rows[name] = rows[name].astype(object).fillna(absent).astype(str) if name in rows else absent
    # Tables without a column for activations were measured on inputs of the weights' dtype.
    rows["activations"] = rows["activations"].where(rows["activations"] != "", rows["dtype"])
    if "window" not in rows:
        rows["window"] = 0.0
    rows["window"] = rows["window"].fillna(0.0)
    iterations = rows["op_class"] == "iteration"
    # An iteration of a single device, or without history, need not say so.
    for name, number in _ABSENT.items() if iterations.any() else ():
        given = rows[name] if name in rows else pd.Series(np.nan, rows.index)
        rows[name] = given.mask(iterations & given.isna(), number)
    for op_class, part in rows.groupby("op_class"):
        if op_class not in COLUMNS:
            raise InputError(f"{where}: op_class '{op_class}' is unknown; there are: {', '.join(COLUMNS)}")
        for column in (*COLUMNS[op_class], "time_s"):
            # A column that is not there is NaN, which the message below names as it does an empty cell.
            values = pd.to_numeric(part[column], errors="coerce") if column in rows else pd.Series([np.nan])
            if not (np.isfinite(values) & (values >= 0)).all():
                raise InputError(f"{where}: rows of {op_class} need numbers of at least 0 in column {column}")
            if values.max() > LARGEST:
                raise InputError(
                    f"{where}: rows of {op_class}: {values.max():g} in column {column} is more than {LARGEST:g}"
                )
    if not (rows["time_s"] > 0).all():
        raise InputError(f"{where}: time_s must be above 0")
    numeric = {column for columns in COLUMNS.values() for column in columns} & set(rows.columns)
    return rows.astype(dict.fromkeys([*numeric, "time_s", "window"], float))
