"""The reference and the vectorised engine do what vLLM's scheduler was recorded to do (``make oracle`` records it)."""

from __future__ import annotations

import json
import lzma
from dataclasses import replace
from functools import cache
from pathlib import Path

import jax
import numpy as np
import pytest

from evaluator.cost.iteration import CostParameters
from tests.oracle import ours
from tests.oracle.cases import TICK_S, Case, Log, as_data, first_difference, from_data, random_case
from tests.reference.build import random_cost
from tests.stations.engine.fcfs_reserved.build import Case as Requests
from tests.stations.engine.preemptive.build import Case as Lane
from tests.stations.engine.preemptive.build import Kind, run_engine
from tests.thorough import tried

RECORDINGS = sorted((Path(__file__).parent / "recordings").glob("vllm-*.json.xz"))
CHUNKED = Kind(blocks=True)
CACHED = Kind(windowed=True, experts=True, cached=True)  # as in the engine's own tests, to share their programs
AHEAD = Kind(asynchronous=True, blocks=True)
AHEAD_CACHED = replace(CACHED, asynchronous=True)


@cache
def recorded(path: Path) -> list[tuple[Case, Log]]:
    """The cases of a recording, with vLLM's log of each."""
    return [from_data(data, Case) for data in json.loads(lzma.decompress(path.read_bytes()))["cases"]]


def test_there_is_a_recording_of_every_feature():
    assert len(RECORDINGS) == 26
    assert sum(path.stat().st_size for path in RECORDINGS) < 400_000


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name.removesuffix(".json.xz"))
def test_the_reference_does_what_vllm_did(path):
    """Who takes part with how many tokens, preemptions, cached tokens, free blocks and times of every iteration."""
    cases = recorded(path)  # of one feature, whose seeds differ
    for case, log in cases[: max(tried(len(cases), 0.5), 4)]:
        difference = first_difference(log, ours.serve(case))
        assert difference is None, f"{case.feature}, seed {case.seed}: {difference}"


def test_a_difference_is_told_in_full():
    case, log = recorded(RECORDINGS[0])[0]
    data = json.loads(json.dumps(as_data(case, log)))
    assert from_data(data, Case) == (case, log)
    data["free_blocks"][3] += 1
    told = first_difference(from_data(data, Case)[1], log)
    assert told is not None and told.startswith("iteration 3 differs in free_blocks") and "vLLM Step(" in told


def test_cases_are_drawn_from_their_seed():
    assert random_case("drafts", 3) == random_case("drafts", 3) != random_case("drafts", 4)


@pytest.mark.parametrize("seed", [12, 100], ids=["head of the queue", "preempted by one another"])
def test_what_gets_stuck_as_in_vllm_comes_to_an_end(seed):
    """With host memory and planning ahead: vLLM was seen to have these left for ever."""
    log = ours.serve(random_case("host memory, asynchronous", seed))
    assert (len(log.steps), log.last_ticks.count(-1)) == {12: (34, 34), 100: (183, 39)}[seed]


def test_who_asks_stores_in_vain_as_in_vllm_comes_to_an_end():
    """Host memory is too small for what comes from them: vLLM was seen to ask for the same blocks again and again."""
    log = ours.serve(random_case("stores", 56))
    assert log.last_ticks.count(-1) == 1


def lane_of(case: Case, kind: Kind) -> Lane:
    """The case for the vectorised engine; its cost has the operators of the engine's own tests, which take no time."""
    requests, limits = ours.requests_of(case), ours.limits_of(case)
    operators = random_cost(np.random.default_rng(0), experts=kind.experts, windowed=kind.windowed)
    zero: CostParameters = jax.tree.map(np.zeros_like, operators)
    (cost,) = ours.cost_of(case)
    named = ("iteration_s", "token_s", "ramp_tokens", "late_decodes")
    cost = zero._replace(**{name: np.float64(getattr(cost, name)) for name in named})
    columns = ("compute_tokens", "prompt_tokens", "output_tokens", "kv_units")
    integers = {name: np.array([getattr(request, name) for request in requests]) for name in columns}
    arrivals = np.array([request.arrival_s for request in requests])
    contents = tuple(tuple(request.content) for request in requests) if kind.cached else ()
    return Lane(
        Requests(cost, "chunked", limits, arrivals, **integers), (cost,), 0 * integers["kv_units"], None, contents
    )


def of_engine(kind: Kind) -> list[tuple[Case, Log]]:
    """Recorded cases of what the vectorised engine has. Its blocks get names in the order in which decodes joined, so
    that, of equal blocks computed side by side under a threshold, another may be found first than in vLLM."""
    return [
        (case, log)
        for path in RECORDINGS
        for case, log in recorded(path)
        if not (case.priority or case.drafts or case.pipeline_ranks > 1)
        and not (case.groups or case.data_parallel > 1 or case.prefill_blocks or case.host_blocks or case.max_loras)
        and (case.prefix_caching, case.asynchronous) == (kind.cached, kind.asynchronous)
        and not (kind.cached and (case.long_prefill_token_threshold or case.block_tokens > 16))
    ]


KINDS = {
    "chunked": CHUNKED, "prefix cache": CACHED, "asynchronous": AHEAD, "asynchronous, prefix cache": AHEAD_CACHED
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_the_vectorised_engine_does_what_vllm_did(kind):
    pairs = of_engine(kind)
    assert len(pairs) >= 2
    found = run_engine([lane_of(case, kind) for case, _ in pairs], kind)
    for (case, log), result in zip(pairs, found, strict=True):
        told = f"{case.feature}, seed {case.seed}"
        begun: dict[int, int] = {}
        hits: dict[int, int] = {}
        for step in log.steps:
            for request, _ in step.tokens:
                begun.setdefault(request, step.start_ticks)
            for request, tokens in step.cached:
                hits.setdefault(request, tokens)
        times = [begun[request] for request in range(len(case.requests))]
        np.testing.assert_array_equal(result.scheduled_s, np.array(times) * TICK_S, told)
        np.testing.assert_array_equal(result.first_token_s, np.array(log.first_ticks) * TICK_S, told)
        np.testing.assert_array_equal(result.last_token_s, np.array(log.last_ticks) * TICK_S, told)
        assert result.totals.iterations == len(log.steps), told
        assert result.totals.preemptions == sum(len(step.preempted) for step in log.steps), told
        assert result.totals.kv_units_max == case.blocks - min(step.free_blocks for step in log.steps), told
        if kind.cached:
            assert result.hit_tokens.tolist() == [hits[request] for request in range(len(case.requests))], told
