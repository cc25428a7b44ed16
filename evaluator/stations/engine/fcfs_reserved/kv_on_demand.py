"""KV on demand, as long as there is enough of it: requests take blocks as their tokens come, and nobody waits for one.

The schedule is then that of a replica without a limit of KV, so nothing here decides anything. It counts what is in use
in each iteration, and what requests ask for, with what an admission has to leave free: where they ask for more than
there is, the engine would have refused an admission or preempted a request. The lane ends there as one that *ran
short*, and is run again in ``preemptive``.

``KvGrowth.steps`` says what decodes take at the steps to come, by the remainders of the steps by a block's tokens
(``common.kv_growth``). Windowed layers let go of blocks, so that a request gains fewer units per block with its length:
then a ring says it for each step to come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
from jax import lax

from evaluator.cost.kv import units
from evaluator.stations.engine.common import kv_growth
from evaluator.stations.engine.common.arrays import Array, Flag, Float, FloatPerRequest, Int
from evaluator.stations.engine.common.kv_growth import Moments, block_of
from evaluator.stations.engine.common.leap import Leap
from evaluator.stations.engine.common.rings import in_ring, read, tagged_add, tagged_count, write

if TYPE_CHECKING:
    from evaluator.stations.engine.fcfs_reserved.admission import Intake
    from evaluator.stations.engine.fcfs_reserved.lane import Given
    from evaluator.stations.engine.fcfs_reserved.state import State


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


def nothing_taken(given: Given) -> KvGrowth:
    """Of an idle lane."""
    structure, zero = given.structure, jnp.zeros((), jnp.float64)
    if structure.windowed:
        return KvGrowth(jnp.zeros(structure.ring + 1, jnp.int64), zero, zero)
    return KvGrowth(kv_growth.no_growth(structure.block_tokens), zero, zero)


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
    rules, growth = given.on_demand, state.kv_growth
    policy, resident = given.limits.policy, given.limits.prompts_resident
    assert rules is not None and growth is not None
    grown = jnp.where(stalled, 0.0, _growth_at(given, growth.steps, state.step))
    # Requests decode from the step after that of their last chunk on, resident ones at once.
    begin = state.step + jnp.where(resident | policy.prefill_alone, 0, 1)

    def complete(carry: tuple[Int, Completions]) -> tuple[Int, Completions]:
        i, (times, kv, growth) = carry
        steps = growth.steps
        steps = _note(given, steps, i, begin) if given.structure.windowed else _enter(given, steps, i, begin, 1.0)
        whole, starts = read(rules.prompt_units, i).astype(jnp.float64), (i > state.head) | (state.progress == 0)
        asked = jnp.where(starts, jnp.maximum(growth.asked, kv + whole + rules.watermark_units), growth.asked)
        growth = KvGrowth(steps, jnp.zeros((), jnp.float64), asked)
        return i + 1, Completions(write(times, i, clock), kv + whole - carry[1].growth.head_units, growth)

    start = Completions(state.first_token_s, state.kv + grown, growth)
    head, completed = lax.while_loop(lambda carry: carry[0] < intake.head, complete, (state.head, start))

    def compute(kv: Float, before: Float, asked: Float) -> tuple[Float, Float, Float]:
        """A part of the next prompt."""
        whole = read(rules.prompt_units, head).astype(jnp.float64)
        cached = read(given.requests.prompt_tokens, head) - read(given.requests.compute_tokens, head)
        held = units(rules.kv, cached.astype(jnp.float64) + intake.progress) - read(rules.shared_units, head)
        held = jnp.maximum(held, jnp.where(rules.whole_kv, whole, 0.0))
        # vLLM ``KVCacheManager.allocate_slots``, ``full_sequence_must_fit``; the watermark is that of v0, too.
        wanted = jnp.maximum(held, jnp.where(rules.full_prompt, whole, 0.0)) + rules.watermark_units
        starts = (head > state.head) | (state.progress == 0)
        return kv + (held - before), held, jnp.where(starts, jnp.maximum(asked, kv + wanted), asked)

    scalars = completed.kv, completed.growth.head_units, completed.growth.asked
    kv, head_units, asked = lax.cond(intake.progress > 0, compute, lambda *same: same, *scalars)
    return Completions(completed.first_token_s, kv, completed.growth._replace(head_units=head_units, asked=asked))


# -- of decodes


def _note(given: Given, steps: Array, i: Int, step: Int) -> Array:
    """With the units that a request will take, at the steps at which it does."""
    assert given.on_demand is not None
    kv, ring, block = given.on_demand.kv, given.structure.ring, block_of(given.on_demand.kv)
    resident, prompt = given.limits.prompts_resident, read(given.requests.prompt_tokens, i)
    last = step + read(given.requests.output_tokens, i) - 1 + resident  # the step behind its last
    # A resident prompt has the KV of its first step from its admission.
    start = step + resident
    first = start + (-(prompt + start - step) % block)  # at which a token begins a block

    def held(reached: Int) -> Float:
        return units(kv, (prompt + reached - step).astype(jnp.float64))

    def note(carry: tuple[Int, Float, Array]) -> tuple[Int, Float, Array]:
        reached, before, steps = carry
        after = held(reached + 1)
        steps = tagged_add(steps, in_ring(reached, ring), reached, (after - before).astype(jnp.int64))
        return reached + block, after, steps

    return lax.while_loop(lambda carry: carry[0] < last, note, (first, held(first), steps))[2]


def end_decode(given: Given, steps: Array, i: Int, step: Int, output: Float) -> Array:
    """``KvGrowth.steps`` without request ``i``, whose last token is that of the step before ``step``."""
    if given.structure.windowed:
        return steps  # nothing is noted of the steps behind its last
    began = step + 1 - given.limits.prompts_resident - output.astype(jnp.int32)
    return _enter(given, steps, i, began, -1.0)


def _enter(given: Given, steps: Array, i: Int, step: Int, decodes: float) -> Array:
    """With so many decodes more that take blocks as request ``i`` does, which decodes from ``step`` on.

    It takes one when its prompt and the tokens that it was given since fill those that it has.
    """
    assert given.on_demand is not None
    begins = step - read(given.requests.prompt_tokens, i)
    return kv_growth.enter(steps, block_of(given.on_demand.kv), begins, decodes * given.on_demand.block_units)


def _growth_at(given: Given, steps: Array, step: Int) -> Float:
    """Units that the decodes take for their tokens of a step."""
    assert given.on_demand is not None
    if given.structure.windowed:
        return tagged_count(steps, in_ring(step, given.structure.ring), step)
    return kv_growth.growth_at(steps, block_of(given.on_demand.kv), step)


def kv_of_leap(
    given: Given, growth: KvGrowth, step: Int, kv: Float, count: Int, first_s: Float, leap: Leap, lead: Float
) -> KvUse:
    """Units in use in ``count`` iterations from ``step`` on: ``kv`` in the first, and more with every next one.

    All of them are those of ``leap``, or with a ``lead`` of 1 all but the first, which takes ``first_s``.
    """
    on_demand, ahead = given.on_demand, given.structure.asynchronous
    assert on_demand is not None

    def later() -> Moments:
        if given.structure.windowed:
            return kv_growth.sum_over(
                1, count - 1, lambda ahead, taken: taken.enter(ahead, _growth_at(given, growth.steps, step + ahead))
            )
        return kv_growth.taken_later(growth.steps, block_of(on_demand.kv), step, count - 1)

    taken = lax.cond(count > 1, later, Moments.none)
    last = kv + taken.taken
    # As if the leap had begun an iteration earlier; what the first takes beyond that, all that are there by its end
    # are in use for.
    from_s = leap.first_s - lead * leap.slope_s
    unit_s = taken.unit_s(last, count.astype(jnp.float64), from_s, leap.slope_s, ahead)
    held = kv
    if ahead:  # what the second takes is in use, too; and a single iteration is not counted here
        held = jnp.where(count > 1, kv + _growth_at(given, growth.steps, step + 1), 0.0)
    return KvUse(last, last, unit_s + lead * (first_s - from_s) * held)
