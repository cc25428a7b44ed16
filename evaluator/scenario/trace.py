"""Trace files: requests with their arrival times and lengths, from CSV or Parquet, checked row by row."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from evaluator.errors import InputError
from evaluator.yaml import read_text

TIMES = ("arrival_s",)
LENGTHS = ("prompt_tokens", "output_tokens")
_OPTIONAL = ("cached_tokens",)  # `session` may be there too; nothing uses it yet
MODEL = "model"


@dataclass(frozen=True, eq=False)
class Trace:
    """Columns of a trace, each (request,) and read-only; None where the file has no such column."""

    arrival_s: np.ndarray | None  # float64, sorted, from the start of the trace
    prompt_tokens: np.ndarray | None  # int64
    output_tokens: np.ndarray | None  # int64
    cached_tokens: np.ndarray | None  # int64, less than the prompt
    requests: int
    model: np.ndarray | None = None  # int64: which of ``models`` the request asks for
    models: tuple[str, ...] = ()  # in the order in which they first come


def read_trace(file: str, columns: Iterable[str] = TIMES + LENGTHS) -> Trace:
    """The trace in ``file`` (.parquet, or else CSV with a header); ``columns`` must be there.

    Rows are counted from 1 below the header. Errors: InputError naming the file, and the row, for missing columns,
    an empty file, NaN, unsorted or negative times, tokens that are no positive integers, more cached than prompt.
    """
    path = Path(file)
    try:
        stamp = path.stat()
    except OSError:
        raise InputError(f"{file}: there is no such trace file") from None
    trace, there = _read(file, stamp.st_mtime_ns, stamp.st_size)
    missing = [name for name in columns if name not in there]
    if missing:
        raise InputError(f"{file}: no column {', '.join(missing)}; the columns there are {', '.join(there) or 'none'}")
    return trace


@lru_cache(maxsize=16)
def _read(file: str, modified_ns: int, size: int) -> tuple[Trace, tuple[str, ...]]:
    wanted = TIMES + LENGTHS + _OPTIONAL
    parquet = Path(file).suffix.lower() in (".parquet", ".pq")
    columns, there, named = (_read_parquet if parquet else _read_csv)(file, wanted)
    rows = max((len(column) for column in columns.values()), default=-1)
    if rows == 0:
        raise InputError(f"{file}: the trace has no rows")
    if "arrival_s" in columns:
        _check_times(file, columns["arrival_s"])
    for name in (*LENGTHS, *_OPTIONAL):
        if name in columns:
            columns[name] = _tokens(file, name, columns[name])
    if "cached_tokens" in columns and "prompt_tokens" in columns:
        _refuse(
            file,
            "cached_tokens",
            columns["cached_tokens"] >= columns["prompt_tokens"],
            columns["cached_tokens"],
            "must be less than prompt_tokens, since at least one token of a prompt is computed",
        )
    models: tuple[str, ...] = ()
    if named:
        models, columns[MODEL] = _models(file, named)
    for column in columns.values():
        column.setflags(write=False)
    return Trace(**{name: columns.get(name) for name in (*wanted, MODEL)}, requests=rows, models=models), there


def _models(file: str, named: list[str]) -> tuple[tuple[str, ...], np.ndarray]:
    """The distinct names, and the number of each row's among them."""
    if "" in named:
        raise InputError(f"{file}: row {named.index('') + 1}, {MODEL}: must be the name of a model")
    numbers = {name: number for number, name in enumerate(dict.fromkeys(named))}
    return tuple(numbers), np.array([numbers[name] for name in named], dtype=np.int64)


def _read_csv(file: str, wanted: Iterable[str]) -> tuple[dict[str, np.ndarray], tuple[str, ...], list[str]]:
    reader = csv.reader(io.StringIO(read_text(file).removeprefix("\ufeff"), newline=""))
    header = tuple(name.strip() for name in next(reader, []))
    if not any(header):
        raise InputError(f"{file}: the trace is empty (expected a header with {', '.join(TIMES + LENGTHS)})")
    repeated = {name for name in header if header.count(name) > 1}
    if repeated:
        raise InputError(f"{file}: the column {', '.join(sorted(repeated))} is there twice")
    rows = [row for row in reader if row]
    for number, row in enumerate(rows, 1):
        if len(row) != len(header):
            raise InputError(f"{file}: row {number} has {len(row)} values for {len(header)} columns")
    places = {name: header.index(name) for name in wanted if name in header}
    named = [row[header.index(MODEL)].strip() for row in rows] if MODEL in header else []
    return {name: _numbers(file, name, [row[at] for row in rows]) for name, at in places.items()}, header, named


def _numbers(file: str, name: str, texts: list[str]) -> np.ndarray:
    values = np.empty(len(texts))
    for index, value in enumerate(texts):
        try:
            values[index] = float(value)
        except ValueError:
            raise InputError(f"{file}: row {index + 1}, {name}: {value!r} is not a number") from None
    return values


def _read_parquet(file: str, wanted: Iterable[str]) -> tuple[dict[str, np.ndarray], tuple[str, ...], list[str]]:
    import pyarrow
    from pyarrow import parquet

    try:
        header = tuple(parquet.read_schema(file).names)
        table = parquet.read_table(file, columns=[name for name in (*wanted, MODEL) if name in header])
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{file}: not readable as Parquet ({str(error).splitlines()[0]})") from None
    columns, named = {}, []
    for name in table.column_names:
        if name == MODEL:
            named = ["" if value is None else str(value).strip() for value in table.column(name).to_pylist()]
            continue
        try:
            columns[name] = np.array(table.column(name).cast(pyarrow.float64()).to_numpy(), dtype=np.float64)
        except pyarrow.ArrowException:
            raise InputError(f"{file}: column {name} is not numeric ({table.column(name).type})") from None
    return columns, header, named


def _refuse(file: str, name: str, bad: np.ndarray, values: np.ndarray, rule: str) -> None:
    if bad.any():
        row = int(np.argmax(bad))
        raise InputError(f"{file}: row {row + 1}, {name}: {rule}, got {values[row]:.17g}")


def _check_times(file: str, times: np.ndarray) -> None:
    _refuse(file, "arrival_s", ~np.isfinite(times), times, "must be a finite number of seconds")
    _refuse(file, "arrival_s", times < 0, times, "must not be negative")
    earlier = np.concatenate([[False], np.diff(times) < 0])
    _refuse(file, "arrival_s", earlier, times, "must not be earlier than in the row before (sort the trace by time)")


def _tokens(file: str, name: str, values: np.ndarray) -> np.ndarray:
    least = 0 if name in _OPTIONAL else 1
    bad = ~(np.isfinite(values) & (values >= least) & (values < 2**53) & (values == np.floor(values)))
    _refuse(file, name, bad, values, f"must be an integer of at least {least}")
    return values.astype(np.int64)


def trace_requests(traces: Mapping[str, tuple[str, ...]]) -> int | None:
    """The requests that all of the traces (file -> columns needed) have; None without a trace."""
    return min((read_trace(file, columns).requests for file, columns in traces.items()), default=None)
