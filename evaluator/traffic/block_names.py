"""What is in the blocks of requests, as dense numbers: one for each content together with all that comes before it.

They say the same as ``Sharing.contents``, which gives one number to a source of text: two requests have the same number
at a place if and only if they have the same sources up to there. Numbers of one source follow one another, so that a
source is told by its first number.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from evaluator.records import kept_with_record
from evaluator.traffic.jobs import Jobs
from evaluator.traffic.sessions import Turns
from evaluator.traffic.sharing import Sharing

_ENDLESS = 1 << 30
"""More blocks than a request has."""


@dataclass(frozen=True, eq=False)
class BlockNames:
    """The numbers of requests, (request,) in the order in which they were asked for.

    Block ``b`` of a request is in the source ``s``, the first one from ``sources_from + b // per_source`` on with
    ``ends[s] > b``, where ``b`` is below ``sourced``. Its number is that of the source, ``sources[s]``, and one more
    for each block since ``ends[s - 1]``, or since 0 in the first source of a request. From ``sourced`` on it is
    ``own_from + b``. All are below ``count``. Only sources of drawn agents have fewer blocks than ``per_source``.

    Blocks of one source, or of all that has an ``own_from`` in common, are a *text*. Texts have numbers of their own.
    """

    sources: NDArray[np.int64]  # (source,), at least one
    ends: NDArray[np.int64]
    sources_from: NDArray[np.int64]
    sourced: NDArray[np.int64]
    per_source: int
    own_from: NDArray[np.int64]
    count: int
    texts: NDArray[np.int64]  # (source,): the number of its text, below ``text_count``
    own_text: NDArray[np.int64]  # of the blocks from ``sourced`` on
    text_count: int
    # No block that a request fills by decoding is of a source, or filled so by another request.
    answers_apart: bool

    def __getitem__(self, rows: NDArray | slice) -> BlockNames:
        """Those of some requests."""
        return replace(
            self, sources_from=self.sources_from[rows], sourced=self.sourced[rows], own_from=self.own_from[rows],
            own_text=self.own_text[rows],
        )  # fmt: skip


def block_names(jobs: Jobs, block_tokens: int) -> BlockNames:
    """The numbers of jobs of which something is known. Rates of a sweep share them."""
    assert jobs.sharing is not None
    prompt, kv = jobs.demand.prompt_tokens // block_tokens, jobs.demand.kv_tokens // block_tokens
    # As bytes, which are hashed and compared by value: two tables with equal columns have equal numbers.
    return _numbered(jobs.sharing, block_tokens, *(column.tobytes() for column in (jobs.id, prompt, kv)))


@kept_with_record(32)
def _numbered(sharing: Sharing, block_tokens: int, *columns: bytes) -> BlockNames:
    ids, prompt, kv = (np.frombuffer(column, dtype=np.int64) for column in columns)
    if sharing.hashes is not None:
        return _hashed(sharing, block_tokens, ids, prompt, kv)
    if sharing.turns is not None and sharing.inherited_tokens is not None:
        return _of_agents(sharing, sharing.turns, block_tokens, ids, prompt, kv)
    return _spoken(sharing, block_tokens, ids, prompt, kv)


def _spoken(
    sharing: Sharing,
    block_tokens: int,
    ids: NDArray[np.int64],
    prompt_blocks: NDArray[np.int64],
    kv: NDArray[np.int64],
) -> BlockNames:
    """Of sessions: a system prompt, where there is one, and behind it all that was said, one number after the other."""
    shared = sharing.system_tokens // block_tokens
    # Without sessions each request is one of its own.
    sessions, session = _in_order(ids if sharing.session is None else sharing.session[ids])
    system = np.zeros_like(ids) if sharing.system is None else sharing.system[ids]
    prompts, prompt = _in_order(system)
    said = np.zeros(sessions, dtype=np.int64)
    np.maximum.at(said, session, np.maximum(kv - shared, 0))
    # Numbers of a session's own text begin behind those of all system prompts and of the sessions before it.
    first = prompts * shared + np.cumsum(said) - said
    own_from = first[session] - shared  # because blocks are counted from the beginning of the prompt
    return BlockNames(
        sources=np.arange(prompts) * shared,
        ends=np.full(prompts, shared),
        sources_from=prompt,
        sourced=np.full_like(ids, shared),
        per_source=max(shared, 1),
        own_from=own_from,
        count=prompts * shared + int(said.sum()),
        texts=np.arange(prompts),
        own_text=prompts + session,
        text_count=prompts + sessions,
        answers_apart=_apart(own_from, shared, prompt_blocks, kv),
    )


def _in_order(numbers: NDArray[np.int64]) -> tuple[int, NDArray[np.int64]]:
    """How many different ones there are, and which of them each is, counted from the least; none is negative."""
    there = np.bincount(numbers) > 0  # they are dense, so that counting takes a third of the time of sorting
    return int(there.sum()), (np.cumsum(there) - 1)[numbers]


def _apart(
    own_from: NDArray[np.int64], sourced: NDArray | int, prompt: NDArray[np.int64], kv: NDArray[np.int64]
) -> bool:
    """Whether no two requests number the blocks behind their prompts alike, and all of them are their own."""
    decodes = kv > prompt
    if not decodes.any():
        return True
    start, end = (own_from + prompt)[decodes], (own_from + kv)[decodes]
    order = np.argsort(start)
    own = bool((prompt >= sourced).all())
    return own and bool((start[order][1:] >= np.maximum.accumulate(end[order])[:-1]).all())


def _of_agents(
    sharing: Sharing,
    turns: Turns,
    block_tokens: int,
    ids: NDArray[np.int64],
    prompt: NDArray[np.int64],
    kv: NDArray[np.int64],
) -> BlockNames:
    """Of drawn agents: a system prompt, a part of what was said in those that started the agent, and its own text."""
    assert turns.graph is not None
    texts = sharing.of_agents(turns, block_tokens)
    agent = turns.graph.agent[ids]
    # Whose text it is, by agent or with -1 - n as system prompt n, and up to where anybody has any of it.
    begins = {source: texts[source][-1][1] if source >= 0 and texts[source] else 0 for source in texts}
    until = dict(begins)
    for of_agent in texts.values():
        for source, end in of_agent:
            begins.setdefault(source, 0)
            until[source] = max(until.get(source, 0), end)
    for own, blocks in zip(agent.tolist(), kv.tolist(), strict=True):
        until[own] = max(until[own], blocks)
    first, count = dict[int, int](), 0
    for source, begin in begins.items():
        first[source], count = count, count + until[source] - begin
    numbers = {source: number for number, source in enumerate(first)}
    rows = {own: number for number, own in enumerate(texts)}
    lengths = np.array([len(of_agent) for of_agent in texts.values()])
    known = [end for of_agent in texts.values() for end in of_agent]
    row = np.array([rows[own] for own in agent.tolist()], dtype=np.int64)
    inherited = np.array([begins[own] for own in texts], dtype=np.int64)[row]
    own_from = np.array([first[own] for own in agent.tolist()], dtype=np.int64) - inherited
    return BlockNames(
        sources=np.array([first[source] for source, _ in known] or [0], dtype=np.int64),
        ends=np.array([end for _, end in known] or [0], dtype=np.int64),
        sources_from=(np.cumsum(lengths) - lengths)[row],
        sourced=inherited,
        per_source=_ENDLESS,
        own_from=own_from,
        count=max(count, 1),
        texts=np.array([numbers[source] for source, _ in known] or [0], dtype=np.int64),
        own_text=np.array([numbers[own] for own in texts], dtype=np.int64)[row],
        text_count=len(numbers),
        answers_apart=_apart(own_from, inherited, prompt, kv),
    )


def _hashed(
    sharing: Sharing, block_tokens: int, ids: NDArray[np.int64], prompt: NDArray[np.int64], kv: NDArray[np.int64]
) -> BlockNames:
    """Of a trace with hashes: they tell of prompts, and outputs are like nothing else."""
    assert sharing.hashes is not None
    per_source = sharing.hash_block_tokens // block_tokens
    sources = -(-prompt // per_source)
    sources_from = np.cumsum(sources) - sources
    starts = sharing.hashes.offsets[ids]
    hashes, number = np.unique(sharing.hashes.values, return_inverse=True)
    names = np.zeros(max(int(sources.sum()), 1), dtype=np.int64)
    node, nodes = np.zeros_like(ids), 0  # of what was found so far: node 0 for nothing, those of a level are new
    # Breadth first through the tree of prompts: at each level a node is what came so far (the node above) with the
    # next source, so that equal prompts are at the same node as far as they are equal.
    for level in range(int(sources.max(initial=0))):
        deep = np.flatnonzero(sources > level)
        # A pair of (what came so far, next source) as one integer.
        key = node[deep] * len(hashes) + number[starts[deep] + level]
        distinct, child = np.unique(key, return_inverse=True)
        names[sources_from[deep] + level] = nodes + child
        node[deep] = nodes + child
        nodes += len(distinct)
    # Behind the prompt nothing is known to be equal: numbers of the request's own.
    unshared = np.maximum(kv - prompt, 0)
    first = nodes * per_source + np.cumsum(unshared) - unshared
    ends = np.zeros_like(names)
    ends[: int(sources.sum())] = (np.arange(int(sources.sum())) - np.repeat(sources_from, sources) + 1) * per_source
    count = nodes * per_source + int(unshared.sum())
    # A text of each node, and one of each request behind its prompt.
    own_text = nodes + np.arange(len(ids))
    return BlockNames(
        names * per_source, ends, sources_from, prompt, per_source, first - prompt, count, names, own_text,
        nodes + len(ids), True,
    )  # fmt: skip
