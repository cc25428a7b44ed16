"""``python -m tests.benchmarks.accuracy [CAMPAIGN...]``: errors by slice, beside those of the table that is there.

Exit code 1 where a slice became worse by 2 points or a tenth, or no longer runs; ``--write`` takes the new table.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd

from evaluator.catalog.store import find
from evaluator.compare.expected import read_rows, write_errors
from tests.benchmarks.accuracy import (
    closed_batches,
    closed_loops,
    energy,
    held_out,
    iterations,
    kernels,
    mlperf,
    requests,
    servers,
)
from tests.benchmarks.accuracy.coverage import COVERAGE, coverage
from tests.benchmarks.accuracy.slices import by_slice, read, worse, write

CAMPAIGNS: dict[str, Callable[[Path], Iterator[pd.DataFrame]]] = {
    "closed_batches": closed_batches.rows,
    "closed_loops": closed_loops.rows,
    "energy": energy.rows,
    "held_out": held_out.rows,
    "iterations": iterations.rows,
    "kernels": kernels.rows,
    "mlperf": mlperf.rows,
    "requests": requests.rows,
    "servers": servers.rows,
}
QUICK = ("closed_batches", "energy", "held_out", "iterations", "mlperf")
"""Those that take a few seconds together: ``--quick``, and the tests."""
TABLES = Path(__file__).resolve().parents[3] / "calibration" / "errors" / "slices"


def main(arguments: list[str] | None = None) -> int:
    """Judge the campaigns that are named, all where none is."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.accuracy", description=__doc__)
    parser.add_argument("campaigns", nargs="*", metavar="CAMPAIGN", help=f"of {', '.join(CAMPAIGNS)}")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("EVALUATOR_DATA", "../shared/data")))
    parser.add_argument("--tables", type=Path, default=TABLES)
    parser.add_argument(
        "--errors",
        type=Path,
        help="put the errors of all but the servers that sets were fitted to into this table of cases, and no more",
    )
    parser.add_argument("--quick", action="store_true", help=f"judge {', '.join(QUICK)} alone, in seconds")
    parser.add_argument("--write", action="store_true", help="put the new tables in the places of the old ones")
    given = parser.parse_args(arguments)
    unknown = sorted(set(given.campaigns) - set(CAMPAIGNS))
    if unknown:
        parser.error(f"no campaign {', '.join(unknown)}; there are {', '.join(CAMPAIGNS)}")
    if not given.data.is_dir():
        parser.error(f"{given.data} is no folder: name that of the measurements, --data or EVALUATOR_DATA")
    if given.errors is not None:
        for campaign in (closed_batches, iterations, mlperf):
            for _, rows in campaign.errors_of_cases(given.data).groupby("case", sort=False):
                write_errors(given.errors, rows)
        return 0
    told: list[str] = []
    chosen = given.campaigns or (QUICK if given.quick else CAMPAIGNS)
    for name in chosen:
        started = time.process_time()
        table, path = by_slice(pd.concat(CAMPAIGNS[name](given.data))), given.tables / f"{name}.csv"
        print(f"{table.to_string()}\n{name}: {time.process_time() - started:.0f} s of a processor\n", flush=True)
        told += worse(read(path), table) if path.exists() else []
        if given.write:
            write(table, path)
    if chosen is CAMPAIGNS:
        # Of the rows of the table of errors, which need no prediction.
        table = coverage(read_rows(find("errors", "serving").with_suffix(".csv")))
        print(f"{table.to_string()}\n", flush=True)
        if given.write:
            write(table, given.tables.parent / "coverage.csv", COVERAGE)
    print("\n".join(("worse than the tables that were there:", *told)) if told else "no slice is worse than it was")
    return int(bool(told) and not given.write)


if __name__ == "__main__":
    sys.exit(main())
