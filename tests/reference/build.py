"""Costs, requests and random scenarios for tests of the reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evaluator.cost.iteration import AttentionRows, CostParameters, OperatorRows, RampRows
from evaluator.cost.mixed_attention import BesideRows
from evaluator.policies import POLICIES
from evaluator.reference import Iteration, Limits, PoolOutcome, Request, simulate
from evaluator.routing import ROUTERS, HeavyLight

# Routers that have keys, or go by more than numbers of tokens.
WITH_MORE = ("heavy_light", "session", "prefix_aware", "prefix_approximate", "adapter_affinity")
CHOICES = (
    *(each.name for each in ROUTERS.values() if not (each.name in WITH_MORE or each.queue or each.by_reports)),
    HeavyLight(50),
)
"""Every router that chooses a replica when a request is sent."""
NO_ROWS = OperatorRows(*(np.zeros(0) for _ in OperatorRows._fields))
NO_ATTENTION = AttentionRows(*(np.zeros(0) for _ in AttentionRows._fields))
NO_RAMPS = RampRows(*(np.zeros(0) for _ in RampRows._fields))
NONE_BESIDE = BesideRows(*(np.zeros(0) for _ in BesideRows._fields))


def linear_cost(iteration_s=1.0, token_s=0.0, context_s=0.0) -> CostParameters:
    """An iteration takes so long, plus so much per token computed and per token attended to by decodes."""
    rows = (NO_ROWS,) * 3 + (NO_ATTENTION,) * 2 + (NO_RAMPS, NO_RAMPS, NONE_BESIDE)
    # Those with defaults, rows that few designs have, are the last ones: there are none of them.
    numbers = len(CostParameters._fields) - len(rows) - len(CostParameters._field_defaults)
    zero = CostParameters(*rows, *(0.0,) * numbers)
    above_0 = {"ramp_tokens": 1.0, "late_decodes": 1.0}
    return zero._replace(iteration_s=iteration_s, token_s=token_s, context_s=context_s, **above_0)


SECOND = linear_cost()  # every iteration takes one second


def random_cost(rng: np.random.Generator, *, experts: bool, windowed: bool, scale: float = 1.0) -> CostParameters:
    """All kinds of operators, with and without knees."""

    def rows(count: int, flop: float, weight: float, activation: float) -> OperatorRows:
        phases = [rng.uniform(0.2, 1.0, count) * phase * scale for phase in (flop, weight, activation)]
        knee, waves = rng.uniform(0.0, 0.4, count), rng.uniform(0.0, 2.0, count)
        waves_s = rng.uniform(0.0, 1e-3, count) * scale
        more = {"crowd": np.full(count, 5.0), "crowded": 0.5 * phases[1], "padding": 0.3 * phases[1],
                "filled": 0.2 * phases[1]}  # fmt: skip
        return OperatorRows(*phases, knee, waves, waves_s, tile_pass_s=400.0 * phases[0], **more)

    def attention(count: int) -> AttentionRows:
        largest = {"flop": 3e-9, "activation": 2e-8, "knee": 0.4, "edge_s": 1e-7, "traffic_s": 1e-6, "tile": 64.0,
                   "fill": 500.0, "cache": 300.0}  # fmt: skip
        seconds = ("flop", "activation", "edge_s", "traffic_s")
        factor = {name: scale if name in seconds else 1.0 for name in largest}
        return AttentionRows(
            **{name: rng.uniform(0.2, 1.0, count) * most * factor[name] for name, most in largest.items()}
        )

    beside = {"context": 3e-7, "spread": 1e-6, "unsplit": 1e-6, "late": 1e-6, "filling": 4.0, "sequence": 1e-5,
              "join": 1e-3, "work": 1e-6, "walk": 3e-6, "longest": 5e-6, "overlap": 0.5, "call": 3e-5, "block": 3e-5,
              "activation": 5e-7, "sharers": 3.0, "cached": 300.0, "resident": 4.0}  # fmt: skip
    figures = ("overlap", "filling", "sharers", "cached", "resident")
    return CostParameters(
        token_rows=rows(3, 2e-5, 3e-3, 2e-6),
        sequence_rows=rows(1, 1e-6, 1e-4, 1e-7),
        expert_rows=rows(2 * experts, 2e-5, 3e-3, 2e-6),
        prefill_rows=attention(1),
        prefill_window_rows=attention(int(windowed)),
        log_expert_missed=np.log1p(-2 / 8) if experts else 0.0,
        iteration_s=5e-4 * scale,
        token_s=1e-6 * scale,
        sequence_s=1e-5 * scale,
        context_s=3e-7 * rng.uniform() * scale,
        spread_s=1e-6 * rng.uniform() * scale,
        unsplit_s=1e-6 * rng.uniform() * scale,
        late_s=2e-7 * scale,
        late_decodes=3.0,
        late_beyond=0.6,
        window_context_s=1e-7 * scale if windowed else 0.0,
        expert_skew=rng.uniform(0.0, 2.0) if experts else 0.0,
        touched_spread=0.4 if experts else 0.0,
        touched_least=0.25 if experts else 0.0,
        graph_tokens=8.0 if experts else 0.0,
        decode_s=1e-5 * rng.uniform() * scale,
        prefill_token_s=1e-6 * rng.uniform() * scale,
        join_s=1e-3 * rng.uniform() * scale,
        ramp_s=1e-3 * rng.uniform() * scale,
        ramp_tokens=300.0,
        handover_s=1e-3 * rng.uniform() * scale,
        handover_tokens=15.0,
        ramp_rows=RampRows(rng.uniform(0.2, 1.0, 2) * 1e-3 * scale, np.array([40.0, 4.0]), np.array([0.0, 1.0])),
        expert_ramp_rows=RampRows(
            5e-4 * scale * np.ones(1 * experts), 30.0 * np.ones(1 * experts), np.zeros(1 * experts)
        ),
        beside_rows=BesideRows(
            **{
                name: rng.uniform(0.2, 1.0, 1) * most * (1.0 if name in figures else scale)
                for name, most in beside.items()
            }
        ),
        pieces_s=1e-2 * (least_s := rng.uniform()) * scale,
        between_s=1e-2 * least_s * scale,
        captured_tokens=12.0,
        prepared_s=2e-3 * least_s * scale,
    )


def request(index: int, arrival_s: float, prompt: int, output: int, *, cached: int = 0, block=4, content=()) -> Request:
    """One request; it reserves whole blocks for all but its last token."""
    units = -(-(prompt + output - 1) // block)
    return Request(index, arrival_s, prompt - cached, prompt, output, units, tuple(content))


def half_windowed(blocks: int) -> int:
    """KV units of a sequence of so many blocks where half of the layers keep no more than three."""
    return -(-(blocks + min(blocks, 3)) // 2)


@dataclass
class Scenario:
    """Arguments of ``simulate``; ``run`` may change some. Requests are made anew for every run."""

    cost: Sequence[CostParameters]
    policy: str
    limits: Limits
    columns: list[tuple[Any, ...]]
    options: dict[str, Any] = field(default_factory=dict)

    def requests(self) -> list[Request]:
        return [Request(index, *column) for index, column in enumerate(self.columns)]

    def run(self, **options: Any) -> PoolOutcome:
        return simulate(self.cost, self.policy, self.limits, self.requests(), **{**self.options, **options})


def random_scenario(seed: int, requests: int = 40, **fixed: Any) -> Scenario:
    """Any combination of what the reference can do, from an idle replica to one in permanent want of KV.

    ``fixed``: policy, admission, pipeline_ranks, replicas, prefix_caching or preemption.
    """
    rng = np.random.default_rng(seed)

    def pick(name: str, *choices: Any) -> Any:
        return fixed.get(name, choices[rng.integers(len(choices))])  # draws in any case

    policy = pick("policy", *(name for name, record in POLICIES.items() if not record.token_ratio))
    windowed, resident = rng.random() < 0.4, rng.random() < 0.15
    users, rate = int(rng.integers(1, 20)) if rng.random() < 0.3 else None, 10 ** rng.uniform(-1, 2.5)
    arrival = np.zeros(requests) if rng.random() < 0.1 else np.cumsum(rng.exponential(1 / rate, requests))
    prompt = rng.integers(1, rng.choice([5, 100, 1500]), requests) + 1
    output = rng.integers(1, rng.choice([2, 10, 300]), requests)
    cached = np.where(rng.random(requests) < 0.3, prompt - rng.integers(1, prompt + 1), 0)
    compute = np.zeros(requests, int) if resident else prompt - cached
    block = 1 if policy == "lightllm" else int(rng.integers(1, 17))
    units = -(-(prompt + output - 1 + resident) // block)
    tokens = int(rng.choice([16, 64, 512, 2048]))
    if policy not in ("chunked", "sarathi"):
        tokens = max(tokens, int((prompt + output).max()) + 64)
    prefix_caching = pick("prefix_caching", False, False, True)
    hybrid = rng.random() < 0.2 and not prefix_caching and policy != "lightllm"
    units = np.vectorize(half_windowed)(units) if hybrid else units
    content = [tuple(rng.integers(0, 2, 3).tolist()) for _ in range(requests)]
    columns = (*(column.tolist() for column in (arrival, compute, prompt, output, units)), content)
    pipeline_ranks = pick("pipeline_ranks", 1, 1, 1, 2, 3)
    capacity = int(units.max() * rng.uniform(1, rng.choice([1.5, 6])))
    limits = Limits(
        max_num_seqs=int(rng.integers(1, min(40, tokens) + 1)),
        max_num_batched_tokens=tokens,
        kv_units=capacity,
        admission=pick("admission", "reserve", "on_demand"),
        block_tokens=block,
        units_of_blocks=half_windowed if hybrid else None,
        watermark_units=int(rng.integers(0, capacity - units.max() + 1)) if policy != "lightllm" else 0,
        preemption="recompute" if prefix_caching else pick("preemption", "recompute", "recompute", "swap"),
        swap_units=float(rng.choice([np.inf, units.max()])),
        swap_unit_s=1e-4,
        long_prefill_token_threshold=int(rng.choice([0, 0, 7, 100])),
        packing=pick("packing", "fcfs", "fcfs", "least_work_left"),
        prefix_caching=prefix_caching,
        look_every=int(rng.integers(1, 12)),
    )
    cost = [
        random_cost(rng, experts=rng.random() < 0.5, windowed=windowed, scale=1 / pipeline_ranks)
        for _ in range(pipeline_ranks)
    ]
    return Scenario(
        cost,
        policy,
        limits,
        list(zip(*columns, strict=True)),
        {
            "users": users,
            "replicas": pick("replicas", 1, 1, 3),
            "router": pick("router", *CHOICES),
            "window": int(rng.integers(2, 200)) if windowed else None,
        },
    )


def log_of(cost, policy: str, limits: Limits, requests: Sequence[Request], **options: Any) -> list[Iteration]:
    """What happened, iteration by iteration, with the times of all tokens in the requests."""
    log: list[Iteration] = []
    simulate(cost, policy, limits, requests, tokens=True, observe=log.append, **options)
    return log
