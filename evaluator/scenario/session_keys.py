"""The keys of ``workload.sessions``: system prompts, and sessions of several turns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evaluator.scenario.fields import Field, Place, Reader, Schema, Table, choice, count, number, quantity
from evaluator.scenario.scenario import Exponential, Geometric, Sessions
from evaluator.scenario.tables import Variant, read_section, schema_of, section, section_schema

MOST_TURNS = 1000
MOST_THINK_S = 86_400.0
"""A day: a run begins when several times as long has passed, and draws all sessions that started until then."""

_GEOMETRIC: Table = {
    "mean": Field(number(least=1, most=MOST_TURNS), says="Mean of a geometric number of turns, before the clip."),
    "max": Field(count(most=MOST_TURNS), Geometric.max, "Most turns of a session."),
}
_EXPONENTIAL: Table = {"mean": Field(quantity("s", least=0), says="Mean of exponential times.")}


def fixed_or(fixed: Reader, table: Table, build: Any) -> Reader:
    """Reads one value for all, or the section of a distribution."""

    def read(value: Any, place: Place) -> Any:
        return build(**read_section(value, table, place)) if isinstance(value, Mapping) else fixed(value, place)

    def schema() -> Schema:
        needed = [key for key, field in table.items() if field.default is not None]
        return {"anyOf": [schema_of(fixed), {**section_schema(table), "required": needed}]}

    return Reader(read, schema)


SESSIONS: Table = {
    "system_prompts": Field(
        count(least=0), Sessions.system_prompts, "How many prefixes the requests share; each begins with one of them."
    ),
    "system_tokens": Field(
        count(least=0), Sessions.system_tokens, "Tokens of each; the prompt of the drawn length follows them."
    ),
    "turns": Field(
        fixed_or(count(most=MOST_TURNS), _GEOMETRIC, Geometric),
        Sessions.turns,
        "Requests of a session, each with all that was said before; drawn prompts are the new text of a turn.",
    ),
    "think_s": Field(
        fixed_or(quantity("s", least=0), _EXPONENTIAL, Exponential),
        Sessions.think_s,
        "Seconds after which a session sends its next turn.",
    ),
    "think_from": Field(
        choice("answer", "arrival"),
        Sessions.think_from,
        "They begin with the last token of the turn before, or with its arrival however long it takes.",
    ),
    "hash_block_tokens": Field(
        count(), Sessions.hash_block_tokens, "Tokens of a block of the column hash_ids of a trace."
    ),
}


def _check(found: Sessions, place: Place) -> None:
    if found.system_tokens and not found.system_prompts:
        raise place.key("system_prompts").error("must be at least 1 where there are system_tokens, got 0")
    think_s = found.think_s.mean if isinstance(found.think_s, Exponential) else found.think_s
    if think_s > MOST_THINK_S:
        raise place.key("think_s").error(f"must be at most {MOST_THINK_S:,.0f} s, a day, got {think_s:g} s")


_sessions = section(SESSIONS, Sessions, check=_check)
sessions_reader = Variant(_sessions.read, _sessions.schema, SESSIONS)
"""Read as a whole: a part of it is of use only beside others."""
