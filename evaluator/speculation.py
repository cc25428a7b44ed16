"""Speculative decoding: what is drafted, and how many of the drafts each iteration of a request accepts.

In an iteration a decoding sequence verifies k drafted tokens at once. Of these the first few are accepted, up to the
first one that the model itself would not have given, and one more token comes from the model: 1 + accepted tokens
(Leviathan et al., arXiv:2211.17192, algorithm 1; vLLM, "Speculative Decoding"). Draft i is accepted, given that all
before it were, with a chance that the user states by position.

The number accepted in the i-th decode iteration of a request follows from one uniform number, drawn by a hash of (seed,
number of the request, i): a request meets the same luck on every design and in both engines, wherever it is served. At
least p drafts are accepted if the number is below the product of the first p chances, so that a higher chance never
gives fewer tokens. NumPy and JAX compute the hash alike; nothing here imports JAX.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from itertools import accumulate
from operator import mul
from typing import Any

import numpy as np
from numpy.typing import NDArray

METHODS = ("draft", "mtp", "eagle", "ngram")
MOST_TOKENS = 16
"""Drafts of an iteration: beyond that nobody gains anything, and the engine's tables hold no more."""


@dataclass(frozen=True)
class Drafting:
    """What makes the drafts, and how many in an iteration.

    ``method`` draft: a smaller ``model`` decodes ``tokens`` times. mtp: the modules for the tokens after the next that
    were published with the model pass as often, each one layer and the head (DeepSeek-V3, arXiv:2412.19437, section
    2.2). eagle: so does a layer that was trained for it, with a head of ``vocabulary`` tokens (EAGLE-3,
    arXiv:2503.01840). ngram: the host finds them in the prompt, and the device does nothing for it.
    """

    method: str
    tokens: int
    model: Any = None  # of draft: a name of the catalog, or a described model
    _: KW_ONLY
    vocabulary: int | None = None  # of eagle; None: that of the model


@dataclass(frozen=True)
class Speculative(Drafting):
    """The same with the chances of acceptance: one of every draft, or one for each position."""

    acceptance: float | tuple[float, ...] = 0.0

    def __str__(self) -> str:
        """As a row of a table has it: the method, the draft model, how many tokens, and how many are accepted."""
        rates = self.acceptance if isinstance(self.acceptance, tuple) else (self.acceptance,)
        parts = (self.method, self.model, "x", self.tokens, "at", "/".join(f"{rate:g}" for rate in rates))
        return " ".join(str(part) for part in parts if part is not None)

    @property
    def drafting(self) -> Drafting:
        """What the time of an iteration depends on; the acceptance says only how many there are."""
        return Drafting(self.method, self.tokens, self.model, vocabulary=self.vocabulary)

    @property
    def chances(self) -> tuple[float, ...]:
        """The chance that at least 1, 2, .. k drafts are accepted."""
        rates = self.acceptance if isinstance(self.acceptance, tuple) else (self.acceptance,) * self.tokens
        return tuple(accumulate(rates, mul))

    @property
    def mean_tokens(self) -> float:
        """Tokens of an iteration on average; for one rate a (1 - a^(k+1)) / (1 - a) (arXiv:2211.17192, eq. 1)."""
        return 1.0 + sum(self.chances)


def mean_tokens(speculative: Speculative | None) -> float:
    """Tokens that a decode iteration gives a sequence on average: one where nothing is drafted."""
    return 1.0 if speculative is None else speculative.mean_tokens


def decode_tokens(drafting: Drafting | None) -> int:
    """Tokens that a decode takes of an iteration: one, or with drafts as many as it verifies."""
    return 1 if drafting is None else 1 + drafting.tokens


def hashed(x: Any) -> Any:
    """A hash of uint32 numbers, an array of NumPy or JAX: the best of C. Wellons' hash-prospector (16, 15, 15)."""
    x = x ^ (x >> np.uint32(16))
    x = x * np.uint32(0x21F0AAAD)
    x = x ^ (x >> np.uint32(15))
    x = x * np.uint32(0xD35A2D97)
    return x ^ (x >> np.uint32(15))


def keys(seed: int, ids: NDArray[np.int64]) -> NDArray[np.uint32]:
    """What the draws of each request follow from, (request,); ``ids`` are the numbers of the requests."""
    of_seed = hashed(np.array([seed % (1 << 32)], dtype=np.uint32) + np.uint32(0x9E3779B9))
    return hashed(hashed(np.asarray(ids).astype(np.uint32)) ^ of_seed)


def uniform(key: Any, iteration: Any) -> Any:
    """Numbers from 0 to 1, float64: of the decode iterations (uint32) of a request with this key; any common shape."""
    return hashed(key ^ hashed(iteration)).astype(np.float64) * 2.0**-32


def tokens_given(chances: tuple[float, ...], key: np.unsignedinteger, iterations: int) -> NDArray[np.int64]:
    """Tokens that each of the first so many decode iterations of a request gives, (iteration,)."""
    drawn = uniform(np.array([key], dtype=np.uint32), np.arange(iterations, dtype=np.uint32))
    return 1 + (drawn[:, None] < np.array(chances)).sum(axis=1)
