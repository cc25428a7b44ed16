"""Encoders of text: BERT and its kin, which embed texts and score pairs of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from evaluator.catalog.model import SoftmaxAttention
from evaluator.errors import InputError
from evaluator.huggingface.blocks import dense
from evaluator.huggingface.config import Config
from evaluator.huggingface.family import Family, keys
from evaluator.huggingface.mixers import softmax

_PADDING = 2
"""Rows of RoBERTa's table of positions that no token uses: they are counted from the padding token's number on."""


def _both_ways(config: Config) -> SoftmaxAttention:
    """InputError for a BERT that decodes, and for positions that are added to scores."""
    # A BERT that decodes is causal, which this reader's attention is not.
    config.expect("is_decoder", False)
    kind = config.text("position_embedding_type", "absolute")
    if kind != "absolute":
        # ``relative_key`` adds a table of distances to every layer and a product to every score.
        raise InputError(f"{config.place('position_embedding_type')}: {kind} is not supported; absolute is")
    attention = softmax(bias=True, output_bias=True)(config)
    assert isinstance(attention, SoftmaxAttention)
    return replace(attention, bidirectional=True)


def _tables(config: Config) -> int:
    """Learned positions, and the kinds of text (the first or second of a pair)."""
    # BERT's embedding is the sum of three tables: words (the vocabulary, counted by the model), positions and kinds.
    rows = config.integer("max_position_embeddings") + config.integer("type_vocab_size", 2)
    return rows * config.integer("hidden_size")


BERT = Family(
    {"full": _both_ways},
    {"dense": dense(gated=False, bias=True)},
    lookups=_tables,
    output="vector",
    ignored=keys("position_embedding_type is_decoder gradient_checkpointing classifier_dropout output_past"),
)
# Positions count from the padding token's number (1) plus one: a table of 514 rows serves 512 tokens.
ROBERTA = replace(BERT, unused_positions=_PADDING)

FAMILIES: Mapping[str, Family] = {"bert": BERT, "roberta": ROBERTA, "xlm-roberta": ROBERTA}
