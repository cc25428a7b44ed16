"""The first program beside a loop of scalar C that computes the same (``scalar.c``): how far it is from the machine."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from evaluator.cost import CostParameters
from evaluator.device import configure
from evaluator.stations.engine.common.histogram import BINS
from tests.benchmarks.engine import DENSE, fcfs_reserved_input, measure, run_job
from tests.benchmarks.registry import Row, benchmark
from tests.benchmarks.timing import best_of, cores, in_threads
from tests.benchmarks.workload import KV_TOKENS, LANES, MAX_NUM_SEQS, REQUESTS, Work, work

RING = 2048
FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-shared", "-fPIC")
"""As XLA compiles: for this very processor, and no operation on numbers that IEEE 754 does not allow."""

TERMS = (
    "iteration_s token_s sequence_s context_s spread_s unsplit_s late_s late_decodes late_beyond decode_s join_s "
    "prefill_token_s ramp_s ramp_tokens handover_s handover_tokens pieces_s between_s captured_tokens"
).split()
TABLES = ("token_rows", "sequence_rows", "prefill_rows", "ramp_rows")
OF_EXPERTS = ("log_expert_missed", "expert_skew", "touched_spread", "touched_least")
ABSENT = ("expert_rows", "prefill_window_rows", "expert_ramp_rows", "beside_rows", "adapter_rows", "adapter_groups",
          "delta_rule_rows")  # fmt: skip
"""Tables that ``scalar.c`` knows nothing of: a dense model on a device by its data sheet has none of their rows."""
ZERO = ("graph_tokens", "window_context_s", "prepared_s")
"""Terms that it knows nothing of, which are 0 of such a model."""


def _record(name: str, *fields: tuple[str, Any]) -> type[ctypes.Structure]:
    return type(name, (ctypes.Structure,), {"_fields_": list(fields)})


_POINTER, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int32, ctypes.c_double
_Cost = _record(
    "Cost", *((name, _POINTER) for name in (*TABLES, "terms")), *((f"{name}_count", _INT) for name in TABLES)
)
_Limits = _record(
    "Limits",
    *((name, _FLOAT) for name in ("max_num_seqs", "max_num_batched_tokens", "kv_units")),
    *((name, _INT) for name in ("requests", "measured_from", "ring")),
)
_Requests = _record(
    "Requests", *((name, _POINTER) for name in ("arrival_s", "prompt_tokens", "output_tokens", "kv_units"))
)
_Rings = _record("Rings", *((name, _POINTER) for name in ("events", "leaving", "next_leaving")))
TIMES = ("scheduled_s", "first_token_s", "last_token_s")
TOTALS = ("busy_s", "iterations", "kv_units_max", "kv_unit_s")
_Result = _record(
    "Result", *((name, _POINTER) for name in (*TIMES, "itl_histogram")), *((name, _FLOAT) for name in TOTALS)
)


def compiler() -> str | None:
    """The C compiler of this machine; None where there is none."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


class ScalarLanes:
    """All lanes of a workload, ready to run by ``scalar.c``; after a run the results are in its arrays."""

    def __init__(self, given: Work, folder: Path) -> None:
        command = compiler()
        assert command is not None, "no C compiler on this machine"
        library = folder / "scalar.so"
        source = Path(__file__).with_suffix(".c")
        subprocess.run([command, *FLAGS, str(source), "-o", str(library), "-lm"], check=True)
        self._run = ctypes.CDLL(str(library)).run_lane
        self._run.restype = None
        self._arrays: list[np.ndarray] = []  # that C has pointers to
        count = len(given.costs)
        self.times = {name: np.empty((count, REQUESTS)) for name in TIMES}
        self.itl_histogram = np.empty((count, BINS))
        self.results = (_Result * count)()
        for lane, result in enumerate(self.results):
            for name, values in (self.times | {"itl_histogram": self.itl_histogram}).items():
                setattr(result, name, values[lane].ctypes.data)
        self._costs = [self._cost(cost) for cost in given.costs]
        limits = MAX_NUM_SEQS, given.max_num_batched_tokens, KV_TOKENS // given.kv.block_tokens
        self._limits = _Limits(*limits, REQUESTS, REQUESTS // 10, RING)
        columns = [
            self._pointer(values, np.int32) for values in (given.prompt_tokens, given.output_tokens, given.kv_units)
        ]
        arrival_s = np.pad(given.arrival_s, ((0, 0), (0, 1)), constant_values=np.inf)
        self._requests = [_Requests(self._pointer(times, np.float64), *columns) for times in arrival_s]
        self._rings = threading.local()

    def _pointer(self, values: Any, kind: Any) -> int:
        self._arrays.append(np.ascontiguousarray(values, kind))
        return self._arrays[-1].ctypes.data

    def _cost(self, cost: CostParameters) -> ctypes.Structure:
        unknown = {*cost._fields}.difference(TERMS, TABLES, OF_EXPERTS, ABSENT, ZERO)
        assert not unknown, f"scalar.c does not know {unknown}"
        known = not any(len(getattr(cost, name)[0]) for name in ABSENT) and not any(
            getattr(cost, name) for name in ZERO
        )
        assert known, "scalar.c does not know all of this cost"
        tables = [np.stack(getattr(cost, name), axis=-1) for name in TABLES]
        terms = self._pointer([float(getattr(cost, name)) for name in TERMS], np.float64)
        return _Cost(*(self._pointer(table, np.float64) for table in tables), terms, *map(len, tables))

    def _rings_of_thread(self) -> ctypes.Structure:
        if not hasattr(self._rings, "record"):
            self._rings.arrays = np.empty(RING // 64, np.uint64), np.empty(RING, np.int32), np.empty(REQUESTS, np.int32)
            self._rings.record = _Rings(*(values.ctypes.data for values in self._rings.arrays))
        return self._rings.record

    def run(self, lanes: range) -> None:
        """These lanes, one after the other; other threads may run others meanwhile."""
        rings = self._rings_of_thread()
        for lane in lanes:
            inputs = self._costs[lane], self._limits, self._requests[lane], rings, self.results[lane]
            self._run(*map(ctypes.byref, inputs))


def differences(given: Work, scalar: ScalarLanes, lanes: range) -> float:
    """The largest relative difference of any time, total or count of gaps between the two, over these lanes; the
    absolute one where the engine's value is 0."""
    (inputs, requests, structure) = fcfs_reserved_input(given)

    def of_lanes(tree: Any) -> Any:
        import jax

        return jax.tree.map(lambda values: values[lanes.start : lanes.stop], tree)

    compiled = run_job((of_lanes(inputs), of_lanes(requests), structure))
    pairs = [(scalar.times[name][lanes.start : lanes.stop], np.asarray(getattr(compiled, name))) for name in TIMES]
    pairs.append((scalar.itl_histogram[lanes.start : lanes.stop], np.asarray(compiled.itl_histogram)))
    for name in TOTALS:
        totals = np.array([getattr(scalar.results[lane], name) for lane in lanes])
        pairs.append((totals, np.asarray(getattr(compiled.totals, name))))
    return max(float(np.max(np.abs(mine - its) / np.where(its == 0.0, 1.0, np.abs(its)))) for mine, its in pairs)


@benchmark("scalar")
def against_scalar(quick: bool) -> Iterator[Row]:
    """The first program on one thread and on all, beside a loop of scalar C with the same operators."""
    if compiler() is None:
        yield Row("no C compiler here (cc, gcc or clang)", float("nan"), "")
        return
    configure()
    given, threads = work(DENSE), cores()
    with tempfile.TemporaryDirectory() as folder:
        scalar = ScalarLanes(given, Path(folder))
        pieces = [range(start, start + 32) for start in range(0, LANES, 32)]
        for count in sorted({1, threads}):
            loop = best_of(lambda count=count: in_threads(scalar.run, pieces, count))
            program = measure(given, count)
            served = LANES * REQUESTS
            with_threads = f"{count} thread{'s' if count > 1 else ''}"
            per_request = f"{loop.cpu_s / served * 1e9:.0f} ns of processor time a request"
            yield Row(f"scalar C, {with_threads}", served / loop.wall_s / 1e6, "M requests/s", per_request)
            per_request = f"{program.cpu_s / served * 1e9:.0f} ns, {program.cpu_s / loop.cpu_s:.2f} x that of C"
            yield Row(f"engine, {with_threads}", served / program.wall_s / 1e6, "M requests/s", per_request)
        yield Row("largest relative difference of all results", differences(given, scalar, range(0, LANES, 1)[:64]), "")
