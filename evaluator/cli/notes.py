"""What a command that gives a dataset says of it on stderr."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    import numpy as np
    import xarray

NOTES = ("model_note", "search_note", "engine_note", "stage_note")
"""Attributes of a dataset that a reader of its numbers should know."""


FIRST_S, THEN_S = 5.0, 30.0
"""When a step without progress of its own is mentioned on stderr, and how often from then on."""


@contextmanager
def waiting_for(what: str, quiet: bool = False) -> Iterator[None]:
    """Say on stderr what is being done in here, once it has taken some seconds; ``quiet``: nothing is said."""
    done = threading.Event()

    def tell() -> None:
        after_s = FIRST_S
        while not done.wait(after_s):
            typer.echo(f"{what} ...", err=True)
            after_s = THEN_S

    if quiet:
        yield
        return
    # A thread, since what is waited for is one call (reading a table of a million rows, writing a store) that reports
    # nothing; a daemon, lest it outlive a failure.
    threading.Thread(target=tell, name="waiting", daemon=True).start()
    try:
        yield
    finally:
        done.set()


def ranked(dataset: xarray.Dataset, top: int) -> dict[str, Any]:
    """The best designs, by the rule of the tables, and why others cannot run, as ``output.tell`` takes them."""

    def order() -> tuple[np.ndarray, str]:
        from evaluator.deploy.choice import ranking_of

        return ranking_of(dataset)

    def designs() -> xarray.Dataset:
        from evaluator.report.places import with_places

        rows = order()[0][:top]
        return with_places(dataset, rows).isel(config=rows)

    def reasons() -> list[Any]:
        from evaluator.metrics.reasons import reasons_of

        return reasons_of(dataset["status"].values.astype(str))

    return {
        # As calls, since without ``--json`` none of them is asked for, and ranking a million rows takes its time.
        "designs": designs,
        "ranked_by": lambda: order()[1],
        "configurations": dataset.sizes["config"],
        "ranked": lambda: len(order()[0]),
        "reasons": reasons,
    }


def say_notes(dataset: xarray.Dataset) -> None:
    """The notes that a dataset has."""
    for note in NOTES:
        if note in dataset.attrs:
            typer.echo(dataset.attrs[note], err=True)


def say_written(paths: Sequence[Path]) -> None:
    """Which files there are now; where there are none, how to get one."""
    names = " and ".join(map(str, paths))
    typer.echo(f"wrote {names}" if paths else "nothing saved; --out keeps the dataset", err=True)
