"""Replicas for tests: the same requests, limits and cost for the engine and for the plain loop over iterations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import jax
import numpy as np

from evaluator.cost.iteration import CostParameters
from evaluator.cost.speculative import SpeculativeCost
from evaluator.device import configure
from evaluator.policies import policy as policy_named
from evaluator.reference import Limits, PoolOutcome, Request, simulate_replica
from evaluator.simulation.lanes import results_of
from evaluator.speculation import keys, tokens_given
from evaluator.stations.engine import LaneLimits, LaneResult, Policy, Requests, decisions
from evaluator.stations.engine.common.speculation import Speculation
from evaluator.stations.engine.fcfs_reserved import Branches, Lane, Structure, run_lanes
from tests.reference.build import linear_cost, random_cost
from tests.thorough import THOROUGH

RING = 512  # longer than any output of the tests
OPEN = 1 << 30  # users of an open loop
SLOTS = 64
"""Slots of a lane are a multiple of this, so that tests share compiled programs, as ``LANES`` of a call do. Recorded
cases of vLLM have up to 40 requests."""
LANES = 16
MOST_CHUNKS = 50
"""Chunks of a random prompt. With the smallest budget one of 1,500 tokens would have 750: of 100 cases ten with such
prompts had two thirds of all iterations, and showed nothing that their shorter ones do not."""
POLICIES = ("static", "continuous", "chunked", "mixed")  # all that differ while KV is reserved


@dataclass(frozen=True, eq=False)
class Case:
    """One replica with its requests, all integers but ``arrival_s``, each (request,)."""

    cost: CostParameters | SpeculativeCost
    policy: str
    limits: Limits
    arrival_s: np.ndarray
    compute_tokens: np.ndarray
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    kv_units: np.ndarray
    users: int | None = None
    resident: bool = False
    window: int = 0
    measured_from: int = 0
    branch_tokens: np.ndarray | None = None  # (request, branch): output tokens, ascending; None: one sequence each
    branch_units: np.ndarray | None = None  # of ``kv_units``, those that are freed when each branch ends
    chances: tuple[float, ...] = ()  # that at least 1, 2, .. drafts are accepted; none where nothing is drafted

    @property
    def structure(self) -> Structure:
        return Structure(RING, self.window > 0)

    def __repr__(self) -> str:  # what a failing test prints
        requests = zip(self.arrival_s, self.compute_tokens, self.prompt_tokens, self.output_tokens, strict=True)
        listed = ", ".join(f"{at:.4g} s: {c} of {p} -> {o}" for at, c, p, o in requests)
        route_at_first_token = f"users={self.users}, resident={self.resident}, window={self.window}"
        branches = "" if self.branch_tokens is None else f", branches: {self.branch_tokens.tolist()}"
        return f"Case({self.policy}, {self.limits}, {route_at_first_token}, requests: {listed}{branches})"


def constant_cost(iteration_s: float = 0.0, token_s: float = 0.0, sequence_s: float = 0.0) -> CostParameters:
    """An iteration takes a time that is linear in its tokens and sequences, whatever the context."""
    return linear_cost(iteration_s, token_s)._replace(sequence_s=sequence_s)


def build(
    cost: CostParameters,
    policy: str,
    arrival_s: Sequence[float] | np.ndarray,
    prompt_tokens: Sequence[int] | np.ndarray,
    output_tokens: Sequence[int] | np.ndarray,
    *,
    cached_tokens: Any = 0,
    max_num_seqs: int = 256,
    max_num_batched_tokens: int = 1 << 20,
    block_tokens: int = 1,
    kv_units: int = 1 << 30,
    **others: Any,
) -> Case:
    """A case with KV in blocks; ``cached_tokens`` of each prompt are there already (all of it where resident)."""
    prompt, output = np.asarray(prompt_tokens), np.asarray(output_tokens)
    resident = others.get("resident", False)
    compute = np.zeros_like(prompt) if resident else prompt - cached_tokens
    units = -(-(prompt + output - 1 + resident) // block_tokens)
    limits = Limits(max_num_seqs, max_num_batched_tokens, kv_units)
    return Case(cost, policy, limits, np.asarray(arrival_s, float), compute, prompt, output, units, **others)


def random_case(seed: int, experts: bool, windowed: bool, requests: int = 30) -> Case:
    """Policies, roles, loops, lengths, caches and limits from idle to full, drawn at random; all can be served."""
    rng = np.random.default_rng([seed, experts, windowed])
    policy = str(rng.choice(POLICIES))
    resident = bool(rng.random() < 0.2)
    users = int(rng.integers(1, 20)) if rng.random() < 0.3 else None
    at_once = users is not None or rng.random() < 0.1
    rate = 10 ** rng.uniform(-1, 2.5)
    arrival = np.zeros(requests) if at_once else np.cumsum(rng.exponential(1 / rate, requests))
    prompt = rng.integers(1, rng.choice([5, 100, 1500]), requests) + 1
    output = rng.integers(1, rng.choice([2, 10, 50, 200], p=[0.3, 0.3, 0.25, 0.15]), requests)
    cached = np.where(rng.random(requests) < 0.3, rng.integers(0, prompt), 0)
    compute = np.where(resident, 0, prompt - cached)
    budget = int(rng.choice([2, 16, 64, 512, 2048]))
    if policy == "chunked":
        prompt, compute = in_few_chunks(prompt, compute, budget)
    else:  # whole prompts need room
        budget = max(budget, int(compute.max()) + (40 if policy == "mixed" else 0))
    most = 40 if policy in ("static", "continuous") else min(40, budget)  # elsewhere decodes share the budget
    case = build(
        random_cost(rng, experts=experts, windowed=windowed), policy, arrival, prompt, output,
        cached_tokens=prompt - compute, max_num_seqs=int(rng.integers(1, most + 1)), max_num_batched_tokens=budget,
        block_tokens=int(rng.integers(1, 17)), users=users, resident=resident,
        window=int(rng.integers(2, 200)) if windowed else 0, measured_from=int(rng.integers(0, 5)),
    )  # fmt: skip
    capacity = int(case.kv_units.max() * rng.uniform(1, 6))
    return replace(case, limits=replace(case.limits, kv_units=capacity))


def in_few_chunks(prompt: np.ndarray, compute: np.ndarray, budget: int) -> tuple[np.ndarray, np.ndarray]:
    """Prompts, and what is to compute of them, cut to so many tokens that a budget of an iteration takes few chunks."""
    cut = prompt if THOROUGH else np.minimum(prompt, budget * MOST_CHUNKS)
    return cut, -(-compute * cut // prompt)  # the cached share stays; who computes anything still does


def branched(case: Case, branch_tokens: np.ndarray, block_tokens: int = 1) -> Case:
    """The case with branches of these lengths, (request, branch) ascending: they share whole blocks of the prompt."""
    prompt, there = case.prompt_tokens[:, None], branch_tokens > 0
    shared = case.prompt_tokens // block_tokens
    tokens = prompt + branch_tokens - 1 + case.resident
    units = np.where(there, -(-tokens // block_tokens) - shared[:, None], 0)
    units[:, -1] += shared
    return replace(
        case, output_tokens=branch_tokens[:, -1], kv_units=units.sum(axis=1),
        branch_tokens=branch_tokens, branch_units=units,
    )  # fmt: skip


def random_branched(seed: int, experts: bool, windowed: bool, requests: int = 30, most: int = 4) -> Case:
    """A random case in which requests have up to ``most`` branches, some of them ended early by the K-th."""
    case = random_case(seed, experts, windowed, requests)
    rng = np.random.default_rng([seed, experts, windowed, 1])
    branches = rng.integers(1, case.output_tokens.max() + 1, (requests, most))
    if rng.random() < 0.3:
        branches[:] = case.output_tokens[:, None]
    branches = np.sort(branches, axis=1)
    first = int(rng.integers(1, most + 1))
    branches = np.minimum(branches, branches[:, first - 1 : first])
    if rng.random() < 0.5:  # not as many of every request
        branches[np.arange(most) < rng.integers(0, most, requests)[:, None]] = 0
    block = int(rng.integers(1, 17))
    case = branched(case, branches, block)
    limits = replace(
        case.limits, max_num_seqs=case.limits.max_num_seqs + most - 1, block_tokens=block,
        max_num_batched_tokens=case.limits.max_num_batched_tokens + most - 1,
        kv_units=int(case.kv_units.max() * rng.uniform(1, 6)),
    )  # fmt: skip
    return replace(case, limits=limits)


MOST_DRAFTS = 4


def speculating(case: Case, drafts: int, acceptance: Sequence[float], draft: CostParameters, passes: float) -> Case:
    """The case with so many drafts, made in ``passes`` of a draft model; budgets and KV have room for them."""
    assert isinstance(case.cost, CostParameters)
    cost = SpeculativeCost(case.cost, draft, np.float64(drafts + 1), np.float64(passes), np.float64(2e-6))
    limits = case.limits
    budget = max(limits.max_num_batched_tokens, limits.max_num_seqs * (drafts + 1))
    if case.policy == "mixed":
        budget += limits.max_num_seqs * drafts
    return replace(
        case, cost=cost, kv_units=case.kv_units + drafts, chances=tuple(np.cumprod(acceptance[:drafts]).tolist()),
        limits=replace(limits, drafts=drafts, max_num_batched_tokens=budget, kv_units=limits.kv_units + drafts),
    )  # fmt: skip


def random_speculating(seed: int, experts: bool, windowed: bool, requests: int = 30) -> Case:
    """A random case that verifies drafts, made by a draft model, or by nothing."""
    rng = np.random.default_rng([seed, experts, windowed, 2])
    drafts = int(rng.integers(1, MOST_DRAFTS + 1))
    draft = random_cost(rng, experts=experts, windowed=windowed, scale=0.1)
    passes = float(drafts) if rng.random() < 0.7 else 0.0
    acceptance = rng.choice([0.0, 0.3, 0.8, 1.0]) if rng.random() < 0.5 else rng.uniform(size=MOST_DRAFTS)
    case = random_case(seed, experts, windowed, requests)
    return speculating(case, drafts, np.broadcast_to(acceptance, MOST_DRAFTS), draft, passes)


def speculation_of(case: Case, slots: int) -> Speculation | None:
    """What the case drafts."""
    if not case.chances:
        return None
    chances = np.pad(case.chances, (0, MOST_DRAFTS - len(case.chances)))
    return Speculation(chances, np.float64(len(case.chances)), keys(0, np.arange(slots + 1)))


def branches_of(case: Case, slots: int) -> Branches | None:
    """The case's branches in ``slots`` slots and the padding behind them."""
    if case.branch_tokens is None or case.branch_units is None:
        return None
    missing = ((0, slots + 1 - len(case.arrival_s)), (0, 0))
    tokens, units = (np.pad(each, missing).astype(np.int32) for each in (case.branch_tokens, case.branch_units))
    counts = ((tokens > least).sum(axis=1).astype(np.int32) for least in (0, 1))
    return Branches(tokens.ravel(), units.ravel(), *counts)


def lane_of(case: Case, slots: int) -> Lane:
    """What the engine is given beside the requests, without a lane axis."""
    limits = (case.limits.max_num_seqs, case.limits.max_num_batched_tokens, case.limits.kv_units)
    return Lane(
        case.cost,
        LaneLimits(
            policy_of(case),
            np.bool_(case.resident),
            *map(np.float64, limits),
            np.float64(case.window),
            np.int32(OPEN if case.users is None else case.users),
            np.int32(len(case.arrival_s)),
            np.int32(case.measured_from),
        ),
        branches_of(case, slots),
        speculation_of(case, slots),
    )


def policy_of(case: Case) -> Policy:
    """The decisions of the case's policy, scalars."""
    return Policy(*(column[0] for column in decisions([policy_named(case.policy)])))


def requests_of(case: Case, slots: int) -> Requests:
    """The case's requests in ``slots`` slots and the padding behind them."""
    missing = slots + 1 - len(case.arrival_s)
    columns = (case.compute_tokens, case.prompt_tokens, case.output_tokens, case.kv_units)
    return Requests(
        np.append(case.arrival_s, np.full(missing, np.inf)),
        *(np.append(column, np.zeros(missing)).astype(np.int32) for column in columns),
    )


def slots_for(counts: Iterable[int]) -> int:
    """Slots that hold the requests of every case, a multiple of SLOTS."""
    return -(-max(counts) // SLOTS) * SLOTS


def stacked(cases: Sequence[Case]) -> tuple[Lane, Requests]:
    """Cases of one structure with a leading lane axis."""
    slots = slots_for(len(case.arrival_s) for case in cases)
    pairs = [(lane_of(case, slots), requests_of(case, slots)) for case in cases]
    return jax.tree.map(lambda *values: np.stack([np.asarray(value) for value in values]), *pairs)


def run_engine(cases: Sequence[Case], vectorise: bool = False, lanes: int = LANES) -> list[LaneResult]:
    """The engine's results, one per case of one structure, cut to its requests; ``lanes`` of a call."""
    configure()
    run = partial(run_lanes, structure=cases[0].structure, vectorise=vectorise)
    found = in_calls(run, stacked(cases), len(cases), lanes)
    return [cut(result, len(case.arrival_s)) for result, case in zip(found, cases, strict=True)]


def in_calls(run: Callable[..., Any], inputs: Any, count: int, lanes: int) -> Iterator[Any]:
    """The result of every lane of ``inputs``, from calls of so many lanes, as in a simulation.

    All tests of a structure then share one compiled program, however many cases they have.
    """
    return results_of(run, lambda at: jax.tree.map(lambda values: values[at], inputs), count, lanes)


def cut(result: LaneResult, requests: int) -> LaneResult:
    """The result without the slots behind the requests."""
    times = ("scheduled_s", "first_token_s", "last_token_s")
    there = [name for name in (*times, "hit_tokens", "replica") if getattr(result, name) is not None]
    return result._replace(**{name: getattr(result, name)[:requests] for name in there})


def set_curves(case: Case, requests: Sequence[Request]) -> None:
    """Tell the requests what their decode iterations give, where they verify drafts."""
    for request, key in zip(requests, keys(0, np.arange(len(requests))), strict=True) if case.chances else ():
        given = tokens_given(case.chances, key, request.output_tokens)
        request.curve = tuple(np.append(0, np.cumsum(given)).tolist())


def run_reference(case: Case) -> PoolOutcome:
    """The plain loop on the same requests."""
    columns = (case.arrival_s, case.compute_tokens, case.prompt_tokens, case.output_tokens, case.kv_units)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    requests = [Request(number, *row) for number, row in enumerate(rows)]
    for request in requests if case.branch_tokens is not None and case.branch_units is not None else ():
        there = case.branch_tokens[request.index] > 0
        request.branches = tuple(case.branch_tokens[request.index][there].tolist())
        request.branch_units = tuple(case.branch_units[request.index][there].tolist())
    set_curves(case, requests)
    return simulate_replica(
        case.cost, case.policy, case.limits, requests,
        users=case.users, prompts_resident=case.resident, window=case.window or None,
    )  # fmt: skip


@cache
def random_cases(experts: bool, windowed: bool, count: int) -> list[Case]:
    """``count`` random cases of one structure."""
    return [random_case(seed, experts, windowed) for seed in range(count)]
