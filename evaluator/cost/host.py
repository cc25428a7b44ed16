"""What the host takes of an iteration by its model: to launch its layers, and to penalise what was said.

An iteration with prompts takes no less than the host needs to launch what is no whole CUDA graph. vLLM replays one
graph where all sequences decode. With prompts it runs piece by piece (``CUDAGraphMode.PIECEWISE``): attention is
launched by itself in every layer, and so are the kernels of layers with a state; the pieces between them are graphs, up
to the largest batch that was captured, and beyond they are launched kernel by kernel. The host launches while the
device computes, so that an iteration takes the longer of both (``iteration.launched``). Of models with a recurrent
state the device waits for the host once per iteration that no graph holds, for as long whatever its prompts and its
share of the model (``Launches.prepared_s``): that is on top of the device's time, and a part of the host's.

An engine without any graphs (``deployment.eager``) launches all kernels of every iteration, of decodes, too, which
then take no less than that either (``launch_s``).

Data-parallel ranks that share experts agree on the size of an iteration before they launch it
(``coordinate_batch_across_dp`` in ``vllm/v1/worker/dp_utils.py``), in decodes, too.

Where requests ask for penalties, the tokens that each sequence has generated, lists in Python, are made rows of a
tensor (``make_tensor_with_pad`` in ``vllm/v1/sample/ops/penalties.py``) before the sampler can start. That waits for
the tokens of the iteration before, with asynchronous scheduling, too, so that it adds to the device's time. It is
proportional to what was generated, which the statistics of a batch do not tell from prompts: a time per sequence stands
for it. Engines and releases that count on the device instead take nothing of the host (``Model.counts_said``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from evaluator.catalog.model import (
    CompressedAttention,
    LatentAttention,
    LayerKind,
    LinearAttention,
    Mixer,
    Model,
    MoeFeedForward,
    Recurrence,
    SoftmaxAttention,
    StateSpace,
)
from evaluator.cost.delta_rule import with_delta_rule
from evaluator.cost.iteration import CostParameters
from evaluator.cost.operators import rank_kinds
from evaluator.cost.parallel import Parallel

if TYPE_CHECKING:
    from evaluator.catalog.calibration import Calibration
    from evaluator.catalog.launches import Launches


def with_model_host(
    cost: CostParameters, model: Model, calibration: Calibration, parallel: Parallel, pipeline_rank: int | None = None
) -> CostParameters:
    """The cost of a pipeline rank (None: of all layers) with what its host takes; as it is where a set says nothing."""
    # The pipeline rank with the head samples, and applies the penalties to its logits.
    if model.penalties and not model.counts_said and pipeline_rank in (None, parallel.pipeline - 1):
        cost = cost._replace(decode_s=cost.decode_s + calibration.penalty_sequence_s)
    figures = calibration.launches
    if figures is None:
        return cost
    pieces_s, between_s = _layers_s(model, figures, parallel, pipeline_rank)
    # In decodes, too, which replay a graph without any of the pieces below: hence ``iteration_s``.
    if parallel.data > 1 and model.has_experts:
        cost = cost._replace(iteration_s=cost.iteration_s + figures.agreed_s)
    like = np.zeros_like(cost.iteration_s)  # with an axis of devices where there is one
    captured_tokens = figures.captured_tokens if calibration.graphs else 0.0
    recurrent = any(_is_recurrent(kind.mixer) for kind, _ in rank_kinds(model, parallel.pipeline, pipeline_rank))
    return cost._replace(
        pieces_s=like + pieces_s,
        between_s=like + between_s,
        captured_tokens=like + captured_tokens,
        prepared_s=like + recurrent * figures.prepared_s,
    )


def with_layers(
    cost: CostParameters, model: Model, calibration: Calibration, parallel: Parallel, pipeline_rank: int | None = None
) -> CostParameters:
    """The cost of a pipeline rank (None: of all layers) with what of its layers no operator tells."""
    rank = model, calibration, parallel, pipeline_rank
    return with_model_host(with_delta_rule(cost, *rank), *rank)


def launch_s(model: Model, calibration: Calibration, parallel: Parallel, pipeline_rank: int | None = None) -> float:
    """Seconds that the host needs at least to launch an iteration of any kind; 0 where decodes replay a graph."""
    if calibration.graphs or calibration.launches is None:
        return 0.0
    return sum(_layers_s(model, calibration.launches, parallel, pipeline_rank))


def _layers_s(model: Model, figures: Launches, parallel: Parallel, pipeline_rank: int | None) -> tuple[float, float]:
    """Seconds for what no graph holds of all layers, and for what is between them."""
    kinds = rank_kinds(model, parallel.pipeline, pipeline_rank)
    return (
        sum(count * _pieces_s(kind, figures, parallel) for kind, count in kinds),
        sum(
            count * (_between_s(kind, figures, parallel) + _unjoined_s(model, figures, parallel))
            for kind, count in kinds
        ),
    )


def _pieces_s(kind: LayerKind, figures: Launches, parallel: Parallel) -> float:
    """Seconds of a layer for what no graph holds."""
    return _mixer_s(kind.mixer, figures) + _is_gathered(kind, parallel) * figures.gathered_s


def _is_gathered(kind: LayerKind, parallel: Parallel) -> bool:
    """Whether a layer's tokens go to the experts of other data-parallel ranks."""
    return parallel.token_ranks > 1 and isinstance(kind.feed_forward, MoeFeedForward)


def _unjoined_s(model: Model, figures: Launches, parallel: Parallel) -> float:
    """Seconds of a layer for all-reduces and norms, which vLLM joins into one kernel but in data-parallel ranks."""
    # Those of a model without experts share nothing, and each is a server of one rank.
    ranks = parallel.data if model.has_experts else 1
    return figures.unjoined_s if parallel.tensor > 1 and ranks > 1 else 0.0


def _is_recurrent(mixer: Mixer | None) -> bool:
    return isinstance(mixer, LinearAttention | Recurrence)


def _mixer_s(mixer: Mixer | None, figures: Launches) -> float:
    match mixer:
        case None:
            return 0.0
        case CompressedAttention():
            return figures.sparse_s
        case SoftmaxAttention() | LatentAttention():
            return figures.attention_s if mixer.index_top_k is None else figures.sparse_s
        case StateSpace():
            return figures.state_space_s
    return figures.recurrent_s


def _between_s(kind: LayerKind, figures: Launches, parallel: Parallel) -> float:
    """Seconds of a layer for what a piecewise graph holds, where the batch is too large for one.

    Of a hybrid, whose layers have a mixer or a feed-forward, those with a mixer alone have next to nothing between.
    """
    if kind.feed_forward is None:
        return 0.0
    experts_s = figures.experts_s + _is_gathered(kind, parallel) * figures.gathered_beyond_s
    return experts_s if isinstance(kind.feed_forward, MoeFeedForward) else figures.dense_s
