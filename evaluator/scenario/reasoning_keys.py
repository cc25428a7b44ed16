"""The keys of ``workload.reasoning``: longer outputs, on one path or on several branches."""

from __future__ import annotations

from evaluator.scenario.fields import Field, Place, Table, choice, count, number
from evaluator.scenario.scenario import Reasoning
from evaluator.scenario.tables import Variant, section

MOST_BRANCHES = 256
"""Branches of a request: the engine keeps a length and a link for each of every request in memory."""

REASONING: Table = {
    "scale": Field(
        number(above=0, most=10_000), Reasoning.scale, "Output tokens of every path over those drawn; 8 to 32 is usual."
    ),
    "branches": Field(
        count(most=MOST_BRANCHES), Reasoning.branches, "Sequences that continue one prompt side by side."
    ),
    "first": Field(
        count(most=MOST_BRANCHES), None, "The request ends with so many of its branches; with the last where absent."
    ),
    "branch_lengths": Field(
        choice("drawn", "same"), Reasoning.branch_lengths, "Each branch draws its output length, or all have the same."
    ),
}


def _check(found: Reasoning, place: Place) -> None:
    if found.first is not None and found.first > found.branches:
        raise place.key("first").error(f"must be at most branches = {found.branches}, got {found.first}")


_reasoning = section(REASONING, Reasoning, check=_check)
reasoning_reader = Variant(_reasoning.read, _reasoning.schema, REASONING)
"""Read as a whole: rules that join it with other keys of the workload see all of it, also where a sweep sets a part."""
