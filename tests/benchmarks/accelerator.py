"""The engine on an accelerator: all lanes in step by ``vmap``, beside the same lanes on the processor.

``python -m tests.benchmarks.accelerator``, or ``make bench-gpu``: on the device that JAX has, which on a machine
without one is the processor (then with few lanes: ``--lanes 64``). Some lanes are run by both ways, and must agree.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from types import ModuleType
from typing import Any

import jax
import numpy as np

from evaluator.device import configure
from evaluator.stations.engine import LaneResult, fcfs_reserved, preemptive
from tests.benchmarks.engine import DENSE, fcfs_reserved_input, preemptive_input
from tests.benchmarks.workload import work

CHECKED = 16
"""Lanes that are compared with the processor's, evenly spread over all loads."""
TOLERANCE = 1e-9
TIMES = ("scheduled_s", "first_token_s", "last_token_s")
TOTALS = ("busy_s", "iterations", "kv_units_max", "kv_unit_s")


def measured(name: str, program: ModuleType, given: Any, repeats: int) -> str:
    """A row: requests per second, what a lane takes of the device's memory, and the largest difference."""
    lanes, requests, structure = given
    count, slots = requests.arrival_s.shape
    run = partial(program.run_lanes, structure=structure, vectorise=True)
    compiled = program.run_lanes.lower(lanes, requests, structure=structure, vectorise=True).compile()
    use = compiled.memory_analysis()
    per_lane = sum(getattr(use, f"{kind}_size_in_bytes") for kind in ("argument", "output", "temp")) / count
    on_device = jax.device_put((lanes, requests))
    results = jax.block_until_ready(run(*on_device))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(run(*on_device))
        times.append(time.perf_counter() - start)
    rate = count * (slots - 1) / min(times)
    difference = largest_difference(program, given, results)
    told = "" if difference <= TOLERANCE else f"   more than {TOLERANCE:g}: the programs differ"
    figures = f"{min(times):10.3f} s {rate / 1e6:9.3f} M requests/s {per_lane / 1e3:9.1f} kB {difference:10.1e}"
    return f"{name:32}{figures}{told}"


def largest_difference(program: ModuleType, given: Any, results: LaneResult) -> float:
    """Of some lanes, relative to what the processor says of them, one after the other."""
    lanes, requests, structure = given
    some = np.linspace(0, requests.arrival_s.shape[0] - 1, CHECKED).astype(int)
    with jax.default_device(jax.devices("cpu")[0]):
        known = program.run_lanes(*jax.tree.map(lambda values: values[some], (lanes, requests)), structure=structure)
    worst = 0.0
    pairs = [(getattr(known, name), getattr(results, name)) for name in TIMES]
    pairs += [(getattr(known.totals, name), getattr(results.totals, name)) for name in TOTALS]
    for of_cpu, of_device in pairs:
        expected, found = np.asarray(of_cpu), np.asarray(of_device)[some]
        same = (found == expected) | (np.isnan(found) & np.isnan(expected))  # infinite where never served
        apart = np.where(same, 0.0, abs(found / np.where(expected == 0, 1, expected) - 1))
        worst = max(worst, float(np.max(np.nan_to_num(apart, nan=np.inf))))
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.accelerator", description=__doc__)
    parser.add_argument("--lanes", type=int, default=100_000)
    parser.add_argument("--requests", type=int, default=200, help="of a lane")
    parser.add_argument("--repeats", type=int, default=3)
    chosen = parser.parse_args()
    configure()
    device = jax.devices()[0]
    print(f"{device.platform} {device.device_kind}: {chosen.lanes:,} lanes x {chosen.requests:,} requests, {DENSE}")
    print(f"{'':32}{'time':>12} {'':9}{'':13}{'a lane':>9} {'difference':>12}", flush=True)
    given = work(DENSE, lanes=chosen.lanes, requests=chosen.requests)
    for name, program, made in (
        ("fcfs_reserved", fcfs_reserved, fcfs_reserved_input(given)),
        ("preemptive, KV on demand", preemptive, preemptive_input(given, on_demand=True)),
    ):
        with np.errstate(invalid="ignore"):
            print(measured(name, program, made, chosen.repeats), flush=True)


if __name__ == "__main__":
    main()
