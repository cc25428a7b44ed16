"""Trace files: requests with their arrival times and lengths, from CSV, Parquet or JSONL, checked row by row."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluator.catalog.published import entry_named
from evaluator.errors import InputError
from evaluator.yaml import read_text

TIMES = ("arrival_s",)
LENGTHS = ("prompt_tokens", "output_tokens")
_OPTIONAL = ("cached_tokens",)
NAMES = {"model": "models", "pipeline": "pipelines", "class": "classes"}
"""Columns of names, with the field of ``Trace`` that lists them."""
PRIORITY = "priority"
_HIGHEST_PRIORITY = 10**6
_CLOCK_S = 86_400.0
"""A trace whose first request comes later than a day, and later than all others take, tells times of a clock."""
_LATEST_S = 1e11
"""Beyond it (the year 5138) a time is none of seconds. Milliseconds since 1970 are ten times as many."""
_MOONCAKE = {"timestamp": "arrival_s", "input_length": "prompt_tokens", "output_length": "output_tokens"}
"""Keys of the traces of Mooncake (arXiv:2407.00079, github.com/kvcache-ai/Mooncake), whose times are milliseconds."""

CONTENT = ("session", "hash_ids")
"""Columns that say what prompts share: sessions, and hashes of blocks."""
_WAITS = ("wait_for", "wait_s")
"""Columns that ``_in_order_of_waits`` adds. In a file they would mean something else, and are not read."""
_ORDER = "order"
"""Beside these: the places in the file of requests in the order of the trace, where rows wait for others. Rows are
checked in the order of the file, so that messages count them as its reader does."""
WORDS = (*NAMES, *CONTENT)

Columns = tuple[dict[str, np.ndarray], dict[str, Sequence[Any]], tuple[str, ...]]
"""Columns of numbers, columns of ``WORDS`` as they are in the file, and the names of all columns."""


@dataclass(frozen=True, eq=False)
class Ragged:
    """Lists of integers, one per request: that of request i is ``values[offsets[i]:offsets[i + 1]]``."""

    values: NDArray[np.int64]
    offsets: NDArray[np.int64]  # (request + 1,)

    def __getitem__(self, row: int) -> NDArray[np.int64]:
        return self.values[self.offsets[row] : self.offsets[row + 1]]


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
    pipeline: np.ndarray | None = None  # int64: which of ``pipelines`` the request takes
    pipelines: tuple[str, ...] = ()  # likewise
    request_class: np.ndarray | None = None  # int64: which of ``classes`` the request is of
    classes: tuple[str, ...] = ()  # likewise
    priority: np.ndarray | None = None  # int64: the smaller goes first, where the scheduler goes by it
    session: np.ndarray | None = None  # int64: numbers of the sessions, in the order in which they first come
    hash_ids: Ragged | None = None  # of the blocks of each prompt: the same number, the same tokens and all before
    wait_for: Ragged | None = None  # the rows, all before it, whose answers a request waits for; of such ``arrival_s``
    wait_s: np.ndarray | None = None  # is that of the first request, and it is sent so long after the last answer
    places: np.ndarray | None = None  # int64: of each request in the file, where rows that wait are in another order


def read_trace(file: str, columns: Iterable[str] = TIMES + LENGTHS) -> Trace:
    """The trace in ``file`` (.parquet, .jsonl, or else CSV with a header); ``columns`` must be there.

    Rows are counted from 1 below the header. A column ``hash_ids`` holds lists of integers, in CSV written as JSON. The
    keys of a .jsonl may be Mooncake's (timestamp in ms, input_length, output_length, hash_ids), and those of Dynamo's
    agentic form of it (request_id, session_id, wait_for, delay, tool_wait_ms). Errors: InputError
    naming the file, and the row, for missing columns, an empty file, NaN, unsorted or negative times, tokens that are
    no positive integers, more cached than prompt.
    """
    path = Path(file)
    try:
        stamp = path.stat()
    except OSError:
        raise InputError(f"{file}: there is no such trace file") from None
    # The file's time and size are a part of the key: a notebook that writes a trace anew reads the new one.
    trace, present = _read(file, stamp.st_mtime_ns, stamp.st_size)
    of_mooncake = {ours: f"{ours} or {theirs}" for theirs, ours in _MOONCAKE.items() if path.suffix == ".jsonl"}
    missing = [of_mooncake.get(name, name) for name in columns if name not in present]
    if missing:
        raise InputError(
            f"{file}: no column {', '.join(missing)}; the columns there are {', '.join(present) or 'none'}"
        )
    return trace


@lru_cache(maxsize=16)
def _read(file: str, modified_ns: int, size: int) -> tuple[Trace, tuple[str, ...]]:
    # All columns are read whatever is asked for, so that a trace of arrivals which is one of lengths, too, is read
    # once.
    wanted = (*TIMES, *LENGTHS, *_OPTIONAL, PRIORITY)
    columns, content, present = _READERS.get(Path(file).suffix.lower(), _read_csv)(file, wanted)
    rows = max((len(column) for column in columns.values()), default=-1)
    if rows == 0:
        raise InputError(f"{file}: the trace has no rows")
    order = np.array(content.pop(_ORDER, range(rows)))
    _check_columns(file, columns, order)
    named: dict[str, tuple[str, ...]] = {}
    if "model" in content:
        content["model"] = _catalog_names(content["model"])
    for name, names in NAMES.items():
        if name in content:
            named[names], columns[name] = _named(file, name, content[name])
    if PRIORITY in columns:
        columns[PRIORITY] = _priorities(file, columns[PRIORITY])
    hashes = _hash_ids(file, content["hash_ids"]) if "hash_ids" in content else None
    columns = {name: column[order] for name, column in columns.items()}
    if "session" in content:
        columns["session"] = _session_numbers([content["session"][place] for place in order])
    for column in columns.values():
        # One trace is shared by all points and by the draws that are kept of it: a slip that wrote into it would
        # change them all.
        column.setflags(write=False)
    numbers: dict[str, Any] = {name: columns.get(name) for name in (*wanted, "model", "pipeline", "session")}
    numbers |= {"request_class": columns.get("class"), **named}
    wait_for, wait_s = content.get("wait_for"), content.get("wait_s")
    return Trace(
        **numbers,
        requests=rows,
        hash_ids=None if hashes is None else ragged([hashes[place] for place in order]),
        wait_for=None if wait_for is None else ragged([wait_for[place] for place in order]),
        wait_s=None if wait_s is None else np.array(wait_s, dtype=np.float64)[order],
        places=None if wait_for is None else order,
    ), present


def _check_columns(file: str, columns: dict[str, np.ndarray], order: NDArray[np.int64]) -> None:
    """Times from the first one on, and tokens as integers; InputError for what is none."""
    if "arrival_s" in columns:
        times = columns["arrival_s"][order]
        _check_times(file, times)
        columns["arrival_s"][order] = _from_its_start(times)
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


def _catalog_names(models: Sequence[Any]) -> list[Any]:
    """Models by the names of the catalog, as pools have them; one that is not there as it stands, for the plan to say
    that nothing serves it."""

    @cache
    def entry(model: Any) -> Any:
        try:
            return entry_named(model) if isinstance(model, str) else model
        except InputError:
            return model

    return [entry(model) for model in models]


def _named(file: str, name: str, column: Sequence[Any]) -> tuple[tuple[str, ...], np.ndarray]:
    """The distinct names, and the number of each row's among them."""
    named = ["" if value is None else str(value).strip() for value in column]
    if "" in named:
        raise InputError(f"{file}: row {named.index('') + 1}, {name}: must be the name of a {name}")
    numbers = {value: number for number, value in enumerate(dict.fromkeys(named))}
    return tuple(numbers), np.array([numbers[value] for value in named], dtype=np.int64)


def _read_csv(file: str, wanted: Iterable[str]) -> Columns:
    reader = csv.reader(io.StringIO(read_text(file).removeprefix("\ufeff"), newline=""))
    try:
        header = tuple(name.strip() for name in next(reader, []))
        rows = [row for row in reader if row]
    except csv.Error as error:
        raise InputError(f"{file}, line {reader.line_num}: not readable as CSV ({error})") from None
    if not any(header):
        raise InputError(f"{file}: the trace is empty (expected a header with {', '.join(TIMES + LENGTHS)})")
    repeated = {name for name in header if header.count(name) > 1}
    if repeated:
        raise InputError(f"{file}: the column {', '.join(sorted(repeated))} is there twice")
    for number, row in enumerate(rows, 1):
        if len(row) != len(header):
            raise InputError(f"{file}: row {number} has {len(row)} values for {len(header)} columns")
    # Other columns are not read: logs have prompts in them, which are no numbers and may be large.
    texts = {name: [row[header.index(name)] for row in rows] for name in (*wanted, *WORDS) if name in header}
    numbers = {name: _numbers(file, name, values) for name, values in texts.items() if name not in WORDS}
    return numbers, {name: texts[name] for name in WORDS if name in texts}, header


def _read_jsonl(file: str, wanted: Iterable[str]) -> Columns:
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(filter(str.strip, read_text(file).splitlines()), 1):
        try:
            row: Any = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise InputError(f"{file}: row {number} is no JSON object: {line[:60]}")
        rows.append({str(_MOONCAKE.get(key, key)): value for key, value in row.items()})  # by our names
        if "timestamp" in row and isinstance(row["timestamp"], int | float):
            rows[-1]["arrival_s"] = _float(row["timestamp"]) / 1000.0
    words, content = WORDS, {}
    if any("wait_for" in row for row in rows):
        content[_ORDER], words = _with_waits(file, rows), (*WORDS, *_WAITS)
    header: tuple[str, ...] = tuple(dict.fromkeys(key for row in rows for key in row))
    columns: dict[str, list[Any]] = {}
    for name in (name for name in (*wanted, *words) if name in header):
        for number, row in enumerate(rows, 1):
            if name not in row:
                raise InputError(f"{file}: row {number} has no {name}")
        columns[name] = [row[name] for row in rows]
    numbers = {name: _numbers(file, name, values) for name, values in columns.items() if name not in words}
    return numbers, content | {name: columns[name] for name in words if name in columns}, header


def _with_waits(file: str, rows: list[dict[str, Any]]) -> list[int]:
    """Gives rows of an agentic trace (Dynamo's ``AgenticMooncakeRow``) ``wait_for`` and ``wait_s`` as we have them, and
    gives the order of the trace: the place in the file of each request.

    ``wait_for`` names by their ``request_id`` the rows whose answers a request waits for, after which it is sent
    ``delay`` and ``tool_wait_ms`` later, both in milliseconds; a row that waits for none has a ``timestamp``. Those of
    a ``session_id`` are one task. Errors: InputError naming the row.
    """
    places: dict[str, int] = {}
    for number, row in enumerate(rows, 1):
        waits = row["wait_for"] = row.get("wait_for") or []
        if not isinstance(waits, list) or not all(isinstance(name, str) for name in waits):
            raise InputError(f"{file}: row {number}, wait_for: must be a list of request_id, got {str(waits)[:60]!r}")
        unknown = [name for name in waits if name not in places]
        if unknown:
            raise InputError(f"{file}: row {number}, wait_for: no row before it has the request_id {unknown[0]!r}")
        name = row.get("request_id")
        if not isinstance(name, str) or name in places:
            raise InputError(f"{file}: row {number}, request_id: must be a text that no other row has, got {name!r}")
        row["wait_s"] = sum(_milliseconds(file, number, key, row.get(key)) for key in ("delay", "tool_wait_ms")) / 1e3
        before = [rows[places[name]] for name in waits]
        if before:
            # When it comes is for the run to say; here it stands behind those that it waits for.
            row["arrival_s"] = max(parent["arrival_s"] for parent in before)
        elif type(row.get("arrival_s")) not in (int, float):
            raise InputError(f"{file}: row {number} waits for no other and has no timestamp, a number of milliseconds")
        elif not 0 <= _float(row["arrival_s"]) < math.inf:
            said = 1e3 * _float(row["arrival_s"])
            raise InputError(f"{file}: row {number}, timestamp: must be milliseconds of at least 0, got {said:g}")
        of_task = row.get("session_id")
        if of_task is None:
            of_task = before[0]["session"] if before else name
        row["session"] = str(of_task)
        places[name] = number - 1
    order = sorted(range(len(rows)), key=lambda place: rows[place]["arrival_s"])
    moved = {place: number for number, place in enumerate(order)}
    for row in rows:
        row["wait_for"] = [moved[places[name]] for name in row["wait_for"]]
    return order


def _milliseconds(file: str, number: int, name: str, value: Any) -> float:
    if value is None:
        return 0.0
    if not isinstance(value, int | float) or not 0 <= _float(value) < math.inf:
        raise InputError(f"{file}: row {number}, {name}: must be milliseconds of at least 0, got {value!r}")
    return float(value)


def _float(value: Any) -> float:
    """The number; infinity for an integer beyond all floats, which is refused where the others are."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _numbers(file: str, name: str, texts: list[Any]) -> np.ndarray:
    values = np.empty(len(texts))
    for index, value in enumerate(texts):
        try:
            values[index] = _float(value)
        except (ValueError, TypeError):
            raise InputError(f"{file}: row {index + 1}, {name}: {value!r} is not a number") from None
    return values


def _read_parquet(file: str, wanted: Iterable[str]) -> Columns:
    import pyarrow
    from pyarrow import parquet

    try:
        header = tuple(parquet.read_schema(file).names)
        table = parquet.read_table(file, columns=[name for name in (*wanted, *WORDS) if name in header])
        content = {name: table.column(name).to_pylist() for name in WORDS if name in header}
    except Exception as error:  # damaged files make Arrow fail in all ways
        raise InputError(f"{file}: not readable as Parquet ({' '.join(str(error).split())[:200]})") from None
    columns = {}
    for name in (name for name in table.column_names if name not in WORDS):
        try:
            columns[name] = np.array(table.column(name).cast(pyarrow.float64()).to_numpy(), dtype=np.float64)
        except pyarrow.ArrowException:
            raise InputError(f"{file}: column {name} is not numeric ({table.column(name).type})") from None
    return columns, content, header


_READERS = {".parquet": _read_parquet, ".pq": _read_parquet, ".jsonl": _read_jsonl}


def _refuse(file: str, name: str, bad: np.ndarray, values: np.ndarray, rule: str) -> None:
    if bad.any():
        row = int(np.argmax(bad))
        raise InputError(f"{file}: row {row + 1}, {name}: {rule}, got {values[row]:.17g}")


def _check_times(file: str, times: np.ndarray) -> None:
    _refuse(file, "arrival_s", ~np.isfinite(times), times, "must be a finite number of seconds")
    _refuse(file, "arrival_s", times < 0, times, "must not be negative")
    for unit, per_s in (("nanoseconds", 1e9), ("microseconds", 1e6), ("milliseconds", 1e3)):
        looks_so = times > _LATEST_S * (per_s / 1e3)
        rule = f"must be in seconds and looks like {unit} since 1970; divide the column by {per_s:,.0f}"
        _refuse(file, "arrival_s", looks_so, times, rule)
    earlier = np.concatenate([[False], np.diff(times) < 0])
    _refuse(file, "arrival_s", earlier, times, "must not be earlier than in the row before (sort the trace by time)")


def _from_its_start(times: np.ndarray) -> np.ndarray:
    """Times of a clock, such as seconds since 1970, from the first one on; others begin where the file says.

    The clock of a run is float64: 1.7e9 s leave it steps of 0.2 microseconds, and sums over a run are worse.
    """
    # Later than a day, and later than the trace is long: a trace of ten days that starts in its third hour keeps its
    # idle beginning, and one that starts at 1.7e9 s is moved.
    of_a_clock = times.size > 0 and times[0] > _CLOCK_S and times[0] > times[-1] - times[0]
    return times - times[0] if of_a_clock else times


def _tokens(file: str, name: str, values: np.ndarray) -> np.ndarray:
    least = 0 if name in _OPTIONAL else 1
    # 2^53: columns come as float64, which holds no larger integer exactly.
    bad = ~(np.isfinite(values) & (values >= least) & (values < 2**53) & (values == np.floor(values)))
    _refuse(file, name, bad, values, f"must be an integer of at least {least}")
    return values.astype(np.int64)


def _priorities(file: str, values: np.ndarray) -> np.ndarray:
    bad = ~((np.abs(values) <= _HIGHEST_PRIORITY) & (values == np.floor(values)))
    _refuse(file, PRIORITY, bad, values, f"must be an integer from {-_HIGHEST_PRIORITY} to {_HIGHEST_PRIORITY}")
    return values.astype(np.int64)


def _session_numbers(names: Sequence[Any]) -> NDArray[np.int64]:
    """Names of any kind as numbers, (request,): those of new sessions count up in their order."""
    numbers: dict[Any, int] = {}
    # As texts, since a CSV and a Parquet of one trace have the same sessions as ``"7"`` and as 7.
    return np.array([numbers.setdefault(name, len(numbers)) for name in map(str, names)], dtype=np.int64)


def _hash_ids(file: str, rows: Sequence[Any]) -> list[list[int]]:
    """Lists of integers, or their texts in JSON. Errors: InputError naming the row that holds anything else."""
    lists = []
    for number, row in enumerate(rows, 1):
        try:
            values = json.loads(row) if isinstance(row, str) else row
        except ValueError:
            values = None
        if not isinstance(values, list) or not all(type(value) is int and abs(value) < 2**62 for value in values):
            raise InputError(f"{file}: row {number}, hash_ids: must be a list of integers, got {str(row)[:60]!r}")
        lists.append(values)
    return lists


def ragged(lists: Sequence[Sequence[int]]) -> Ragged:
    """Lists of integers together."""
    offsets = np.cumsum([0, *map(len, lists)])
    return Ragged(np.array([value for values in lists for value in values], dtype=np.int64), offsets)


def trace_requests(traces: Mapping[str, tuple[str, ...]]) -> int | None:
    """The requests that all of the traces (file -> columns needed) have; None without a trace."""
    return min((read_trace(file, columns).requests for file, columns in traces.items()), default=None)
