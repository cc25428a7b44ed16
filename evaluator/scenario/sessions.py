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
class Sessions:
    """What requests have in common: each begins with one of ``system_prompts`` prefixes of ``system_tokens`` tokens.

    The prompt of the drawn length follows it, so that a request's prompt is longer by ``system_tokens``.

    A session has ``turns``. The prompt of a turn is all that was said before in its session, prompts and outputs, and
    then new text, of which the drawn length is. A turn is sent ``think_s`` after the turn before: after its last token
    (``think_from`` answer), or after its own arrival, however long it takes (arrival). ``hash_block_tokens`` are those
    of a block of a trace's ``hash_ids``.
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
        "Seconds after which a session sends its next turn.",
    )
    think_from: str = key(
        choice("answer", "arrival"),
        "answer",
        "They begin with the last token of the turn before, or with its arrival however long it takes.",
    )
    # 512 is the block of Mooncake's published traces.
    hash_block_tokens: int = key(count(), 512, "Tokens of a block of the column hash_ids of a trace.")

    @property
    def continued(self) -> bool:
        """Whether sessions have more than one turn."""
        return self.turns.mean > 1 if isinstance(self.turns, Geometric) else self.turns > 1

    @property
    def feedback(self) -> bool:
        """Whether it depends on the answers when requests are sent."""
        return self.continued and self.think_from == "answer"


def _check(sessions: Sessions, place: Place) -> None:
    # Tokens of a prefix that nobody has would be left out without a word.
    if sessions.system_tokens and not sessions.system_prompts:
        raise place.key("system_prompts").error("must be at least 1 where there are system_tokens, got 0")
    think_s = sessions.think_s.mean if isinstance(sessions.think_s, Exponential) else sessions.think_s
    if think_s > MOST_THINK_S:
        raise place.key("think_s").error(f"must be at most {MOST_THINK_S:,.0f} s, a day, got {think_s:g} s")


# As a whole: a part of it is of use only beside others.
sessions_reader = whole(section(Sessions, _check))
