"""Speculative decoding in the engine: how many tokens each decode iteration of a request gives, and when it ends.

What the scheduler must know of a request is decided when it joins the decodes: what each of its iterations gives is
drawn then (``evaluator.speculation``), and entered in a ring of growth, at the step in which it will have the tokens.
So a leap sums what its sequences gain, step by step, from one number each, and the request leaves at the step in which
it has its last token. A request has a hundred iterations: they are drawn and entered ``AT_ONCE`` at a time, by the
instructions of a processor for several numbers, which takes a tenth of the time of a loop over each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax.numpy as jnp
from jax import lax

from evaluator.speculation import uniform
from evaluator.stations.engine.common.arrays import Array, Float, FloatPerDraft, Int, KeyPerRequest, StepCounts
from evaluator.stations.engine.common.rings import WORD, read, tagged_add_each

AT_ONCE = 32
"""Decode iterations of a request that are drawn at once; a divisor of the length of any ring."""
assert WORD % AT_ONCE == 0


class Speculation(NamedTuple):
    """Of a lane whose decodes verify drafts."""

    chances: FloatPerDraft  # that at least 1, 2, .. drafts are accepted; 0 beyond those that there are
    drafts: Float  # how many there are
    keys: KeyPerRequest  # what the draws of a request follow from


class Gains(NamedTuple):
    """What ``AT_ONCE`` decode iterations in a row give a request, which has only so many tokens to come."""

    ahead: Array  # int32 (iteration,): counted from the request's first one here; below 0: before that, with no tokens
    before: Array  # int32 (iteration,): tokens that those before it give
    after: Array  # int32 (iteration,): the same with it

    def tokens(self) -> Array:
        """Those that each gives, int32 (iteration,)."""
        return self.after - self.before


class AcceptedTokens(NamedTuple):
    """What drafts add to the state of a lane."""

    tokens: StepCounts  # output tokens that a step gives, of all sequences that decode in it
    window: StepCounts  # what it adds to their windowed contexts; a single cell without windowed layers
    decoded: Float  # decode iterations, summed over the sequences
    decoded_tokens: Float  # output tokens that they gave

    def enter(
        self, gains: Gains, cell: Int, step: Int, attends: Float, window: Float | None, sign: int = 1
    ) -> AcceptedTokens:
        """With what iterations give that begin with ``step``, whose cell is ``cell``; with ``sign`` -1 without it.

        ``attends``: tokens that the request attends to in its first iteration. ``window`` is None without windowed
        layers.
        """
        more = sign * gains.tokens().astype(jnp.int64)
        accepted = self._replace(tokens=tagged_add_each(self.tokens, cell, step, more))
        if window is None:
            return accepted
        before, after = (jnp.minimum(attends + gained, window) for gained in (gains.before, gains.after))
        wider = sign * (after - before).astype(jnp.int64)
        return accepted._replace(window=tagged_add_each(accepted.window, cell, step, wider))


def tokens_given(speculation: Speculation, i: Int, iteration: Int) -> Int:
    """Tokens that a decode iteration of request ``i`` gives, were its output long enough."""
    drawn = uniform(read(speculation.keys, i), iteration.astype(jnp.uint32))
    return 1 + jnp.sum(drawn < speculation.chances, dtype=jnp.int32)


Carry = TypeVar("Carry")


def over_gains(
    speculation: Speculation,
    i: Int,
    first: Int,
    left: Int,
    enter: Callable[[Gains, Carry], Carry],
    carry: Carry,
    lead: Int | int = 0,
) -> tuple[Int, Carry]:
    """(decode iterations until request ``i`` has the ``left`` tokens to come, the carry once ``enter`` has seen all).

    ``first``: the number of the first one, of all decode iterations of the request. Before it, ``enter`` sees ``lead``
    places without tokens: where these are the remainder of the first one's step by ``AT_ONCE``, no part of a ring that
    is entered goes beyond its end.
    """
    places = jnp.arange(AT_ONCE, dtype=jnp.int32)

    def go_on(state: tuple[Int, Int, Int, Carry]) -> tuple[Int, Int, Int, Carry]:
        start, gained, iterations, carry = state
        ahead = start + places

        def tokens() -> Array:
            drawn = uniform(read(speculation.keys, i), (first + ahead).astype(jnp.uint32))
            accepted = sum((drawn < chance).astype(jnp.int32) for chance in speculation.chances)
            return jnp.where(ahead >= 0, 1 + accepted, 0)

        # ``left`` is above 0 in every trip. XLA repeats a cheap producer in each of its consumers, and a ``cond`` is a
        # barrier: without it each number would be drawn anew for each of the running totals below.
        drawn = lax.cond(left > 0, tokens, lambda: jnp.zeros(AT_ONCE, jnp.int32))
        total = gained + jnp.cumsum(drawn)
        gains = Gains(ahead, jnp.minimum(total - drawn, left), jnp.minimum(total, left))
        return (
            start + AT_ONCE,
            total[-1],
            iterations + jnp.sum(gains.tokens() > 0, dtype=jnp.int32),
            enter(gains, carry),
        )

    begin = (jnp.int32(0) - lead, jnp.int32(0), jnp.int32(0), carry)
    _, _, iterations, carry = lax.while_loop(lambda state: state[1] < left, go_on, begin)
    return iterations, carry


def nothing_accepted(cells: int, windowed: bool) -> AcceptedTokens:
    """Of a lane at rest; ``cells`` of its rings."""
    counts, zero = jnp.zeros(cells, jnp.int64), jnp.zeros((), jnp.float64)
    return AcceptedTokens(counts, counts if windowed else counts[:1], zero, zero)
