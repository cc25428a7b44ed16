"""What a command that gives a dataset says of it on stderr."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    import xarray

NOTES = ("model_note", "search_note", "engine_note", "stage_note")
"""Attributes of a dataset that a reader of its numbers should know."""


def say_notes(dataset: xarray.Dataset) -> None:
    """The notes that a dataset has."""
    for note in NOTES:
        if note in dataset.attrs:
            typer.echo(dataset.attrs[note], err=True)


def say_written(paths: Sequence[Path]) -> None:
    """Which files there are now; where there are none, how to get one."""
    names = " and ".join(map(str, paths))
    typer.echo(f"wrote {names}" if paths else "nothing saved; --out keeps the dataset", err=True)
