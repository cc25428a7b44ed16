"""Speculative decoding in the engine: how many tokens each decode iteration of a request gives, and when it ends.

What the scheduler must know of a request is decided when it joins the decodes: it walks through its iterations once,
draws what each gives (``evaluator.speculation``), and enters the tokens in a ring of growth, at the step in which it
will have them. So a leap sums what its sequences gain, step by step, from one number each, and the request leaves at
the step in which its walk has come to its last token. The work is one short loop per decode iteration of a request and
one addition per iteration of a leap.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from evaluator.speculation import uniform
from evaluator.stations.engine.common.arrays import Float, FloatPerDraft, Int, KeyPerRequest, StepCounts
from evaluator.stations.engine.common.rings import read


class Speculation(NamedTuple):
    """Of a lane whose decodes verify drafts."""

    chances: FloatPerDraft  # that at least 1, 2, .. drafts are accepted; 0 beyond those that there are
    drafts: Float  # how many there are
    keys: KeyPerRequest  # what the draws of a request follow from


class AcceptedTokens(NamedTuple):
    """What drafts add to the state of a lane."""

    tokens: StepCounts  # output tokens that a step gives, of all sequences that decode in it
    window: StepCounts  # what it adds to their windowed contexts; a single cell without windowed layers
    decoded: Float  # decode iterations, summed over the sequences
    decoded_tokens: Float  # output tokens that they gave


def tokens_given(speculation: Speculation, i: Int, iteration: Int) -> Int:
    """Tokens that a decode iteration of request ``i`` gives, were its output long enough."""
    drawn = uniform(read(speculation.keys, i), iteration.astype(jnp.uint32))
    return 1 + jnp.sum(drawn < speculation.chances, dtype=jnp.int32)


def nothing_accepted(cells: int, windowed: bool) -> AcceptedTokens:
    """Of a lane at rest; ``cells`` of its rings."""
    counts, zero = jnp.zeros(cells, jnp.int64), jnp.zeros((), jnp.float64)
    return AcceptedTokens(counts, counts if windowed else counts[:1], zero, zero)
