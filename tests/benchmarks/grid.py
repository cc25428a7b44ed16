"""Designs without queues: memory, prefill and decode time of points that each have a device of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from evaluator.catalog import load_calibration, load_hardware, load_model
from evaluator.cost import (
    Parallel,
    Rates,
    coefficients,
    decode_batch,
    fold_rates,
    iteration_time,
    memory_plan,
    operators,
    prefill_batch,
    rates,
    reach,
)
from evaluator.cost.precision import Precision
from evaluator.device import configure
from tests.benchmarks.registry import Row, benchmark
from tests.benchmarks.timing import best_of, cores, in_threads

MODELS = {"llama-3.1-70b": 4, "qwen3-30b-a3b": 2}  # name -> tensor parallelism
HARDWARE = "h100-sxm"
POINTS = 1_000_000
BLOCK = 1000  # points that pass through all operators together: their intermediate values fit in the cache
PROMPT, OUTPUT = 1024, 200
PLAIN_POINTS = 1000


class Point(NamedTuple):
    """One design: any peak, bandwidth, link, efficiency, overhead and memory size, and any batch."""

    rate: Rates
    memory_bytes: Any
    sequences: Any


@benchmark("grid")
def grid(quick: bool) -> Iterator[Row]:
    """Designs/s of a grid without queues, every point with its own hardware and efficiencies."""
    configure()
    threads = cores()
    for name, tensor in MODELS.items():
        design = _design(name, tensor)
        points = _points(POINTS)
        blocks = jax.tree.map(lambda x: jnp.asarray(x.reshape(-1, BLOCK, *x.shape[1:])), points)
        several = jax.jit(lambda given, design=design: jax.lax.map(jax.vmap(design), given))
        rate = _rate(lambda several=several, blocks=blocks: jax.block_until_ready(several(blocks)), POINTS)
        label = f"{name}, TP {tensor}"
        yield Row(label, rate / 1e6, "M designs/s", f"{POINTS:,} designs, one call")
        parts = [jax.tree.map(lambda x, at=at: x[at::threads], blocks) for at in range(threads)]

        def spread(several: Any = several, parts: list = parts) -> None:
            in_threads(lambda part: jax.block_until_ready(several(part)), parts, threads)

        both = _rate(spread, POINTS)
        yield Row(f"{label}, {threads} threads", both / 1e6, "M designs/s", f"{both / rate:.2f} x one")
        whole = jax.jit(jax.vmap(design))
        flat = jax.tree.map(jnp.asarray, points)
        unblocked = _rate(lambda whole=whole, flat=flat: jax.block_until_ready(whole(flat)), POINTS)
        yield Row(f"{label}, not in blocks", unblocked / 1e6, "M designs/s", f"{unblocked / rate:.2f} x: from memory")
        few = [jax.tree.map(lambda x, at=at: x[at], points) for at in range(PLAIN_POINTS)]
        plain = _rate(lambda design=design, few=few: [design(point) for point in few], PLAIN_POINTS)
        yield Row(f"{label}, NumPy point by point", plain, "designs/s", f"JAX {rate / plain:,.0f} x")


def _design(name: str, tensor: int) -> Any:
    """A function of a Point: (fits, prefill seconds, decode seconds); everything else is fixed."""
    model, hardware, parallel = load_model(name), load_hardware(HARDWARE), Parallel(tensor)
    known = coefficients(operators(model, Precision(), parallel), reach(hardware))
    memory = memory_plan(model, hardware, Precision(), parallel)
    kept = (PROMPT + OUTPUT) / memory.kv.block_tokens
    prefill = prefill_batch(1.0, PROMPT, memory.kv.window)
    one = decode_batch(1.0, PROMPT + OUTPUT / 2, memory.kv.window)

    def design(point: Point) -> tuple[Any, Any, Any]:
        cost = fold_rates(known, point.rate)
        free = 0.9 * point.memory_bytes - memory.weight_bytes - memory.activation_bytes
        fits = point.sequences * kept * memory.kv.unit_bytes <= free
        decode = type(one)(*(value * point.sequences for value in one))
        return fits, iteration_time(cost, prefill), iteration_time(cost, decode)

    return design


def _points(count: int) -> Point:
    """Every leaf of the rates between half and one and a half of today's, (point, ...)."""
    rng = np.random.default_rng(0)
    base = rates(load_hardware(HARDWARE), load_calibration("datasheet", HARDWARE))
    spread = [np.asarray(leaf) * rng.uniform(0.5, 1.5, (count, *np.shape(leaf))) for leaf in base]
    return Point(Rates(*spread), rng.uniform(40e9, 200e9, count), rng.integers(1, 257, count).astype(float))


def _rate(run: Any, count: int) -> float:
    return count / best_of(run).wall_s
