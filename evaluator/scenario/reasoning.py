"""``workload.reasoning``: longer outputs, on one path or on several branches."""

from __future__ import annotations

from dataclasses import dataclass

from evaluator.keys import Place, choice, count, key, number, section, whole

MOST_BRANCHES = 256
"""Branches of a request: the engine keeps a length and a link for each of every request in memory."""


@dataclass(frozen=True)
class Reasoning:
    """What a request generates before and beside its answer: ``scale`` times the drawn output, on several branches.

    After the prompt, which is computed once, ``branches`` sequences decode side by side. Each continues the prompt in
    its own way, with KV of its own behind that of the prompt. ``branch_lengths`` drawn: each has an output length of
    its own; same: all have that of the request. The request ends with the last of them, or with the ``first`` so many:
    then the others stop where they are.
    """

    scale: float = key(
        number(above=0, most=10_000), 1.0, "Output tokens of every path over those drawn; 8 to 32 is usual."
    )
    branches: int = key(count(most=MOST_BRANCHES), 1, "Sequences that continue one prompt side by side.")
    first: int | None = key(
        count(most=MOST_BRANCHES), None, "The request ends with so many of its branches; with the last where absent."
    )
    branch_lengths: str = key(
        choice("drawn", "same"), "drawn", "Each branch draws its output length, or all have the same."
    )

    @property
    def several(self) -> bool:
        """Whether a request decodes on several branches."""
        return self.branches > 1


def _check(reasoning: Reasoning, place: Place) -> None:
    if reasoning.first is not None and reasoning.first > reasoning.branches:
        raise place.key("first").error(f"must be at most branches = {reasoning.branches}, got {reasoning.first}")


# As a whole: rules that join it with other keys of the workload see all of it, also where a sweep sets a part.
reasoning_reader = whole(section(Reasoning, _check))
