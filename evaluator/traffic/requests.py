"""How long the requests of a workload are, from random numbers common to all configurations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from evaluator.records import kept_with_record
from evaluator.scenario import Deployment, Lengths, Reasoning, Workload
from evaluator.scenario.trace import LENGTHS, read_trace
from evaluator.traffic.arrivals import drawn_for, stream
from evaluator.traffic.lengths import request_lengths
from evaluator.traffic.sessions import Turns

_MODELS = 2  # the random stream of the models
_PIPELINES = 9  # that of the pipelines
_CLASSES = 10  # that of the classes
_ADAPTERS = 11  # that of the adapters


@dataclass(frozen=True, eq=False)
class Tokens:
    """How long the requests are; every array is (request,)."""

    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]  # of the branch that ends last, where there are several
    cached_tokens: NDArray[np.int64]  # leading prompt tokens whose KV is there; always less than the prompt
    model: NDArray[np.int64]  # which one it asks for: its number among those of the workload, 0 where it names none
    pipeline: NDArray[np.int64]  # which one it takes, likewise
    branch_tokens: NDArray[np.int64] | None = None  # (request, branch): output tokens, ascending; None: one path each
    # Of calls of agents the tokens of the prompt that were said before, by whomever; None: no agents.
    inherited_tokens: NDArray[np.int64] | None = None


def request_tokens(workload: Workload, seed: int, count: int) -> Tokens:
    """The first ``count`` requests of ``workload`` under ``seed``, without their arrivals, which rates do not share.

    The same seed gives the same lengths whatever the arrivals, so that configurations differ by what they are and not
    by their luck. ``cached_tokens`` of the workload are cut to leave one token of each prompt to compute; a trace that
    has the column says them itself. A system prompt comes before the prompt of the drawn length and counts as prompt.
    """
    model, pipeline = request_models(workload, seed, count), request_pipelines(workload, seed, count)
    which: list[tuple[NDArray[np.int64], Mapping[str, _Share]]]
    which = [(model, workload.models), (pipeline, workload.pipelines)]
    if workload.classes:
        which.append((class_numbers(workload, seed, count), workload.classes))
    prompt, output = _lengths_of(workload, seed, count, which)
    cached = _cached(workload, prompt)
    branches = branch_tokens(workload.reasoning, lambda branch: _lengths_of(workload, seed, count, which, branch)[1])
    output = scaled(output, workload.reasoning.scale) if branches is None else branches[:, -1]
    return Tokens(prompt + workload.sessions.system_tokens, output, cached, model, pipeline, branches)


class _Share(Protocol):
    @property
    def share(self) -> float | None: ...
    @property
    def lengths(self) -> Lengths | None: ...


def _lengths_of(
    workload: Workload,
    seed: int,
    count: int,
    several: Sequence[tuple[NDArray[np.int64], Mapping[str, _Share]]],
    branch: int = 0,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Prompts, and outputs of one branch, each (request,). ``several``: which model, pipeline and class each request
    is of, by the numbers of their shares."""
    prompt, output = request_lengths(workload.lengths, seed, count, branch)
    for which, shares in several:
        # The lengths of a model, pipeline or class replace those of the workload; all are drawn with the same numbers.
        for number, share in enumerate(shares.values()):
            if share.lengths is not None:
                lengths = request_lengths(share.lengths, seed, count, branch)
                prompt, output = (
                    np.where(which == number, *pair) for pair in zip(lengths, (prompt, output), strict=True)
                )
    return prompt, output


def request_models(workload: Workload, seed: int, count: int) -> NDArray[np.int64]:
    """The number of the model that each of the first ``count`` requests asks for, (request,).

    They are drawn by their shares from a stream of their own, so that arrivals and lengths stay what they are.
    """
    if workload.models:
        return _drawn(workload.models, stream(seed, _MODELS), count)
    trace = workload.trace
    return _said(None if trace is None else trace.model, count)


def request_pipelines(workload: Workload, seed: int, count: int) -> NDArray[np.int64]:
    """The number of the pipeline that each of the first ``count`` requests takes, (request,), drawn likewise."""
    if workload.pipelines:
        return _drawn(workload.pipelines, stream(seed, _PIPELINES), count)
    trace = workload.trace
    return _said(None if trace is None else trace.pipeline, count)


def class_numbers(workload: Workload, seed: int, count: int, turns: Turns | None = None) -> NDArray[np.int64]:
    """The number of the class of each of the first ``count`` requests, (request,), drawn likewise.

    A session is of one class, so that its turns are.
    """
    trace = workload.trace
    if trace is not None and trace.request_class is not None:
        return _said(trace.request_class, count)
    if not workload.classes:
        return np.zeros(count, dtype=np.int64)
    generator = stream(seed, _CLASSES)
    if turns is not None:
        return _drawn(workload.classes, generator, int(turns.session.max()) + 1)[turns.session]
    return _drawn(workload.classes, generator, count)


def adapter_numbers(workload: Workload, seed: int, ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """The adapter that each of the senders ``ids`` names, (sender,): requests, or sessions, which keep theirs."""
    assert workload.adapters is not None
    drawn = stream(seed, _ADAPTERS).random(int(ids.max(initial=-1)) + 1)
    return workload.adapters.number_of(drawn[ids])


def _drawn(shares: Mapping[str, _Share], generator: np.random.Generator, count: int) -> NDArray[np.int64]:
    """Numbers of models, pipelines or classes by their shares, (request,)."""
    ends, numbers = np.cumsum([share.share or 0.0 for share in shares.values()]), generator.random(count)
    # ends[-1] may be less than 1 by rounding, or shares stated as weights; the minimum keeps the last index.
    return np.minimum(np.searchsorted(ends, numbers * ends[-1], side="right"), len(ends) - 1).astype(np.int64)


def _said(column: NDArray[np.int64] | None, count: int) -> NDArray[np.int64]:
    """Numbers that a trace says, (request,); 0 where it says none."""
    return np.zeros(count, dtype=np.int64) if column is None else column[:count]


def turn_tokens(workload: Workload, seed: int, turns: Turns) -> Tokens:
    """Requests that are turns of sessions: a prompt is all that was said before in its session, and new text.

    The drawn prompts are the new text; outputs that reasoning makes longer are said in full. Every turn of every
    session has lengths of its own, whichever of them are sent.
    """
    count = int(turns.place.max()) + 1
    new, output = (tokens[:count] for tokens in _lengths_of_turns(workload.lengths, seed, drawn_for(count)))
    output = scaled(output, workload.reasoning.scale)
    none = np.zeros_like(turns.place)
    if turns.graph is not None:
        assert workload.sessions.agents is not None
        share, system_tokens = workload.sessions.agents.share, workload.sessions.system_tokens
        new, output = new[turns.place], output[turns.place]
        prompt = turns.graph.prompts(turns.previous, new, output, share, system_tokens)
        return Tokens(prompt, output, none, none, none, inherited_tokens=prompt - new)
    spoken = np.cumsum(new + output)
    # All that was said up to this turn, less what was said before its session began, less its own answer.
    before = spoken[turns.place] - (spoken - new - output)[turns.first] - output[turns.place]
    prompt = workload.sessions.system_tokens + before
    return Tokens(prompt, output[turns.place], none, none, none)


@kept_with_record(8)
def _lengths_of_turns(lengths: Lengths, seed: int, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """New text and answers of all turns, (turn,), the same at all rates that have these lengths."""
    return request_lengths(lengths, seed, count)


def shared_tokens(workload: Workload, deployment: Deployment) -> int:
    """Tokens at the beginning of every prompt whose KV the replicas keep: whole blocks of a system prompt.

    An approximation: all system prompts are there from the start and stay, as those that are sent again and again do.
    So it makes no difference which of them a request begins with. None where the cache goes by content, see
    ``cached_by_content``.
    """
    block = deployment.shared_block_tokens
    resident = deployment.kv.prefix_caching and not cached_by_content(workload, deployment)
    return workload.sessions.system_tokens // block * block if resident else 0


def cached_by_content(workload: Workload, deployment: Deployment) -> bool:
    """Whether replicas keep a prefix cache, whose blocks are known by their content and evicted when they are old.

    System prompts without turns are kept so where there are several pools, or prefill and decode apart: blocks of them
    differ in size from pool to pool, and a decode side gets them with the requests.
    """
    apart = deployment.one_of_several or deployment.role in ("prefill", "decode")
    known = workload.known_content or (apart and workload.sessions.system_tokens > 0)
    return deployment.kv.prefix_caching and known


def _cached(workload: Workload, prompt: NDArray[np.int64]) -> NDArray[np.int64]:
    if workload.lengths.source == "trace" and workload.lengths.file is not None:
        # A trace says itself what was cached when it was recorded.
        cached = read_trace(workload.lengths.file, LENGTHS).cached_tokens
        if cached is not None:
            return cached[: len(prompt)]
    return np.minimum(workload.cached_tokens, prompt - 1)


# --- what reasoning makes of drawn outputs: longer ones, and one for each branch of a request


def scaled(output: NDArray[np.int64], scale: float) -> NDArray[np.int64]:
    """Outputs so many times as long, in whole tokens, at least one."""
    return output if scale == 1.0 else np.maximum(np.rint(output * scale), 1.0).astype(np.int64)


def branch_tokens(reasoning: Reasoning, output: Callable[[int], NDArray[np.int64]]) -> NDArray[np.int64] | None:
    """Output tokens of every branch, (request, branch), ascending: those computed before the request ends.

    ``output`` draws the lengths (request,) of a branch by its number; branch 0 has those of the requests. None where
    every request has one path. All branches get a token in every iteration in which one of them does, so that the K-th
    to end is the K-th shortest, and a request that ends with it leaves the longer ones with as many tokens.
    """
    if not reasoning.several:
        return None
    # One draw for all branches, or a draw for each.
    numbers = range(reasoning.branches) if reasoning.branch_lengths == "drawn" else (0,) * reasoning.branches
    lengths = np.sort(np.stack([scaled(output(number), reasoning.scale) for number in numbers], axis=1), axis=1)
    return (
        lengths if reasoning.first is None else np.minimum(lengths, lengths[:, reasoning.first - 1 : reasoning.first])
    )
