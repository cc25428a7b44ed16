"""What commands print: text, or with ``--json`` one document of the same, for programs (docs/json.md).

A command hands what it found to ``tell``: a text, and labelled records with the names under which the document has
them. What else it prints to stdout becomes lines of the document, so that there is one document whatever a command
does, and failures are fields of it.
"""

from __future__ import annotations

import io
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
import typer.core

from evaluator.version import __version__

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

SCHEMA_VERSION = 1
"""Of ``output.schema.json``. It grows where a field goes or means something else, not where one is added."""
SCHEMA = Path(__file__).with_name("output.schema.json")
OPTION = "--json"
_INSTEAD = ("--help", "-h", "--version")  # these print text whatever stands beside them
_PANDAS_NONE = ("<NA>", "NaT")
_PLACES = 3  # a file, a key in it, what that was read as
# An option with its value, a file (whose path may have spaces), or one word: a key, an address.
_PLACE = re.compile(r"--[a-z-]+( \S+)*|.*\.(ya?ml|json|jsonl|csv|parquet|nc|zarr|sh|txt)( row \d+)?|\S+")


# One per process: what a command prints goes through functions of modules that know nothing of each other,
# and every one of them would have to be handed the document.
class Document:
    """What is known of a command so far; ``current`` is the one that is being made, None without ``--json``."""

    current: Document | None = None

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.tables: dict[str, Any] = {}
        self.error: dict[str, Any] | None = None

    def whole(self, command: str, exit_code: int, text: str) -> dict[str, Any]:
        """As ``output.schema.json`` has it."""
        return {
            "schema_version": SCHEMA_VERSION,
            "evaluator": __version__,
            "command": command,
            "exit_code": exit_code,
            "error": self.error,
            "values": self.values,
            "tables": self.tables,
            "text": text.splitlines(),
        }


class Command(typer.core.TyperCommand):
    """A command that takes ``--json``, of which it knows nothing itself."""

    def __init__(self, *args: Any, **more: Any) -> None:
        # In the epilog, since the option is none that Typer knows of and would list.
        super().__init__(*args, **more | {"epilog": "--json: one JSON document instead of text (docs/json.md)."})

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """What Typer parses. The option is no parameter: how one is made differs between versions of Typer."""
        return super().parse_args(ctx, [word for word in args if word != OPTION])


def tell(text: str | Callable[[], str] | None, **found: Any) -> None:
    """Print ``text`` (None: nothing, as it went to a file); with ``--json`` keep what was ``found`` instead, by name.

    A table (a dataset with a row for each ``config``, a data frame, a list of mappings or records) becomes one of
    ``tables``, anything else one of ``values``. Callables are asked where they are needed.
    """
    document = Document.current
    if document is None:
        if text is not None:
            typer.echo(text() if callable(text) else text)
        return
    for name, given in found.items():
        thing = given() if callable(given) else given
        table = _table(thing)
        if table is None:
            document.values[name] = plain(thing)
        else:
            document.tables[name] = table


def fail(kind: str, message: str) -> None:
    """Say on stderr why a command fails, and keep it for the document."""
    typer.echo(message, err=True)
    if Document.current is not None:
        Document.current.error = _error(kind, message)


def wants_document(words: Sequence[str]) -> bool:
    """Whether a command line asks for a document."""
    return OPTION in words and not set(_INSTEAD) & set(words)


def print_document(run: Callable[[], Any], words: Sequence[str]) -> int:
    """Run a command line and print its document; the code that the process leaves with."""
    document = Document.current = Document()
    try:
        # Whatever prints to stdout, a library included, must not stand before or behind the document.
        with redirect_stdout(io.StringIO()) as printed:
            try:
                code = run()
            # In standalone mode Click leaves with 1 after an Abort, too.
            except typer.Abort:
                code = 1
            except Exception as error:  # a usage error of Typer's or Click's; all others became exit codes
                # By what it can do and not by its class: some versions of Typer carry a copy of Click
                # (`failures._typer_errors`).
                if not hasattr(error, "format_message"):
                    raise
                code = error.exit_code  # type: ignore[attr-defined]
                fail("usage", error.format_message())
    finally:
        Document.current = None
    # Commands return nothing; Click returns what they return, and an exit code only where one was raised.
    code = code if isinstance(code, int) else 0
    whole = document.whole(_command(words), code, printed.getvalue())
    # ``allow_nan=False``: NaN is no JSON. ``plain`` has made null of it, and what it missed should fail
    # here and not at the reader.
    typer.echo(json.dumps(whole, ensure_ascii=False, allow_nan=False))
    sys.stdout.flush()
    return code


def _command(words: Iterable[str]) -> str:
    """``sweep`` or ``catalog models``: the words before all options and values."""
    from evaluator.cli.app import app

    groups = {group.name: group.typer_instance for group in (app.registered_groups if app else ())}
    first, second, *_ = [*(word for word in words if not word.startswith("-")), "", ""]
    return f"{first} {second}".strip() if first in groups else first


def _error(kind: str, message: str) -> dict[str, Any]:
    place, reason, remedy = parts_of(message.removeprefix("error: "))
    return {"kind": kind, "message": message, "place": place, "reason": reason, "remedy": remedy}


def parts_of(message: str) -> tuple[str | None, str, str | None]:
    """(place, reason, remedy) of ``PLACE: what is wrong; what to do``, as our messages are; None: it does not say."""
    places: list[str] = []
    rest = message
    while len(places) < _PLACES:
        head, colon, tail = rest.partition(": ")
        if not colon or not _PLACE.fullmatch(head):
            break
        places.append(head)
        rest = tail
    # The last semicolon: remedies are one clause, reasons may have several.
    reason, semicolon, remedy = rest.rpartition("; ")
    if not semicolon:
        reason, remedy = rest, ""
    return ": ".join(places) or None, reason, remedy or None


def plain(value: Any) -> Any:
    """A value as JSON has it: records by their fields, arrays as lists; NaN and infinity are null."""
    if value is None or isinstance(value, str | bool | int):
        return value
    # NumPy's scalars are no subclass of float but for float64: the others come by ``tolist`` below.
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Enum):
        return plain(value.value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(entry) for entry in value]
    if hasattr(value, "tolist"):  # NumPy's arrays and scalars
        return plain(value.tolist())
    text = str(value)
    return None if text in _PANDAS_NONE else text


def _table(thing: Any) -> dict[str, Any] | None:
    """Columns with their units and rows; None of what is no table."""
    if hasattr(thing, "data_vars"):
        return dataset_table(thing)
    if hasattr(thing, "to_dict") and hasattr(thing, "columns"):
        return _frame_table(thing)
    # An empty list is a table without rows: readers find the name in ``tables`` whether or not there is
    # something in it.
    if isinstance(thing, list) and all(isinstance(row, Mapping) or is_dataclass(row) for row in thing):
        rows = [plain(row) for row in thing]
        return {"columns": dict.fromkeys((name for row in rows for name in row), _column()), "rows": rows}
    return None


def _column(unit: str | None = None, description: str | None = None) -> dict[str, Any]:
    return {"unit": unit, "description": description}


def _frame_table(frame: pd.DataFrame) -> dict[str, Any]:
    names = [str(name) for name in frame.columns]
    rows = [
        {name: plain(value) for name, value in zip(names, row, strict=True)}
        for row in frame.itertuples(index=False, name=None)
    ]
    return {"columns": dict.fromkeys(names, _column()), "rows": rows}


def dataset_table(ds: xr.Dataset) -> dict[str, Any]:
    """A row for each ``config``. What else a variable varies over is told by its labels: ``{"p50": 0.1}``."""
    columns, rows = {}, [dict[str, Any]() for _ in range(ds.sizes.get("config", 1))]
    for name, variable in ds.variables.items():
        if "config" not in variable.dims and variable.dims:
            continue  # the labels themselves
        attributes = variable.attrs
        columns[str(name)] = _column(attributes.get("units"), attributes.get("description"))
        by_row = variable.transpose("config", ...) if "config" in variable.dims else variable
        labels = [_labels(ds, str(dim)) for dim in by_row.dims if dim != "config"]
        # What holds for all designs stands in every row: a reader of one row needs no other place.
        values = by_row.values if "config" in variable.dims else [by_row.values] * len(rows)
        for row, value in zip(rows, values, strict=True):
            row[str(name)] = _nested(value, labels)
    return {"columns": columns, "rows": rows}


def _labels(ds: xr.Dataset, dim: str) -> list[str]:
    values = ds[dim].values.tolist()
    return [f"p{100 * value:g}" if dim == "quantile" else str(value) for value in values]


def _nested(value: Any, labels: list[list[str]]) -> Any:
    if not labels:
        return plain(value.item() if hasattr(value, "item") else value)
    return {label: _nested(part, labels[1:]) for label, part in zip(labels[0], value, strict=True)}
