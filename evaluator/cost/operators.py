"""The fused operator set of today's engines: what one device computes, reads and sends in one iteration.

An operator is linear in the batch statistics; ``fold`` gives it rates and turns it into time.
"""

from __future__ import annotations

from functools import cache

from evaluator.catalog.model import LayerKind, Model
from evaluator.cost.adapters import adapter_operators
from evaluator.cost.embedding_and_head import first_operators, last_operators, pipeline_link
from evaluator.cost.feed_forward import feed_forward_operators
from evaluator.cost.kernel import Operator, merge
from evaluator.cost.mixers import mixer_operators
from evaluator.cost.parallel import Parallel, layer_count, rank_layers
from evaluator.cost.precision import Precision


@cache
def operators(
    model: Model, precision: Precision, parallel: Parallel, pipeline_rank: int | None = None
) -> tuple[Operator, ...]:
    """Operators of one device of one pipeline rank, per iteration (None: of all ranks in turn).

    The model says how many layers of each kind there are, not in which order: a rank has its share of every kind.
    """
    rank_operators: list[Operator] = []
    if pipeline_rank in (None, 0):
        rank_operators += first_operators(model, precision, parallel)
    for kind, count in rank_kinds(model, parallel.pipeline, pipeline_rank):
        layer = mixer_operators(model, kind.mixer, precision, parallel)
        layer += feed_forward_operators(model, kind.feed_forward, precision, parallel)
        layer += adapter_operators(model, kind, precision, parallel)
        # One record for all layers of a kind: the roofline is homogeneous, so that the times add up exactly.
        rank_operators += [operator.times(count) for operator in layer]
    if pipeline_rank in (None, parallel.pipeline - 1):
        rank_operators += last_operators(model, precision, parallel)
    # The last rank sends to none. For the whole model every link counts, as a token passes all of them.
    for sender in range(parallel.pipeline - 1) if pipeline_rank is None else (pipeline_rank,):
        if sender < parallel.pipeline - 1:
            rank_operators += pipeline_link(model, precision, parallel, sender)
    return merge(rank_operators)


def rank_kinds(model: Model, pipeline: int, pipeline_rank: int | None) -> tuple[tuple[LayerKind, float], ...]:
    """Layer kinds of a rank with their (possibly fractional) counts; ``pipeline_rank`` None: of the whole model."""
    if pipeline_rank is None or pipeline == 1:
        return tuple((kind, float(kind.count)) for kind in model.layers)
    total = layer_count(model)
    share = rank_layers(total, pipeline)[pipeline_rank]
    # A share of each kind, because the model does not say which layers are where: ranks may get fractions of layers.
    return tuple((kind, kind.count * share / total) for kind in model.layers)
