"""The table of iterations: what each batch of each replica did, as the token-level simulation was told of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluator.results.requests import write_requests

if TYPE_CHECKING:
    import pandas as pd

    from evaluator.reference import Iteration

LISTS = ("requests", "tokens", "preempted", "admitted", "cached_tokens", "loading", "loading_tokens")
"""Columns with a list in each cell; in CSV its members stand behind one another with spaces between."""


class IterationLog:
    """Collects a row per iteration. Runs of alike iterations, which the simulation leaps over, become a row each."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []

    def add(self, iteration: Iteration, name: Callable[[int], int], decode_tokens: int, **place: Any) -> None:
        """``name``: the number of a request in the table of requests, by that in the iteration. ``decode_tokens``: of a
        decoding sequence, drafts included. ``place``: columns that say where it was, such as the replica."""
        tokens: dict[int, int] = {}
        for request in iteration.decodes:
            tokens[request] = tokens.get(request, 0) + decode_tokens  # as often as it has branches
        # A request has either a chunk or decodes in a batch.
        tokens |= dict(iteration.chunks)
        start_s = iteration.start_s
        # A leap is written as the iterations that it stands for, so that a table does not show how it was computed.
        for number in range(iteration.iterations):
            first = number == 0
            leaps = iteration.iterations > 1
            # The first and each next one longer by the slope: as the leap was computed.
            took_s = iteration.first_s + number * iteration.slope_s if leaps else iteration.end_s - iteration.start_s
            # An admission or a preemption changes the batch, so that only the first iteration of a leap can have one.
            admitted = iteration.cached if first else ()
            self._rows.append(
                place
                | {
                    "start_s": start_s,
                    "duration_s": took_s,
                    "requests": [name(request) for request in sorted(tokens)],
                    "tokens": [tokens[request] for request in sorted(tokens)],
                    "preempted": [name(request) for request in iteration.preempted] if first else [],
                    "admitted": [name(request) for request, _ in admitted],
                    "cached_tokens": [hit_tokens for _, hit_tokens in admitted],
                    "loading": [name(request) for request, _ in iteration.loaded],
                    "loading_tokens": [tokens for _, tokens in iteration.loaded],
                    "kv_units": iteration.planned_units if first else _units(iteration, number),
                }
            )
            start_s += took_s

    def table(self) -> pd.DataFrame:
        """All rows, in order of their start."""
        import pandas as pd

        table = pd.DataFrame(self._rows)
        return table.sort_values("start_s", kind="stable", ignore_index=True) if len(table) else table


def _units(iteration: Iteration, number: int) -> int:
    """KV units in use in a later iteration of a leap; those of the first where none are taken on the way."""
    return iteration.grown_units[number - 1] if iteration.grown_units else iteration.planned_units


def write_iterations(table: pd.DataFrame, path: str | Path) -> Path:
    """Write the table as .csv or .parquet, by the suffix."""
    if Path(path).suffix == ".csv":
        table = table.assign(
            **{name: table[name].map(lambda values: " ".join(map(str, values))) for name in LISTS if name in table}
        )
    return write_requests(table, path)
