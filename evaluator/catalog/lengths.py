"""Joint distributions of prompt and output lengths as tables of quantiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evaluator.catalog.fields import Fields, load
from evaluator.errors import InputError

# Levels of an output table: even steps, and finer ones in the upper tail, where a straight line between far quantiles
# would put too much weight.
OUTPUT_LEVELS = (*(level / 32 for level in range(32)), 0.98, 0.9875, 0.995, 1.0)


@dataclass(frozen=True, eq=False)
class LengthTable:
    """Quantiles of the prompt, and of the output given the bin that the prompt is in.

    ``prompt_quantiles`` (bins x steps + 1) are at even levels from 0 to 1, ``output_levels`` (level) are the levels of
    ``output_quantiles`` (bin, level); all tokens, none decreasing along a row. Bins hold equal shares of the requests.
    """

    name: str
    source: str
    licence: str
    prompt_quantiles: NDArray[np.float64]
    output_levels: NDArray[np.float64]
    output_quantiles: NDArray[np.float64]

    def sample(
        self, rng: np.random.Generator, n: int, branch: np.random.Generator | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(prompt_tokens, output_tokens), int64 (request,), by inverse transform; longer draws begin alike.

        ``branch`` draws other outputs of the same prompts.
        """
        # Both numbers of a request side by side: (n, 2) drawn in rows gives the first requests of a longer draw the
        # same numbers.
        uniform = rng.random((n, 2))
        if branch is not None:
            # After the draw above and not in its place: the prompts, and whatever is drawn from
            # `rng` later, stay the same.
            uniform[:, 1] = branch.random(n)
        position = uniform[:, 0] * (len(self.prompt_quantiles) - 1)
        prompt = np.interp(position, np.arange(len(self.prompt_quantiles)), self.prompt_quantiles)
        bins = (uniform[:, 0] * len(self.output_quantiles)).astype(np.int64)
        return _tokens(prompt), _tokens(self._output(bins, uniform[:, 1]))

    def _output(self, bins: NDArray[np.int64], level: NDArray[np.float64]) -> NDArray[np.float64]:
        # Straight lines between the quantiles of each request's bin, all requests at once:
        # `np.interp` takes one table alone. (request,) throughout.
        low = np.searchsorted(self.output_levels, level, side="right") - 1
        low = np.minimum(low, len(self.output_levels) - 2)
        start, end = self.output_levels[low], self.output_levels[low + 1]
        below, above = self.output_quantiles[bins, low], self.output_quantiles[bins, low + 1]
        return below + (above - below) * (level - start) / (end - start)


def summarise_lengths(
    prompt: ArrayLike,
    output: ArrayLike,
    *,
    name: str,
    source: str,
    licence: str,
    bins: int = 64,
    steps: int = 8,
) -> LengthTable:
    """The table of measured requests: ``prompt`` and ``output`` (request,) in tokens, all at least 1.

    Requests are sorted by prompt and cut into ``bins`` of equal size, each with ``steps`` quantile intervals of the
    prompt; at least ``bins`` requests are needed. With it a trace of one's own becomes a catalog file (``to_yaml``).
    """
    prompts, outputs = np.asarray(prompt), np.asarray(output)
    if prompts.ndim != 1 or prompts.shape != outputs.shape or len(prompts) < bins:
        raise InputError(f"lengths: needs two equally long lists of at least {bins} requests")
    if not (np.all(prompts >= 1) and np.all(outputs >= 1)):
        raise InputError("lengths: every prompt and output must have at least 1 token")
    # The output given the bin of the prompt: it keeps how both depend on one another, which two tables by themselves
    # would lose.
    order = np.argsort(prompts, kind="stable")
    parts = np.array_split(outputs[order], bins)
    return LengthTable(
        name=name,
        source=source,
        licence=licence,
        # Whole tokens, since `lengths_to_yaml` writes them so: what is read back is then the same table.
        prompt_quantiles=np.rint(np.quantile(prompts, np.linspace(0.0, 1.0, bins * steps + 1), method="hazen")),
        output_levels=np.asarray(OUTPUT_LEVELS),
        output_quantiles=np.rint([np.quantile(part, OUTPUT_LEVELS, method="hazen") for part in parts]),
    )


def lengths_to_yaml(table: LengthTable) -> str:
    """The YAML of a table; ``read_lengths`` of it gives the same numbers."""
    rows = "\n".join(f"  - {_listed(row)}" for row in table.output_quantiles)
    head = (("name", table.name), ("source", table.source), ("licence", table.licence))
    quoted = "\n".join(f"{key}: " + "'" + value.replace("'", "''") + "'" for key, value in head)
    levels = "[" + ", ".join(f"{level:.6g}" for level in table.output_levels) + "]"
    prompts = f"prompt_quantiles: {_listed(table.prompt_quantiles)}"
    return f"{quoted}\n{prompts}\noutput_levels: {levels}\noutput_quantiles:  # one row per bin of the prompt\n{rows}\n"


def load_lengths(name: str) -> LengthTable:
    """The length distribution ``name`` of the catalog, or of a path to a YAML; raises InputError."""
    return load("lengths", name, read_lengths)


def read_lengths(document: Any, where: str, expected_name: str | None = None) -> LengthTable:
    """A LengthTable from the content of its YAML; ``where`` is the file's name in messages."""
    given = Fields(document, where)
    name = given.named(expected_name)
    table = LengthTable(
        name=name,
        source=given.text("source"),
        licence=given.text("licence"),
        prompt_quantiles=_increasing(given.sequence("prompt_quantiles"), given.place("prompt_quantiles")),
        output_levels=_increasing(given.sequence("output_levels"), given.place("output_levels"), low=0.0, strict=True),
        output_quantiles=_rows(given.sequence("output_quantiles"), given.place("output_quantiles")),
    )
    given.finish()
    _check(table, given)
    return table


def _check(table: LengthTable, given: Fields) -> None:
    levels = table.output_levels
    if levels[0] != 0.0 or levels[-1] != 1.0:
        raise InputError(f"{given.place('output_levels')}: must run from 0 to 1")
    if table.output_quantiles.shape[1] != len(levels):
        raise InputError(f"{given.place('output_quantiles')}: each row needs {len(levels)} values, one per level")
    bins = len(table.output_quantiles)
    # A draw finds its bin from the same number as its prompt: the bins must end at quantiles of the prompt.
    if (len(table.prompt_quantiles) - 1) % bins:
        raise InputError(
            f"{given.place('prompt_quantiles')}: needs a whole number of steps for each of {bins} bins, plus 1"
        )


def _rows(rows: Any, where: str) -> NDArray[np.float64]:
    values = [_increasing(row, f"{where}[{index}]") for index, row in enumerate(rows)]
    if len({len(row) for row in values}) > 1:
        raise InputError(f"{where}: the rows differ in length")
    return np.asarray(values)


def _increasing(values: Any, where: str, low: float = 1.0, strict: bool = False) -> NDArray[np.float64]:
    plain = isinstance(values, list) and all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values)
    if not plain or len(values) < 2:
        raise InputError(f"{where}: expected a list of at least 2 numbers")
    result = np.asarray(values, dtype=np.float64)
    steps = np.diff(result)
    if not np.all(np.isfinite(result)) or result[0] < low or np.any(steps <= 0 if strict else steps < 0):
        raise InputError(
            f"{where}: must be finite, at least {low:g} and {'increasing' if strict else 'not decreasing'}"
        )
    return result


def _tokens(values: NDArray[np.float64]) -> NDArray[np.int64]:
    # At least one token: a request without a prompt or without an output is none.
    return np.maximum(np.rint(values), 1.0).astype(np.int64)


def _listed(values: NDArray[np.float64]) -> str:
    return "[" + ", ".join(f"{value:.0f}" for value in values) + "]"
