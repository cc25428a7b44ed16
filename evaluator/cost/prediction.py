"""What drafts tokens from the hidden states of a model: its own prediction module, or a head that was trained for it.

Both are a layer and an output head, described as a model (``Model``) of one layer. They share the embedding with the
model that verifies, and join what they read: hidden states of the model and the embedding of the token behind.

* A prediction module (multi-token prediction; DeepSeek-V3, arXiv:2412.19437, section 2.2) is a layer like the model's
  last one with full attention. It joins a hidden state and an embedding by a product, and has the model's head.
* An EAGLE-3 head (arXiv:2503.01840, section 3) is a dense layer with full attention, whose projections read a hidden
  state beside an embedding. The states of three layers of the model are joined by a product for every token that the
  model computes. It has a head of its own, mostly of 32,000 frequent tokens.
"""

from __future__ import annotations

from dataclasses import replace

from evaluator.catalog.model import (
    CheckpointPrecision,
    CompressedAttention,
    DenseFeedForward,
    LatentAttention,
    LayerKind,
    Mixer,
    Model,
    MoeFeedForward,
    SoftmaxAttention,
)
from evaluator.cost.projections import Projection

HEAD_DIM, MOST_KV_HEADS = 128, 8
"""Attention of an EAGLE-3 head for a model whose own has no KV heads (MLA): 8 KV heads of 128 as those for DeepSeek-V3
have (SpecForge, ``configs/deepseek-v3-671b-eagle3.json``)."""


def prediction_module(model: Model) -> Model:
    """A module that predicts a further token, as a model of one layer."""
    return _single(model, "prediction module", LayerKind(1, *_last_full(model)))


def module_joint(model: Model) -> Projection:
    """The product that joins a hidden state and an embedding before the module's layer; every rank holds it whole."""
    return Projection("prediction.join", "attention", 2 * model.hidden, model.hidden)


def eagle_head(model: Model, vocabulary: int | None) -> Model:
    """An EAGLE-3 head for a model; ``vocabulary``: tokens that it can propose, None: all.

    Its layer has the heads of the model's own attention, and is as wide as its dense layers, or as all that a token
    visits of a layer with experts (so are heads that were published: SpecForge, ``configs/*-eagle3.json``, where those
    of mixtures of experts range from once to twice that). Weights are kept in 16 bits.
    """
    mixer, feed_forward = _last_full(model)
    layer = LayerKind(1, _plain(mixer, model.hidden), DenseFeedForward(_width(feed_forward, model.hidden)))
    head = _single(model, "EAGLE-3 head", layer)
    return replace(head, vocabulary=vocabulary or model.vocabulary, checkpoint=CheckpointPrecision(),
                   tied_embeddings=False)  # fmt: skip


def eagle_joint(model: Model) -> Projection:
    """The product that joins the states of three layers; every rank holds it whole."""
    return Projection("eagle.join", "attention", 3 * model.hidden, model.hidden)


def _single(model: Model, what: str, layer: LayerKind) -> Model:
    """A model of one layer, without what only whole models have. Drafts are the most likely tokens: nothing is sorted
    for them (vLLM, ``_greedy_sample``)."""
    return replace(model, name=f"{model.name} ({what})", layers=(layer,), lookup_parameters=0, encoder_parameters=0,
                   nucleus_sampling=False, penalties=False)  # fmt: skip


def _last_full(model: Model) -> tuple[Mixer | None, DenseFeedForward | MoeFeedForward | None]:
    """Attention and feed-forward of the last layer that attends to all tokens; without any, of the last ones there are.

    Of a hybrid, whose layers have the one or the other, each is taken from the last layer that has it.
    """
    full = [kind for kind in model.layers if _is_full(kind.mixer)] or [kind for kind in model.layers if kind.mixer]
    mixer = full[-1].mixer if full else None
    # The feed-forward beside the chosen attention, which comes last here; where that layer has none, the last of all.
    forwards = [kind.feed_forward for kind in (*model.layers, *full[-1:]) if kind.feed_forward is not None]
    return mixer, forwards[-1] if forwards else None


def _is_full(mixer: Mixer | None) -> bool:
    if isinstance(mixer, SoftmaxAttention | LatentAttention):
        return mixer.window is None and not mixer.shared_kv
    return isinstance(mixer, CompressedAttention)


def _plain(mixer: Mixer | None, hidden: int) -> SoftmaxAttention:
    """Attention to all tokens, whose projections read a hidden state beside an embedding."""
    if isinstance(mixer, SoftmaxAttention):
        return SoftmaxAttention(mixer.heads, mixer.kv_heads, mixer.head_dim, input_width=2 * hidden)
    heads = max(hidden // HEAD_DIM, 1)
    # The count that was published, where it divides the heads; else every query head has a KV head of its own.
    return SoftmaxAttention(heads, MOST_KV_HEADS if heads % MOST_KV_HEADS == 0 else heads, HEAD_DIM,
                            input_width=2 * hidden)  # fmt: skip


def _width(feed_forward: DenseFeedForward | MoeFeedForward | None, hidden: int) -> int:
    match feed_forward:
        case DenseFeedForward():
            return feed_forward.intermediate
        case MoeFeedForward():
            return feed_forward.experts_per_token * feed_forward.intermediate + feed_forward.shared_intermediate
    return 4 * hidden
