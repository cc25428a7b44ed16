"""Variants of the members of a plan, such as the same designs at other rates, run without planning anew."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evaluator.execution.schedule import ConfigurationChunk, Values, computed, pieces
from evaluator.plan import Configuration, Plan


def run_variants(whole: Plan, variants: Sequence[Configuration], levels: np.ndarray) -> Values:
    """Statistics of variants (``Plan.at_rates``, ``Plan.changed``), (variant,) or (variant, quantile), in their order.

    A variant runs in the group of its configuration, with the programs compiled for it, beside others of any rate. A
    search asks for some designs at some rates with ``run_variants(whole, whole.at_rates(configurations, rates_rps),
    levels)``.
    """
    groups = {id(group): group for group in whole.groups}
    rows: dict[int, list[int]] = {number: [] for number in groups}
    for row, variant in enumerate(variants):
        rows[id(whole.group_of(variant))].append(row)
    chunks: list[ConfigurationChunk] = []
    order: list[int] = []
    for number, group in groups.items():
        chunks += pieces(whole, group, [variants[row] for row in rows[number]])
        order += rows[number]
    found = dict(computed(whole, chunks, levels, set()))
    if not found:
        return {}
    back = np.argsort(order)
    parts = [found[index] for index in range(len(chunks))]
    return {name: np.concatenate([part[name] for part in parts])[back] for name in parts[0]}
