"""The search for goodput over 1,080 strategies of eight GPUs, from scenario to dataset."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.registry import Row, benchmark
from tests.benchmarks.timing import probe

REQUESTS = {"quick": 1000, "whole": 4000}


@benchmark("search")
def search(quick: bool) -> Iterator[Row]:
    """Wall time and processor time of ``optimize`` on scenarios/eight-gpus.yaml, with nothing compiled and with all."""
    with tempfile.TemporaryDirectory() as folder:
        kept = {"EVALUATOR_CACHE": str(Path(folder) / "cache")}
        requests = str(REQUESTS["quick" if quick else "whole"])
        for state in ("cold", "warm"):
            found = probe("search_probe", requests, environment=kept)
            label = f"{found['designs']:,.0f} strategies of {requests} requests, {state}"
            yield Row(f"{label}: wall time", found["wall_s"], "s", f"{found['trials']:,.0f} trials to 2 %")
            yield Row(f"{label}: processor time", found["cpu_s"], "s")
