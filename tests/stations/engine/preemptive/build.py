"""Replicas with queues in any order: the same for the engine and for the plain loop over iterations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import jax
import numpy as np

from evaluator.cost.iteration import CostParameters, IterationCost
from evaluator.cost.memory import KvLayout, kv_units, units_of
from evaluator.cost.speculative import SpeculativeCost
from evaluator.device import configure
from evaluator.policies import policy as policy_named
from evaluator.policies.token_ratio import ratios
from evaluator.reference import Limits, PoolOutcome, Request, simulate
from evaluator.stations.engine import LaneLimits, LaneResult, Requests
from evaluator.stations.engine.preemptive import (
    BlockContent,
    CacheShape,
    HostMemory,
    KvUnits,
    Lane,
    NewTokenRules,
    Rules,
    Structure,
    run_lanes,
)
from tests.reference.build import random_cost
from tests.stations.engine.compare import TOLERANCE, assert_same
from tests.stations.engine.fcfs_reserved import build as fcfs_reserved
from tests.stations.engine.fcfs_reserved.build import (
    LANES,
    MOST_DRAFTS,
    OPEN,
    RING,
    cut,
    in_calls,
    policy_of,
    requests_of,
    set_curves,
    slots_for,
    speculation_of,
)
from tests.thorough import THOROUGH

CHUNKING = ("chunked", "sarathi")
CACHE, SOURCES = CacheShape(texts=1 << 15, blocks=1 << 12, due=16, names=1 << 15), 1 << 15
LARGEST_BLOCK = 64
POLICIES = ("static", "continuous", "mixed", "orca", *CHUNKING)


@dataclass(frozen=True)
class Kind:
    """What the cases of one compiled structure have in common. ``peaks``: some of them are of LightLLM.

    ``cached``: replicas have a prefix cache. ``speculating``: decodes verify drafts. ``asynchronous``: batches are
    planned ahead, which only ``chunked`` is. ``swapping``: most cases copy what is preempted to host memory.
    ``blocks``: layers keep every token, so that the growth of KV on demand is counted by remainders.
    ``token_ratio``: all of them admit as SGLang does. ``apart``: with a prefix cache all requests are turns of sessions
    that know what was said before, so that no block is filled by two decodes. ``plain``: all reserve KV, come in the
    order of arrival and have prompts to compute, so that what others need is not compiled in.
    """

    windowed: bool = False
    experts: bool = False
    pipeline_ranks: int = 1
    peaks: bool = False
    cached: bool = False
    speculating: bool = False
    asynchronous: bool = False
    swapping: bool = False
    blocks: bool = False
    token_ratio: bool = False
    apart: bool = False
    plain: bool = False

    @property
    def structure(self) -> Structure:
        due = CACHE.due + self.speculating
        cache = CACHE._replace(due=due, answers_apart=self.apart) if self.cached else None
        return Structure(
            RING, self.windowed, self.pipeline_ranks, self.peaks, cache=cache, asynchronous=self.asynchronous,
            block_tokens=LARGEST_BLOCK if self.blocks else 0,
            preempts=not self.plain, by_work=not self.plain, admits_decodes=not self.plain,
        )  # fmt: skip

    @property
    def policies(self) -> tuple[str, ...]:
        """Of the cases, but for LightLLM."""
        if self.token_ratio:
            return ("token_ratio",)
        return ("chunked",) if self.asynchronous else POLICIES


@dataclass(frozen=True, eq=False)
class Case:
    """A case with the cost of every pipeline rank and, where a KV unit is more than a block, its KV layout."""

    case: fcfs_reserved.Case
    costs: tuple[IterationCost, ...]
    shared_units: np.ndarray  # of each request's prefix
    layout: KvLayout | None = None
    contents: tuple[tuple[int, ...], ...] = ()  # of the requests, with a prefix cache: what is in their first blocks
    # Of the requests, where all are turns of sessions; None: ``contents`` says it all.
    session: np.ndarray | None = None

    @property
    def kv(self) -> KvLayout:
        """Full attention alone unless another layout is given."""
        block = self.case.limits.block_tokens
        return self.layout or KvLayout(1.0, 0.0, None, 0.0, block, float(block), self.case.limits.kv_units)


def random_layout(rng: np.random.Generator, block: int) -> KvLayout:
    """Layers that keep all or a window, or none of the one, the other or both, and states up to three units large."""
    full, window = rng.uniform(0.1, 1.0, 2) * (rng.random(2) < 0.7)
    unit = block * (full + window) or 1.0
    sequence = unit * rng.choice([0.0, 0.3, 3.0]) if full + window else unit
    return KvLayout(full, window, int(rng.integers(1, 100)) if window else None, sequence, block, unit, 0)


def random_case(seed: int, kind: Kind) -> Case:
    """A random case with any policy, KV reserved or on demand, watermark, packing, and shares of long prompts."""
    rng = np.random.default_rng([seed, kind.windowed, kind.experts, kind.pipeline_ranks, kind.peaks])
    case = fcfs_reserved.random_case(seed, kind.experts, kind.windowed)
    policy = "lightllm" if kind.peaks and rng.random() < 0.2 else str(rng.choice(kind.policies))
    on_demand = policy == "lightllm" or (policy not in ("static", "orca") and rng.random() < 0.7)
    block = 1 if policy == "lightllm" else int(rng.integers(1, 17))
    seats, budget = int(rng.integers(1, 41)), int(rng.choice([2, 16, 64, 512, 2048]))
    if policy in CHUNKING:
        seats = min(seats, budget)
        prompt, compute = fcfs_reserved.in_few_chunks(case.prompt_tokens, case.compute_tokens, budget)
        case = replace(case, prompt_tokens=prompt, compute_tokens=compute)
    else:  # whole prompts need room, after a preemption with all that was generated
        longest = int((case.prompt_tokens + case.output_tokens).max())
        budget = max(budget, longest + (40 if policy in ("mixed", "orca") else 0))
    layout = random_layout(rng, block) if policy != "lightllm" and rng.random() < 0.3 else None
    if kind.blocks and layout is not None and layout.window is not None:
        layout = None
    held = case.prompt_tokens + case.output_tokens - 1 + case.resident
    units = -(-held // block) if layout is None else kv_units(layout, held)
    watermark = int(rng.integers(0, 4)) if on_demand else 0
    limits = Limits(
        seats, budget, int(units.max() * rng.uniform(1, 3)) + watermark,
        admission="on_demand" if on_demand else "reserve", block_tokens=block, watermark_units=watermark,
        units_of_blocks=layout and kv_units(layout, np.arange(held.max() // block + 3) * block).tolist().__getitem__,
        long_prefill_token_threshold=_threshold(rng, case.prompt_tokens) if policy in CHUNKING else 0,
        packing=str(rng.choice(["fcfs", "least_work_left"])), look_every=int(rng.integers(1, 12)),
        full_prompt=bool(np.random.default_rng([seed, 13]).random() < 0.3),
        batch_queue=kind.asynchronous, asynchronous=kind.asynchronous,
    )  # fmt: skip
    if kind.token_ratio:
        return Case(_by_ratio(case, limits, seed), (case.cost,), 0 * units)
    if kind.swapping and seed % 4:
        drawn = np.random.default_rng([seed, 17])
        room = np.inf if drawn.random() < 0.5 else float(drawn.integers(0, 2 * units.max()))
        limits = replace(limits, preemption="swap", swap_units=room, swap_unit_s=float(10 ** drawn.uniform(-5, -2)))
    more = (random_cost(rng, experts=kind.experts, windowed=kind.windowed) for _ in range(kind.pipeline_ranks - 1))
    shares = on_demand and layout is None and policy != "lightllm" and rng.random() < 0.3
    shared = (case.prompt_tokens - case.compute_tokens) // block * shares
    drawn = replace(case, policy=policy, limits=limits, kv_units=units - shared)
    return Case(drawn, (case.cost, *more), shared, layout)


def _threshold(rng: np.random.Generator, prompt: np.ndarray) -> int:
    """``long_prefill_token_threshold``: none, or shares so large that the longest prompt is of few chunks."""
    drawn = int(rng.choice([0, 1, 7, 50]))
    return drawn if THOROUGH or not drawn else max(drawn, int(prompt.max()) // fcfs_reserved.MOST_CHUNKS)


def _by_ratio(case: fcfs_reserved.Case, limits: Limits, seed: int) -> fcfs_reserved.Case:
    """The case with KV that is short, or ample, for hopes that are low, high or just."""
    rng = np.random.default_rng([seed, 19])
    page = int(rng.choice([1, 1, 4, 16]))
    prompt, output = case.prompt_tokens, case.output_tokens
    hopes = [0.3, 1.0, 1.0, 1.3]
    if rng.random() < 0.5:  # short prompts, long answers: decodes run out of KV
        prompt, output, hopes = np.minimum(prompt, 20), np.maximum(output, rng.integers(20, 150)), [0.02, 0.1, 0.3]
    if rng.random() < 0.3:
        prompt, output = np.full_like(prompt, prompt[0]), np.full_like(output, output.max())
    compute = prompt - np.minimum(case.prompt_tokens - case.compute_tokens, prompt - 1)
    units = -(-(prompt + output - 1) // page)
    capacity = int((prompt + output).max() * rng.uniform(1, rng.choice([1.5, 3, 8]))) // page + 3
    limits = replace(
        limits, admission="on_demand", block_tokens=page, kv_units=capacity, units_of_blocks=None,
        watermark_units=0, packing="fcfs",
        max_num_batched_tokens=max(int(rng.choice([8, 32, 256, 2048])), page) // page * page,
        long_prefill_token_threshold=0, full_prompt=False, max_num_seqs=int(rng.integers(1, 25)),
        conservativeness=float(rng.choice(hopes)),
        max_prefill_tokens=int(rng.choice([16, 100, 16384])),
    )  # fmt: skip
    return replace(
        case, policy="token_ratio", limits=limits, prompt_tokens=prompt, compute_tokens=compute, output_tokens=output,
        kv_units=units, resident=False,
    )  # fmt: skip


def drafted(given: Case, seed: int, kind: Kind) -> Case:
    """The case with drafts, made by a model (then with KV for it, too) or by nothing."""
    rng = np.random.default_rng([seed, 11])
    drafts, case, limits = int(rng.integers(1, MOST_DRAFTS + 1)), given.case, given.case.limits
    draft = random_cost(rng, experts=kind.experts, windowed=kind.windowed, scale=0.1)
    passes = float(drafts) if rng.random() < 0.7 else 0.0
    own = (np.float64(drafts + 1), np.float64(passes), np.float64(2e-6))
    costs = tuple(SpeculativeCost(cost, draft, *own) for cost in given.costs if isinstance(cost, CostParameters))
    rates = rng.uniform(size=drafts) if rng.random() < 0.7 else np.full(drafts, rng.choice([0.0, 1.0]))
    held = case.prompt_tokens + case.output_tokens - 1 + case.resident + drafts
    block, layout = limits.block_tokens, given.layout
    units = -(-held // block) if layout is None else kv_units(layout, held)
    more = int((units - case.kv_units - given.shared_units).max())
    blocks = np.arange(held.max() // block + drafts + 3) * block
    limits = replace(
        limits, drafts=drafts, kv_units=limits.kv_units + more,
        max_num_batched_tokens=max(limits.max_num_batched_tokens, limits.max_num_seqs) + limits.max_num_seqs * drafts,
        units_of_blocks=layout and kv_units(layout, blocks).tolist().__getitem__,
    )  # fmt: skip
    case = replace(
        case, cost=costs[0], limits=limits, kv_units=units - given.shared_units,
        chances=tuple(np.cumprod(rates).tolist()),
    )  # fmt: skip
    return replace(given, case=case, costs=costs)


def random_cached_case(seed: int, kind: Kind) -> Case:
    """A random case of replicas with a prefix cache: sessions, or prompts whose blocks are drawn from two, or both."""
    given, rng = random_case(seed, kind), np.random.default_rng([seed, 7])
    case, limits = given.case, given.case.limits
    prompt, output = case.prompt_tokens, case.output_tokens
    turns = _turns(prompt, output, rng, 2 * limits.block_tokens) if kind.apart else None
    if turns is not None:
        prompt = turns[1]
    elif rng.random() < 0.4:  # a prompt ends where a block does, or one token off
        prompt = np.maximum(prompt // limits.block_tokens * limits.block_tokens + rng.integers(-1, 2, len(prompt)), 1)
    units = -(-(prompt + output - 1) // limits.block_tokens)
    longest = int((prompt + output).max())
    budget = limits.max_num_batched_tokens
    if case.policy not in CHUNKING:
        budget = max(budget, longest + (40 if case.policy in ("mixed", "orca") else 0))
    capacity = int(units.max() * rng.uniform(1, rng.choice([1.5, 3, 6]))) + limits.watermark_units
    limits = replace(
        limits, max_num_batched_tokens=budget, kv_units=capacity, units_of_blocks=None, prefix_caching=True,
        # Planned as vLLM's engine core does it, the reference names blocks in order of admission (docs/equality.md).
        long_prefill_token_threshold=0 if kind.asynchronous else limits.long_prefill_token_threshold,
    )  # fmt: skip
    whole = (prompt + output - 1) // limits.block_tokens
    known = np.where(rng.random(len(prompt)) < 0.5, whole, prompt // limits.block_tokens)
    session, first = rng.integers(0, rng.integers(1, 8), len(prompt)), rng.integers(0, 3)
    if turns is not None:
        session, known = turns[0], whole
    drawn = turns is None and rng.random() < 0.3
    contents = tuple(
        tuple(rng.integers(0, 2, count).tolist()) if drawn else (*(-1,) * first, *(one,) * count)[:count]
        for one, count in zip(session.tolist(), known.tolist(), strict=True)
    )
    case = replace(case, prompt_tokens=prompt, compute_tokens=prompt, kv_units=units, resident=False, limits=limits)
    return Case(case, given.costs, 0 * units, None, contents, None if turns is None else turns[0])


def _turns(
    prompt: np.ndarray, output: np.ndarray, rng: np.random.Generator, system_tokens: int
) -> tuple[np.ndarray, np.ndarray]:
    """(sessions, prompts) of requests that know what was said before, however late it is answered."""
    users, longest = int(rng.integers(1, 6)), 3 * int((prompt + output).max())
    session, said = np.arange(users), np.full(users, system_tokens)
    sessions, prompts = np.zeros_like(prompt), np.zeros_like(prompt)
    for i, (own, answer) in enumerate(zip(prompt.tolist(), output.tolist(), strict=True)):
        user = int(rng.integers(users))
        if said[user] + answer > longest:  # another session
            session[user], said[user] = session.max() + 1, system_tokens
        sessions[i], prompts[i] = session[user], said[user] + int(own * rng.choice([0, 0.1, 0.5]))
        said[user] = prompts[i] + answer
    return sessions, prompts


def is_plain(given: Case) -> bool:
    """Whether a program without the parts that ``Kind.plain`` names can run the case."""
    case, limits = given.case, given.case.limits
    return limits.admission == "reserve" and limits.packing == "fcfs" and not case.resident


@cache
def random_cases(kind: Kind, count: int) -> list[Case]:
    """``count`` random cases of one structure."""
    cases = [(random_cached_case if kind.cached else random_case)(seed, kind) for seed in range(count)]
    cases = [given for given in cases if is_plain(given) or not kind.plain]
    return [drafted(given, seed, kind) for seed, given in enumerate(cases)] if kind.speculating else cases


def _content_of(given: Case, slots: int) -> BlockContent:
    """Numbers for the contents; blocks whose content is not known are like no other.

    As many blocks are of one source as may be: those of a source must all have the same content.
    """
    if given.session is not None:
        return _content_of_sessions(given, given.session, slots)
    each = next(each for each in (5, 2, 1) if all(_constant(content, each) for content in given.contents))
    names: dict[tuple[int, int], int] = {}
    sources: list[int] = []
    columns = np.zeros((3, slots + 1), np.int32)
    own = CACHE.names - 1
    for i, (content, units) in enumerate(zip(given.contents, given.case.kv_units.tolist(), strict=True)):
        own -= max(units - len(content), 0)
        columns[:, i] = len(sources), len(content), own - len(content)
        before = -1
        for one in content[::each]:
            before = names.setdefault((before, one), len(names) * each)
            sources.append(before)
    assert len(names) * each <= own and len(sources) <= SOURCES
    assert given.case.limits.kv_units <= CACHE.blocks
    padded = np.zeros(SOURCES, np.int32)
    padded[: len(sources)] = sources
    # A text has the number of its first block.
    begins, known, own_from = columns
    return BlockContent(padded, begins, known, np.int32(each), own_from, padded, known + own_from)


def _content_of_sessions(given: Case, session: np.ndarray, slots: int) -> BlockContent:
    """What all sessions begin with is a source, and each has a text of its own behind it (``traffic.block_names``)."""
    shared = max((content.count(-1) for content in given.contents), default=0)
    said = np.zeros(session.max() + 1, np.int64)
    np.maximum.at(said, session, np.maximum(given.case.kv_units - shared, 0))
    columns = np.zeros((3, slots + 1), np.int32)
    columns[1, : len(session)], columns[2, : len(session)] = shared, (np.cumsum(said) - said)[session]
    assert shared + said.sum() <= CACHE.names and given.case.limits.kv_units <= CACHE.blocks
    sources, (begins, known, own_from) = np.zeros(SOURCES, np.int32), columns
    return BlockContent(sources, begins, known, np.int32(max(shared, 1)), own_from, sources, known + own_from)


def _constant(content: tuple[int, ...], each: int) -> bool:
    return all(len(set(content[start : start + each])) == 1 for start in range(0, len(content), each))


def _lane_of(given: Case, slots: int, swapping: bool) -> Lane:
    case, limits = given.case, given.case.limits
    record = policy_named(case.policy)
    budget = limits.max_num_batched_tokens if record.token_budget else np.inf
    lane_limits = LaneLimits(
        policy_of(case), np.bool_(case.resident),
        np.float64(limits.max_num_seqs), np.float64(budget), np.float64(limits.kv_units), np.float64(case.window),
        np.int32(OPEN if case.users is None else case.users), np.int32(len(case.arrival_s)),
        np.int32(case.measured_from),
    )  # fmt: skip
    rules = Rules(
        on_demand=np.bool_(limits.admission == "on_demand"),
        whole_kv=np.bool_(record.whole_kv),
        watermark_units=np.float64(limits.watermark_units),
        full_prompt=np.bool_(limits.full_prompt),
        long_prefill_tokens=np.float64(limits.long_prefill_token_threshold or np.inf),
        least_work=np.bool_(limits.packing == "least_work_left"),
        look_every=np.int32((limits.look_every or record.look_every) if record.by_future_peak else 0),
        kv=KvUnits(*map(np.float64, units_of(given.kv))),
        frontend_s=np.float64(0.0),
        lookahead_steps=np.float64(0.0),
    )
    shared = np.zeros(slots + 1, np.int32)
    shared[: len(given.shared_units)] = given.shared_units
    content = _content_of(given, slots) if given.contents else None
    swaps = limits.preemption == "swap"
    host = HostMemory(np.float64(limits.swap_units if swaps else -1.0), np.float64(limits.swap_unit_s))
    by_ratio = NewTokenRules(*map(np.float64, (*ratios(limits.conservativeness), limits.max_prefill_tokens)))
    return Lane(
        given.costs, lane_limits, rules, shared, content, None, speculation_of(case, slots),
        host_memory=host if swapping else None, new_tokens=by_ratio if record.token_ratio else None,
    )  # fmt: skip


def stacked(cases: Sequence[Case]) -> tuple[Lane, Requests]:
    """Cases of one structure with a leading lane axis."""
    slots = slots_for(len(given.case.arrival_s) for given in cases)
    swapping = any(given.case.limits.preemption == "swap" for given in cases)
    pairs = [(_lane_of(given, slots, swapping), requests_of(given.case, slots)) for given in cases]
    return jax.tree.map(lambda *values: np.stack([np.asarray(value) for value in values]), *pairs)


def run_engine(cases: Sequence[Case], kind: Kind, vectorise: bool = False, lanes: int = LANES) -> list[LaneResult]:
    """The engine's results, one per case, cut to the case's requests; ``lanes`` of a call."""
    configure()
    found = in_calls(
        partial(run_lanes, structure=kind.structure, vectorise=vectorise), stacked(cases), len(cases), lanes
    )
    return [cut(result, len(given.case.arrival_s)) for result, given in zip(found, cases, strict=True)]


def run_reference(given: Case) -> PoolOutcome:
    """The plain loop on the same requests, every token of it."""
    case = given.case
    columns = (case.arrival_s, case.compute_tokens, case.prompt_tokens, case.output_tokens, case.kv_units)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    shared = given.shared_units.tolist()
    requests = [Request(number, *row, shared_units=shared[number]) for number, row in enumerate(rows)]
    for request, content in zip(requests, given.contents, strict=False):
        request.content = content
    set_curves(case, requests)
    return simulate(
        given.costs, case.policy, case.limits, requests, users=case.users, window=case.window or None, tokens=True
    )


def assert_equal_to_the_plain_loop(given: Case, result: LaneResult, kind: Kind) -> PoolOutcome:
    """A lane and the reference on the same case; what the reference gives is returned."""
    expected = run_reference(given)
    assert_same(given.case, result, expected)
    assert result.totals.preemptions == expected.preemptions, given.case
    np.testing.assert_allclose(result.totals.kv_unit_s, expected.kv_unit_s, rtol=TOLERANCE, err_msg=str(given.case))
    np.testing.assert_allclose(result.totals.experts_touched, expected.experts_touched, rtol=TOLERANCE)
    if kind.cached:
        found = [request.hit_tokens for request in expected.requests]
        np.testing.assert_array_equal(result.hit_tokens, found, err_msg=str(given.case))
    return expected
