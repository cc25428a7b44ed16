"""Random configurations and requests of a vLLM scheduler, and what it did with them, iteration by iteration.

A case and its log are plain data: vLLM (``vllm_engine``) and the project (``ours``) each make a log of a case, and
nothing else passes between them. Times are counted in ticks of ``TICK_S``, and an iteration takes one second and a tick
for each token that it computes, drafts apart: all clocks are exact in float64, so that logs must be equal to the bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import numpy as np

AnyCase = TypeVar("AnyCase")
TICK_S = 1 / 64
ITERATION_TICKS = 64


@dataclass(frozen=True)
class Ask:
    """A request. ``content``: what is in its first whole blocks, answer included; same number, same tokens.

    ``curve``: tokens that its first 0, 1, 2, .. decode iterations give where drafts are verified. ``max_tokens``: what
    the client allows of an answer, where that is more than it will have; 0: as many. ``adapter``: which LoRA adapter it
    names; 0: none.
    """

    arrival_ticks: float
    prompt_tokens: int
    output_tokens: int
    content: tuple[int, ...] = ()
    priority: int = 0
    curve: tuple[int, ...] = ()
    max_tokens: int = 0
    adapter: int = 0


@dataclass(frozen=True)
class Case:
    """A configuration of vLLM's scheduler, in our words; vLLM's own names where they differ are in ``vllm_engine``."""

    feature: str
    seed: int
    max_num_seqs: int
    max_num_batched_tokens: int
    blocks: int
    block_tokens: int
    long_prefill_token_threshold: int = 0
    watermark_blocks: int = 0
    full_prompt: bool = False  # a request is admitted only where its whole prompt fits
    prefix_caching: bool = False
    priority: bool = False
    drafts: int = 0
    pipeline_ranks: int = 1
    asynchronous: bool = False
    data_parallel: int = 1
    stats_ms: int = 0  # with data_parallel: between two messages of the coordinator
    lockstep: bool = False  # with data_parallel: ranks share experts, requests go to them in turns
    prefill_blocks: int = 0  # of a prefill side; 0: there is none
    transfer_ticks: int = 0  # for each token of a prompt that is sent to the decode side
    one_by_one: bool = False  # the prefill side sends one request after the other
    # Of layers, in vLLM's order: tokens of the window, or less than 0 of a chunk; 0: full attention, -1: states.
    groups: tuple[int, ...] = ()
    host_blocks: int = 0  # of host memory; 0: there is none
    store_ticks: int = 0  # for each block that is copied to the host
    load_ticks: int = 0  # for each that is copied back
    host_prompts_only: bool = True  # answers are not copied
    stores: tuple[
        tuple[int, int, int], ...
    ] = ()  # behind it: blocks, ticks for each and beside the transfers of others
    max_loras: int = 0  # distinct adapters of a batch; 0: nobody names any
    context_parallel: int = 1  # ranks over which a sequence's KV is split; ``block_tokens`` are those of a block on all
    requests: tuple[Ask, ...] = ()


@dataclass(frozen=True)
class Step:
    """An iteration: requests by their number, each with its tokens; those admitted, with what they found cached."""

    start_ticks: int
    end_ticks: int
    tokens: tuple[tuple[int, int], ...]
    preempted: tuple[int, ...]  # since the iteration before was planned, in order
    cached: tuple[tuple[int, int], ...]  # of those admitted
    free_blocks: int  # once it is planned
    loaded: tuple[tuple[int, int], ...] = ()  # since the iteration before was planned: tokens that come from the host
    host_blocks: int = 0  # that the host has, or will have, once it is planned


@dataclass(frozen=True)
class Log:
    """All iterations, and when each request had its first token and its last."""

    steps: tuple[Step, ...]
    first_ticks: tuple[int, ...]
    last_ticks: tuple[int, ...]


FEATURES: dict[str, dict[str, Any]] = {
    "chunked prefill": {},
    "full prompt must fit": {"full_prompt": True},
    "watermark": {"watermark": True},
    "prefix cache": {"prefix_caching": True},
    "priority": {"priority": True},
    "drafts": {"drafts": True},
    "pipeline ranks": {"pipeline": True},
    "asynchronous": {"asynchronous": True},
    "asynchronous, prefix cache": {"asynchronous": True, "prefix_caching": True},
    "windows": {"windows": True},
    "windows, prefix cache": {"windows": True, "prefix_caching": True},
    "windows, asynchronous": {"windows": True, "asynchronous": True},
    "states": {"windows": True, "states": True},
    "chunked local attention": {"windows": True, "chunks": True},
    "chunked local attention, prefix cache": {"windows": True, "chunks": True, "prefix_caching": True},
    "data-parallel ranks": {"data_parallel": True},
    "ranks in lockstep": {"lockstep": True},
    "prefill and decode apart": {"apart": True},
    "prefill and decode apart, prefix cache": {"apart": True, "prefix_caching": True},
    "decode context parallelism": {"context": True, "prefix_caching": True},
    "adapters": {"adapters": True},
    "adapters, asynchronous": {"adapters": True, "asynchronous": True},
    "host memory": {"prefix_caching": True, "host": True},
    "host memory, asynchronous": {"prefix_caching": True, "host": True, "asynchronous": True},
    "stores": {"prefix_caching": True, "host": True, "stores": True},
    "stores, asynchronous": {"prefix_caching": True, "host": True, "stores": True, "asynchronous": True},
}
"""What each family of random cases always has; chunks, thresholds and preemption are in all of them."""


def random_case(feature: str, seed: int, requests: int = 40) -> Case:
    """A case of a feature, from an idle engine to one in permanent want of KV."""
    has = FEATURES[feature]
    rng = np.random.default_rng([seed, *feature.encode()])
    block = int(rng.choice([1, 4, 8, 16, 32]))
    longest = int(rng.choice([20, 100, 600]))
    prompts = rng.integers(1, longest + 1, requests)
    outputs = rng.integers(1, int(rng.choice([3, 20, 150])) + 1, requests)
    context = int(rng.choice([2, 4, 8])) if has.get("context") else 1
    block *= context
    prefix = bool(has.get("prefix_caching"))
    if prefix and rng.random() < 0.4:  # a prompt ends where a block does, or a token off
        prompts = np.maximum(prompts // block * block + rng.integers(-1, 2, requests), 1)
    if has.get("host"):  # vLLM loads the whole of a prompt of one token in blocks of one, again and again
        prompts = np.maximum(prompts, 2)
    drafts = int(rng.integers(1, 6)) if has.get("drafts") else 0
    seats = int(rng.integers(1, 25))
    budget = max(int(rng.choice([8, 32, 64, 256, 2048])), seats * (1 + drafts))
    units = -(-(prompts + outputs - 1 + drafts) // block)
    watermark = int(rng.integers(1, 6)) if has.get("watermark") else 0
    asynchronous = bool(has.get("asynchronous"))
    groups: tuple[int, ...] = ()
    if has.get("windows"):
        groups = _groups(rng, bool(has.get("states")), longest)
        if has.get("chunks"):  # of one size, as vLLM has them
            groups = tuple(group and -max(groups) for group in groups)
        under_way = budget * (1 + asynchronous)  # tokens that a window holds beside its own
        bounds = [-(-(abs(group) - 1 + under_way) // block) + 1 for group in groups if abs(group) > 1]
        units = sum((np.minimum(units, bound) for bound in bounds), units * groups.count(0) + groups.count(-1))
    blocks = int(units.max() * rng.uniform(1.0, rng.choice([1.3, 3.0, 8.0]))) + int(rng.integers(0, 3)) + watermark
    mean_s = (1 + prompts.mean() * TICK_S + outputs.mean() * 1.2) / min(seats, 6)
    gaps = rng.exponential(mean_s * 10 ** rng.uniform(-1.0, 0.5), requests)
    locked = bool(has.get("lockstep"))
    ranks = int(rng.integers(2, 6)) if has.get("data_parallel") or locked else 1
    gaps /= ranks
    arrivals = np.cumsum(gaps) / TICK_S if rng.random() > 0.1 else np.zeros(requests)
    if locked:
        # While the first is there: when nobody is, vLLM's ranks go on with dummy batches, and ours do not.
        outputs[0] = outputs.max() + 2
        arrivals = np.concatenate([[0], np.sort(rng.integers(0, outputs[0] / TICK_S, requests - 1))])
        blocks += int(-(-(prompts[0] + outputs[0]) // block))
    elif ranks > 1:
        # Each at a time that nothing else happens at, iterations of other ranks included: it would depend on the order.
        arrivals = arrivals.astype(int) + np.arange(requests) / 4096
    case = Case(
        feature, seed, seats, budget, blocks, block,
        long_prefill_token_threshold=int(rng.choice([0, 0, 0, 7 if drafts else 1, 7, 40])),
        watermark_blocks=watermark,
        full_prompt=bool(has.get("full_prompt", rng.random() < 0.5)),
        prefix_caching=prefix,
        priority=bool(has.get("priority")),
        drafts=drafts,
        pipeline_ranks=int(rng.integers(2, 5)) if has.get("pipeline") else 1,
        asynchronous=asynchronous,
        groups=groups,
        data_parallel=ranks,
        lockstep=locked,
        prefill_blocks=int(blocks * rng.uniform(0.5, 1.5)) + int(units.max()) if has.get("apart") else 0,
        transfer_ticks=int(rng.choice([0, 1, 4, 16])) if has.get("apart") else 0,
        one_by_one=bool(has.get("apart") and rng.random() < 0.5),
        stats_ms=int(rng.choice([100, 1000, 7000])) if ranks > 1 and not locked else 0,
        host_blocks=int(units.max() * rng.choice([0.3, 1.0, 3.0, 20.0])) + 1 if has.get("host") else 0,
        store_ticks=int(rng.choice([0, 1, 8, 60])) if has.get("host") else 0,
        load_ticks=int(rng.choice([0, 1, 8, 60])) if has.get("host") else 0,
        host_prompts_only=not has.get("host") or bool(rng.random() < 0.5),
    )  # fmt: skip
    if has.get("stores"):
        sizes = [int(case.host_blocks * rng.choice([0.5, 2.0, 10.0])) + 1 for _ in range(int(rng.integers(1, 3)))]
        ticks = rng.choice([0, 1, 8, 60], (len(sizes), 2)).tolist()
        case = replace(case, stores=tuple((size, *each) for size, each in zip(sizes, ticks, strict=True)))
    if has.get("adapters"):
        case = replace(case, max_loras=int(rng.integers(1, 6)))
    if context > 1:
        case = replace(case, context_parallel=context)
    several = case.max_loras + int(rng.integers(1, 8)) if case.max_loras else 0
    contents = contents_of(rng, prompts, outputs, block) if prefix else [()] * requests
    asks = (
        Ask(
            float(arrival) if ranks > 1 and not locked else int(arrival), int(prompt), int(output), content,
            int(rng.integers(0, 4)) if case.priority else 0,
            _curve(rng, int(output), drafts),
            adapter=int(rng.integers(1, several + 1)) if several else 0,
        )
        for arrival, prompt, output, content in zip(arrivals, prompts, outputs, contents, strict=True)
    )  # fmt: skip
    return replace(case, requests=tuple(asks))


def _groups(rng: np.random.Generator, states: bool, longest: int) -> tuple[int, ...]:
    """One to five groups of layers in any order; windows from two tokens to beyond the longest prompt."""
    windows = [int(rng.integers(2, longest + 40)) for _ in range(int(rng.integers(1, 3)))]
    kinds = [0, *windows] if not states else [-1, 0, *windows[: int(rng.integers(0, 2))]]
    drawn = [*kinds[:2], *rng.choice(kinds, int(rng.integers(0, 4))).tolist()]
    return tuple(int(kind) for kind in rng.permutation(drawn))


def contents_of(
    rng: np.random.Generator, prompts: np.ndarray, outputs: np.ndarray, block: int
) -> list[tuple[int, ...]]:
    """Sessions behind a shared beginning, or blocks drawn from two, so that equal blocks are computed side by side."""
    whole = (prompts + outputs - 1) // block
    known = np.where(rng.random(len(prompts)) < 0.5, whole, prompts // block)
    if rng.random() < 0.3:
        return [tuple(rng.integers(0, 2, int(count)).tolist()) for count in known]
    sessions, shared = rng.integers(2, 2 + int(rng.integers(1, 8)), len(prompts)), int(rng.integers(0, 3))
    return [
        (*(0,) * shared, *(int(session),) * int(count))[: int(count)]
        for session, count in zip(sessions, known, strict=True)
    ]


def _curve(rng: np.random.Generator, output: int, drafts: int) -> tuple[int, ...]:
    if not drafts:
        return ()
    gains = 1 + rng.binomial(drafts, rng.uniform(), output + drafts + 2)
    return tuple(np.cumsum([0, *gains]).tolist())


def apart(sides: Sequence[Sequence[Step]], first: tuple[int, ...], last: tuple[int, ...]) -> Log:
    """The log of a prefill and a decode side; a request has its number more than all requests on the latter."""
    more = len(first)

    def renumbered(step: Step) -> Step:
        tokens = tuple((index + more, count) for index, count in step.tokens)
        preempted = tuple(index + more for index in step.preempted)
        return replace(step, tokens=tokens, preempted=preempted, cached=tuple((i + more, n) for i, n in step.cached))

    steps = [*sides[0], *map(renumbered, sides[1])]
    return Log(tuple(sorted(steps, key=lambda step: (step.start_ticks, step.tokens))), first, last)


def as_data(case: Any, log: Log) -> dict[str, Any]:
    """A case and its log for JSON; iterations as columns, participants as changes from the iteration before."""
    before: dict[int, int] = {}
    changes = []
    for step in log.steps:
        now = dict(step.tokens)
        changed = [[i, n] for i, n in now.items() if before.get(i) != n]
        changes.append([changed, [i for i in before if i not in now]])
        before = now
    ends = [step.end_ticks - step.start_ticks for step in log.steps]
    starts = [step.start_ticks for step in log.steps]
    host = {
        "loaded": [[at, *pair] for at, step in enumerate(log.steps) for pair in step.loaded],
        "host_blocks": np.diff([step.host_blocks for step in log.steps], prepend=0).tolist(),
    }
    return {
        "case": {**asdict(case), "requests": [list(asdict(ask).values()) for ask in case.requests]},
        **(host if any(step.host_blocks for step in log.steps) else {}),
        "start_ticks": np.diff(starts, prepend=0).tolist(),
        "took_ticks": ends,
        "changes": changes,
        "preempted": [[at, *step.preempted] for at, step in enumerate(log.steps) if step.preempted],
        "cached": [[at, *pair] for at, step in enumerate(log.steps) for pair in step.cached],
        "free_blocks": np.diff([step.free_blocks for step in log.steps], prepend=0).tolist(),
        "first_ticks": log.first_ticks,
        "last_ticks": log.last_ticks,
    }


def from_data(data: dict[str, Any], kind: type[AnyCase]) -> tuple[AnyCase, Log]:
    """The inverse of ``as_data``; ``kind``: of case."""
    asks = tuple(Ask(*(tuple(v) if isinstance(v, list) else v for v in row)) for row in data["case"]["requests"])
    case = kind(
        **{name: tuple(v) if isinstance(v, list) else v for name, v in {**data["case"], "requests": asks}.items()}
    )
    starts, free = np.cumsum(data["start_ticks"]).tolist(), np.cumsum(data["free_blocks"]).tolist()
    preempted = {at: tuple(who) for at, *who in data["preempted"]}
    host = np.cumsum(data.get("host_blocks", [0] * len(starts))).tolist()
    cached: dict[int, list[tuple[int, int]]] = {}
    loaded: dict[int, list[tuple[int, int]]] = {}
    for found, rows in ((cached, data["cached"]), (loaded, data.get("loaded", ()))):
        for at, request, tokens in rows:
            found.setdefault(at, []).append((request, tokens))
    steps, members = [], {}
    for at, (start, took, (changed, left)) in enumerate(zip(starts, data["took_ticks"], data["changes"], strict=True)):
        members = {i: n for i, n in members.items() if i not in left} | dict(map(tuple, changed))
        steps.append(
            Step(
                start, start + took, tuple(sorted(members.items())), preempted.get(at, ()),
                tuple(cached.get(at, ())), free[at], tuple(loaded.get(at, ())), host[at],
            )
        )  # fmt: skip
    return case, Log(tuple(steps), tuple(data["first_ticks"]), tuple(data["last_ticks"]))


def first_difference(theirs: Log, ours: Log, engine: str = "vLLM", around: int = 2) -> str | None:
    """The first iteration in which two logs of a case differ, with those before it; None where all are equal."""
    for at, (step, own) in enumerate(zip(theirs.steps, ours.steps, strict=False)):
        if step != own:
            names = [name for name in Step.__dataclass_fields__ if getattr(step, name) != getattr(own, name)]
            lines = [f"iteration {at} differs in {', '.join(names)}"]
            lines += [f"  both {each}" for each in theirs.steps[max(at - around, 0) : at]]
            return "\n".join([*lines, f"  {engine} {step}", f"  ours {own}"])
    if len(theirs.steps) != len(ours.steps):
        return f"{engine} has {len(theirs.steps)} iterations, ours {len(ours.steps)}"
    for name in ("first_ticks", "last_ticks"):
        if getattr(theirs, name) != getattr(ours, name):
            return f"{name}: {engine} {getattr(theirs, name)}, ours {getattr(ours, name)}"
    return None


def equal_steps(theirs: Log, ours: Log) -> int:
    """Iterations that are equal up to the first difference."""
    same = 0
    for step, own in zip(theirs.steps, ours.steps, strict=False):
        if step != own:
            break
        same += 1
    return same


def families(features: Iterable[str], names: Sequence[str] | None) -> list[str]:
    """The features asked for, all where none is."""
    return [name for name in features if not names or any(word in name for word in names)]
