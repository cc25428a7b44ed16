"""LoRA adapters that requests name by name: who waits for a place, what is loaded, and which times follow."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evaluator.cost.iteration import AdapterGroups
from evaluator.reference import Limits, Request, simulate
from tests.reference.build import NO_ROWS, SECOND

LIMITS = Limits(8, 1000, 1000, admission="on_demand", block_tokens=16, batch_queue=True)


def requests(*rows):
    """(arrival, prompt, output, adapter) of each."""
    return [
        Request(index, float(arrival), prompt, prompt, output, -(-(prompt + output) // 16), adapter=adapter)
        for index, (arrival, prompt, output, adapter) in enumerate(rows)
    ]


def scheduled(*rows, **limits):
    asked = requests(*rows)
    simulate([SECOND], "chunked", replace(LIMITS, **limits), asked, tokens=True)
    return [request.scheduled_s for request in asked]


def test_a_request_waits_for_a_place_and_who_names_a_held_adapter_passes_it():
    rows = [(0, 10, 4, 1), (0.5, 10, 2, 2), (0.6, 10, 2, 1)]
    # The batch has adapter 1 until both requests that name it have left, at 4 s.
    assert scheduled(*rows, max_adapters=1) == [0.0, 4.0, 1.0]
    assert scheduled(*rows, max_adapters=2) == scheduled(*rows) == [0.0, 1.0, 1.0]


def test_an_adapter_is_loaded_into_the_place_that_was_unused_longest():
    rows = [(10 * at, 10, 1, adapter) for at, adapter in enumerate((1, 2, 1, 3, 1, 2))]
    asked = requests(*rows)
    simulate([SECOND], "chunked", replace(LIMITS, max_adapters=2, adapter_load_s=0.5), asked)
    # 1 and 2 are loaded, 1 is there, 3 takes the place of 2, 1 is there still, 2 takes that of 3.
    took = [request.last_token_s - request.arrival_s for request in asked]
    assert took == [1.5, 1.5, 1.0, 1.5, 1.0, 1.5]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_leaps_give_the_times_of_single_iterations(seed, asynchronous):
    """Also of arrivals behind one that waits for a place, which may be admitted at once."""
    rng = np.random.default_rng(seed)
    count = 40
    arrivals = np.cumsum(rng.exponential(3.0, count))
    rows = [*zip(arrivals, rng.integers(1, 60, count).tolist(), rng.integers(1, 40, count).tolist(),
                 rng.integers(0, 6, count).tolist(), strict=True)]  # fmt: skip
    used = ("weight", "activation")
    rows_of = NO_ROWS._replace(**{name: np.full(1, 1e-2 * (name in used)) for name in NO_ROWS._fields})
    cost = SECOND._replace(
        adapter_rows=rows_of, adapter_groups=AdapterGroups(np.ones(6), np.log(np.full(6, 5 / 6)), np.full(6, 2.0))
    )
    limits = replace(LIMITS, max_adapters=2, adapter_load_s=0.25, asynchronous=asynchronous)
    both = [requests(*rows), requests(*rows)]
    for asked, tokens in zip(both, (False, True), strict=True):
        simulate([cost], "chunked", limits, asked, tokens=tokens)
    leapt, single = ([(each.scheduled_s, each.last_token_s) for each in asked] for asked in both)
    assert np.array(leapt) == pytest.approx(np.array(single), rel=1e-9)


def test_no_more_than_the_places_are_ever_in_a_batch():
    asked = requests(*((0.1 * at, 20, 10, at % 5) for at in range(60)))
    seen = []
    simulate([SECOND], "chunked", replace(LIMITS, max_adapters=3), asked, tokens=True,
             observe=lambda iteration: seen.append({asked[i].adapter for i in iteration.decodes}))  # fmt: skip
    assert max(map(len, seen)) == 3 and all(request.finished for request in asked)


def test_a_saturated_batch_of_one_place_serves_adapter_by_adapter():
    """All come at once: with one place the requests of an adapter are a batch of their own, one after the other."""
    asked = requests(*((0, 10, 5, at % 4) for at in range(32)))
    simulate([SECOND], "chunked", replace(LIMITS, max_adapters=1), asked)
    # Eight of each adapter share a batch of five iterations: four batches.
    assert max(request.last_token_s for request in asked) == pytest.approx(4 * 5.0)
