"""Why designs cannot run: reasons counted, each with an example and a remedy."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from evaluator.metrics.outcomes import OK

# (words in the reason, what to do), the first that fits; a reason that states its remedy is left as it is.
_REMEDIES = (
    (r"; (remedy:|(use|raise|lower|choose|take|try|reduce|add)\b)", ""),
    (r"weight|memory|fit|kv", "more devices per replica, a lower precision, or hardware with more memory"),
    (r"divi|head", "a parallelism that divides the model's heads and experts"),
    (r"long|limit|position|context", "shorter prompts, or a model and KV cache that hold them"),
)


def reasons(statuses: np.ndarray) -> list[tuple[str, int]]:
    """Why configurations cannot run, and how many for each reason, the most frequent first.

    ``statuses``, (config,), are texts. Those that differ only in their figures count as one reason and are shown by the
    first of them, with a remedy where the text does not name one itself.
    """
    texts, counts = np.unique(statuses[statuses != OK], return_counts=True)
    kinds: Counter[str] = Counter()
    examples: dict[str, list[str]] = {}
    for text, count in zip(map(str, texts), counts.tolist(), strict=True):
        kind = re.sub(r"\d[\d.,]*", "#", text)
        kinds[kind] += count
        examples.setdefault(kind, []).append(text)
    result = []
    for kind, count in kinds.most_common():
        text = examples[kind][0].removeprefix("infeasible: ")
        remedy = next((remedy for words, remedy in _REMEDIES if re.search(words, text, re.IGNORECASE)), "")
        several = "e.g. " if len(examples[kind]) > 1 else ""
        result.append((f"{several}{text}{f' (try {remedy})' if remedy else ''}", count))
    return result
