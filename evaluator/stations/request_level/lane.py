"""What a lane of the request-level engine is given and gives back: numbers, all traced, and the sizes of its arrays."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from evaluator.cost.iteration import Array
from evaluator.cost.request_times import PhaseTimes, PromptBatch


class RequestLevelStructure(NamedTuple):
    """Sizes of arrays, at least the largest of any lane: structure, of which every value compiles a program."""

    instances: int
    prompts: int  # of a batch
    boxes: int  # sequences that decode on an instance


class RequestLane(NamedTuple):
    """Identical instances. Every field is a scalar; with a leading ``lane`` axis it is a batch of lanes."""

    cost: PhaseTimes
    instances: Array  # int32
    max_prompts: Array  # int32, requests of a batch of prompts
    max_prompt_tokens: Array  # float64, tokens of such a batch; a longer prompt is a batch alone. The paper: infinite
    max_decodes: Array  # int32, boxes of an instance
    tau: Array  # float64, see ``decode.pseudo_batch``; the paper's is 2.5
    requests: Array  # int32, how many of the request slots are real


class ServedRequests(NamedTuple):
    """The lane's requests in order of arrival, (request,). Slots behind the real ones arrive at infinity."""

    arrival_s: Array  # float64
    prompt_tokens: Array  # float64
    output_tokens: Array  # float64, at least 1
    prefill_draw: Array  # float64 in [0, 1): which of the instances that could take it takes it
    decode_draw: Array  # float64 in [0, 1)


class Departures(NamedTuple):
    """Absolute seconds (request,); infinite for slots that are not real."""

    scheduled_s: Array
    first_token_s: Array  # the first that these instances give
    last_token_s: Array
    instance: Array  # int32: which computed the prompt, on a decode side which gave the tokens


def draw_one(able: Array, draw: Array) -> Array:
    """One of the instances that are ``able``, bool (instance,), all with the same probability: its number, int32.

    The paper shuffles its instances before it looks for an idle one, which picks any idle one alike. A draw that
    belongs to the request makes that reproducible. At least one must be able.
    """
    wanted = jnp.floor(draw * jnp.sum(able)).astype(jnp.int32)
    return jnp.argmax(jnp.cumsum(able.astype(jnp.int32)) > wanted).astype(jnp.int32)


def least_at(values: Array) -> Array:
    """The place of the least of ``values`` (n,), the first of them, int32.

    XLA runs ``argmin``, which carries two values, one element after the other on a CPU, and two minima in vectors.
    """
    places = jnp.arange(values.shape[0], dtype=jnp.int32)
    return jnp.min(jnp.where(values <= jnp.min(values), places, values.shape[0] - 1))


def when_idle(shape: tuple[int, ...], *counts: Array) -> Array:
    """0 for each of the first ``counts`` (one per axis), infinity for what the lane does not have, float64 (shape)."""
    there = jnp.ones(shape, dtype=bool)
    for axis, count in enumerate(counts):
        place = jnp.arange(shape[axis]).reshape([-1 if other == axis else 1 for other in range(len(shape))])
        there = there & (place < count)
    return jnp.where(there, 0.0, jnp.inf)


def prompt_batch(lane: RequestLane, arrival_s: Array, tokens: Array, now: Array) -> PromptBatch:
    """The first of the prompts that wait, (prompt,) in order of arrival: as many as are there and as fit."""
    place = jnp.arange(tokens.shape[0])
    fits = (jnp.cumsum(tokens) <= lane.max_prompt_tokens) | (place == 0)
    members = (arrival_s <= now) & (place < lane.max_prompts) & fits
    tokens = jnp.where(members, tokens, 0.0)
    return PromptBatch(
        requests=jnp.sum(members).astype(jnp.float64),
        tokens=jnp.sum(tokens),
        longest=jnp.max(tokens),
        area=jnp.sum(0.5 * tokens * (tokens + 1.0)),
    )
