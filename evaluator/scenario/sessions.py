"""``workload.sessions``: system prompts, and sessions of several turns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evaluator.keys import (
    Key,
    Place,
    Reader,
    Schema,
    Table,
    choice,
    count,
    key,
    number,
    quantity,
    read_section,
    schema_of,
    section,
    section_schema,
    table_of,
    whole,
)

MOST_TURNS = 1000
MOST_THINK_S = 86_400.0
"""A day: a run begins when several times as long has passed, and draws all sessions that started until then."""


@dataclass(frozen=True)
class Geometric:
    """Whole numbers from 1 on with P(n) = (1 - 1/mean)^(n - 1) / mean; larger ones than ``max`` become ``max``.

    Its keys are said where such numbers are read, since each has bounds of its own.
    """

    mean: float
    max: int | None = None

    def written(self) -> dict[str, Any]:
        """The section it could have been read from."""
        return {"mean": self.mean, "max": self.max}


@dataclass(frozen=True)
class Exponential:
    """Seconds from an exponential distribution."""

    mean: float = key(quantity("s", least=0), says="Mean of exponential times.")


_TURNS: Table = {
    "mean": Key(number(least=1, most=MOST_TURNS), says="Mean of a geometric number of turns, before the clip."),
    "max": Key(count(most=MOST_TURNS), None, "Most turns of a session."),
}


def fixed_or(fixed: Reader, table: Table, build: Any) -> Reader:
    """Reads one value for all, or the section of a distribution."""

    def read(value: Any, place: Place) -> Any:
        return build(**read_section(value, table, place)) if isinstance(value, Mapping) else fixed(value, place)

    def schema() -> Schema:
        needed = [name for name, entry in table.items() if entry.default is not None]
        return {"anyOf": [schema_of(fixed), section_schema(table, needed)]}

    return Reader(read, schema)


@dataclass(frozen=True)
class Agents:
    """What makes a session a task of agents: one starts others, waits for all of them, and goes on.

    Each agent makes the calls that a session has ``turns``, one after the other. The first call of an agent starts
    ``fan_out`` others, which run side by side, ``depth`` levels down; the second one reads their answers.
    """

    fan_out: int = key(count(most=64), 2, "How many sub-agents an agent starts.")
    depth: int = key(count(least=0, most=4), 1, "How often sub-agents start others: 0 is one agent, 1 has sub-agents.")
    share: float = key(
        number(least=0, most=1),
        0.0,
        "The part of what was said in an agent that the prompts of a sub-agent begin with.",
    )


MOST_CALLS = 10_000
"""Most calls of a task in the mean: four levels of 64 sub-agents would be 17 million."""


@dataclass(frozen=True)
class Sessions:
    """What requests have in common: each begins with one of ``system_prompts`` prefixes of ``system_tokens`` tokens.

    The prompt of the drawn length follows it, so that a request's prompt is longer by ``system_tokens``.

    A session has ``turns``. The prompt of a turn is all that was said before in its session, prompts and outputs, and
    then new text, of which the drawn length is. A turn is sent ``think_s`` after the turn before: after its last token
    (``think_from`` answer), or after its own arrival, however long it takes (arrival). Users of a closed loop think as
    long before their next session, too. ``hash_block_tokens`` are those of a block of a trace's ``hash_ids``.
    """

    system_prompts: int = key(count(least=0), 0, "How many prefixes the requests share; each begins with one of them.")
    system_tokens: int = key(count(least=0), 0, "Tokens of each; the prompt of the drawn length follows them.")
    turns: int | Geometric = key(
        fixed_or(count(most=MOST_TURNS), _TURNS, Geometric),
        1,
        "Requests of a session, each with all that was said before; drawn prompts are the new text of a turn.",
    )
    think_s: float | Exponential = key(
        fixed_or(quantity("s", least=0), table_of(Exponential), Exponential),
        0.0,
        "Seconds after which a session sends its next turn, and a user of a closed loop begins the next session.",
    )
    think_from: str = key(
        choice("answer", "arrival"),
        "answer",
        "They begin with the last token of the turn before, or with its arrival however long it takes.",
    )
    agents: Agents | None = key(
        section(Agents),
        None,
        "Sessions are tasks of agents that start others; turns are the calls of each agent, think_s its tools' times.",
    )
    # 512 is the block of Mooncake's published traces.
    hash_block_tokens: int = key(count(), 512, "Tokens of a block of the column hash_ids of a trace.")

    @property
    def continued(self) -> bool:
        """Whether sessions have more than one turn."""
        if self.agents is not None:
            return True
        return self.turns.mean > 1 if isinstance(self.turns, Geometric) else self.turns > 1

    @property
    def mean_turns(self) -> float:
        """Mean requests of a session. Those of a task are the calls of all its agents, of which one that starts others
        makes at least two."""
        agents, turns = self.agents, _mean_of(self.turns)
        if agents is None:
            return turns
        # Two instead of one, where that is the number drawn: always, or with the probability 1 / mean.
        once = 1.0 / self.turns.mean if isinstance(self.turns, Geometric) else float(self.turns == 1)
        once = 1.0 if isinstance(self.turns, Geometric) and self.turns.max == 1 else once
        starting = sum(agents.fan_out**level for level in range(agents.depth))
        return starting * (turns + once) + agents.fan_out**agents.depth * turns

    @property
    def mean_think_s(self) -> float:
        """Mean seconds between the turns of a session."""
        return self.think_s.mean if isinstance(self.think_s, Exponential) else self.think_s


def _mean_of(turns: int | Geometric) -> float:
    """Geometric with the clip m: sum over n < m of P(more than n) = mean (1 - (1 - 1/mean)^m)."""
    if not isinstance(turns, Geometric):
        return float(turns)
    return turns.mean if turns.max is None else turns.mean * (1.0 - (1.0 - 1.0 / turns.mean) ** turns.max)


def _check(sessions: Sessions, place: Place) -> None:
    if sessions.agents is not None and sessions.mean_turns > MOST_CALLS:
        raise place.key("agents").error(
            f"a task has {sessions.mean_turns:,.0f} calls in the mean, more than {MOST_CALLS:,}; use a smaller "
            "fan_out, depth or turns"
        )
    if sessions.agents is not None and sessions.think_from == "arrival":
        raise place.key("think_from").error("agents wait for answers; use think_from: answer, or leave out agents")
    # Tokens of a prefix that nobody has would be left out without a word.
    if sessions.system_tokens and not sessions.system_prompts:
        raise place.key("system_prompts").error("must be at least 1 where there are system_tokens, got 0")
    if sessions.mean_think_s > MOST_THINK_S:
        raise place.key("think_s").error(
            f"must be at most {MOST_THINK_S:,.0f} s, a day, got {sessions.mean_think_s:g} s"
        )


# As a whole: a part of it is of use only beside others.
sessions_reader = whole(section(Sessions, _check))
