"""One sweep in a process of its own, which prints its time and memory: CONFIGURATIONS FOLDER [KIND]."""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from evaluator import sweep
from evaluator.device import configure
from tests.benchmarks.sweep import scenario
from tests.benchmarks.timing import peak_memory_of_all, processor_s


def main() -> None:
    configs, folder = int(sys.argv[1]), Path(sys.argv[2])
    asked = scenario(configs, *sys.argv[3:])
    start, cpu = time.perf_counter(), processor_s()
    configure()
    loaded = time.perf_counter()
    with ThreadPoolExecutor(1) as beside:
        runs = True
        peak = beside.submit(peak_memory_of_all, lambda: runs)
        try:
            result = sweep(asked, out=folder / "sweep.nc")
        finally:
            runs = False
    measured = {
        "wall_s": time.perf_counter() - start,
        "cpu_s": processor_s() - cpu,
        "import_s": loaded - start,
        "peak_bytes": peak.result(),
    }
    measured["ran"] = int((result["status"] == "ok").sum())
    if measured["ran"] != configs and "quickstart" not in sys.argv:
        raise SystemExit(f"{configs - measured['ran']} of {configs} configurations did not run")
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
