"""What is in the blocks of requests, as dense numbers: one for each content together with all that comes before it.

They say the same as ``Sharing.contents``, which gives one number to a source of text: two requests have the same number
at a place if and only if they have the same sources up to there. Numbers of one source follow one another, so that a
source is told by its first number.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evaluator.records import kept_with_record
from evaluator.traffic.jobs import Jobs
from evaluator.traffic.sharing import Sharing


@dataclass(frozen=True, eq=False)
class BlockNames:
    """The numbers of requests, (request,) in the order in which they were asked for.

    Block ``b`` of a request has the number ``sources[sources_from + b // per_source] + b % per_source`` where ``b`` is
    below ``sourced``, and ``own_from + b`` from there on. All are below ``count``.
    """

    sources: NDArray[np.int64]  # (source,), at least one
    sources_from: NDArray[np.int64]
    sourced: NDArray[np.int64]
    per_source: int
    own_from: NDArray[np.int64]
    count: int

    def __getitem__(self, rows: NDArray | slice) -> BlockNames:
        """Those of some requests."""
        return BlockNames(
            self.sources, self.sources_from[rows], self.sourced[rows], self.per_source, self.own_from[rows], self.count
        )


def block_names(jobs: Jobs, block_tokens: int) -> BlockNames:
    """The numbers of jobs of which something is known. Rates of a sweep share them."""
    assert jobs.sharing is not None
    prompt, kv = jobs.demand.prompt_tokens // block_tokens, jobs.demand.kv_tokens // block_tokens
    # As bytes, which are hashed and compared by value: two tables with equal columns have equal numbers.
    return _numbered(jobs.sharing, block_tokens, *(column.tobytes() for column in (jobs.id, prompt, kv)))


@kept_with_record(32)
def _numbered(sharing: Sharing, block_tokens: int, *columns: bytes) -> BlockNames:
    ids, prompt, kv = (np.frombuffer(column, dtype=np.int64) for column in columns)
    return (
        _hashed(sharing, block_tokens, ids, prompt, kv) if sharing.hashes else _spoken(sharing, block_tokens, ids, kv)
    )


def _spoken(sharing: Sharing, block_tokens: int, ids: NDArray[np.int64], kv: NDArray[np.int64]) -> BlockNames:
    """Of sessions: a system prompt, where there is one, and behind it all that was said, one number after the other."""
    assert sharing.session is not None
    shared = sharing.system_tokens // block_tokens
    sessions, session = np.unique(sharing.session[ids], return_inverse=True)
    system = np.zeros_like(ids) if sharing.system is None else sharing.system[ids]
    prompts, prompt = np.unique(system, return_inverse=True)
    said = np.zeros(len(sessions), dtype=np.int64)
    np.maximum.at(said, session, np.maximum(kv - shared, 0))
    # Numbers of a session's own text begin behind those of all system prompts and of the sessions before it.
    first = len(prompts) * shared + np.cumsum(said) - said
    return BlockNames(
        sources=np.arange(len(prompts)) * shared,
        sources_from=prompt,
        sourced=np.full_like(ids, shared),
        per_source=max(shared, 1),
        # Less ``shared``, because blocks are counted from the beginning of the prompt.
        own_from=first[session] - shared,
        count=len(prompts) * shared + int(said.sum()),
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
    return BlockNames(
        names * per_source, sources_from, prompt, per_source, first - prompt, nodes * per_source + int(unshared.sum())
    )
