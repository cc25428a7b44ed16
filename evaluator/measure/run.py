"""Measure: every point as a chain of calls in compiled programs, one row each, until all are done or time is up."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import jax
import jax.numpy as jnp
import pandas as pd

from evaluator.measure.device import Device
from evaluator.measure.operators import MAKERS, Call
from evaluator.measure.points import Point, gemm
from evaluator.measure.rows import Rows
from evaluator.measure.timing import Effort, Timing, time_programs
from evaluator.progress import Progress

LONGEST_S = 1.0
"""Calls that would take longer at the rates seen so far are left out."""

MEMORY_SHARE = 0.5
"""Of the device's memory, what one point may hold."""

ROTATION = 2.0
"""Sets of operands take turns until they are so many times as large as the cache: weights and KV come from memory."""

MOST_SETS = 64
MOST_CALLS = 32  # in one program
AHEAD = 20.0
"""A program lasts so many times as long as it takes the host to start it, where calls are long enough for that."""

HOST_SHARE = 0.5
"""Where starting a program takes more than this share of its time, the host was measured, not the device."""


@dataclass
class Ends:
    """The highest rates seen so far; at first, those of no device."""

    flops: float = 1e10
    bandwidth: float = 1e9

    def see(self, point: Point, time_s: float) -> None:
        """Learn from a time."""
        self.flops = max(self.flops, point.flops / time_s)
        self.bandwidth = max(self.bandwidth, point.operand_bytes / time_s)


@dataclass(frozen=True)
class Host:
    """What the host adds: seconds to start a program, from its call to its result, and of the chain's own kernel."""

    program_s: float
    round_trip_s: float
    link_s: float


@dataclass
class Outcome:
    """What came of the points."""

    host: Host
    measured: int = 0
    kept: int = 0  # by an earlier run
    left: dict[str, int] = field(default_factory=dict)  # why -> how many

    def leave(self, why: str, count: int = 1) -> None:
        """Count points that have no row."""
        self.left[why] = self.left.get(why, 0) + count


def measure(
    points: Sequence[Point],
    device: Device,
    rows: Rows,
    hardware: str,
    *,
    effort: Effort,
    seconds: float,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Measure points into ``rows`` until ``seconds`` have passed, those that are there already not again."""
    end = clock() + seconds
    host = measure_host(device, effort)
    ends, outcome, done = Ends(), Outcome(host), rows.times()
    for place, point in enumerate(points):
        if point.key in done:
            ends.see(point, done[point.key])
            outcome.kept += 1
            if progress is not None:
                progress.keep(1)
            continue
        if clock() >= end:
            outcome.leave("not reached in the time given", sum(each.key not in done for each in points[place:]))
            break
        row = _row(point, device, host, ends, effort, outcome)
        if row is not None:
            rows.add({**row, "hardware": hardware})
            outcome.measured += 1
        if progress is not None:
            progress.advance(1)
    return outcome


def _row(
    point: Point, device: Device, host: Host, ends: Ends, effort: Effort, outcome: Outcome
) -> dict[str, Any] | None:
    """The row of a point; None, with the reason counted, where it has none."""
    expected = point.seconds(ends.flops, ends.bandwidth)
    if expected > LONGEST_S:
        outcome.leave(f"longer than {LONGEST_S:g} s a call")
        return None
    call = MAKERS[point.op_class](point.columns, device.platform)
    calls = _calls(call, expected, device, host)
    sets = max(calls, min(MOST_SETS, math.ceil(ROTATION * device.cache_bytes / max(1.0, point.operand_bytes))))
    if sets * point.operand_bytes + 2 * point.held_bytes > MEMORY_SHARE * device.memory_bytes:
        outcome.leave("more than half of the memory")
        return None
    try:
        kernel, timing = time_call(call, calls, sets, effort)
    except (jax.errors.JaxRuntimeError, NotImplementedError, ValueError) as error:
        outcome.leave(f"{point.op_class} failed on this device ({str(error).splitlines()[0][:80]})")
        return None
    time_s = _net(timing, calls, call.linked, device, host)
    ends.see(point, max(time_s, timing.time_s / calls / 2))
    if device.platform != "cpu" and host.program_s > HOST_SHARE * timing.time_s or time_s <= 0:
        outcome.leave("too short to tell from the host's work")
        return None
    return {
        "op_class": point.op_class, **point.columns, "kernel": kernel, "mode": "graph", "time_s": f"{time_s:.6g}",
        "spread_s": f"{timing.spread_s / calls:.3g}", "samples": timing.samples, "calls": timing.programs * calls,
        "engine": "jax", "engine_version": device.jax_version, "device": device.name, "platform": device.platform,
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }  # fmt: skip


def _calls(call: Call, expected: float, device: Device, host: Host) -> int:
    """Calls in one program: on a CPU one, as XLA would share work between calls there, and starting one is cheap."""
    if device.platform == "cpu":
        return 1
    return min(call.longest, MOST_CALLS, math.ceil(AHEAD * host.program_s / expected))


def _net(timing: Timing, calls: int, linked: bool, device: Device, host: Host) -> float:
    """Seconds of one call. A CPU is host and device: what it takes to start a program is taken off there."""
    started = host.program_s if device.platform == "cpu" else 0.0
    return (timing.time_s - started) / calls - (host.link_s if linked else 0.0)


def time_call(call: Call, calls: int, sets: int, effort: Effort) -> tuple[str, Timing]:
    """Time programs of ``calls`` calls with the best kernel that works; ``sets`` sets of operands take turns.

    A program uses a set once, so that nothing of one call can serve another. Returns the kernel's name.
    """
    carried = call.carried()
    operands = [call.operands(at) for at in range(sets)]
    name, program = _compiled(call, carried, operands[:calls])
    state = [carried, 0]

    def run(count: int) -> None:
        for _ in range(count):
            at = state[1]
            state[0] = program(state[0], [operands[(at + each) % sets] for each in range(calls)])
            state[1] = (at + calls) % sets
        jax.block_until_ready(state[0])

    return name, time_programs(run, effort)


def _compiled(call: Call, carried: Any, operands: list[Any]) -> tuple[str, Any]:
    kernels = dict(call.kernels)
    while True:
        name, kernel = next(iter(kernels.items()))

        def program(carried: Any, operands: list[Any], kernel: Any = kernel) -> Any:
            for each in operands:
                carried = kernel(carried, each)
            return carried

        try:
            return name, jax.jit(program, donate_argnums=0).lower(carried, operands).compile()
        except (jax.errors.JaxRuntimeError, NotImplementedError, RuntimeError, ValueError):
            del kernels[name]
            if not kernels:
                raise


def measure_host(device: Device, effort: Effort) -> Host:
    """What the host adds, from programs that do nothing, and from small products with and without the chain's kernel."""
    empty = Call(lambda: jnp.zeros((8,)), lambda at: (), {"": lambda carried, operands: carried}, linked=False)
    program = jax.jit(lambda carried: carried, donate_argnums=0).lower(jnp.zeros((8,))).compile()
    alone = time_programs(lambda count: [program(jnp.zeros((8,))).block_until_ready() for _ in range(count)], effort)
    _, started = time_call(empty, 1, 1, effort)
    calls = 1 if device.platform == "cpu" else MOST_CALLS
    linked = MAKERS["gemm"](gemm(256, 256, 256, "fp32").columns, device.platform)
    plain = linked._replace(kernels={"dot": lambda carried, operands: carried @ operands[0]})
    _, with_link = time_call(linked, calls, calls, effort)
    _, without = time_call(plain, calls, calls, effort)
    link_s = max(0.0, with_link.time_s - without.time_s) / calls
    return Host(started.time_s, alone.time_s, link_s)
