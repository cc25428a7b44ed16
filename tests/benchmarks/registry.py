"""The list of benchmarks, and what each gives: labelled rows with units."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One measured number. ``note`` says what it was measured on, or with what it compares."""

    label: str
    value: float
    unit: str
    note: str = ""


Benchmark = Callable[[bool], Iterator[Row]]
"""Yields rows as they are measured; the argument asks for the quick form, which leaves out what takes minutes."""

BENCHMARKS: dict[str, Benchmark] = {}


def benchmark(name: str) -> Callable[[Benchmark], Benchmark]:
    """Enter a function under ``name``; its first docstring line is what ``--list`` shows."""

    def enter(function: Benchmark) -> Benchmark:
        BENCHMARKS[name] = function
        return function

    return enter
