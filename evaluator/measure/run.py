"""Measure: every point as a chain of calls in compiled programs, one row each, until all are done or time is up."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from evaluator.measure.device import Device
from evaluator.measure.operators import MAKERS, Call, precision_of
from evaluator.measure.points import MeasuredCall, gemm
from evaluator.measure.rows import MeasuredRows
from evaluator.measure.timing import Effort, Timing, time_programs
from evaluator.progress import Progress

MEMORY_SHARE = 0.5
"""Of the device's memory, what one point may hold."""

ROTATION = 2.0
"""Sets of operands take turns until they are so many times as large as the cache: weights and KV come from memory."""

FAILURES = (RuntimeError, ValueError)
"""How JAX tells that a device cannot run something, or has no room for it."""

MOST_SETS = 64
MOST_CALLS = 32  # in one program
AHEAD = 20.0
"""A program lasts so many times as long as it takes the host to start it, where calls are long enough for that."""

HOST_SHARE = 0.5
"""Where starting a program takes more than this share of its time, the host was measured, not the device."""


@dataclass
class Ends:
    """The highest rates seen so far, at first lower ones than any device has, and how far classes stay below them."""

    flops: float = 1e10
    bandwidth: float = 1e9
    slower: dict[str, float] = field(default_factory=dict)  # by class: the least factor

    def see(self, point: MeasuredCall, time_s: float) -> None:
        """Learn from a time."""
        # From low starting values upwards: rates only ever rise, so that expected times only fall.
        self.flops = max(self.flops, point.flops / time_s)
        self.bandwidth = max(self.bandwidth, point.operand_bytes / time_s)
        factor = time_s / point.seconds(self.flops, self.bandwidth)
        self.slower[point.op_class] = min(factor, self.slower.get(point.op_class, factor))

    def expected(self, point: MeasuredCall) -> float:
        """Seconds that a point may take, as things look now."""
        return self.slower.get(point.op_class, 1.0) * point.seconds(self.flops, self.bandwidth)


@dataclass(frozen=True)
class Host:
    """What the host adds: seconds to start a program, from its call to its result, and of the chain's own kernel."""

    program_s: float
    round_trip_s: float
    link_s: float


@dataclass
class MeasureOutcome:
    """What came of the points."""

    host: Host
    measured: int = 0
    kept: int = 0  # by an earlier run
    left: dict[str, int] = field(default_factory=dict)  # why -> how many

    def leave(self, why: str, count: int = 1) -> None:
        """Count points that have no row."""
        self.left[why] = self.left.get(why, 0) + count


def measure(
    points: Sequence[MeasuredCall],
    device: Device,
    rows: MeasuredRows,
    *,
    effort: Effort,
    seconds: float,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> MeasureOutcome:
    """Measure points into ``rows`` until ``seconds`` have passed, those that are there already not again."""
    end = clock() + seconds
    effort = effort.shared() if device.platform == "cpu" else effort
    host = measure_host(device, effort)
    ends, outcome, done = Ends(), MeasureOutcome(host), rows.times()
    for position, point in enumerate(points):
        if point.key in done:
            # Old points teach the rates, too: without them a resumed run would begin with the longest calls.
            ends.see(point, done[point.key])
            outcome.kept += 1
            if progress is not None:
                progress.keep(1)
            continue
        if clock() >= end:
            outcome.leave(
                "not reached in the time given",
                sum(waiting_point.key not in done for waiting_point in points[position:]),
            )
            break
        row = _row(point, device, host, ends, effort, outcome)
        if row is not None:
            rows.add(row)
            outcome.measured += 1
        if progress is not None:
            progress.advance(1)
    return outcome


def _row(
    point: MeasuredCall, device: Device, host: Host, ends: Ends, effort: Effort, outcome: MeasureOutcome
) -> dict[str, Any] | None:
    """The row of a point; None, with the reason counted, where it has none."""
    # Before compiling: a call that takes minutes would be compiled and run for nothing.
    expected = ends.expected(point)
    if expected > effort.longest_s:
        outcome.leave(f"longer than {effort.longest_s:g} s a call")
        return None
    calls = _calls(point, expected, device, host)
    # A program uses as many sets as it has calls; beyond that as many as it takes to push a set out of the cache
    # before its next turn, since an engine's weights and KV come from memory, too.
    sets = max(calls, min(MOST_SETS, math.ceil(ROTATION * device.cache_bytes / max(1.0, point.operand_bytes))))
    if sets * point.operand_bytes + 2 * point.held_bytes > MEMORY_SHARE * device.memory_bytes:
        outcome.leave("more than half of the memory")
        return None
    try:
        call, timing = time_best(MAKERS[point.op_class](point.columns, device.platform), calls, sets, effort)
    except FAILURES as error:
        outcome.leave(f"{point.op_class} failed on this device ({str(error).splitlines()[0][:80]})")
        return None
    time_s = _net(timing, calls, call.linked, device, host)
    # A time from which the host's part was taken off may be next to nothing: it counts as half of what was measured
    # at least, or the point would make the device look faster than it is.
    ends.see(point, max(time_s, timing.time_s / calls / 2))
    if (device.platform != "cpu" and host.program_s > HOST_SHARE * timing.time_s) or time_s <= 0:
        outcome.leave("too short to tell from the host's work")
        return None
    return {
        "op_class": point.op_class, **point.columns, "kernel": call.kernel, "mode": "graph", "time_s": f"{time_s:.6g}",
        "spread_s": f"{timing.spread_s / calls:.3g}", "samples": timing.samples, "calls": timing.programs * calls,
        "engine": "jax", "engine_version": device.jax_version, "device": device.name, "platform": device.platform,
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }  # fmt: skip


def _calls(point: MeasuredCall, expected: float, device: Device, host: Host) -> int:
    """Calls in one program.

    One on a CPU, where XLA shares work between calls and starting a program is cheap, and of elementwise operators,
    which XLA makes one loop of.
    """
    if device.platform == "cpu" or point.op_class == "elementwise":
        return 1
    return min(MOST_CALLS, math.ceil(AHEAD * host.program_s / expected))


def _net(timing: Timing, calls: int, linked: bool, device: Device, host: Host) -> float:
    """Seconds of one call. A CPU is host and device: what it takes to start a program is taken off there."""
    # On a GPU starting overlaps with the chain, and is hidden where programs are long enough.
    started = host.program_s if device.platform == "cpu" else 0.0
    return (timing.time_s - started) / calls - (host.link_s if linked else 0.0)


def time_best(candidates: Sequence[Call], calls: int, sets: int, effort: Effort) -> tuple[Call, Timing]:
    """Time the first of these implementations that runs on this device; the last one's failure is raised."""
    for call in candidates[:-1]:
        with suppress(*FAILURES):
            return call, time_call(call, calls, sets, effort)
    return candidates[-1], time_call(candidates[-1], calls, sets, effort)


def time_call(call: Call, calls: int, sets: int, effort: Effort) -> Timing:
    """Time programs of ``calls`` calls; ``sets`` sets of operands take turns.

    A program uses a set once, so that nothing of one call can serve another.
    """
    # All sets are made before the clock starts.
    operands = [call.operands(operand_set) for operand_set in range(sets)]
    carried, turn = call.carried(), 0
    program = chain(call, carried, operands[:calls])

    def run(count: int) -> None:
        nonlocal carried, turn
        for _ in range(count):
            carried = program(carried, [operands[(turn + number) % sets] for number in range(calls)])
            turn = (turn + calls) % sets
        # Dispatch is asynchronous: without this the clock would stop before the device does.
        jax.block_until_ready(carried)

    return time_programs(run, effort)


def chain(call: Call, carried: Any, operands: Sequence[Any]) -> Any:
    """The compiled program of one call per set of operands, each on what the one before it gave."""

    def calls(carried: Any, operands: Any) -> Any:
        for operand in operands:
            carried = call.run(carried, operand)
        return carried

    # Donated, so that a call writes where the one before it read, as an engine's buffers do; compiled ahead, so that
    # no sample has the compilation in it.
    return jax.jit(calls, donate_argnums=0).lower(carried, operands).compile()


def measure_host(device: Device, effort: Effort) -> Host:
    """What the host adds: of programs that do nothing, and of small products with and without the chain's kernel.

    On a CPU the latter is a store, less than can be told.
    """

    def nothing() -> jax.Array:
        return jnp.zeros((8,))

    def product(carried: jax.Array, operands: Any) -> jax.Array:
        return lax.dot(carried, *operands, precision=precision_of("fp32"))

    calls = 1 if device.platform == "cpu" else MOST_CALLS  # as in programs of short calls
    # As many arguments and results as real programs have: each costs the host time.
    idle = Call("", lambda carried, operands: carried, nothing, lambda operand_set: (nothing(),), linked=False)
    program, argument = jax.jit(lambda carried: carried).lower(nothing()).compile(), nothing()
    alone = time_programs(lambda count: [program(argument).block_until_ready() for _ in range(count)], effort)
    started = time_call(idle, calls, calls, effort)
    if device.platform == "cpu":
        return Host(started.time_s, alone.time_s, 0.0)
    (linked,) = MAKERS["gemm"](gemm(256, 256, 256, "fp32").columns, device.platform)
    # The same products with and without the link: the difference is the link's kernel.
    with_link, without = (time_call(call, calls, calls, effort) for call in (linked, linked._replace(run=product)))
    return Host(started.time_s, alone.time_s, max(0.0, with_link.time_s - without.time_s) / calls)
