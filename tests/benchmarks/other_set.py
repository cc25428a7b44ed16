"""How far the kernels of a device are off by a set that was not fitted to them: tables of calibration/sets.md.

``python -m tests.benchmarks.other_set DATA... --hardware h20 --calibration h100-sxm-vllm`` judges all calls of the
device above 20 us (``transferred``: by the median of other devices), and prints the median of the absolute errors,
their 90th percentile and the signed median.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from evaluator.calibrate import read_tables
from evaluator.calibrate.devices import PROCESSORS, UNKNOWN
from evaluator.calibrate.errors import LONG_S, statistics
from evaluator.calibrate.run import judge
from evaluator.calibrate.selection import select
from evaluator.catalog import load_calibration, load_hardware
from evaluator.catalog.calibration import named_set
from evaluator.cost.rates import rates


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line per class."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.other_set", description=__doc__)
    parser.add_argument("data", nargs="+", type=Path, metavar="DATA")
    parser.add_argument("--hardware", required=True)
    parser.add_argument("--calibration", required=True, help="a set of the catalog, or transferred")
    parser.add_argument("--engine", help="whose kernels are judged, where the tables have several")
    given = parser.parse_args(arguments)
    device, name = load_hardware(given.hardware), given.calibration
    known = load_calibration(name, device) if name == "transferred" else named_set(name, device.name, foreign=True)
    parts, _ = select(read_tables(given.data), device, PROCESSORS.get(device.name, UNKNOWN), given.engine)
    for part in parts:
        judged = judge(part, rates(device, known), device)
        long = judged[judged["time_s"] >= LONG_S]
        if len(long):
            of = statistics(long)
            print(f"{part.label:22s} {len(long):6d} calls {of['median']:7.0%} ({of['p90']:.0%}); {of['bias']:+.0%}")


if __name__ == "__main__":
    main()
