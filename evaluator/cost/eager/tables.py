"""Work and memory traffic of every operator of a LLaMA layer, on one of ``t`` devices that share its matrices.

Tables 1-2 and 6-13 of BestServe (Hu et al., "BestServe: Serving Strategies with Optimal Goodput in Collocation and
Disaggregation Architectures"); those without tensor parallelism are ``t`` = 1. Numbers are fp16, 2 bytes each. Where a
printed formula contradicts the operation that it counts, the one here is right, and ``slips`` has the printed one.

Every function is pure arithmetic on floats, NumPy or JAX arrays that broadcast. In their arguments ``b`` is the number
of sequences and ``s`` the tokens of each: computed in the prefill, attended to in the decode, which computes one.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from evaluator.cost.arrays import Batched
from evaluator.cost.eager.shape import EagerShape

Module = Literal["norm", "attention", "feed_forward"]
Phase = Literal["prefill", "decode"]
Copy = Literal["update", "repeat_kv", "upcast"]
"""Operators that only copy; the paper gives each a rate of its own (kappa) instead of the roofline."""


class Row(NamedTuple):
    """One operator on one device."""

    name: str
    flops: Batched  # FLOP; 0 for a copy
    bytes: Batched  # read and written
    copy: Copy | None = None


def norm_rows(shape: EagerShape, tokens: Batched) -> tuple[Row, ...]:
    """RMSNorm, tables 6 (tokens = b s) and 7 (tokens = b): every device does all of it."""
    values = tokens * shape.hidden
    return (
        Row("pow", values, 4 * values),
        Row("mean", values, 2 * values + 2 * tokens),
        Row("add", tokens, 4 * tokens),
        Row("rsqrt", tokens, 4 * tokens),
        Row("scale", values, 4 * values + 2 * tokens),
        Row("weight", values, 4 * values + 2 * shape.hidden),
    )


def _projections(shape: EagerShape, tokens: Batched, t: Batched) -> dict[str, Row]:
    """What tables 10 and 11 share: the projections and the rotation of queries and keys."""
    h, kv = shape.hidden, shape.kv_heads / shape.heads
    values, weights = tokens * h, h * h
    query = Row("q_proj", 2 * values * h / t, 2 * (values + values / t + weights / t))
    key = Row("k_proj", 2 * values * h * kv / t, 2 * (values + weights * kv / t + values * kv / t))
    rope_bytes = 2 * values * (8.5 * (1 + kv) / t + 2 / shape.heads)
    return {
        "q_proj": query,
        "k_proj": key,
        "v_proj": key._replace(name="v_proj"),
        "rope": Row("rope", 3.5 * values * (1 + kv) / t, rope_bytes),
        "o_proj": query._replace(name="o_proj"),  # reads a share and writes all, the query's projection reversed
    }


def attention_prefill_rows(shape: EagerShape, b: Batched, s: Batched, t: Batched) -> tuple[Row, ...]:
    """Table 10."""
    shared = _projections(shape, b * s, t)
    values = b * s * shape.hidden
    scores = b * shape.heads * s * s  # of all heads
    product = 2 * b * s * s * shape.hidden / t
    return (
        *(shared[name] for name in ("q_proj", "k_proj", "v_proj", "rope")),
        Row("query_key", product, 2 * (2 * values + scores) / t),
        Row("div", scores / t, 4 * scores / t),
        # There is one mask for all heads, which every device reads whole: it alone is not divided by t.
        Row("mask", scores / t, 2 * (2 * scores / t + b * s * s)),
        Row("softmax", 3 * scores / t, 4 * scores / t),
        Row("score_value", product, 2 * (scores + 2 * values) / t),
        shared["o_proj"],
    )


def attention_decode_rows(shape: EagerShape, b: Batched, s: Batched, t: Batched) -> tuple[Row, ...]:
    """Table 11. Keys and values are repeated only where several query heads share one (``Is_GQA``)."""
    shared = _projections(shape, b, t)
    kv = shape.kv_heads / shape.heads
    context = b * s * shape.hidden
    scores = b * shape.heads * s
    product = 2 * context / t
    traffic = 2 * (b * shape.hidden + context + scores) / t
    return (
        *(shared[name] for name in ("q_proj", "k_proj", "v_proj", "rope")),
        Row("update", 0.0, 4 * context * kv / t, "update"),
        Row("repeat_kv", 0.0, (kv < 1) * 4 * context * (1 + kv) / t, "repeat_kv"),
        Row("query_key", product, traffic),
        Row("div", scores / t, 4 * scores / t),
        Row("mask", scores / t, 2 * (2 * scores / t + b * s)),
        Row("upcast", 0.0, 4 * scores / t, "upcast"),
        Row("softmax", 3 * scores / t, 4 * scores / t),
        Row("score_value", product, traffic),
        shared["o_proj"],
    )


def feed_forward_rows(shape: EagerShape, tokens: Batched, t: Batched) -> tuple[Row, ...]:
    """MLP, tables 12 (tokens = b s) and 13 (tokens = b).

    A projection writes ``tokens`` x h0 / t numbers. The text beside table 1 says that its output "comprises bs h h0
    floats", which would be more than the work; the traffic in the table has the right bs h0.
    """
    inner, values = tokens * shape.intermediate / t, tokens * shape.hidden
    weights = shape.hidden * shape.intermediate / t
    product, traffic = 2 * tokens * weights, 2 * (values + inner + weights)
    return (
        Row("gate_proj", product, traffic),
        Row("silu", 5 * inner, 4 * inner),
        Row("up_proj", product, traffic),
        Row("mul", inner, 6 * inner),
        Row("down_proj", product, traffic),
        Row("add", values, 6 * values),  # the residual: two inputs and one output, whole on every device
    )


class Corrected(NamedTuple):
    """The operator set with the rows of this file.

    Without fields, so that the choice of the tables is structure to JAX and no number.
    """

    def rows(self, module: Module, phase: Phase, shape: EagerShape, sizes: tuple) -> tuple[Row, ...]:
        """The operators of a module; ``sizes``: (b, s, t)."""
        b, s, t = sizes
        tokens = b * s if phase == "prefill" else b
        if module == "norm":
            return norm_rows(shape, tokens)
        if module == "feed_forward":
            return feed_forward_rows(shape, tokens, t)
        return (attention_prefill_rows if phase == "prefill" else attention_decode_rows)(shape, b, s, t)

    def sent_bytes(self, shape: EagerShape, tokens: Batched, t: Batched) -> Batched:
        """What equation 8 lets a device send after attention and MLP: its share of the activations."""
        return 2 * tokens * shape.hidden / t
