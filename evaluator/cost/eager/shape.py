"""The sizes of a model that the eager operator set asks for."""

from __future__ import annotations

from typing import NamedTuple

from evaluator.catalog.model import DenseFeedForward, Model, SoftmaxAttention
from evaluator.cost.arrays import Batched
from evaluator.cost.dtypes import weight_dtypes
from evaluator.cost.parallel import Parallel
from evaluator.cost.precision import Precision


class EagerShape(NamedTuple):
    """A LLaMA-like model; all of the whole model, before it is split over devices."""

    hidden: Batched  # h; also heads x head size
    intermediate: Batched  # h0
    heads: Batched  # query heads
    kv_heads: Batched
    layers: Batched


def eager_problem(model: Model) -> str | None:
    """Why the eager operator set has no rows for this model; None where it has."""
    kinds = {(kind.mixer, kind.feed_forward) for kind in model.layers}
    if len(kinds) != 1:
        return f"the eager operator set needs layers that are all alike, and {model.name} has {len(kinds)} kinds"
    ((mixer, feed_forward),) = kinds
    # The tables have no rows for biases, gates or windows: a time without them would be too short, unnoticed.
    if not isinstance(mixer, SoftmaxAttention) or mixer.window is not None or mixer.output_gate or mixer.bias:
        return f"the eager operator set knows full softmax attention without bias or gate; {model.name} has another"
    if not model.gives_tokens or mixer.bidirectional:
        return f"the eager operator set knows decoders that give tokens; {model.name} gives a vector"
    if mixer.heads * mixer.head_dim != model.hidden:
        return f"the eager operator set needs heads x head_dim = hidden; {model.name} has other sizes"
    if not isinstance(feed_forward, DenseFeedForward) or not feed_forward.gated:
        return f"the eager operator set knows gated dense feed-forwards; {model.name} has another"
    return None


def eager_split_problem(model: Model, precision: Precision, parallel: Parallel) -> str | None:
    """Why the set has no rows for such a replica of a model that it knows: all numbers are of 2 bytes, on TP alone."""
    dtypes = {"activations": precision.activations, "kv": precision.kv, "weights": precision.weights}
    if precision.weights == "checkpoint":
        dtypes |= vars(model.checkpoint)
        del dtypes["weights"]
    dtypes["attention"] = weight_dtypes(model, precision)["attention"]
    for name, dtype in dtypes.items():
        if dtype not in ("bf16", "fp16"):
            return f"the eager operator set knows 16-bit numbers, not {name} in {dtype}; use bf16"
    if parallel.pipeline > 1 or parallel.expert > 1:
        return "the eager operator set knows tensor_parallel alone; use neither pipeline_parallel nor expert_parallel"
    return None


def eager_shape(model: Model) -> EagerShape:
    """The sizes as floats; ValueError where ``eager_problem`` has something to say."""
    problem = eager_problem(model)
    if problem:
        raise ValueError(problem)
    mixer, feed_forward = model.layers[0].mixer, model.layers[0].feed_forward
    assert isinstance(mixer, SoftmaxAttention) and isinstance(feed_forward, DenseFeedForward)
    layers = sum(kind.count for kind in model.layers)
    sizes = model.hidden, feed_forward.intermediate, mixer.heads, mixer.kv_heads, layers
    return EagerShape(*map(float, sizes))
