"""KV on demand, as long as there is enough of it: requests take blocks as their tokens come, and nobody waits for one.

The schedule is then that of a replica without a limit of KV, so nothing here decides anything. It counts what is in use
in each iteration, and what requests ask for, with what an admission has to leave free: where they ask for more than
there is, the engine would have refused an admission or preempted a request. The lane ends there as one that *ran
short*, and is run again in ``preemptive``.

A decode takes a block at every ``block_tokens``-th step, which is known when it starts. ``KvGrowth.steps`` counts, for
each remainder of the steps by a block's tokens, the decodes that take a block then; a leap sums over the remainders,
however many blocks each decode takes in it. Windowed layers let go of blocks, so that a request gains fewer units per
block with its length: then the ring says for each step to come what all decodes together take, as in ``preemptive``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
from jax import lax

from evaluator.cost.kv import units
from evaluator.stations.engine.common.arrays import Array, Flag, Float, FloatPerRequest, Int
from evaluator.stations.engine.common.rings import read, tagged_add, write

if TYPE_CHECKING:
    from evaluator.stations.engine.fcfs_reserved.admission import Intake
    from evaluator.stations.engine.fcfs_reserved.lane import Given
    from evaluator.stations.engine.fcfs_reserved.state import State

AT_ONCE = 8
"""Steps of a leap that a trip of the loop over them looks at, which is as many as most leaps have."""


class KvGrowth(NamedTuple):
    """What decodes will take, and what has been asked for."""

    steps: Array  # float64 (cell,): units by the remainder of the step; with windowed layers ``StepCounts``
    head_units: Float  # of the request whose prompt is computed in part
    asked: Float  # most units in use, or that had to be free for an admission beside those in use


class KvUse(NamedTuple):
    """Units in use in the iterations of a trip."""

    last: Float  # in the last of them
    most: Float  # in any of them
    unit_s: Float  # integrated over their time


class Moments(NamedTuple):
    """Units that decodes take in the iterations of a leap, which are counted from 0: summed, and by their place."""

    taken: Float
    places: Float  # times the number of the iteration
    squares: Float  # times its square

    def plus(self, other: Moments) -> Moments:
        """Both together."""
        return Moments(*(one + more for one, more in zip(self, other, strict=True)))

    def enter(self, iteration: Int, more: Float) -> Moments:
        """With so many units more in one iteration."""
        at = iteration.astype(jnp.float64)
        return Moments(self.taken + more, self.places + more * at, self.squares + more * (at * at))

    def later(self, iterations: Float) -> Moments:
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


def nothing_taken(given: Given) -> KvGrowth:
    """Of an idle lane."""
    structure, zero = given.structure, jnp.zeros((), jnp.float64)
    if structure.windowed:
        return KvGrowth(jnp.zeros(structure.ring + 1, jnp.int64), zero, zero)
    return KvGrowth(jnp.zeros(2 * structure.block_tokens + AT_ONCE), zero, zero)


class Completions(NamedTuple):
    """After the prompts that an iteration completes."""

    first_token_s: FloatPerRequest
    kv: Float  # units in use in the iteration
    growth: KvGrowth


def complete_prompts(given: Given, state: State, intake: Intake, clock: Float, stalled: Flag) -> Completions:
    """Prompts have their first tokens at ``clock`` and the KV that they take in the iteration, and so have decodes.

    vLLM v1 gives its running requests KV before it admits others. v0 does it after that, but only where it has found no
    prompt, so that nobody has asked for KV before.
    """
    own, growth, policy, resident = given.on_demand, state.kv_growth, given.limits.policy, given.limits.prompts_resident
    assert own is not None and growth is not None
    grown = jnp.where(stalled, 0.0, _growth_at(given, growth.steps, state.step))
    # Requests decode from the step after that of their last chunk on, resident ones at once.
    begin = state.step + jnp.where(resident | policy.prefill_alone, 0, 1)

    def complete(carry: tuple[Int, Completions]) -> tuple[Int, Completions]:
        i, (times, kv, growth) = carry
        steps = growth.steps
        steps = _note(given, steps, i, begin) if given.structure.windowed else _enter(given, steps, i, begin, 1.0)
        whole, starts = read(own.prompt_units, i).astype(jnp.float64), (i > state.head) | (state.progress == 0)
        asked = jnp.where(starts, jnp.maximum(growth.asked, kv + whole + own.watermark_units), growth.asked)
        growth = KvGrowth(steps, jnp.zeros((), jnp.float64), asked)
        return i + 1, Completions(write(times, i, clock), kv + whole - carry[1].growth.head_units, growth)

    start = Completions(state.first_token_s, state.kv + grown, growth)
    head, found = lax.while_loop(lambda carry: carry[0] < intake.head, complete, (state.head, start))

    def compute(kv: Float, before: Float, asked: Float) -> tuple[Float, Float, Float]:
        """A part of the next prompt."""
        whole = read(own.prompt_units, head).astype(jnp.float64)
        cached = read(given.requests.prompt_tokens, head) - read(given.requests.compute_tokens, head)
        held = units(own.kv, cached.astype(jnp.float64) + intake.progress) - read(own.shared_units, head)
        held = jnp.maximum(held, jnp.where(own.whole_kv, whole, 0.0))
        # vLLM ``KVCacheManager.allocate_slots``, ``full_sequence_must_fit``; the watermark is that of v0, too.
        wanted = jnp.maximum(held, jnp.where(own.full_prompt, whole, 0.0)) + own.watermark_units
        starts = (head > state.head) | (state.progress == 0)
        return kv + (held - before), held, jnp.where(starts, jnp.maximum(asked, kv + wanted), asked)

    scalars = found.kv, found.growth.head_units, found.growth.asked
    kv, head_units, asked = lax.cond(intake.progress > 0, compute, lambda *same: same, *scalars)
    return Completions(found.first_token_s, kv, found.growth._replace(head_units=head_units, asked=asked))


# -- of decodes


def _note(given: Given, steps: Array, i: Int, step: Int) -> Array:
    """With the units that a request will take, at the steps at which it does."""
    assert given.on_demand is not None
    kv, ring, block = given.on_demand.kv, given.structure.ring, _block(given)
    resident, prompt = given.limits.prompts_resident, read(given.requests.prompt_tokens, i)
    last = step + read(given.requests.output_tokens, i) - 1 + resident  # the step behind its last
    # A resident prompt has the KV of its first step from its admission.
    start = step + resident
    first = start + (-(prompt + start - step) % block)  # at which a token begins a block

    def held(at: Int) -> Float:
        return units(kv, (prompt + at - step).astype(jnp.float64))

    def note(carry: tuple[Int, Float, Array]) -> tuple[Int, Float, Array]:
        at, before, steps = carry
        after = held(at + 1)
        return at + block, after, tagged_add(steps, at % ring, at, (after - before).astype(jnp.int64))

    return lax.while_loop(lambda carry: carry[0] < last, note, (first, held(first), steps))[2]


def end_decode(given: Given, steps: Array, i: Int, step: Int, output: Float) -> Array:
    """``KvGrowth.steps`` without request ``i``, whose last token is that of the step before ``step``."""
    if given.structure.windowed:
        return steps  # nothing is noted of the steps behind its last
    began = step + 1 - given.limits.prompts_resident - output.astype(jnp.int32)
    return _enter(given, steps, i, began, -1.0)


def _enter(given: Given, steps: Array, i: Int, step: Int, decodes: float) -> Array:
    """With so many decodes more that take blocks as request ``i`` does, which decodes from ``step`` on.

    It takes one when its prompt and the tokens that it was given since fill those that it has. Each remainder has two
    cells, a block apart, so that the steps of a leap are neighbours.
    """
    assert given.on_demand is not None
    block, more = _block(given), decodes * given.on_demand.block_units
    place = (step - read(given.requests.prompt_tokens, i)) % block
    for cell in (place, place + block):
        steps = write(steps, cell, read(steps, cell) + more)
    return steps


def _growth_at(given: Given, steps: Array, step: Int) -> Float:
    """Units that the decodes take for their tokens of a step."""
    if not given.structure.windowed:
        return read(steps, lax.rem(step, _block(given)))
    cell = read(steps, step % given.structure.ring)
    return jnp.where(cell >> 32 == step, cell & 0xFFFFFFFF, 0).astype(jnp.float64)


def kv_of_leap(
    given: Given, growth: KvGrowth, step: Int, kv: Float, count: Int, first_s: Float, slope_s: Float
) -> KvUse:
    """Units in use in ``count`` iterations from ``step`` on: ``kv`` in the first, and more with every next one.

    The first takes ``first_s``, each next one ``slope_s`` more than the one before. What is taken in iteration j is in
    use for the time of the leap less that of the j iterations before it, which is a polynomial in j.

    Planned ahead, an iteration takes its KV when the one before starts, and what is integrated goes from the start of
    the leap to that of its last iteration: the next batch is planned then.
    """
    iterations, none = count.astype(jnp.float64), Moments(*(jnp.zeros((), jnp.float64),) * 3)
    taken = lax.cond(count > 1, lambda: _taken_later(given, growth.steps, step, count - 1), lambda: none)
    last = kv + taken.taken
    if given.structure.asynchronous:
        iterations, taken = jnp.maximum(iterations - 1.0, 0.0), taken.later(jnp.float64(-1.0))
    took_s = _passed(iterations, iterations * iterations, first_s, slope_s)
    before_s = _passed(taken.places, taken.squares, first_s, slope_s)
    return KvUse(last, last, last * took_s - before_s)


def _passed(iterations: Float, squared: Float, first_s: Float, slope_s: Float) -> Float:
    """Seconds of the first iterations of a leap."""
    return iterations * first_s + 0.5 * slope_s * (squared - iterations)


def _taken_later(given: Given, steps: Array, step: Int, later: Int) -> Moments:
    """What is taken in the iterations 1 .. ``later`` of a leap that begins with ``step``."""
    if given.structure.windowed:
        return _sum(1, later, lambda ahead, taken: taken.enter(ahead, _growth_at(given, steps, step + ahead)))
    block = _block(given)
    rounds, rest = lax.div(later, block), lax.rem(later, block)  # all remainders, and some of them once more
    every, times = block.astype(jnp.float64), rounds.astype(jnp.float64)
    none = Moments(*(jnp.zeros((), jnp.float64),) * 3)
    whole = lax.cond(
        rounds > 0, lambda: _taken(steps, lax.rem(step, block), block).repeated(times, every), lambda: none
    )
    part = _taken(steps, lax.rem(step, block), rest).later(times * every)
    return whole.plus(part)


def _taken(steps: Array, place: Int, later: Int) -> Moments:
    """The same of at most a block's tokens, from a remainder on."""

    def look(ahead: Int, taken: Moments) -> Moments:
        cells, left = lax.dynamic_slice(steps, (place + ahead,), (AT_ONCE,)), later - ahead
        here = Moments(cells[0], jnp.zeros((), jnp.float64), jnp.zeros((), jnp.float64))
        for number in range(1, AT_ONCE):
            more = jnp.where(number <= left, cells[number], 0.0)
            here = Moments(here.taken + more, here.places + number * more, here.squares + number**2 * more)
        return taken.plus(here.later(ahead.astype(jnp.float64)))

    return _sum(AT_ONCE, later, look)


def _sum(every: int, later: Int, look: Callable[[Int, Moments], Moments]) -> Moments:
    """The sum over the iterations 1 .. ``later``, so many of them at once."""
    start = jnp.int32(1), Moments(*(jnp.zeros((), jnp.float64),) * 3)
    return lax.while_loop(lambda at: at[0] <= later, lambda at: (at[0] + every, look(*at)), start)[1]


def _block(given: Given) -> Int:
    assert given.on_demand is not None
    return jnp.maximum(given.on_demand.kv.block_tokens.astype(jnp.int32), 1)  # 0 in a lane that fills up a call
