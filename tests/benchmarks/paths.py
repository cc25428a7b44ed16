"""What a request of a whole sweep costs on each path, from scenario to dataset with all metrics."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import evaluator
from tests.benchmarks.registry import Row, benchmark
from tests.benchmarks.regression import CASES, PER_DESIGN, asked
from tests.benchmarks.timing import best_of

DESIGNS, QUICK = 512, 64


@benchmark("paths")
def paths(quick: bool) -> Iterator[Row]:
    """Requests/s of whole sweeps of 512 designs x 1,000 requests, compiled before, by what designs use."""
    designs = QUICK if quick else DESIGNS
    first = 0.0
    for case in CASES:
        took = best_of(partial(_ran, asked(case, designs)), repeats=2)
        requests = designs * PER_DESIGN
        first = first or took.cpu_s
        note = f"{took.cpu_s / requests * 1e6:.3g} us of a processor, {took.cpu_s / first:.2f} x the first row"
        yield Row(case, requests / took.wall_s / 1e6, "M requests/s", note)


def _ran(scenario: dict[str, Any]) -> None:
    statuses = evaluator.sweep(scenario, simulator="iteration", progress=False)["status"].values
    assert (statuses == "ok").all(), statuses
