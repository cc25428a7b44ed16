"""``workload.sampling``: what requests ask of the sampler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evaluator.catalog.model import AS_PUBLISHED, AskedOfSampler
from evaluator.keys import Place, count, flag, key, number, section, whole


@dataclass(frozen=True)
class TokenSampling:
    """How a request wants its next token chosen; what is None is as the model's ``generation_config.json`` says it.

    With ``top_p`` below 1 an engine orders the logits of every sequence. ``top_k`` alone it finds without
    (``apply_top_k_only`` of vLLM), and beside ``top_p`` it takes nothing more. ``penalties`` are those for tokens that
    were said before: repetition, presence or frequency.
    """

    greedy: bool = key(flag, False, "The most likely token each time: nothing is drawn, and no logits are ordered.")
    top_p: float | None = key(
        number(above=0, most=1),
        None,
        "Drawn from the likeliest tokens of so much probability together, for which the logits are ordered; 1: of all. "
        "As the model's generation_config.json where absent.",
    )
    top_k: int | None = key(
        count(least=0), None, "Drawn from so many tokens, 0: from all; it takes no time of its own (no ordering)."
    )
    penalties: bool | None = key(
        flag,
        None,
        "Whether a repetition, presence or frequency penalty is asked for, which takes the host of engines that make "
        "lists of what was said (vLLM before 0.25; with experts or states before 0.29) a time per sequence. "
        "As the model's generation_config.json where absent.",
    )

    @property
    def asked(self) -> AskedOfSampler:
        """What takes time of it."""
        nucleus = None if self.top_p is None else self.top_p < 1.0
        return AskedOfSampler(False if self.greedy else nucleus, self.penalties)


def _check(sampling: TokenSampling, place: Place) -> None:
    for name in ("top_p", "top_k"):
        if sampling.greedy and getattr(sampling, name) is not None:
            raise place.key(name).error("is of no use with greedy, which draws nothing; leave out the one or the other")


# As a whole: a sweep over {greedy: true} and {top_p: 0.9} replaces all of it.
sampling_reader = whole(section(TokenSampling, _check))


def asked_of_sampler(given: TokenSampling | Mapping[str, Any] | None, place: Place) -> AskedOfSampler:
    """What requests ask of the sampler, of the mapping at ``workload.sampling``. Errors: InputError, naming the key."""
    if given is None:
        return AS_PUBLISHED
    return (given if isinstance(given, TokenSampling) else sampling_reader(given, place)).asked
