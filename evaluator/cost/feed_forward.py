"""Operators of one layer's feed-forward part: dense, or routed and shared experts."""

from __future__ import annotations

import math
from dataclasses import replace

from evaluator.catalog.model import DenseFeedForward, FeedForward, Model, MoeFeedForward
from evaluator.cost.coefficients import experts_class, routing_class
from evaluator.cost.dtypes import BYTES, experts_dtype, stream_bytes, weight_dtypes
from evaluator.cost.exchange import exchange, routing_elements, visits
from evaluator.cost.gemm import all_reduce, gemm, input_bytes, traffic
from evaluator.cost.kernel import Held, Operator, Placed
from evaluator.cost.parallel import Parallel
from evaluator.cost.precision import Precision
from evaluator.cost.projections import expert_projections, feed_forward_projections, local_experts


def feed_forward_operators(
    model: Model, feed_forward: FeedForward | None, precision: Precision, parallel: Parallel
) -> list[Operator]:
    """All operators of one layer's feed-forward on one device, its norm and its collectives included.

    Under expert parallelism, too, every rank sees all tokens and computes its own experts, and one all-reduce sums the
    results: what vLLM does without data-parallel attention (``FusedMoE.maybe_all_reduce_tensor_model_parallel``). With
    data-parallel attention the ranks exchange their tokens (``exchange``).
    """
    if feed_forward is None:
        return []
    operators = [
        gemm(projection, model, precision)
        for projection in feed_forward_projections(feed_forward, model.hidden, parallel)
    ]
    if isinstance(feed_forward, MoeFeedForward):
        operators += _routed(model, feed_forward, precision, parallel)
    operators += _elementwise(model, feed_forward, precision, parallel)
    if isinstance(feed_forward, MoeFeedForward) and parallel.token_ranks > 1:
        return operators + exchange(model, feed_forward, precision, parallel)
    return operators + list(all_reduce("feed_forward.all_reduce", model, precision, parallel))


def log_expert_missed(moe: MoeFeedForward, parallel: Parallel) -> float:
    """log(1 - k/E) times D: the chance that D tokens, one of each data-parallel rank, leave a given expert alone.

    Routing is uniform. A redundant copy takes a share of its expert's visits, as if there were so many more experts.
    """
    experts = moe.experts + parallel.redundant
    # 1e-300 for a model that visits all its experts: the log of a chance of 0 is no number to fold.
    return parallel.token_ranks * math.log(max(1e-300, 1.0 - moe.experts_per_token / experts))


def _routed(model: Model, moe: MoeFeedForward, precision: Precision, parallel: Parallel) -> list[Operator]:
    """Grouped products over the touched experts: every visit costs a row, every touched expert its weights."""
    weight = weight_dtypes(model, precision)["experts"]
    dtype = experts_dtype(weight, precision.activations)
    stream = stream_bytes(precision.activations)
    here, shards = visits(moe, parallel), local_experts(moe, parallel)
    # A kernel that makes room for the most rows does so for the visits of other devices' experts, too.
    computed = parallel.token_ranks * moe.experts_per_token if model.filled_rows else here
    held = Held(shards, moe.intermediate // parallel.expert_shards, parallel.token_ranks)
    return [
        Operator(
            projection.name,
            experts_class(weight, precision.activations),
            "experts",
            dtype=dtype,
            # Rows that are computed are visits; the weights below are those of all experts held, scaled by the
            # touched share.
            flops=2.0 * computed * projection.inputs * projection.outputs,
            weight_bytes=shards * projection.inputs * projection.outputs * BYTES[weight],
            activation_bytes=here * (projection.inputs * input_bytes(dtype, stream) + projection.outputs * stream),
            log_expert_missed=log_expert_missed(moe, parallel),
            matrices=shards,
            inputs=projection.inputs,
            outputs=projection.outputs,
            placed=_placed(moe, parallel),
            held=held,
        )
        for projection in expert_projections(moe, model.hidden, parallel)
    ]


def _placed(moe: MoeFeedForward, parallel: Parallel) -> Placed | None:
    """How whole experts lie on devices; None where every device has a part of each."""
    if parallel.expert == 1:
        return None
    return Placed(moe.experts, parallel.expert, parallel.redundant)


def _elementwise(model: Model, feed_forward: FeedForward, precision: Precision, parallel: Parallel) -> list[Operator]:
    """Norm with the residual added (4), activation function (gate and up read, one written), routing and its sum."""
    sides = 3 if feed_forward.gated else 2
    stream, tensor = stream_bytes(precision.activations), parallel.tensor
    if isinstance(feed_forward, DenseFeedForward):
        elements = 4 * model.hidden + sides * feed_forward.intermediate / tensor
        return [traffic("feed_forward.elementwise", elements * stream, 2.0)]
    shared = feed_forward.shared_intermediate
    elements = 4 * model.hidden + feed_forward.experts + sides * shared / tensor  # with the router's scores
    routed = routing_elements(model, feed_forward, precision, parallel)
    kernel = routing_class(weight_dtypes(model, precision)["experts"], precision.activations)
    routing = replace(traffic("experts.routing", routed * stream, 3.0), op_class=kernel)
    return [
        traffic("experts.elementwise", elements * stream, 2.0 + (shared > 0)),
        # With several ranks the kernels also see rows that other ranks' tokens sent here.
        routing if parallel.token_ranks == 1 else replace(routing, scaling="gathered"),
        *_filled_rows(model, feed_forward, parallel, stream),
    ]


def _filled_rows(model: Model, moe: MoeFeedForward, parallel: Parallel, stream: float) -> list[Operator]:
    """What kernels do with the rows that fill up experts: the activation function (gate and up read, one written), and
    its result made narrow (read in the stream's width, written in a byte).

    vLLM's ``DeepGemmExperts.apply``: both work on all rows that there is room for. Two more kernels count the rows of
    experts and mark whose each is (``count_expert_num_tokens``, ``torch.zeros``).
    """
    if not model.filled_rows:
        return []
    row_bytes = moe.intermediate / parallel.expert_shards * ((4 if moe.gated else 3) * stream + 1.0)
    others = parallel.token_ranks * moe.experts_per_token - visits(moe, parallel)
    return [
        Operator("experts.filled", "expert_elementwise", "tokens", launches=2.0, activation_bytes=others * row_bytes,
                 weight_bytes=model.filled_rows * local_experts(moe, parallel) * row_bytes)
    ]  # fmt: skip
