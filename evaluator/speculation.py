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

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from itertools import accumulate
from operator import mul
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluator.keys import (
    REQUIRED,
    Place,
    Reader,
    Schema,
    choice,
    count,
    key,
    model_name,
    number,
    read_section,
    required,
    schema_of,
    section_schema,
    shown,
    table_of,
)

METHODS = ("draft", "mtp", "eagle", "ngram")
MOST_TOKENS = 16
"""Most drafts of an iteration: more of them gain nothing, and the tables of the programs hold no more."""


_rate = number(least=0, most=1)


def _acceptance(value: Any, place: Place) -> float | tuple[float, ...]:
    # JSON lists and Python tuples alike.
    if isinstance(value, list | tuple):
        if not value:
            raise place.error("expected a rate, or a list of them such as [0.8, 0.6, 0.45], got none")
        return tuple(_rate(entry, place.item(index)) for index, entry in enumerate(value))
    return _rate(value, place)


def _acceptance_schema() -> Schema:
    rate = schema_of(_rate)
    return {"anyOf": [rate, {"type": "array", "items": rate, "minItems": 1, "maxItems": MOST_TOKENS}]}


@dataclass(frozen=True)
class Drafting:
    """What makes the drafts, and how many in an iteration.

    ``method`` draft: a smaller ``model`` decodes ``tokens`` times. mtp: the modules for the tokens after the next that
    were published with the model pass as often, each one layer and the head (DeepSeek-V3, arXiv:2412.19437, section
    2.2). eagle: so does a layer that was trained for it, with a head of ``vocabulary`` tokens (EAGLE-3,
    arXiv:2503.01840). ngram: the host finds them in the prompt, and the device does nothing for it.
    """

    method: str = key(
        choice(*METHODS),
        says="Who drafts. draft: a smaller model. mtp: the modules for the tokens after the next that were published "
        "with the model, each one layer and its head. eagle: a layer with a head that was trained for the model "
        "(EAGLE-3). ngram: the host, from the text so far.",
    )
    tokens: int = key(count(most=MOST_TOKENS), says="Tokens drafted for a sequence, and verified, in an iteration.")
    model: Any = key(model_name, None, "Of method draft, the model that drafts, on the same devices.")
    _: KW_ONLY
    vocabulary: int | None = key(
        count(), None, "Of method eagle, tokens that its head can propose; absent: all of the model."
    )


@dataclass(frozen=True)
class Speculative(Drafting):
    """The same with the chances of acceptance: one of every draft, or one for each position."""

    acceptance: float | tuple[float, ...] = key(
        # A default, since fields before it have one (dataclasses want it so); a file must say it.
        Reader(_acceptance, _acceptance_schema),
        0.0,
        "Chance that a draft is accepted where all before it were: one rate, or one for each position.",
        absent=REQUIRED,
    )

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
        # Draft i counts only if all before it were accepted: a running product.
        return tuple(accumulate(rates, mul))

    @property
    def mean_tokens(self) -> float:
        """Tokens of an iteration on average; for one rate a (1 - a^(k+1)) / (1 - a) (arXiv:2211.17192, eq. 1)."""
        return 1.0 + sum(self.chances)


def _read(value: Any, place: Place) -> Speculative:
    if not isinstance(value, Mapping):
        raise place.error(
            f"expected a section such as {{method: ngram, tokens: 3, acceptance: 0.6}}, got {shown(value)}"
        )
    # Keys first: what is asked of them together supposes that each alone is right.
    speculative = Speculative(**read_section(value, table_of(Speculative), place))
    rates = speculative.acceptance
    if isinstance(rates, tuple) and len(rates) != speculative.tokens:
        raise place.key("acceptance").error(
            f"{len(rates)} rates for {speculative.tokens} drafted tokens; "
            "give one for each position, or one number for all"
        )
    if speculative.method == "draft" and speculative.model is None:
        raise place.key("model").error("is required with method draft: the smaller model, such as llama-3.1-8b")
    if speculative.method != "draft" and speculative.model is not None:
        raise place.key("model").error(
            f"is for method draft; with {speculative.method} no other model drafts: leave it out"
        )
    if speculative.method != "eagle" and speculative.vocabulary is not None:
        raise place.key("vocabulary").error(
            f"is for method eagle, whose head has its own; leave it out of {speculative.method}"
        )
    return speculative


def _schema() -> Schema:
    table = table_of(Speculative)
    return section_schema(table, required(table))


speculative_reader = Reader(_read, _schema)
"""Reads {method: draft, model: NAME, tokens: 3, acceptance: [0.8, 0.6, 0.45]}."""


def mean_tokens(speculative: Speculative | None) -> float:
    """Tokens that a decode iteration gives a sequence on average: one where nothing is drafted."""
    return 1.0 if speculative is None else speculative.mean_tokens


def decode_tokens(drafting: Drafting | None) -> int:
    """Tokens that a decode takes of an iteration: one, or with drafts as many as it verifies."""
    return 1 if drafting is None else 1 + drafting.tokens


def hashed(x: Any) -> Any:
    """A hash of uint32 numbers, an array of NumPy or JAX: the best of C. Wellons' hash-prospector (16, 15, 15)."""
    x = x ^ (x >> np.uint32(16))
    # Products of uint32 wrap around, in NumPy and in JAX alike.
    x = x * np.uint32(0x21F0AAAD)
    x = x ^ (x >> np.uint32(15))
    x = x * np.uint32(0xD35A2D97)
    # All operations on uint32, which NumPy and JAX compute alike to the bit.
    return x ^ (x >> np.uint32(15))


def keys(seed: int, ids: NDArray[np.int64]) -> NDArray[np.uint32]:
    """What the draws of each request follow from, (request,); ``ids`` are the numbers of the requests."""
    # The constant is 2**32 over the golden ratio. The hash leaves 0 as it is, so that seed 0 would not enter without
    # it.
    of_seed = hashed(np.array([seed % (1 << 32)], dtype=np.uint32) + np.uint32(0x9E3779B9))
    return hashed(hashed(np.asarray(ids).astype(np.uint32)) ^ of_seed)


def uniform(key: Any, iteration: Any) -> Any:
    """Numbers from 0 to 1, float64: of the decode iterations (uint32) of a request with this key; any common shape."""
    # 32 bits in a float64: exact, and never 1.
    return hashed(key ^ hashed(iteration)).astype(np.float64) * 2.0**-32


def tokens_given(chances: tuple[float, ...], key: np.unsignedinteger, iterations: int) -> NDArray[np.int64]:
    """Tokens that each of the first so many decode iterations of a request gives, (iteration,)."""
    drawn = uniform(np.array([key], dtype=np.uint32), np.arange(iterations, dtype=np.uint32))
    # The chances fall with the position: as many drafts in a row are accepted as have a chance above the number
    # drawn.
    return 1 + (drawn[:, None] < np.array(chances)).sum(axis=1)
