"""Operators of one layer's feed-forward part: dense, or routed and shared experts."""

from __future__ import annotations

import math
from dataclasses import replace

from evaluator.catalog.model import DenseFeedForward, FeedForward, Model, MoeFeedForward
from evaluator.cost.coefficients import experts_class, routing_class
from evaluator.cost.dtypes import BYTES, compute_dtype, stream_bytes, weight_dtypes
from evaluator.cost.gemm import all_reduce, gemm, input_bytes, traffic
from evaluator.cost.kernel import Operator
from evaluator.cost.parallel import Parallel
from evaluator.cost.precision import Precision
from evaluator.cost.projections import expert_projections, feed_forward_projections, local_experts


def feed_forward_operators(
    model: Model, feed_forward: FeedForward | None, precision: Precision, parallel: Parallel
) -> list[Operator]:
    """All operators of one layer's feed-forward on one device, its norm and its all-reduce included.

    Under expert parallelism, too, every rank sees all tokens and computes its own experts, and one all-reduce sums the
    results: what vLLM does without data-parallel attention (``FusedMoE.maybe_all_reduce_tensor_model_parallel``). An
    all-to-all belongs to data-parallel attention, which is not modelled here.
    """
    if feed_forward is None:
        return []
    found = [gemm(each, model, precision) for each in feed_forward_projections(feed_forward, model.hidden, parallel)]
    if isinstance(feed_forward, MoeFeedForward):
        found += _routed(model, feed_forward, precision, parallel)
    found += _elementwise(model, feed_forward, precision, parallel)
    return found + list(all_reduce("feed_forward.all_reduce", model, precision, parallel))


def log_expert_missed(moe: MoeFeedForward) -> float:
    """log(1 - k/E): the chance that one token leaves a given expert alone, under uniform routing."""
    return math.log(max(1e-300, 1.0 - moe.experts_per_token / moe.experts))


def _visits(moe: MoeFeedForward, parallel: Parallel) -> float:
    """Experts of this device that a token visits: all k, in part, or under expert parallelism k/EP on average."""
    return moe.experts_per_token / parallel.expert


def _routed(model: Model, moe: MoeFeedForward, precision: Precision, parallel: Parallel) -> list[Operator]:
    """Grouped products over the touched experts: every visit costs a row, every touched expert its weights."""
    weight = weight_dtypes(model, precision)["experts"]
    dtype = compute_dtype(weight, precision.activations)
    stream = stream_bytes(precision.activations)
    visits = _visits(moe, parallel)
    return [
        Operator(
            each.name,
            experts_class(weight, precision.activations),
            "experts",
            dtype=dtype,
            flops=2.0 * visits * each.inputs * each.outputs,
            weight_bytes=local_experts(moe, parallel) * each.inputs * each.outputs * BYTES[weight],
            activation_bytes=visits * (each.inputs * input_bytes(dtype, stream) + each.outputs * stream),
            log_expert_missed=log_expert_missed(moe),
        )
        for each in expert_projections(moe, model.hidden, parallel)
    ]


def _elementwise(model: Model, feed_forward: FeedForward, precision: Precision, parallel: Parallel) -> list[Operator]:
    """Norm with the residual added (4), activation function (gate and up read, one written), routing and its sum."""
    sides = 3 if feed_forward.gated else 2
    stream, tensor = stream_bytes(precision.activations), parallel.tensor
    if isinstance(feed_forward, DenseFeedForward):
        elements = 4 * model.hidden + sides * feed_forward.intermediate / tensor
        return [traffic("feed_forward.elementwise", elements * stream, 2.0)]
    shared = feed_forward.shared_intermediate
    elements = 4 * model.hidden + feed_forward.experts + sides * shared / tensor  # with the router's scores
    inside = feed_forward.intermediate / (1 if parallel.expert > 1 else tensor)
    # The weighted sum runs over all experts of a token; of those on other ranks it adds zeros.
    routed = sides * _visits(feed_forward, parallel) * inside + (feed_forward.experts_per_token + 1) * model.hidden
    return [
        traffic("experts.elementwise", elements * stream, 2.0 + (shared > 0)),
        replace(
            traffic("experts.routing", routed * stream, 3.0),
            op_class=routing_class(weight_dtypes(model, precision)["experts"], precision.activations),
        ),
    ]
