"""Memory that activations take at the peak of an iteration, on one device."""

from __future__ import annotations

from evaluator.catalog.model import DenseFeedForward, FeedForward, LatentAttention, Mixer, Model, SoftmaxAttention
from evaluator.cost.dtypes import stream_bytes
from evaluator.cost.exchange import rows_kept
from evaluator.cost.parallel import Parallel
from evaluator.cost.precision import Precision
from evaluator.cost.projections import mixer_projections

LOGIT_BYTES = 40.0
"""Bytes per sequence and vocabulary entry at the peak of sampling. vLLM profiles it with a top-p for all of
``max_num_seqs`` (``GPUModelRunner._dummy_sampler_run``): logits in 16 bits and fp32 (6), values and numbers sorted
(4 + 8) with copies of the sort (12), softmax, cumulative sum and what is scattered back (10). So do the KV blocks that
vLLM 0.15 reported for vocabularies of 32,000 to 202,048 entries."""

ROTARY_BYTES = 4.0
"""Bytes per position and rotated dimension of the cosines and sines that vLLM computes once for all of the model's
positions (``RotaryEmbedding.cos_sin_cache``), whatever ``max_model_len``. Seen where they are large: the KV blocks of
Llama-4-Scout (10.5 million positions) leave 5.4 GB for them, fp32."""


def rotary_bytes(model: Model) -> float:
    """Tables of rotary positions that every device holds, once for all layers alike; bytes."""
    sizes = (_rotated(kind.mixer) for kind in model.layers)
    return ROTARY_BYTES * model.max_positions * max(sizes, default=0)


def _rotated(mixer: Mixer | None) -> int:
    # Bidirectional models add learned positions to the embedding, whose table is among the weights.
    if isinstance(mixer, SoftmaxAttention):
        return 0 if mixer.bidirectional else mixer.head_dim
    return mixer.rope_head_dim if isinstance(mixer, LatentAttention) else 0


def activation_bytes(
    model: Model, precision: Precision, parallel: Parallel, max_num_batched_tokens: int, max_num_seqs: int
) -> float:
    """Peak of the activations on one device, bytes. An estimate: an engine would find it by a dry run.

    Two sums make it up. Every token of the largest batch keeps the residual stream twice (before and after a layer) and
    the intermediate values of the widest layer: both sides of a gate and their product, and for routed experts those
    of all that the token visits and their outputs (``exchange.rows_kept``); each in the width of the stream, 16 bits
    mostly. Every sequence takes LOGIT_BYTES per vocabulary entry, if there is a head
    (``max_num_seqs`` 0: of an engine that leaves sampling out).
    """
    # Layers run one after the other and free what they took, so that the widest part of any layer counts and no sum.
    mixers = (_mixer_width(model, kind.mixer, parallel) for kind in model.layers)
    feed_forwards = (_feed_forward_width(model, kind.feed_forward, precision, parallel) for kind in model.layers)
    widest = max(*mixers, *feed_forwards)
    per_token = (2 * model.hidden + widest) * stream_bytes(precision.activations)
    # A sequence brings at least one token, so that a small token budget bounds the rows of logits, too.
    logits = min(max_num_seqs, max_num_batched_tokens) * model.vocabulary * LOGIT_BYTES if model.gives_tokens else 0.0
    return max_num_batched_tokens * per_token + logits


def _mixer_width(model: Model, mixer: Mixer | None, parallel: Parallel) -> float:
    """Outputs of the largest projection and inputs of the last one."""
    # The widest output is that of QKV; what attention makes of it, the input of the last projection, lies beside it.
    projections = mixer_projections(mixer, model.hidden, parallel)
    return max(projection.outputs for projection in projections) + projections[-1].inputs if projections else 0


def _feed_forward_width(
    model: Model, feed_forward: FeedForward | None, precision: Precision, parallel: Parallel
) -> float:
    if feed_forward is None:
        return 0
    # Gate, up and their product are there at once; without a gate, up and its activation.
    sides = 3 if feed_forward.gated else 2
    if isinstance(feed_forward, DenseFeedForward):
        return sides * feed_forward.intermediate / parallel.tensor
    # A row of a routed expert has an output of the residual's width of its own until the experts are summed up.
    rows = rows_kept(model, feed_forward, precision, parallel)
    shared = sides * feed_forward.shared_intermediate / parallel.tensor
    routed = rows * (sides * feed_forward.intermediate / parallel.expert_shards + model.hidden)
    gathered = parallel.token_ranks * model.hidden * (parallel.token_ranks > 1)  # the states of all ranks
    return routed + gathered + shared
