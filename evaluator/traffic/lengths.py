"""How long prompts and outputs are: samples from a formula, a catalog distribution or a trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from evaluator.scenario import Lengths
from evaluator.scenario.trace import LENGTHS, read_trace
from evaluator.traffic.arrivals import stream

Tokens = NDArray[np.int64]
Floats = NDArray[np.float64]
Parameters = Mapping[str, float]

_LENGTHS = 1  # the random stream of the lengths


def request_lengths(lengths: Lengths, seed: int, n: int, branch: int = 0) -> tuple[Tokens, Tokens]:
    """(prompt_tokens, output_tokens) of n requests, each int64 (request,) and at least 1.

    A trace gives its first n rows whatever the seed. Formulas draw prompts and outputs independently, round to whole
    tokens and clip to min and max; the first requests of a longer draw are those of a shorter one.

    ``branch`` above 0 has the same prompts, and outputs of its own: drawn as those of branch 0, under the same prompts
    where the distribution is a joint one; of a trace the outputs of rows drawn at random, whatever their prompts.
    """
    if lengths.source == "trace":
        assert lengths.file is not None
        trace = read_trace(lengths.file, LENGTHS)
        assert trace.prompt_tokens is not None and trace.output_tokens is not None
        if branch:
            # A trace has one output for each prompt; further branches take outputs of its other rows.
            rows = stream(seed, _LENGTHS, branch).integers(0, len(trace.output_tokens), n)
            return trace.prompt_tokens[:n], trace.output_tokens[rows]
        return trace.prompt_tokens[:n], trace.output_tokens[:n]
    rng = stream(seed, _LENGTHS)
    other = stream(seed, _LENGTHS, branch) if branch else None
    if lengths.source in _FORMULAS:
        # One row per request, so that more requests do not change the first ones.
        normal = lengths.source in ("lognormal", "normal")
        numbers = rng.standard_normal((n, 2)) if normal else rng.random((n, 2))
        if other is not None:
            numbers[:, 1] = other.standard_normal(n) if normal else other.random(n)
        return _side(lengths, "prompt", numbers[:, 0]), _side(lengths, "output", numbers[:, 1])
    from evaluator.catalog import load_lengths

    return load_lengths(lengths.source).sample(rng, n, other)


def _side(lengths: Lengths, side: str, numbers: Floats) -> Tokens:
    start = f"{side}_"
    given = {key.removeprefix(start): value for key, value in lengths.parameters.items() if key.startswith(start)}
    values = np.rint(_FORMULAS[lengths.source](numbers, given))
    # 2**53: beyond, float64 has no whole numbers that are next to one another.
    return np.clip(values, given.get("min", 1), given.get("max", 2**53)).astype(np.int64)


def _fixed(numbers: Floats, given: Parameters) -> Floats:
    return np.full(len(numbers), float(given["tokens"]))


def _lognormal(numbers: Floats, given: Parameters) -> Floats:
    """exp of a normal, with the mean and the coefficient of variation of the lengths: s^2 = log(1 + cv^2)."""
    variance = np.log1p(given["cv"] ** 2)
    return given["mean"] * np.exp(np.sqrt(variance) * numbers - 0.5 * variance)


def _normal(numbers: Floats, given: Parameters) -> Floats:
    return given["mean"] + given["std"] * numbers


def _uniform(numbers: Floats, given: Parameters) -> Floats:
    return np.floor(given["min"] + numbers * (given["max"] - given["min"] + 1))


def _zipf(numbers: Floats, given: Parameters) -> Floats:
    """P(k) proportional to k^-exponent for k = min ... max, by inverse transform."""
    lengths = np.arange(given["min"], given["max"] + 1, dtype=np.float64)
    # Relative to the shortest length, so that not all powers vanish.
    cumulative = np.cumsum((lengths / lengths[0]) ** -given["exponent"])
    # side="right": numbers[i] = 0 belongs to the shortest length.
    return lengths[np.searchsorted(cumulative, numbers * cumulative[-1], side="right")]


_FORMULAS: dict[str, Callable[[Floats, Parameters], Floats]] = {
    "fixed": _fixed,
    "lognormal": _lognormal,
    "normal": _normal,
    "uniform": _uniform,
    "zipf": _zipf,
}
