"""The cost function by itself: iteration times per second, for arrays of batches and for real parameters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evaluator.catalog import load_calibration, load_hardware, load_model
from evaluator.cost import BatchStatistics, CostParameters, Parallel, fold, iteration_time, operators, row_counts
from evaluator.cost.precision import Precision
from evaluator.device import configure
from tests.benchmarks.registry import Row, benchmark
from tests.benchmarks.timing import best_of, cores, in_threads

MODELS = {"llama-3.1-8b": "dense", "qwen3-30b-a3b": "MoE", "gpt-oss-20b": "windowed, MoE"}
HARDWARE = "h100-sxm"
BATCHES = 1_000_000
MANY = 10_000_000


@benchmark("iteration")
def iteration(quick: bool) -> Iterator[Row]:
    """Evaluations/s of iteration_time over arrays of batches, in JAX and in NumPy."""
    configure()
    evaluate = jax.jit(iteration_time)
    dense = parameters(next(iter(MODELS)))
    batches = jax.tree.map(jnp.asarray, batch_statistics(BATCHES))
    main = 0.0
    for name, kind in MODELS.items():
        cost = parameters(name)
        rate = _rate(lambda cost=cost: jax.block_until_ready(evaluate(cost, batches)), BATCHES)
        main = main or rate
        terms = sum(row_counts(cost))
        yield Row(
            f"{name} ({kind})", rate, "M/s", f"{BATCHES:,} batches a call, {terms} rooflines; {rate / main:.2f} x dense"
        )
    several = [batches] * 8
    threads = cores()

    def spread() -> None:
        in_threads(lambda one: jax.block_until_ready(evaluate(dense, one)), several, threads)

    rate = _rate(spread, len(several) * BATCHES)
    yield Row(
        f"dense, {threads} threads of calls", rate, "M/s", f"{rate / main:.2f} x one: a call uses all cores by itself"
    )
    if not quick:
        large = jax.tree.map(jnp.asarray, batch_statistics(MANY))
        rate = _rate(lambda: jax.block_until_ready(evaluate(dense, large)), MANY)
        yield Row(f"dense, {MANY:,} batches a call", rate, "M/s", f"{rate / main:.2f} x: from memory, not from cache")
    plain = batch_statistics(BATCHES)
    rate = _rate(lambda: iteration_time(dense, plain), BATCHES)
    yield Row("dense, NumPy", rate, "M/s", f"{rate / main:.2f} x JAX")


def parameters(model: str, tensor: int = 1) -> CostParameters:
    """All operators of a catalog model, folded, in NumPy."""
    found = operators(load_model(model), Precision(), Parallel(tensor))
    return fold(found, load_hardware(HARDWARE), load_calibration("datasheet", HARDWARE))


def batch_statistics(count: int) -> BatchStatistics:
    """Random batches of decodes with one chunk of a prompt, (batch,)."""
    rng = np.random.default_rng(0)
    decodes = rng.integers(1, 256, count).astype(float)
    context = decodes * rng.uniform(100, 4000, count)
    tokens = rng.integers(0, 2048, count).astype(float)
    history = rng.integers(0, 4096, count).astype(float)
    area = tokens * (history + 0.5 * (tokens + 1))
    window = 128.0
    return BatchStatistics(
        decodes, context, np.minimum(context, decodes * window), tokens, np.ones(count),
        area, tokens * window, history + tokens, tokens + window,
    )  # fmt: skip


def _rate(run: Any, count: int) -> float:
    return count / best_of(run).wall_s / 1e6
