"""Requests per second of the engine: policies, kinds of models, threads; against the reference and the prototype."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from evaluator.cost import stack
from evaluator.cost.memory import prefix_units, suffix_units
from evaluator.device import OF_LOOPS, compiled, configure
from evaluator.plan.groups import FEWEST_BLOCK_TOKENS
from evaluator.policies import POLICIES
from evaluator.reference import Limits, Request, simulate_replica
from evaluator.simulation.lanes import LANES_PER_CALL
from evaluator.stations.engine import LaneLimits, LaneResult, Requests, decisions, fcfs_reserved, preemptive
from evaluator.stations.engine.preemptive import KvUnits, Rules
from tests.benchmarks.registry import Row, benchmark
from tests.benchmarks.timing import ROOT, Best, best_of, cores, in_threads, probe
from tests.benchmarks.workload import KV_TOKENS, LANES, MAX_NUM_SEQS, REQUESTS, Work, work

DENSE = "llama-3.1-8b"
OTHERS = {"windowed, MoE": "gpt-oss-20b", "MoE": "qwen3-30b-a3b"}
ANY_ORDER: dict[str, dict[str, Any]] = {
    "chunked, KV reserved": {},
    "on_demand": {"on_demand": True},
    "on_demand, a fifth of the KV": {"on_demand": True, "kv": 0.2},
    "least work left": {"least_work": True},
    "at most 512 tokens of a prompt": {"share": 512.0},
    "orca": {"policy": "orca"},
    "lightllm": {"policy": "lightllm"},
    "two pipeline ranks": {"pipeline_ranks": 2},
}
BRANCHES = 8
REFERENCE_LANES = (0, 511, 1023)  # the least, middle and most load


@benchmark("engine")
def simulator(quick: bool) -> Iterator[Row]:
    """Requests/s of 1,024 lanes x 1,000 requests with the full cost model."""
    configure()
    threads = cores()
    dense = work(DENSE)
    main = measure(dense, threads)
    yield _row(f"chunked, {DENSE}", main, main)
    for policy in ("static", "continuous", "mixed"):
        yield _row(policy, measure(work(DENSE, policy), threads), main)
    for kind, name in OTHERS.items():
        yield _row(f"chunked, {name} ({kind})", measure(work(name), threads), main)
    yield _row(
        f"chunked, {BRANCHES} branches, an eighth of the output each", measure(dense, threads, branches=True), main
    )
    for label, rules in ANY_ORDER.items():
        yield _row(f"any order: {label}", measure(dense, threads, rules), main)
    if threads > 1:
        alone = measure(dense, 1)
        yield _row(f"chunked, one thread ({threads} are {alone.wall_s / main.wall_s:.2f} x as fast)", alone, main)
    yield from _against_reference(dense, main)
    yield from _against_prototype(main, threads)


def _row(label: str, best: Best, main: Best) -> Row:
    """Ratios are of processor time, which other programs on the machine hardly change."""
    per_core = LANES * REQUESTS / best.cpu_s / 1e6
    note = f"{per_core:.3g} M per core-second, {main.cpu_s / best.cpu_s:.2f} x the first row"
    return Row(label, LANES * REQUESTS / best.wall_s / 1e6, "M requests/s", note)


def measure(given: Work, threads: int, rules: dict[str, Any] | None = None, branches: bool = False) -> Best:
    """All lanes in calls of the size that a sweep makes, by the program for any order where its rules are given."""
    jobs = _jobs(given, rules, branches)
    return best_of(lambda: in_threads(run_job, jobs, threads))


def _jobs(given: Work, rules: dict[str, Any] | None = None, branches: bool = False) -> list[Any]:
    lanes, requests, structure = fcfs_reserved_input(given) if rules is None else preemptive_input(given, **rules)
    if branches:
        lanes, requests = branching(given, lanes, requests)
    starts = range(0, len(given.costs), LANES_PER_CALL)
    pieces = [slice(start, start + LANES_PER_CALL) for start in starts]
    return [(*jax.tree.map(lambda x, piece=piece: x[piece], (lanes, requests)), structure) for piece in pieces]


def run_job(job: Any) -> LaneResult:
    """One call of the engine, waited for; compiled as in a sweep."""
    program = preemptive if isinstance(job[2], preemptive.Structure) else fcfs_reserved
    return jax.block_until_ready(compiled(program.run_lanes, OF_LOOPS, "structure", "vectorise")(*job))


def fcfs_reserved_input(given: Work) -> tuple[fcfs_reserved.Lane, Requests, fcfs_reserved.Structure]:
    """(Lane, Requests, Structure) with a leading lane axis, as ``evaluator.simulation`` makes them."""
    count, requests = given.arrival_s.shape

    def full(value: Any, kind: Any = np.float64) -> np.ndarray:
        return np.full(count, value, kind)

    def slots(values: np.ndarray) -> np.ndarray:
        return np.broadcast_to(np.append(values, 0).astype(np.int32), (count, requests + 1))

    cost = jax.tree.map(lambda x: np.ascontiguousarray(np.moveaxis(x, -1, 0)), stack(given.costs))
    limits = LaneLimits(
        decisions([POLICIES[given.policy]] * count),
        prompts_resident=full(False, bool),
        max_num_seqs=full(MAX_NUM_SEQS),
        max_num_batched_tokens=full(given.max_num_batched_tokens),
        kv_units=full(KV_TOKENS // given.kv.block_tokens),
        window=full(given.kv.window or 0),
        users=full(1 << 30, np.int32),
        requests=full(requests, np.int32),
        measured_from=full(requests // 10, np.int32),
    )
    arrival = np.pad(given.arrival_s, ((0, 0), (0, 1)), constant_values=np.inf)
    prompt, output, units = map(slots, (given.prompt_tokens, given.output_tokens, given.kv_units))
    structure = fcfs_reserved.Structure(2048, given.kv.window is not None)
    return fcfs_reserved.Lane(cost, limits), Requests(arrival, prompt, prompt, output, units), structure


def branching(given: Work, lanes: fcfs_reserved.Lane, requests: Requests) -> tuple[fcfs_reserved.Lane, Requests]:
    """The same on branches: each has an eighth of the output of another request, and they share the prompt's KV."""
    output, prompt = given.output_tokens, given.prompt_tokens[:, None]
    columns = [np.maximum(np.roll(output, shift) // BRANCHES, 1) for shift in range(BRANCHES)]
    tokens = np.sort(np.stack(columns, axis=1), axis=1)
    units = suffix_units(given.kv, prompt, prompt + tokens - 1)
    units[:, -1] += prefix_units(given.kv, given.prompt_tokens)

    def lane_axis(values: np.ndarray) -> np.ndarray:
        padded = np.pad(values, ((0, 1), *(((0, 0),) * (values.ndim - 1)))).astype(np.int32).ravel()
        return np.broadcast_to(padded, (len(given.costs), len(padded)))

    counts = (lane_axis((tokens > least).sum(axis=1)) for least in (0, 1))
    branches = fcfs_reserved.Branches(lane_axis(tokens), lane_axis(units), *counts)
    whole = {"output_tokens": lane_axis(tokens[:, -1]), "kv_units": lane_axis(units.sum(axis=1))}
    return lanes._replace(branches=branches), requests._replace(**whole)


def preemptive_input(
    given: Work,
    policy: str = "chunked",
    on_demand: bool = False,
    kv: float = 1.0,
    pipeline_ranks: int = 1,
    share: float = np.inf,
    least_work: bool = False,
) -> tuple[preemptive.Lane, Requests, preemptive.Structure]:
    """The same for queues in any order. ``kv``: so much of the KV cache; ``share``: of a prompt in an iteration."""
    (cost, limits, *_), requests, structure = fcfs_reserved_input(given)
    count, block = len(limits.kv_units), given.kv.block_tokens
    record = POLICIES[policy]

    def full(value: Any, kind: Any = np.float64) -> np.ndarray:
        return np.full(count, value, kind)

    if record.by_future_peak:  # KV by the token
        limits, block = limits._replace(kv_units=limits.kv_units * block), 1
        requests = requests._replace(kv_units=requests.prompt_tokens + requests.output_tokens - 1)
    rules = Rules(
        on_demand=full(on_demand or record.admission == "on_demand", bool),
        whole_kv=full(record.whole_kv, bool),
        full_prompt=full(False, bool),
        watermark_units=full(0.0),
        long_prefill_tokens=full(share),
        least_work=full(least_work, bool),
        look_every=full(record.look_every, np.int32),
        kv=KvUnits(*map(full, (block, 1.0, 0.0, 0.0, 0.0, block))),
        frontend_s=full(0.0),
        lookahead_steps=full(0.0),
    )
    budget = 8192 if record.by_future_peak else given.max_num_batched_tokens if record.token_budget else np.inf
    limits = limits._replace(
        policy=decisions([record] * count),
        kv_units=np.floor(limits.kv_units * kv),
        max_num_batched_tokens=full(budget),
    )
    shared = np.zeros_like(requests.kv_units)
    by_blocks = on_demand and pipeline_ranks == 1 and not structure.windowed
    lanes = preemptive.Lane((cost,) * pipeline_ranks, limits, rules, shared)
    return (
        lanes,
        requests,
        preemptive.Structure(
            structure.ring,
            structure.windowed,
            pipeline_ranks,
            record.by_future_peak,
            block_tokens=FEWEST_BLOCK_TOKENS if by_blocks else 0,
            admits_first=record.prefill_alone,
            preempts=on_demand or record.admission == "on_demand",
            by_work=least_work,
            admits_decodes=False,
        ),
    )


def _against_reference(given: Work, main: Best) -> Iterator[Row]:
    ends: list[np.ndarray] = []

    def run() -> None:
        ends[:] = [_reference(given, lane) for lane in REFERENCE_LANES]

    took = best_of(run, repeats=1)
    served = len(REFERENCE_LANES) * REQUESTS
    ratio = took.cpu_s / served / (main.cpu_s / (LANES * REQUESTS))
    note = f"{len(REFERENCE_LANES)} lanes; the engine is {ratio:,.0f} x as fast per core"
    yield Row("evaluator.reference (every token)", served / took.wall_s, "requests/s", note)
    fast = np.concatenate([np.asarray(run_job(job).last_token_s) for job in _jobs(given)])[list(REFERENCE_LANES)]
    yield Row("largest relative difference of completion times", float(np.max(np.abs(fast / np.array(ends) - 1))), "")


def _reference(given: Work, lane: int) -> np.ndarray:
    columns = (given.prompt_tokens, given.prompt_tokens, given.output_tokens, given.kv_units)
    rows = zip(given.arrival_s[lane].tolist(), *(column.tolist() for column in columns), strict=True)
    requests = [Request(index, *row) for index, row in enumerate(rows)]
    limits = Limits(MAX_NUM_SEQS, given.max_num_batched_tokens, KV_TOKENS // given.kv.block_tokens)
    served = simulate_replica(given.costs[lane], given.policy, limits, requests, window=given.kv.window)
    return np.array([request.token_s[-1] for request in served.requests])


def _against_prototype(main: Best, threads: int) -> Iterator[Row]:
    """The first engine, kept outside the repository: fewer cost terms, one policy, fewer results. Optional."""
    default = ROOT.parent / "shared" / "prototype" / "iteration_engine.py"
    path = Path(os.environ.get("EVALUATOR_PROTOTYPE", default))
    if path.is_file():
        found = probe("prototype_probe", str(path), str(threads), environment={"XLA_FLAGS": ""})
        yield _row("prototype (five cost terms)", Best(**found), main)
