"""The time of one engine iteration from the sufficient statistics of its batch.

This is the only place where an operator's time is computed: the vectorised engine, the reference,
``estimate`` and calibration all call ``iteration_time``. It is pure, traced in every number, and works alike on
scalars and NumPy arrays (without importing JAX) and on JAX arrays and tracers of any batch of lanes. On plain Python
floats it is plain Python, three times as fast as on NumPy scalars.
"""

from __future__ import annotations

import math
import sys
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

Array = Any  # a float, a NumPy array or a JAX array, float64


def array_namespace(*arrays: Array) -> ModuleType:
    """``math`` for plain floats, ``jax.numpy`` where any argument is a JAX array or tracer, else ``numpy``."""
    for array in arrays:
        if type(array) is not float:
            break
    else:
        return math
    jax = sys.modules.get("jax")
    if jax is not None and any(isinstance(array, jax.Array) for array in arrays):
        return jax.numpy
    return np


class BatchStatistics(NamedTuple):
    """What an iteration's time depends on. All float64, any common shape.

    A decoding sequence with ``c`` tokens of KV (before this iteration) attends to ``c + 1`` tokens; a chunk
    of a prompt that computes positions ``lo + 1 .. hi`` has area ``sum(lo + 1 .. hi)`` and context ``hi``.
    The ``window`` fields are the same sums with every attended length cut at the model's window.
    """

    decodes: Array  # sequences that decode one token each
    decode_context: Array  # tokens they attend to, summed
    decode_window_context: Array
    prefill_tokens: Array  # prompt tokens computed
    prefill_sequences: Array  # prompts that have a chunk in this iteration
    prefill_area: Array  # tokens attended to, summed over the prompt tokens computed
    prefill_window_area: Array
    prefill_context: Array  # KV tokens read by the chunks, history and cached prefix included
    prefill_window_context: Array


class Rows(NamedTuple):
    """Operators with a roofline knee, in seconds. Each field is (operator, *lanes); no operator at all is allowed.

    An operator takes roofline(flop * x, weight * y + activation * z, knee); the group it is in says what x, y, z are.
    """

    flop: Array
    weight: Array
    activation: Array
    knee: Array


class CostParameters(NamedTuple):
    """The iteration cost of one pipeline stage of one replica, everything already in seconds (``fold`` makes it).

    The scalar fields are (*lanes). They hold every term without a knee: host overhead, launches, collectives,
    elementwise work, and decode attention, both sides of whose roofline are proportional to the context.
    """

    token_rows: Rows  # dense GEMMs: x = tokens, y = 1, z = tokens
    sequence_rows: Rows  # the output head: x = sequences, y = 1, z = sequences
    expert_rows: Rows  # routed experts: x = tokens, y = fraction of the experts touched, z = tokens
    prefill_rows: Rows  # prefill attention: x = area, y = 1 (weight is 0), z = context
    prefill_window_rows: Rows  # the same in windowed layers, with the windowed area and context
    log_expert_missed: Array  # log(1 - k/E): one token leaves a given expert untouched; 0 without experts
    iteration_s: Array  # per iteration
    token_s: Array  # per token computed
    sequence_s: Array  # per sequence in the batch
    context_s: Array  # per token attended to by a decode, full attention and MLA
    window_context_s: Array  # the same in windowed layers


def roofline(flop_s: Array, byte_s: Array, knee: Array) -> Array:
    """Time of an operator from its two sides, seconds: the larger (knee 0) up to their sum (knee 1).

    A smooth maximum, homogeneous of degree one: where both sides are equal it is (1 + knee) times either, as the
    p-norm of the adapted roofline is 2^(1/p) times (p = 2: knee 0.414). Chosen over the p-norm because it costs one
    square root, is traced in its sharpness and reaches the classic maximum exactly.
    """
    xp = array_namespace(flop_s, byte_s, knee)
    gap = flop_s - byte_s
    # The tiny term keeps the derivative finite at the knee and at no work; it is 1e-30 s.
    return 0.5 * (flop_s + byte_s + xp.sqrt(gap * gap + 4.0 * knee * knee * flop_s * byte_s + 1e-60))


def _rows_time(rows: Rows, x: Array, y: Array, z: Array) -> Array:
    total: Array = 0.0
    for flop, weight, activation, knee in zip(*rows, strict=True):
        total = total + roofline(flop * x, weight * y + activation * z, knee)
    return total


def experts_touched(log_expert_missed: Array, tokens: Array) -> Array:
    """Expected fraction of routed experts that a batch of ``tokens`` touches: 1 - (1 - k/E)^tokens, routed alike."""
    xp = array_namespace(log_expert_missed, tokens)
    return -xp.expm1(tokens * log_expert_missed)


def iteration_time(parameters: CostParameters, batch: BatchStatistics) -> Array:
    """Seconds of one iteration; the shape is the common shape of the lanes and the batch.

    An empty batch still costs ``iteration_s`` and the weights: callers do not run empty iterations.
    """
    tokens = batch.decodes + batch.prefill_tokens
    sequences = batch.decodes + batch.prefill_sequences
    time = (
        parameters.iteration_s
        + parameters.token_s * tokens
        + parameters.sequence_s * sequences
        + parameters.context_s * batch.decode_context
        + parameters.window_context_s * batch.decode_window_context
        + _rows_time(parameters.token_rows, tokens, 1.0, tokens)
        + _rows_time(parameters.sequence_rows, sequences, 1.0, sequences)
        + _rows_time(parameters.prefill_rows, batch.prefill_area, 1.0, batch.prefill_context)
        + _rows_time(parameters.prefill_window_rows, batch.prefill_window_area, 1.0, batch.prefill_window_context)
    )
    if len(parameters.expert_rows.flop):  # structure: models without experts do not pay for the exponential
        touched = experts_touched(parameters.log_expert_missed, tokens)
        time = time + _rows_time(parameters.expert_rows, tokens, touched, tokens)
    return time
