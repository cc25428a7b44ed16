"""Runs the benchmarks named on the command line, or all."""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.benchmarks import (  # noqa: F401
    bestserve,
    cold_start,
    compilations,
    engine,
    grid,
    hermes,
    iteration,
    joint,
    joint_pools,
    kv_storage,
    loop_copies,
    mist,
    paths,
    pipeline,
    prefixes,
    rag,
    reference,
    request_level,
    scalar,
    search,
    session,
    sweep,
    vidur,
)
from tests.benchmarks.registry import BENCHMARKS, Row
from tests.benchmarks.report import line, table, write_json


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(BENCHMARKS)}; all without any")
    parser.add_argument("--quick", action="store_true", help="leave out what takes minutes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to a file, too")
    parser.add_argument("--list", action="store_true", help="say what there is")
    chosen = parser.parse_args()
    unknown = [name for name in chosen.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    if chosen.list:
        print("\n".join(f"{name:<14}{function.__doc__.splitlines()[0]}" for name, function in BENCHMARKS.items()))
        return
    results: dict[str, list[Row]] = {}
    for name in chosen.names or BENCHMARKS:
        print(f"{name} ...", flush=True)
        results[name] = []
        for row in BENCHMARKS[name](chosen.quick):
            results[name].append(row)
            print(line(row), flush=True)
    print("\n" + table(results))
    if chosen.json:
        write_json(chosen.json, results)


if __name__ == "__main__":
    main()
