"""Rounds of a pipeline: many batches in one trip of the loop, and the same as one by one."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from evaluator.device import configure
from evaluator.reference import Limits
from evaluator.stations.engine.preemptive.lane import Given
from evaluator.stations.engine.preemptive.pipeline import pipeline_step
from evaluator.stations.engine.preemptive.state import initial_state
from tests.reference.build import random_cost
from tests.stations.engine.compare import assert_same
from tests.stations.engine.fcfs_reserved.build import build
from tests.stations.engine.preemptive.build import Case, Kind, run_engine, run_reference, stacked

OUTPUTS = [200, 180, 160, 140]
KIND = Kind(windowed=True, experts=True, pipeline_ranks=3, peaks=True)
"""That of the random cases (``test_program.py``), so that they share a compiled program."""
WAYS = {
    "KV reserved": {},
    "KV on demand": {"admission": "on_demand", "block_tokens": 16},
    "every token takes a unit": {"admission": "on_demand", "block_tokens": 1},
}


def _case(arrival_s: list[float], seed: int = 0, policy: str = "chunked", kind: Kind = KIND, **limits) -> Case:
    """Few sequences with long outputs within the window, and ranks of different speed."""
    costs = tuple(
        random_cost(np.random.default_rng([seed, rank]), experts=kind.experts, windowed=kind.windowed)
        for rank in range(kind.pipeline_ranks)
    )
    case = build(costs[0], policy, np.array(arrival_s), [10, 20, 30, 40], OUTPUTS, window=1000 * kind.windowed)
    block = limits.get("block_tokens", 1)
    units = -(-(case.prompt_tokens + case.output_tokens - 1) // block)
    kept = Limits(**{"max_num_seqs": 8, "max_num_batched_tokens": 512, "kv_units": int(units.sum())} | limits)
    return Case(replace(case, limits=kept, kv_units=units), costs, 0 * units)


def _trips_and_batches(given: Case, kind: Kind) -> tuple[int, int]:
    lanes, requests = stacked([given])
    lane, own = jax.tree.map(lambda values: values[0], (lanes, requests))
    fixed = Given(*lane, own, kind.structure)
    loop_step = jax.jit(lambda state: pipeline_step(fixed, state))
    # Of the types that a step returns, so that it is compiled once: some of the start are weak, which JAX tells apart.
    state, trips = jax.tree.map(lambda value: jnp.asarray(value, value.dtype), initial_state(fixed)), 0
    while state.finished < len(OUTPUTS) and not state.stuck:
        state, trips = loop_step(state), trips + 1
    return trips, int(state.pipeline.completed_batches)


def test_a_round_takes_one_trip():
    """All requests come at once, so that four departures are the only events: some trips for each, and no more."""
    configure()
    kind = Kind(pipeline_ranks=2)
    trips, batches = _trips_and_batches(_case([0.0] * 4, kind=kind), kind)
    assert batches > 190
    assert trips < 10 * len(OUTPUTS)


def test_rounds_end_before_what_changes_a_batch():
    """Arrivals within rounds, at the end of a batch or while the pipeline has room; seats and KV that run out."""
    cases = []
    for seed, path in enumerate([*WAYS.values()] * 2):
        spread = np.sort(np.random.default_rng(seed).uniform(0.0, 4.0, 4)).tolist()
        for limits in ({}, {"max_num_seqs": 2}, {"packing": "least_work_left", "max_num_seqs": 3}):
            cases.append(_case(spread, seed, **path, **limits))
        units = cases[-1].case.kv_units
        cases.append(_case(spread, seed, **path, kv_units=int(units.max() * 1.5)))
        cases.append(_case([0.0] * 4, seed, "continuous" if path else "static", **path))
    for given, result in zip(cases, run_engine(cases, KIND), strict=True):
        expected = run_reference(given)
        assert_same(given.case, result, expected)
        assert result.totals.preemptions == expected.preemptions
        np.testing.assert_allclose(result.totals.kv_unit_s, expected.kv_unit_s, rtol=1e-12)
        np.testing.assert_allclose(result.last_token_s, [each.token_s[-1] for each in expected.requests], rtol=1e-12)
