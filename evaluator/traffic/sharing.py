"""What the requests of a workload share: sessions, and the content of their prompts, block by block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluator.scenario import Workload
from evaluator.scenario.trace import Ragged
from evaluator.traffic.sessions import Turns, system_prompts


@dataclass(frozen=True, slots=True)
class PrefixContent(Sequence[int]):
    """What is in the first whole blocks of a request's KV: the same numbers up to a block, the same tokens so far.

    A number stands for a source of text (a session, a system prompt, a block of a trace), not for a single block: where
    a block lies in its source follows from the blocks before it. ``per_source`` blocks in turn are of one of the
    ``sources``, as far as these go, and the rest of ``blocks`` is of ``rest``.
    """

    sources: Sequence[int] | NDArray[np.int64]
    per_source: int
    blocks: int
    rest: int = 0

    def __len__(self) -> int:
        return self.blocks

    def __getitem__(self, block: Any) -> Any:
        if not 0 <= block < self.blocks:
            raise IndexError(block)
        source = block // self.per_source
        return int(self.sources[source]) if source < len(self.sources) else self.rest


@dataclass(frozen=True, eq=False)
class Sharing:
    """Of all requests of a table, (request,) by id. None: it is not known.

    Prompts of a session are taken to continue one another: each begins with as much of the prompt and the output
    before it as it has room for. ``hashes`` say of prompts what is in them, and nothing of outputs.
    """

    session: NDArray[np.int64] | None
    turns: Turns | None  # where sessions send one request after the other, or users think between requests
    feedback: bool  # the answer to a turn decides when the next one is sent
    system: NDArray[np.int64] | None  # which system prompt a session begins with, or each request without sessions
    system_tokens: int
    hashes: Ragged | None
    hash_block_tokens: int
    inherited_tokens: NDArray[np.int64] | None = None  # of calls of agents: of their prompts, what was said before

    def contents(
        self, ids: NDArray[np.int64], prompt_tokens: NDArray[np.int64], kv_tokens: NDArray[np.int64], block_tokens: int
    ) -> Iterator[PrefixContent]:
        """What is in the whole blocks of requests, all of (request,): as far as they are known.

        ``kv_tokens``: of the prompt and the output. ``hash_block_tokens`` must be a multiple of ``block_tokens``.
        """
        if self.hashes is not None:
            per_source = self.hash_block_tokens // block_tokens
            for row, prompt in zip(ids.tolist(), prompt_tokens.tolist(), strict=True):
                yield PrefixContent(self.hashes[row], per_source, prompt // block_tokens)
            return
        if self.turns is not None and self.inherited_tokens is not None:
            yield from self._of_agents(self.turns, ids, kv_tokens, block_tokens)
            return
        system = np.zeros_like(ids) if self.system is None else self.system[ids]
        shared = self.system_tokens // block_tokens
        # Without sessions each request is one of its own.
        sessions = ids if self.session is None else self.session[ids]
        for session, prompt, tokens in zip(sessions.tolist(), system.tolist(), kv_tokens.tolist(), strict=True):
            # System prompts count down from -1: sessions count up from 0, and no two sources share a number.
            yield PrefixContent((-1 - prompt,) if shared else (), max(shared, 1), tokens // block_tokens, session)

    def _of_agents(
        self, turns: Turns, ids: NDArray[np.int64], kv_tokens: NDArray[np.int64], block_tokens: int
    ) -> Iterator[PrefixContent]:
        assert turns.graph is not None
        by_block = {
            agent: np.repeat([source for source, _ in texts], np.diff([0, *(end for _, end in texts)]))
            for agent, texts in self.of_agents(turns, block_tokens).items()
        }
        for agent, tokens in zip(turns.graph.agent[ids].tolist(), kv_tokens.tolist(), strict=True):
            yield PrefixContent(by_block[agent], 1, tokens // block_tokens, agent)

    def of_agents(self, turns: Turns, block_tokens: int) -> dict[int, list[tuple[int, int]]]:
        """Of drawn agents the texts that their prompts begin with, see ``AgentGraph.sources``."""
        assert turns.graph is not None and self.inherited_tokens is not None and self.session is not None
        system = np.zeros_like(self.session) if self.system is None else self.system
        return turns.graph.sources(turns.previous, self.inherited_tokens, system, block_tokens)


def sharing_of(
    workload: Workload, seed: int, turns: Turns | None, inherited_tokens: NDArray[np.int64] | None = None
) -> Sharing | None:
    """What is known of the requests under a seed; None where it is nothing."""
    sessions, trace = workload.sessions, workload.trace
    session = turns.session if turns is not None and sessions.continued else None
    hashes = None
    # A trace says who sent what: drawn sessions have nothing to add to it.
    if trace is not None:
        session = None if trace.session is None else trace.session[: workload.requests]
        hashes = trace.hash_ids
    system = None if session is None else system_prompts(sessions, seed, session)
    if session is None and hashes is None and sessions.system_tokens:
        system = system_prompts(sessions, seed, np.arange(workload.requests))
    if session is None and hashes is None and turns is None and system is None:
        return None
    return Sharing(
        session=session,
        turns=turns,
        feedback=workload.feedback,
        system=system,
        system_tokens=sessions.system_tokens,
        hashes=hashes,
        hash_block_tokens=sessions.hash_block_tokens,
        inherited_tokens=inherited_tokens,
    )
