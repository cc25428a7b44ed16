"""One search in a process of its own, which prints its time: REQUESTS."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from evaluator import load_scenario, optimize
from tests.benchmarks.timing import processor_s

SCENARIO = Path(__file__).resolve().parents[2] / "scenarios" / "eight-gpus.yaml"


class Watch:
    """Counts trials."""

    trials = 0

    def expect(self, units: int) -> None:
        """How many there will be is of no interest."""

    def advance(self, units: int = 1) -> None:
        """So many more."""
        self.trials += units


def main() -> None:
    requests, watch = int(sys.argv[1]), Watch()
    start, cpu = time.perf_counter(), processor_s()
    lengths = (f"workload.requests={requests}", f"workload.warmup_requests={requests // 10}")
    found = optimize(load_scenario(SCENARIO, lengths), progress=watch)
    measured = {
        "wall_s": time.perf_counter() - start,
        "cpu_s": processor_s() - cpu,
        "designs": found.sizes["config"],
        "trials": watch.trials,
    }
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
