"""The file of measurements: one row is written as soon as it is known, so that an interrupted run loses none."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from evaluator.calibrate.table import COLUMNS
from evaluator.errors import InputError
from evaluator.measure.points import Key, key

_SHAPES = tuple(dict.fromkeys(name for columns in COLUMNS.values() for name in columns))
_OF_POINTS = (*_SHAPES, "window", "routing", "dtype", "kv_dtype")
HEADER = ("op_class", *_OF_POINTS, "kernel", "mode", "time_s", "spread_s",
          "samples", "calls", "hardware", "engine", "engine_version", "device", "platform", "measured_at")  # fmt: skip
"""Columns of the file: those that ``evaluator.calibrate.table`` documents, then how and where it was measured."""


class MeasuredRows:
    """The rows of one file about one device, old and new. ``old`` are those that an earlier run wrote."""

    def __init__(self, path: Path, device: str, hardware: str, *, resume: bool = False) -> None:
        """``device`` is its driver's name for it, ``hardware`` ours.

        InputError for a file that is there, or, to ``resume``, is of another device or no such file.
        """
        self.path = path
        self._hardware = hardware
        # An empty file is as none: a run that was killed before its first row.
        exists = path.is_file() and path.stat().st_size > 0
        if exists and not resume:
            raise InputError(f"--out {path}: is there already; go on with it by --resume, or name another file")
        self.old = self._read({"device": device, "hardware": hardware}) if exists else []

    def add(self, row: Mapping[str, Any]) -> None:
        """Write one row."""
        # Opened anew for each row, so that it is on disk before the next measurement begins.
        new = not self.path.is_file() or self.path.stat().st_size == 0
        with self.path.open("a", newline="") as file:
            writer = csv.DictWriter(file, HEADER)
            if new:
                writer.writeheader()
            writer.writerow({**row, "hardware": self._hardware})

    def times(self) -> dict[Key, float]:
        """Seconds of the points that an earlier run measured."""
        return {
            key(row["op_class"], {name: row[name] for name in _OF_POINTS if row[name]}): float(row["time_s"])
            for row in self.old
        }

    def frame(self) -> pd.DataFrame:
        """All rows of the file."""
        return pd.read_csv(self.path)

    def _read(self, same: Mapping[str, str]) -> list[dict[str, str]]:
        content = self.path.read_text()
        # A killed run may leave half a row, which would shift all that follows.
        if not content.endswith("\n"):  # the last row was cut short
            self.path.write_text(content[: content.rfind("\n") + 1])
        with self.path.open(newline="") as file:
            reader = csv.DictReader(file)
            # Another version may mean something else by a column.
            if tuple(reader.fieldnames or ()) != HEADER:
                raise InputError(f"--out {self.path}: was not written by this version of measure; name another file")
            rows = list(reader)
        for name, here in same.items():
            others = sorted({row[name] for row in rows} - {here})
            if others:
                raise InputError(f"--out {self.path}: holds measurements of {name} {others[0]}, but this is {here}")
        return rows
