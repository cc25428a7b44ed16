"""Why designs cannot run: reasons counted, each with an example and a remedy."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from evaluator.metrics.outcomes import OK

# (words in the reason, what to do), the first that fits; a reason that states its remedy is left as it is.
_REMEDIES = (
    (r"; (remedy:|(use|leave|raise|lower|choose|take|try|reduce|add)\b)", ""),
    (r"divi|head", "a parallelism that divides the model's heads and experts"),
    (r"weight|memory|fit|kv", "more devices per replica, a lower precision, or hardware with more memory"),
    (r"long|limit|position|context", "shorter prompts, or a model and KV cache that hold them"),
)


@dataclass(frozen=True)
class Reason:
    """Statuses that differ only in their figures: the first of them, and of how many configurations they are.

    ``text`` is without the word infeasible; ``remedy`` is empty where the text names one itself or none is known.
    ``several``: the figures of other rows are others.
    """

    text: str
    remedy: str
    count: int
    several: bool

    @property
    def example(self) -> str:
        """The text, told to be one of several where it is."""
        return f"{'e.g. ' if self.several else ''}{self.text}"

    def __str__(self) -> str:
        return f"{self.example}{f' (try {self.remedy})' if self.remedy else ''}"


def reasons_of(statuses: np.ndarray) -> list[Reason]:
    """Why configurations cannot run, the most frequent reason first; ``statuses``, (config,), are texts."""
    texts, counts = np.unique(statuses[statuses != OK], return_counts=True)
    kinds: dict[str, list[int]] = {}
    for index, text in enumerate(texts.tolist()):
        # Figures differ from design to design; what is left of the sentence is the reason.
        kinds.setdefault(re.sub(r"\d[\d.,]*", "#", text), []).append(index)
    counted = []
    for members in kinds.values():
        text = str(texts[members[0]]).removeprefix("infeasible: ")
        remedy = next((remedy for words, remedy in _REMEDIES if re.search(words, text, re.IGNORECASE)), "")
        counted.append(Reason(text, remedy, int(counts[members].sum()), len(members) > 1))
    return sorted(counted, key=lambda reason: -reason.count)


def reasons(statuses: np.ndarray) -> list[tuple[str, int]]:
    """Why configurations cannot run, and how many for each reason, the most frequent first.

    ``statuses``, (config,), are texts. Those that differ only in their figures count as one reason and are shown by the
    first of them, with a remedy where the text does not name one itself.
    """
    return [(str(reason), reason.count) for reason in reasons_of(statuses)]
