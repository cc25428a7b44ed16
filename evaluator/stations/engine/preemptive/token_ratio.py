"""SGLang's batches: prompts alone, and admission by a share of what the running requests may still generate.

The order of ``reference.schedulers.by_token_ratio`` without a radix cache and mixed chunks, with the names of
``PrefillAdder`` (sglang/srt/managers/schedule_policy.py). A batch of prompts first takes the rest of the prompt that
the batch before it has cut, then requests from the waiting queue. The last of these may be cut, too, so that never
more than one prompt is partly computed (``State.prompts``). If no prompt can be added, the running requests decode.

Planned ahead (``asynchronous``), a batch is put together while the one before it runs. This program has counted the
tokens of that batch already, but SGLang does not know them yet. So its estimates count one token less for each request
in it; a request whose last token is in it still belongs to the running batch and keeps its KV, but decodes no more;
and a request that is retracted loses the token.

Promised KV is counted in tokens and in floating point, because the ratio is no whole number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from evaluator.cost.iteration import BatchStatistics
from evaluator.policies.token_ratio import MOST_NEW_TOKENS, RETRACT_STEPS
from evaluator.stations.engine.common import histogram
from evaluator.stations.engine.common.arrays import Flag, Float, Int
from evaluator.stations.engine.common.rings import NONE, behind, read, read_each, read_once, where, write
from evaluator.stations.engine.preemptive.batch import Candidate, Scheduled, compute, scheduled, take
from evaluator.stations.engine.preemptive.kv import kv_of, own_units
from evaluator.stations.engine.preemptive.lane import Given, NewTokenRules
from evaluator.stations.engine.preemptive.linked_lists import LinkedList
from evaluator.stations.engine.preemptive.preemption import growth_at, preempt
from evaluator.stations.engine.preemptive.state import NewTokens, Sequences, State, no_batch
from evaluator.stations.engine.preemptive.waiting import any_waiting, head


def form_by_ratio(given: Given, state: State, start_s: Float) -> tuple[State, Scheduled]:
    """The next batch, which will start at ``start_s``: of prompts, or if none can be added, of all decodes."""
    state = _merge(given, state._replace(batch=no_batch()))
    state = _take_prompts(given, state, start_s)
    decodes = read(state.decode_groups.decodes, state.schedulable)
    prompts = state.batch.prompts.tokens > 0
    on, idle, leaves = ~prompts & (decodes > 0), ~prompts & (decodes == 0), _leaves(state)
    if state.planned is not None:
        # The KV of those that leave is free when the batch under way has ended: where the others need it, they wait
        # for that (``update_running_batch``).
        on = on & ~(leaves & _lacks_kv(given, state))
        idle = idle & (state.planned.end_s <= state.clock)
    state = _decode(given, state, on)
    # Nobody runs or waits: SGLang begins with the initial ratio again (``Scheduler.on_idle``).
    idle = idle & ~any_waiting(given, state)
    rules, memory = _parts(given, state)
    memory = memory._replace(
        full=memory.full & (prompts | ~leaves),
        ratio=jnp.where(idle, rules.initial, memory.ratio),
        prompts=prompts,
        decodes=decodes,
        decode_iterations=state.replica.decode_iterations,
        finished=state.finished,
    )
    batch = scheduled(given, state)
    if state.planned is not None:
        launches = prompts | on
        sums = BatchStatistics(*(jnp.where(launches, figure, 0.0) for figure in batch.sums))
        batch = Scheduled(sums, batch.decodes & launches, batch.nonempty & launches)
    return state._replace(new_tokens=memory), batch


def _leaves(state: State) -> Flag:
    """A request gets its last token with the batch under way; it keeps its seat and its KV until that has ended."""
    return jnp.zeros((), bool) if state.planned is None else state.planned.leaving.first >= 0


def _lacks_kv(given: Given, state: State) -> Flag:
    """The next tokens of the decodes need more KV than there is."""
    growth = growth_at(given, state, read(state.decode_groups.step, state.schedulable))
    return growth > given.limits.kv_units - state.replica.kv


def _parts(given: Given, state: State) -> tuple[NewTokenRules, NewTokens]:
    assert given.new_tokens is not None and state.new_tokens is not None
    return given.new_tokens, state.new_tokens


def _merge(given: Given, state: State) -> State:
    """The ratio and the flag ``full`` as the last batch leaves them.

    ``Scheduler.get_next_batch_to_run``: the running batch is no longer full if a request has left it or a prompt is
    partly computed. If nothing decoded, the batch of prompts replaces the running batch, and its flag with it.
    """
    rules, memory = _parts(given, state)
    decodes = read(state.decode_groups.decodes, state.schedulable)
    goes_on = state.prompts.oldest(state.replica.sentinel) < state.replica.sentinel
    runs = (decodes > 0) | _leaves(state)
    replaced = memory.prompts & (memory.decodes == 0) & runs
    full = memory.full & (state.finished == memory.finished) & ~goes_on & ~replaced & runs
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
    goes_on: Flag  # the next waiting request may be tried

    def reserve(self, page: Float, tokens: Float, loaded: Int | int, new_tokens: Float) -> Adder:
        """The rest after a chunk, whose KV is counted in whole pages and one page more (``_update_prefill_budget``).

        ``loaded`` tokens before the chunk take KV but no compute: they come from elsewhere.
        """
        paged, held = (jnp.ceil(count / page) * page for count in (tokens, tokens + loaded))
        return self._replace(
            input=self.input - paged,
            chunk=self.chunk - paged,
            total_offset=self.total_offset + (held + page + new_tokens),
            current_offset=self.current_offset + (held + page),
            prompts=self.prompts + 1,
        )


class FreeKv(NamedTuple):
    """The KV that a batch of prompts may take, which is the same for all of them."""

    tokens: Float  # free before the batch
    page: Float  # tokens of a page, by which KV is taken

    def suffices(self, adder: Adder) -> Flag:
        """More is free than what is promised to others (``PrefillAdder.budget_state``)."""
        return (self.tokens > adder.total_offset) & (self.tokens > adder.current_offset)


def _take_prompts(given: Given, state: State, start_s: Float) -> State:
    """Put prompts into the next batch: the rest of the one under way, then of the waiting ones as many as fit."""
    rules, memory = _parts(given, state)
    sentinel, page = state.replica.sentinel, given.block().astype(jnp.float64)
    decodes = read(state.decode_groups.decodes, state.schedulable)
    under_way = state.prompts.oldest(sentinel)
    goes_on = under_way < sentinel
    seats = given.limits.max_num_seqs - state.replica.running_count + goes_on  # the prompt under way has its own
    looks = goes_on | (~memory.full & any_waiting(given, state))
    seated = goes_on | (seats > 0)
    full = memory.full | (looks & ~seated)
    looks = looks & seated
    free = FreeKv((given.limits.kv_units - state.replica.kv) * page, page)
    zero, number, false = jnp.zeros((), jnp.float64), jnp.zeros((), jnp.int32), jnp.zeros((), bool)
    state, expected = _expected_tokens(given, state, memory.ratio, looks)
    budget = given.limits.max_num_batched_tokens
    adder = Adder(rules.max_prefill_tokens, budget, expected, zero, number, false, ~false)

    def on(carry: tuple[State, Adder]) -> Flag:
        """A request waits and may be tried. That KV is short is found with the request, not here."""
        state, adder = carry
        spent = free.suffices(adder) & ((adder.input <= 0) | (adder.chunk <= 0))
        return looks & adder.goes_on & ~spent & any_waiting(given, state)

    carry = where(looks & goes_on, lambda carry: _go_on(given, *carry, free, under_way), (state, adder))
    carry = lax.while_loop(
        lambda carry: on(carry) & (carry[1].prompts < seats),
        lambda carry: _admit_head(given, *carry, free, start_s),
        carry,
    )
    state, adder = carry
    no_seat = on(carry) & (adder.prompts >= seats)
    full = full | no_seat | (adder.out_of_kv & ((adder.prompts > 0) | (decodes > 0) | _leaves(state)))
    return state._replace(new_tokens=_parts(given, state)[1]._replace(full=full))


def _go_on(given: Given, state: State, adder: Adder, free: FreeKv, under_way: Int) -> tuple[State, Adder]:
    """The next chunk of the prompt under way, which is computed even where no KV is left (``add_chunked_req``)."""
    chunk = _rest(state, under_way)
    room = jnp.minimum(adder.chunk, jnp.floor(free.tokens - adder.total_offset))
    tokens = jnp.minimum(chunk.rest, jnp.where(room > 0, room, adder.chunk))
    chunk = chunk._replace(tokens=tokens.astype(jnp.int32))
    more = own_units(given, under_way, chunk.start + tokens) - own_units(given, under_way, chunk.start + 0.0)
    state = kv_of(given).extend(given, state, under_way, more)
    state = compute(given, state, under_way, chunk)
    state = state._replace(prompts=state.prompts.remove(under_way, chunk.tokens == chunk.rest))
    return state, adder.reserve(free.page, tokens, 0, _promised(given, under_way, chunk))


def _admit_head(given: Given, state: State, adder: Adder, free: FreeKv, start_s: Float) -> tuple[State, Adder]:
    """Admit the head of the waiting queue if there is KV for its prompt and all its output (``add_one_req``)."""
    i, page = head(given, state), free.page
    chunk = _rest(state, i)
    left = jnp.minimum(_most_tokens(given, i) - read_once(state.sequences.generated, i), MOST_NEW_TOKENS)
    fits = chunk.start + chunk.rest + left + page < free.tokens - adder.total_offset
    paged = jnp.ceil(chunk.rest / page) * page
    # A prompt that is too long for the chunk is cut where a page ends.
    cut = jnp.floor((chunk.start + jnp.floor(adder.chunk / page) * page) / page) * page - chunk.start
    tokens = jnp.where(fits, jnp.where(paged > adder.chunk, cut, chunk.rest), 0.0)
    chunk = chunk._replace(tokens=tokens.astype(jnp.int32))
    takes = tokens > 0
    state = where(takes, lambda state: take(given, state, i, chunk, start_s), state)
    after = adder.reserve(page, tokens, chunk.start, _promised(given, i, chunk))
    short = ~fits | (takes & ~free.suffices(after))
    goes_on = takes & ~short & (after.input > 0) & (after.chunk > 0)
    taken = (jnp.where(takes, with_it, before) for with_it, before in zip(after, adder, strict=True))
    return state, Adder(*taken)._replace(out_of_kv=short, goes_on=goes_on)


def _rest(state: State, i: Int) -> Candidate:
    start = read_once(state.sequences.computed, i)
    return Candidate(start, read_once(state.sequences.target, i) - start, jnp.int32(0))


def _most_tokens(given: Given, i: Int) -> Int:
    """Output tokens that the client allows a request, ``max_new_tokens``: as many as it will generate."""
    return read(given.requests.output_tokens, i)


def _promised(given: Given, i: Int, chunk: Candidate) -> Float:
    """Output tokens for which KV is promised with a request's last chunk: all it may have, those generated included."""
    whole = jnp.minimum(_most_tokens(given, i), MOST_NEW_TOKENS).astype(jnp.float64)
    return jnp.where(chunk.tokens < chunk.rest, 0.0, whole)


def _generated(state: State, i: Int) -> Int:
    """Output tokens of a decoding request that SGLang knows, without one that the batch under way computes."""
    elapsed = read(state.decode_groups.step, state.schedulable) - read_once(state.sequences.since, i)
    return read_once(state.sequences.generated, i) + elapsed - _unknown(state, elapsed, _joined_s(state, i))


def _joined_s(state: State, i: Int) -> Float | None:
    """When a decoding request had its last token before it joined; None where nothing is planned ahead."""
    return None if state.planned is None else read_once(state.sequences.token_s, i)


def _unknown(state: State, elapsed: Int, joined_s: Float | None) -> Int | int:
    """1 if the last token of a request that joined so many steps ago is of the batch under way, else 0."""
    if joined_s is None:
        return 0
    last_s = jnp.where(elapsed > 0, read(state.decode_groups.gap_from, state.schedulable), joined_s)
    return (last_s > state.clock).astype(jnp.int32)


def _expected_tokens(given: Given, state: State, ratio: Float, on: Flag) -> tuple[State, Float]:
    """Tokens that the running requests are expected to generate yet, if ``on``.

    ``_get_running_request_total_token_offset``: summed one after the other, as SGLang does.
    """

    under_way = state.prompts.oldest(state.replica.sentinel)

    def add(i: Int, sums: tuple[Float, ...], decodes: Flag, generated: Int) -> tuple[Float, ...]:
        left = jnp.minimum(_most_tokens(given, i) - generated, MOST_NEW_TOKENS)
        if state.planned is not None:  # a request that neither decodes nor computes its prompt awaits its last token
            left, decodes = jnp.where(decodes, left, 1), decodes | (i != under_way)
        return (sums[0] + jnp.where(decodes, left * ratio, 0.0),)

    state, (tokens,) = _walk(given, state, on, (jnp.zeros((), jnp.float64),), add)
    return state, tokens


Add = Callable[[Int, tuple[Float, ...], Flag, Int], tuple[Float, ...]]
"""(request, sums, whether it decodes, its known output tokens if it does) -> the sums with those of the request."""

Walk = tuple[Int, tuple[Float, ...], LinkedList, Sequences]


def _walk(given: Given, state: State, on: Flag, sums: tuple[Float, ...], add: Add) -> tuple[State, tuple[Float, ...]]:
    """Sums over the running requests, in order of their admission, if ``on``."""
    sentinel, step = state.replica.sentinel, read(state.decode_groups.step, state.schedulable)
    ahead = state.planned is not None

    def next_one(carry: Walk) -> Walk:
        i, sums, running, sequences = carry
        decode_group, generated, since, newer = read_each(
            i, sequences.decode_group, sequences.generated, sequences.since, running.newer
        )
        token_s = read_once(sequences.token_s, i) if ahead else None
        elapsed = step - since
        sums = add(i, sums, decode_group >= 0, generated + elapsed - _unknown(state, elapsed, token_s))
        # Written back as it was: arrays that a loop only reads XLA copies before it, on every trip of the lane.
        sequences = sequences._replace(since=write(sequences.since, i, since))
        if ahead:
            sequences = sequences._replace(token_s=write(sequences.token_s, i, token_s))
        return newer, sums, running._replace(newer=write(running.newer, i, newer)), sequences

    start = (state.running.oldest(sentinel), sums, state.running, state.sequences)
    _, sums, running, sequences = lax.while_loop(lambda carry: on & (carry[0] < sentinel), next_one, start)
    return state._replace(running=running, sequences=sequences), sums


def _decode(given: Given, state: State, on: Flag) -> State:
    """All running requests decode, if ``on``; if KV is short for their next tokens, some are retracted first.

    ``ScheduleBatch.retract_decode``: one after the other, until the tokens of the rest fit or only one is left.
    """

    def growth(state: State) -> Float:
        return growth_at(given, state, read(state.decode_groups.step, state.schedulable))

    def lacks(state: State) -> Flag:
        return on & _lacks_kv(given, state) & (state.replica.running_count > 1)

    short = lacks(state)
    state = where(short, lambda state: _arrivals_counted(given, state), state)
    state = lax.while_loop(lacks, lambda state: _retract(given, state, _least_generated(given, state)), state)
    state, after = _after_retraction(given, state, short)
    rules, memory = _parts(given, state)
    ratio = jnp.where(short, after, _fallen(rules, memory.ratio, jnp.int32(1)))
    memory = memory._replace(ratio=jnp.where(on, ratio, memory.ratio), full=memory.full & ~short)
    state = state._replace(new_tokens=memory, batch=state.batch._replace(grown=on))
    return kv_of(given).grow(given, state, jnp.where(on, growth(state), 0.0))


def _retract(given: Given, state: State, i: Int) -> State:
    """A decoding request gives up its KV, and its token of the batch under way is lost (``is_retracted``)."""
    planned, memory = state.planned, _parts(given, state)[1]
    if planned is None or planned.before_s is None or planned.gap_s is None or memory.before_s is None:
        return preempt(given, state, i)
    elapsed = read(state.decode_groups.step, state.schedulable) - read_once(state.sequences.since, i)
    joined_s, gap_from = read_once(state.sequences.token_s, i), read(state.decode_groups.gap_from, state.schedulable)
    lost = _unknown(state, elapsed, joined_s)
    last_s = jnp.where(elapsed > 0, gap_from, joined_s)
    before_s = jnp.where(elapsed > 1, planned.before_s, jnp.where(elapsed > 0, joined_s, read(memory.before_s, i)))
    gap_s = jnp.where(elapsed > 1, planned.gap_s, last_s - before_s)
    state = preempt(given, state, behind(i, elapsed, joined_s))
    sequences = state.sequences
    generated, target = read_once(sequences.generated, i) - lost, read_once(sequences.target, i) - lost
    first_s, token_s = read_once(sequences.first_token_s, i), read_once(sequences.token_s, i)
    # The gap that it ended was entered with the batch, if the measured ones had begun (``complete_iteration``).
    counted = read_once(sequences.first_token_s, given.limits.measured_from) < last_s
    taken = jnp.where(counted & (lost > 0) & (generated > 0), -1.0, 0.0)
    return state._replace(
        itl_histogram=histogram.enter(state.itl_histogram, gap_s, taken, given.first_bin()),
        sequences=sequences._replace(
            generated=write(sequences.generated, behind(i, target), generated),
            target=write(sequences.target, i, target),
            token_s=write(sequences.token_s, behind(i, first_s, taken), jnp.where(lost > 0, before_s, token_s)),
            first_token_s=write(sequences.first_token_s, i, jnp.where((lost > 0) & (generated == 0), jnp.inf, first_s)),
        ),
    )


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
        i, worst, least, longest = carry
        generated, prompt = _generated(state, i), read(given.requests.prompt_tokens, i)
        # In order of admission, which is the order in which they joined the batch: of equals the later one is taken.
        worse = (generated < least) | ((generated == least) & (prompt >= longest))
        worst, least, longest = (
            jnp.where(worse, new, old) for new, old in ((i, worst), (generated, least), (prompt, longest))
        )
        return read_once(state.running.newer, i), worst, least, longest

    start = (state.running.oldest(sentinel), sentinel, jnp.int32(1 << 30), jnp.int32(NONE))
    return lax.while_loop(lambda carry: carry[0] < sentinel, look, start)[1]


def _after_retraction(given: Given, state: State, on: Flag) -> tuple[State, Float]:
    """The ratio then, if ``on``: what the others have generated, and tokens of 20 decodes, over what they may have."""

    def add(i: Int, sums: tuple[Float, ...], _: Flag, generated: Int) -> tuple[Float, ...]:
        return sums[0] + generated, sums[1] + _most_tokens(given, i)

    zero = jnp.zeros((), jnp.float64)
    state, (generated, allowed) = _walk(given, state, on, (zero, zero), add)
    return state, jnp.minimum(1.0, (generated + RETRACT_STEPS * state.replica.running_count) / (allowed + 1.0))
