"""KV on demand of layers that keep every token: the units that decodes take in the steps to come, by closed forms.

A decode takes a block at every ``block``-th step, and which remainder of the steps that is follows from the tokens that
it has. So an array of a number for each remainder says what all decodes together take at any step: a leap sums over the
remainders, however many blocks each decode takes in it, and nothing is noted step by step. Each remainder has two
cells, a block apart, so that the steps of a leap are neighbours; ``AT_ONCE`` cells behind them let the last be looked
at with others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from evaluator.cost.kv import KvUnits
from evaluator.stations.engine.common.arrays import Array, Flag, Float, Int
from evaluator.stations.engine.common.rings import read, read_once, write

AT_ONCE = 8
"""Steps of a leap that a trip of the loop over them looks at, which is as many as most leaps have."""


def block_of(kv: KvUnits) -> Int:
    """Tokens of a block; 1 in a lane that fills up a call, which has 0."""
    return jnp.maximum(kv.block_tokens.astype(jnp.int32), 1)


def no_growth(block_tokens: int) -> Array:
    """Of no decodes; ``block_tokens`` are at least those of a block of any lane."""
    return jnp.zeros(2 * block_tokens + AT_ONCE)


def enter(cells: Array, block: Int, step: Int, more: Float) -> Array:
    """With ``more`` units at a step, and at every ``block``-th before and after it."""
    place = lax.rem(step, block)
    place = jnp.where(place < 0, place + block, place)
    # Both cells of a remainder have the same number.
    after = read_once(cells, place) + more
    return write(write(cells, place, after), place + block, after)


def growth_at(cells: Array, block: Int, step: Int) -> Float:
    """Units that decodes take at a step."""
    return read(cells, lax.rem(step, block))


class Moments(NamedTuple):
    """Units that decodes take in the iterations of a leap, which are counted from 0: summed, and by their place."""

    taken: Float
    places: Float  # times the number of the iteration
    squares: Float  # times its square

    @classmethod
    def none(cls) -> Moments:
        """Nothing is taken."""
        return cls(*(jnp.zeros((), jnp.float64),) * 3)

    def plus(self, other: Moments) -> Moments:
        """Both together."""
        return Moments(*(units + more_units for units, more_units in zip(self, other, strict=True)))

    def enter(self, iteration: Int, more: Float) -> Moments:
        """With so many units more in one iteration."""
        number = iteration.astype(jnp.float64)
        return Moments(self.taken + more, self.places + more * number, self.squares + more * (number * number))

    def later(self, iterations: Float | float) -> Moments:
        """The same in iterations that come so many later."""
        return Moments(
            self.taken,
            self.places + iterations * self.taken,
            self.squares + iterations * (2.0 * self.places + iterations * self.taken),
        )

    def repeated(self, times: Float, every: Float) -> Moments:
        """The sum of as many as ``times``, each so many iterations after the one before."""
        between = 0.5 * times * (times - 1.0) * every
        squares = between * (2.0 * times - 1.0) * every / 3.0
        return Moments(
            times * self.taken,
            times * self.places + between * self.taken,
            times * self.squares + 2.0 * between * self.places + squares * self.taken,
        )

    def unit_s(self, last: Float, iterations: Float, first_s: Float, slope_s: Float, ahead: bool) -> Float:
        """Units in use over a leap, integrated over time; ``last``: in its last iteration.

        The first iteration takes ``first_s``, each next one ``slope_s`` more than the one before. What is taken in
        iteration j is in use for the time of the leap less that of the j iterations before it, a polynomial in j.

        ``ahead``: batches are planned ahead. An iteration then takes its KV when the one before starts, and what is
        integrated goes up to the start of the last iteration: the next batch is planned then.
        """
        taken = self.later(-1.0) if ahead else self
        count = jnp.maximum(iterations - 1.0, 0.0) if ahead else iterations

        def passed(places: Float, squares: Float) -> Float:
            return places * first_s + 0.5 * slope_s * (squares - places)

        return last * passed(count, count * count) - passed(taken.places, taken.squares)


def taken_later(cells: Array, block: Int, step: Int, later: Int) -> Moments:
    """What is taken in the iterations 1 .. ``later`` of a leap that begins with ``step``."""
    rounds, rest = lax.div(later, block), lax.rem(later, block)  # all remainders, and some of them once more
    every, times, place = block.astype(jnp.float64), rounds.astype(jnp.float64), lax.rem(step, block)

    def add(carry: tuple[Flag, Flag, Moments]) -> tuple[Flag, Flag, Moments]:
        _, whole, taken = carry
        some = _taken(cells, place, jnp.where(whole, block, rest)).repeated(jnp.where(whole, times, 1.0), every)
        return whole, jnp.zeros((), bool), taken.plus(some.later(jnp.where(whole, 0.0, times * every)))

    # All remainders first, in leaps that are long enough, then the rest: one loop, so that both are compiled once.
    start = ~jnp.zeros((), bool), rounds > 0, Moments.none()
    return lax.while_loop(lambda carry: carry[0], add, start)[2]


def _taken(cells: Array, place: Int, later: Int) -> Moments:
    """The same of at most a block's tokens, from a remainder on."""

    def look(ahead: Int, taken: Moments) -> Moments:
        some = lax.dynamic_slice(cells, (place + ahead,), (AT_ONCE,), allow_negative_indices=False)
        left = later - ahead
        here = Moments(some[0], jnp.zeros((), jnp.float64), jnp.zeros((), jnp.float64))
        for number in range(1, AT_ONCE):
            more = jnp.where(number <= left, some[number], 0.0)
            here = Moments(here.taken + more, here.places + number * more, here.squares + number**2 * more)
        return taken.plus(here.later(ahead.astype(jnp.float64)))

    return sum_over(AT_ONCE, later, look)


def sum_over(every: int, later: Int, look: Callable[[Int, Moments], Moments]) -> Moments:
    """The sum over the iterations 1 .. ``later``, so many of them at once."""
    start = jnp.int32(1), Moments.none()
    return lax.while_loop(lambda carry: carry[0] <= later, lambda carry: (carry[0] + every, look(*carry)), start)[1]
