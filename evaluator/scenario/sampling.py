"""Samples of a space of designs: points spread over axes that are bounds or choices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from evaluator.scenario.axis_values import Between
from evaluator.scenario.short_names import key_readers


def draw(
    method: str,
    size: int,
    seed: int,
    choices: Sequence[Sequence[Mapping[str, Any]]],
    bounds: Mapping[str, Between],
) -> list[dict[str, Any]]:
    """``size`` designs, key path -> value as written: each takes a step of every choice and a value between the bounds.

    Keys that count are drawn as integers. The first designs of a longer Sobol or Halton sequence are those of a
    shorter one.
    """
    # One dimension for each axis, choices first: a sequence of low discrepancy covers them together, where a draw for
    # each would leave gaps.
    unit = _unit(method, len(choices) + len(bounds), size, seed)
    readers = key_readers()
    # Keys below names of the user's own have no reader here, and are drawn as they come.
    whole = {path: path in readers and readers[path].whole for path in bounds}
    designs = []
    for point in unit.tolist():
        design: dict[str, Any] = {}
        for steps, part in zip(choices, point, strict=False):
            # ``min``: a part just below 1 times many steps may round up to their number.
            design |= steps[min(int(part * len(steps)), len(steps) - 1)]
        for (path, between), part in zip(bounds.items(), point[len(choices) :], strict=True):
            design[path] = between.at(part, whole[path])
        designs.append(design)
    return designs


def _unit(method: str, dimensions: int, size: int, seed: int) -> np.ndarray:
    """Points in the unit cube, (design, dimension)."""
    rng = np.random.default_rng(seed)
    if method == "random":
        return rng.random((size, dimensions))
    from scipy.stats import qmc

    if method == "sobol":  # a whole power of two is what its balance asks for; the first of them are taken
        return qmc.Sobol(dimensions, seed=rng).random_base2(math.ceil(math.log2(size)) if size > 1 else 0)[:size]
    engine = {"latin_hypercube": qmc.LatinHypercube, "halton": qmc.Halton}[method]
    return engine(dimensions, seed=rng).random(size)
