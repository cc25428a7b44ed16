"""Replicas that take KV on demand, for the program that serves requests in the order of their arrival."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from evaluator.cost.kv import units
from evaluator.device import configure
from evaluator.stations.engine import LaneResult, Requests
from evaluator.stations.engine.fcfs_reserved import Lane, OnDemand, Structure, run_lanes
from tests.stations.engine.fcfs_reserved.build import LANES, RING, cut, in_calls
from tests.stations.engine.preemptive.build import LARGEST_BLOCK, Case, Kind, random_case, stacked

POLICIES = ("chunked", "continuous", "mixed", "sarathi")
"""Those that take KV on demand and admit in the order of arrival."""


def in_order(seed: int, kind: Kind) -> Case | None:
    """A random case with KV on demand, from too little to ample; None where the program does not apply."""
    given, rng = random_case(seed, kind), np.random.default_rng([seed, 17])
    case, limits = given.case, given.case.limits
    hybrid = given.layout is not None and given.layout.window is not None
    if case.policy not in POLICIES or limits.admission != "on_demand" or (hybrid and not kind.windowed):
        return None
    ample = int(limits.kv_units * rng.choice([1.0, 1.0, 2.0, 20.0]))
    limits = replace(limits, packing="fcfs", long_prefill_token_threshold=0, kv_units=ample)
    return replace(given, case=replace(case, limits=limits))


def in_order_cases(kind: Kind, count: int) -> list[Case]:
    """Random cases to which the program applies, of one structure."""
    return [case for seed in range(count) if (case := in_order(seed, kind)) is not None]


def lanes_of(cases: list[Case]) -> tuple[Lane, Requests]:
    """The lanes of the general program, as this one is given them."""
    general, requests = stacked(cases)
    rules, shared, resident = general.rules, general.shared_units, general.limits.prompts_resident
    kv = rules.kv._replace(**{name: column[:, None] for name, column in rules.kv._asdict().items()})
    prompts = units(kv, (requests.prompt_tokens + resident[:, None]).astype(float))
    own = OnDemand(
        rules.whole_kv, rules.watermark_units, rules.full_prompt, rules.kv,
        np.where(rules.kv.full > 0, 1.0, 0.0), np.maximum(prompts - shared, 0).astype(np.int32), shared,
    )  # fmt: skip
    return Lane(general.pipeline_ranks[0], general.limits, None, None, own), requests


def run_engine(cases: list[Case], kind: Kind, vectorise: bool = False) -> list[LaneResult]:
    """The engine's results, one per case, cut to the case's requests."""
    configure()
    structure = Structure(RING, kind.windowed, LARGEST_BLOCK, kind.asynchronous)
    run = partial(run_lanes, structure=structure, vectorise=vectorise)
    found = in_calls(run, lanes_of(cases), len(cases), LANES)
    return [cut(result, len(given.case.arrival_s)) for result, given in zip(found, cases, strict=True)]
