"""SGLang's batches: prompts alone, and admission by a share of what the running requests may still generate.

The order of ``reference.schedulers.by_token_ratio`` without a radix cache and mixed chunks, with the names of
``PrefillAdder`` (sglang/srt/managers/schedule_policy.py). A batch of prompts takes the rest of the prompt that the last
one had to cut, then requests from the waiting queue, whose last prompt may be cut; there is never more than one under
way (``State.prompts``). Where nobody can come in, all decode.

What is promised of the KV is counted in tokens, in floating point, because the ratio is no whole number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from evaluator.policies.token_ratio import MOST_NEW_TOKENS, RETRACT_STEPS
from evaluator.stations.engine.common.arrays import Flag, Float, Int, IntPerRequest
from evaluator.stations.engine.common.rings import NONE, read, read_once, where, write
from evaluator.stations.engine.preemptive.batch import Candidate, Scheduled, compute, scheduled, take
from evaluator.stations.engine.preemptive.kv import kv_of, own_units
from evaluator.stations.engine.preemptive.lane import Given, NewTokenRules
from evaluator.stations.engine.preemptive.preemption import growth_at, preempt
from evaluator.stations.engine.preemptive.state import NewTokens, State, no_batch
from evaluator.stations.engine.preemptive.waiting import any_waiting, head


def form_by_ratio(given: Given, state: State, start_s: Float) -> tuple[State, Scheduled]:
    """The next batch, which will start at ``start_s``: prompts, or where nobody can be admitted, all decodes."""
    state = _merge(given, state._replace(batch=no_batch()))
    state = _take_prompts(given, state, start_s)
    decodes = read(state.decode_groups.decodes, state.schedulable)
    prompts = state.batch.prompts.tokens > 0
    state = _decode(given, state, ~prompts & (decodes > 0))
    # Nobody runs or waits: SGLang begins with the initial ratio again (``Scheduler.on_idle``).
    idle = ~prompts & (decodes == 0) & ~any_waiting(given, state)
    rules, memory = _parts(given, state)
    memory = memory._replace(
        ratio=jnp.where(idle, rules.initial, memory.ratio),
        prompts=prompts,
        decodes=decodes,
        decode_iterations=state.replica.decode_iterations,
        finished=state.finished,
    )
    return state._replace(new_tokens=memory), scheduled(given, state)


def _parts(given: Given, state: State) -> tuple[NewTokenRules, NewTokens]:
    assert given.new_tokens is not None and state.new_tokens is not None
    return given.new_tokens, state.new_tokens


def _merge(given: Given, state: State) -> State:
    """What the last batch has done to the ratio, and to whether the running batch counts as full.

    ``Scheduler.get_next_batch_to_run``: it does not where somebody has left, or a prompt goes on; and where nobody
    decoded the batch of prompts takes the place of the running one, whose flag goes with it.
    """
    rules, memory = _parts(given, state)
    decodes = read(state.decode_groups.decodes, state.schedulable)
    goes_on = state.prompts.oldest(state.replica.sentinel) < state.replica.sentinel
    replaced = memory.prompts & (memory.decodes == 0) & (decodes > 0)
    full = memory.full & (state.finished == memory.finished) & ~goes_on & ~replaced & (decodes > 0)
    # The first decode of a leap has let the ratio fall when it was formed.
    later = state.replica.decode_iterations - memory.decode_iterations - 1
    return state._replace(new_tokens=memory._replace(ratio=_fallen(rules, memory.ratio, later), full=full))


def _fallen(rules: NewTokenRules, ratio: Float, decodes: Int) -> Float:
    return jnp.where(decodes > 0, jnp.maximum(ratio - decodes * rules.fall, rules.least), ratio)


class Adder(NamedTuple):
    """What a batch of prompts may still take, in tokens: ``PrefillAdder``."""

    input: Float  # of --max-prefill-tokens
    chunk: Float  # of --chunked-prefill-size
    total_offset: Float  # promised: prompts of this batch, and what all will generate
    current_offset: Float  # promised: prompts of this batch
    prompts: Int  # in the batch
    out_of_kv: Flag
    goes_on: Flag  # the next who waits may be looked at

    def reserve(self, page: Float, tokens: Float, loaded: Int | int, new_tokens: Float) -> Adder:
        """With a chunk, whose KV is taken by whole pages and one more (``_update_prefill_budget``).

        ``loaded`` tokens before it take KV and are not computed: they come from elsewhere.
        """
        paged, held = (jnp.ceil(count / page) * page for count in (tokens, tokens + loaded))
        return self._replace(
            input=self.input - paged,
            chunk=self.chunk - paged,
            total_offset=self.total_offset + (held + page + new_tokens),
            current_offset=self.current_offset + (held + page),
            prompts=self.prompts + 1,
        )


def _take_prompts(given: Given, state: State, start_s: Float) -> State:
    """The prompts of the next batch: the rest of the one under way, and of those who wait as many as fit."""
    rules, memory = _parts(given, state)
    sentinel, page = state.replica.sentinel, given.block().astype(jnp.float64)
    decodes = read(state.decode_groups.decodes, state.schedulable)
    under_way = state.prompts.oldest(sentinel)
    goes_on, seats = under_way < sentinel, given.limits.max_num_seqs - decodes
    looks = goes_on | (~memory.full & any_waiting(given, state))
    seated = goes_on | (seats > 0)
    full = memory.full | (looks & ~seated)
    looks = looks & seated
    free = (given.limits.kv_units - state.replica.kv) * page  # before this batch
    zero, number, false = jnp.zeros((), jnp.float64), jnp.zeros((), jnp.int32), jnp.zeros((), bool)
    state, expected = _expected_tokens(given, state, memory.ratio, looks)
    budget = given.limits.max_num_batched_tokens
    adder = Adder(rules.max_prefill_tokens, budget, expected, zero, number, false, ~false)

    def go_on(carry: tuple[State, Adder]) -> tuple[State, Adder]:
        """A prompt under way goes on however little KV is promised (``add_chunked_req``)."""
        state, adder = carry
        one = _rest(state, under_way)
        room = jnp.minimum(adder.chunk, jnp.floor(free - adder.total_offset))
        tokens = jnp.minimum(one.rest, jnp.where(room > 0, room, adder.chunk))
        one = one._replace(tokens=tokens.astype(jnp.int32))
        more = own_units(given, under_way, one.start + tokens) - own_units(given, under_way, one.start + 0.0)
        state = kv_of(given).extend(given, state, under_way, more)
        state = compute(given, state, under_way, one)
        state = state._replace(prompts=state.prompts.remove(under_way, one.tokens == one.rest))
        return state, adder.reserve(page, tokens, 0, _promised(given, under_way, one))

    def on(carry: tuple[State, Adder]) -> Flag:
        """Somebody waits, and the batch is not large enough yet; one short of KV is told by the next request."""
        state, adder = carry
        has_kv = (free > adder.total_offset) & (free > adder.current_offset)
        spent = has_kv & ((adder.input <= 0) | (adder.chunk <= 0))
        return looks & adder.goes_on & ~spent & any_waiting(given, state)

    def admit(carry: tuple[State, Adder]) -> tuple[State, Adder]:
        """The first who waits, if its prompt and all tokens that it may have fit (``add_one_req``)."""
        state, adder = carry
        i = head(given, state)
        one = _rest(state, i)
        left = jnp.minimum(_most_tokens(given, i) - read_once(state.sequences.generated, i), MOST_NEW_TOKENS)
        fits = one.start + one.rest + left + page < free - adder.total_offset
        paged = jnp.ceil(one.rest / page) * page
        # A prompt is cut where a page ends.
        cut = jnp.floor((one.start + jnp.floor(adder.chunk / page) * page) / page) * page - one.start
        tokens = jnp.where(fits, jnp.where(paged > adder.chunk, cut, one.rest), 0.0)
        one = one._replace(tokens=tokens.astype(jnp.int32))
        takes = tokens > 0
        state = where(takes, lambda state: take(given, state, i, one, start_s), state)
        after = adder.reserve(page, tokens, one.start, _promised(given, i, one))
        short = ~fits | (takes & ~((free > after.total_offset) & (free > after.current_offset)))
        goes_on = takes & ~short & (after.input > 0) & (after.chunk > 0)
        kept = (jnp.where(takes, one_of, before) for one_of, before in zip(after, adder, strict=True))
        return state, Adder(*kept)._replace(out_of_kv=short, goes_on=goes_on)

    carry = where(looks & goes_on, go_on, (state, adder))
    carry = lax.while_loop(lambda carry: on(carry) & (carry[1].prompts < seats), admit, carry)
    state, adder = carry
    no_seat = on(carry) & (adder.prompts >= seats)
    full = full | no_seat | (adder.out_of_kv & ((adder.prompts > 0) | (decodes > 0)))
    return state._replace(new_tokens=_parts(given, state)[1]._replace(full=full))


def _rest(state: State, i: Int) -> Candidate:
    start = read_once(state.sequences.computed, i)
    return Candidate(start, read_once(state.sequences.target, i) - start, jnp.int32(0))


def _most_tokens(given: Given, i: Int) -> Int:
    """That the client allows it: no more than come."""
    return read(given.requests.output_tokens, i)


def _promised(given: Given, i: Int, one: Candidate) -> Float:
    """Tokens that a request is promised with its last chunk: all that it may have, whatever it has generated before."""
    whole = jnp.minimum(_most_tokens(given, i), MOST_NEW_TOKENS).astype(jnp.float64)
    return jnp.where(one.tokens < one.rest, 0.0, whole)


def _generated(state: State, i: Int) -> Int:
    """Output tokens of a decoding request."""
    elapsed = read(state.decode_groups.step, state.schedulable) - read_once(state.sequences.since, i)
    return read_once(state.sequences.generated, i) + elapsed


class Walked(NamedTuple):
    """Arrays that a walk along the running requests reads."""

    newer: IntPerRequest
    decode_group: IntPerRequest
    generated: IntPerRequest
    since: IntPerRequest


def _expected_tokens(given: Given, state: State, ratio: Float, on: Flag) -> tuple[State, Float]:
    """What the decoding requests are expected to generate yet, if ``on`` (``_get_running_request_total_token_offset``).

    Summed one after the other, as SGLang does.
    """

    def add(i: Int, sums: tuple[Float, ...], decodes: Flag, generated: Int) -> tuple[Float, ...]:
        left = jnp.minimum(_most_tokens(given, i) - generated, MOST_NEW_TOKENS)
        return (sums[0] + jnp.where(decodes, left * ratio, 0.0),)

    state, (tokens,) = _walk(given, state, on, (jnp.zeros((), jnp.float64),), add)
    return state, tokens


Add = Callable[[Int, tuple[Float, ...], Flag, Int], tuple[Float, ...]]
"""Sums with those of a request, of which is known whether it decodes, and what it has generated if it does."""


def _walk(given: Given, state: State, on: Flag, sums: tuple[Float, ...], add: Add) -> tuple[State, tuple[Float, ...]]:
    """Sums over the running requests, in order of their admission, if ``on``."""
    sentinel, step = state.replica.sentinel, read(state.decode_groups.step, state.schedulable)

    def next_one(carry: tuple[Int, tuple[Float, ...], Walked]) -> tuple[Int, tuple[Float, ...], Walked]:
        i, sums, arrays = carry
        values = newer, decode_group, generated, since = tuple(read_once(array, i) for array in arrays)
        sums = add(i, sums, decode_group >= 0, generated + step - since)
        # Written back as they were: arrays that a loop only reads XLA copies before it, on every trip of the lane.
        return newer, sums, Walked(*(write(array, i, value) for array, value in zip(arrays, values, strict=True)))

    sequences = state.sequences
    arrays = Walked(state.running.newer, sequences.decode_group, sequences.generated, sequences.since)
    start = (state.running.oldest(sentinel), sums, arrays)
    _, sums, arrays = lax.while_loop(lambda carry: on & (carry[0] < sentinel), next_one, start)
    sequences = sequences._replace(decode_group=arrays.decode_group, generated=arrays.generated, since=arrays.since)
    return state._replace(running=state.running._replace(newer=arrays.newer), sequences=sequences), sums


def _decode(given: Given, state: State, on: Flag) -> State:
    """All decode, if ``on``; where the KV of their next tokens does not suffice, some are retracted first.

    ``ScheduleBatch.retract_decode``: they go until the others' tokens fit, but the last one stays.
    """

    def growth(state: State) -> Float:
        return growth_at(given, state, read(state.decode_groups.step, state.schedulable))

    def lacks(state: State) -> Flag:
        short = growth(state) > given.limits.kv_units - state.replica.kv
        return on & short & (state.replica.running_count > 1)

    short = lacks(state)
    state = where(short, lambda state: _arrivals_counted(given, state), state)
    state = lax.while_loop(lacks, lambda state: preempt(given, state, _least_generated(given, state)), state)
    state, after = _after_retraction(given, state, short)
    rules, memory = _parts(given, state)
    ratio = jnp.where(short, after, _fallen(rules, memory.ratio, jnp.int32(1)))
    memory = memory._replace(ratio=jnp.where(on, ratio, memory.ratio), full=memory.full & ~short)
    state = state._replace(new_tokens=memory, batch=state.batch._replace(grown=on))
    return kv_of(given).grow(given, state, jnp.where(on, growth(state), 0.0))


def _arrivals_counted(given: Given, state: State) -> State:
    """With the number of requests that are here, or have been: behind them retracted ones go."""
    memory, most = _parts(given, state)[1], jnp.minimum(state.released, given.limits.requests)

    def here(arrived: Int) -> Flag:
        return (arrived < most) & (read(given.requests.arrival_s, arrived) <= state.clock)

    # From the last count on, so that all retractions together look at each arrival once.
    arrived = lax.while_loop(here, lambda arrived: arrived + 1, memory.arrived)
    return state._replace(new_tokens=memory._replace(arrived=arrived))


def _least_generated(given: Given, state: State) -> Int:
    """The decoding request with the fewest tokens generated, of equals the longest prompt, of these the last."""
    sentinel = state.replica.sentinel

    def look(carry: tuple[Int, Int, Int, Int]) -> tuple[Int, Int, Int, Int]:
        i, found, least, longest = carry
        generated, prompt = _generated(state, i), read(given.requests.prompt_tokens, i)
        # In order of admission, which is the order in which they joined the batch: of equals the later one is taken.
        worse = (generated < least) | ((generated == least) & (prompt >= longest))
        found, least, longest = (
            jnp.where(worse, new, old) for new, old in ((i, found), (generated, least), (prompt, longest))
        )
        return read_once(state.running.newer, i), found, least, longest

    start = (state.running.oldest(sentinel), sentinel, jnp.int32(1 << 30), jnp.int32(NONE))
    return lax.while_loop(lambda carry: carry[0] < sentinel, look, start)[1]


def _after_retraction(given: Given, state: State, on: Flag) -> tuple[State, Float]:
    """The ratio then, if ``on``: what the others have generated, and tokens of 20 decodes, over what they may have."""

    def add(i: Int, sums: tuple[Float, ...], _: Flag, generated: Int) -> tuple[Float, ...]:
        return sums[0] + generated, sums[1] + _most_tokens(given, i)

    zero = jnp.zeros((), jnp.float64)
    state, (generated, allowed) = _walk(given, state, on, (zero, zero), add)
    return state, jnp.minimum(1.0, (generated + RETRACT_STEPS * state.replica.running_count) / (allowed + 1.0))
