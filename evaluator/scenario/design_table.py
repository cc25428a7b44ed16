"""Tables of designs: CSV or Parquet files whose columns are keys and whose rows are designs."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any

from evaluator.errors import InputError
from evaluator.keys import Place, shown
from evaluator.scenario.short_names import key_path
from evaluator.yaml import plain_scalar, read_text

LABELS = "design"
"""The column that names the rows, where there is one."""


@dataclass(frozen=True)
class DesignTable:
    """``rows``: what each row sets, key path -> value as written. ``lines``: their places in the file, from 1.

    ``labels`` name the rows: the column ``design``, else their numbers from 1. ``headers``: key path -> column.
    """

    file: str
    rows: tuple[Mapping[str, Any], ...]
    lines: tuple[int, ...]
    labels: tuple[Any, ...]
    headers: Mapping[str, str]

    def place(self, folder: Path | None, row: int) -> Place:
        """Where a row stands, for messages; the files that it names lie in the ``folder`` of the scenario."""
        notes = {path: f" (column {header})" for path, header in self.headers.items()}
        return Place(f"{self.file}, line {self.lines[row]}", notes=notes, folder=folder)


def read_designs(file: str) -> DesignTable:
    """The designs in ``file`` (.parquet, or else CSV with a header). A cell that is empty sets nothing.

    The cells of a CSV file are read like values in YAML. The lines of Parquet are its rows.
    Errors: InputError naming the file and the line or the column.
    """
    parquet = Path(file).suffix.lower() in (".parquet", ".pq")
    header, cells, lines = (_read_parquet if parquet else _read_csv)(file)
    place = Place(file)
    if not cells:
        raise place.error("the table has no rows; a row is a design")
    columns: dict[str, int] = {}
    for number, name in enumerate(header):
        path = LABELS if name == LABELS else key_path(name, Place(file, note=f", column {name}"))
        if path in columns:
            raise place.error(f"the columns {header[columns[path]]} and {name} are the same key {path}")
        columns[path] = number
    labels = _labels(file, [row[columns[LABELS]] for row in cells], lines) if LABELS in columns else None
    # Names are labels of the axis and set nothing.
    columns.pop(LABELS, None)
    rows = tuple({path: row[number] for path, number in columns.items() if not _is_empty(row[number])} for row in cells)
    headers = {path: header[number] for path, number in columns.items()}
    return DesignTable(file, rows, tuple(lines), labels or tuple(range(1, len(rows) + 1)), headers)


def _is_empty(cell: Any) -> bool:
    # pandas writes a missing number as NaN to Parquet and as nothing to CSV: both mean that the design says
    # nothing.
    return cell is None or cell == "" or (isinstance(cell, float) and math.isnan(cell))


def _labels(file: str, values: list[Any], lines: list[int]) -> tuple[Any, ...]:
    first: dict[Any, int] = {}
    for value, line in zip(values, lines, strict=True):
        if _is_empty(value):
            raise InputError(f"{file}, line {line}: the design has no name; fill in the column {LABELS} or drop it")
        if first.setdefault(value, line) != line:
            raise InputError(f"{file}, line {line}: the design {value} is there already, on line {first[value]}")
    return tuple(values)


def _read_csv(file: str) -> tuple[list[str], list[list[Any]], list[int]]:
    # A byte-order mark is what Excel writes in front of UTF-8; it would be a part of the first column's name.
    reader = csv.reader(io.StringIO(read_text(file).removeprefix("\ufeff"), newline=""))
    scalar = lru_cache(maxsize=4096)(plain_scalar)  # columns repeat their values
    cells, lines = [], []
    try:
        header = [name.strip() for name in next(reader, [])]
        if not all(header) or not header:
            unnamed = header[:1] == [""]
            index = "; a first column without a name is the index of pandas: write with index=False" if unnamed else ""
            raise InputError(f"{file}: expected a header with a key in every column, got {shown(header)}{index}")
        # German and French spreadsheets separate by semicolons: the whole header would be one unknown key otherwise.
        if len(header) == 1 and (other := next((mark for mark in ";\t" if mark in header[0]), None)):
            raise InputError(f"{file}: columns are separated by commas in a table of designs, not by {shown(other)}")
        for row in reader:
            if not any(cell.strip() for cell in row):
                continue
            if len(row) != len(header):
                raise InputError(f"{file}, line {reader.line_num}: {len(row)} values for {len(header)} columns")
            # As YAML's core schema reads a scalar, so that a cell and a list of an axis mean the same: 8 is a count,
            # 1s a text with a unit.
            cells.append([scalar(cell.strip()) if cell.strip() else None for cell in row])
            lines.append(reader.line_num)
    except csv.Error as error:
        raise InputError(f"{file}, line {reader.line_num}: not readable as CSV ({error})") from None
    return header, cells, lines


def _read_parquet(file: str) -> tuple[list[str], list[list[Any]], list[int]]:
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(file) as opened:  # takes columns of the same name, to be told apart here
            table = opened.read()
        columns = [[_plain(cell) for cell in column.to_pylist()] for column in table.columns]
    except Exception as error:  # damaged files make Arrow fail in all ways
        raise InputError(f"{file}: not readable as Parquet ({' '.join(str(error).split())[:200]})") from None
    index = next((name for name in table.column_names if name.startswith("__index_level_")), None)
    if index is not None:
        raise InputError(
            f"{file}, column {index}: this is the index of pandas, which is no key; write with index=False"
        )
    return (
        list(table.column_names),
        [list(row) for row in zip(*columns, strict=True)],
        list(range(1, table.num_rows + 1)),
    )


def _plain(cell: Any) -> Any:
    """A cell of Parquet as YAML has it: texts may be numbers, and databases write numbers as decimals."""
    if isinstance(cell, Decimal):
        return plain_scalar(str(cell))
    return plain_scalar(cell) if isinstance(cell, str) and cell.strip() else cell
