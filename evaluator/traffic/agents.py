"""Tasks of agents: calls of a model that wait for others, sub-agents side by side, and what their prompts share."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from evaluator.scenario import Agents, Sessions
from evaluator.scenario.trace import Ragged

_SPARE = 4  # tasks drawn beyond those that are expected to be needed


@dataclass
class Calls:
    """The calls of tasks, task after task, in an order in which each comes behind those that it waits for.

    ``before``: the call whose prompt and answer the prompt of this one begins with, or a share of them where another
    agent made it; -1 for the first call of a task. ``joins``: the last calls of the sub-agents whose answers it reads.
    """

    task: list[int] = field(default_factory=list)
    agent: list[int] = field(default_factory=list)  # numbered through all tasks
    first: list[int] = field(default_factory=list)  # the place of the first call of the task
    before: list[int] = field(default_factory=list)
    joins: list[list[int]] = field(default_factory=list)
    last: list[bool] = field(default_factory=list)  # it ends its task

    def __len__(self) -> int:
        return len(self.task)

    def add(self, task: int, agent: int, first: int, before: int, joins: list[int]) -> int:
        """One more; its place."""
        self.task.append(task)
        self.agent.append(agent)
        self.first.append(first)
        self.before.append(before)
        self.joins.append(joins)
        self.last.append(False)
        return len(self.task) - 1

    def parents(self, place: int) -> list[int]:
        """The calls whose answers it waits for."""
        before = self.before[place]
        return [] if before < 0 else [before, *self.joins[place]]

    def steps(self) -> NDArray[np.int64]:
        """After how many calls one after the other each is made, 0 for the first of a task."""
        steps: list[int] = []
        for place in range(len(self)):
            steps.append(max((1 + steps[parent] for parent in self.parents(place)), default=0))
        return np.array(steps, dtype=np.int64)


def calls_of(agents: Agents, calls_by_agent: Iterator[int], count: int) -> Calls:
    """The calls of the first tasks, as many as there are ``count`` calls in all and the rest of the last task.

    An agent's first call starts its sub-agents, if it has any, which run side by side; its second call reads the
    answers of all of them. So an agent with sub-agents makes at least two calls.
    """
    calls, agent = Calls(), 0

    def run(depth: int, task: int, first: int, before: int) -> int:
        nonlocal agent
        number, made = agent, next(calls_by_agent)
        agent += 1
        place = calls.add(task, number, first, before, [])
        ends: list[int] = []
        if depth > 0:
            ends = [run(depth - 1, task, first, place) for _ in range(agents.fan_out)]
            made = max(made, 2)
        for step in range(1, made):
            place = calls.add(task, number, first, place, ends if step == 1 else [])
        return place

    task = 0
    while len(calls) < count:
        calls.last[run(agents.depth, task, len(calls), -1)] = True
        task += 1
    return calls


def agents_drawn(sessions: Sessions, count: int) -> int:
    """So many agents have ``count`` calls, and some for chance."""
    assert sessions.agents is not None
    tasks = math.ceil(count / sessions.mean_turns) + _SPARE
    return 2 * tasks * sum(sessions.agents.fan_out**level for level in range(sessions.agents.depth + 1))


@dataclass(frozen=True, eq=False)
class AgentGraph:
    """Of requests that are calls of agents, (request,): who makes them, and what they wait for beside the call before.

    ``joins``: rows of the last calls of sub-agents.
    """

    agent: NDArray[np.int64]
    joins: Ragged

    def prompts(
        self,
        previous: NDArray[np.int64],
        new: NDArray[np.int64],
        output: NDArray[np.int64],
        share: float,
        system_tokens: int,
    ) -> NDArray[np.int64]:
        """Prompt tokens, (request,).

        A prompt is all that was said before to this agent and by it, the answers of the sub-agents that it reads, and
        new text. A sub-agent begins with a ``share`` of all that was said in the one that starts it, or at least with
        the system prompt. ``previous`` are rows of the calls before, ``new`` the tokens of new text.
        """
        prompt, before, agent = np.zeros_like(new), previous.tolist(), self.agent.tolist()
        # Rows come behind those that they wait for.
        for row, parent in enumerate(before):
            if parent < 0:
                spoken = system_tokens
            elif agent[row] == agent[parent]:
                spoken = prompt[parent] + output[parent] + output[self.joins[row]].sum()
            else:
                spoken = max(system_tokens, int(share * (prompt[parent] + output[parent])))
            prompt[row] = spoken + new[row]
        return prompt

    def sources(
        self, previous: NDArray[np.int64], inherited: NDArray[np.int64], system: NDArray[np.int64], block_tokens: int
    ) -> dict[int, list[tuple[int, int]]]:
        """By agent, whose text is in the first blocks of its prompts: those that are not its own.

        Each text as (whose, the block behind it): numbers of agents, and -1 - n of the system prompt n. ``inherited``,
        (request,), are the tokens with which the first call of an agent begins: of the system prompt, or of the agent
        that starts it.
        """
        texts: dict[int, list[tuple[int, int]]] = {}
        _, first = np.unique(self.agent, return_index=True)
        # Rows come behind those that they wait for: of who starts an agent all is known when its first call comes.
        for row in np.sort(first).tolist():
            parent, blocks = int(previous[row]), int(inherited[row]) // block_tokens
            whole = [(-1 - int(system[row]), blocks)]
            if parent >= 0:
                starter = int(self.agent[parent])
                whole = [*texts[starter], (starter, blocks)]
            # Of what the one that starts it was told itself, it may begin with a part.
            ends = [min(end, blocks) for _, end in whole]
            texts[int(self.agent[row])] = [
                (source, end) for (source, _), end, before in zip(whole, ends, [0, *ends], strict=False) if end > before
            ]
        return texts
