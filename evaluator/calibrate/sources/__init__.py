"""Thin converters from the tables of published profiles to ours; one source per module.

Each converter names the columns that tell its files apart and maps them to ``evaluator.calibrate.table``; rows that the
source itself flags as synthetic, duplicated or suspect are dropped.
"""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from evaluator.calibrate.sources import aiconfigurator, aiter, ascend, infersim, llmservingsim, splitwise, vidur

Converter = tuple[str, set[str], Callable[[pd.DataFrame], pd.DataFrame]]

CONVERTERS: tuple[Converter, ...] = (
    *aiconfigurator.CONVERTERS, *aiter.CONVERTERS, *ascend.CONVERTERS, *infersim.CONVERTERS, *llmservingsim.CONVERTERS,
    *splitwise.CONVERTERS, *vidur.CONVERTERS,
)  # fmt: skip
"""Name, the columns that tell its tables apart, and the function; the first that fits is taken."""
