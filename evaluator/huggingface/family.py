"""A family of architectures: one record of what its keys mean; and from it the layers of a config."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from evaluator.catalog.model import FeedForward, LatentAttention, LayerKind, Mixer, Output, SoftmaxAttention
from evaluator.errors import InputError
from evaluator.huggingface.blocks import BlockReader
from evaluator.huggingface.config import Config
from evaluator.huggingface.mixers import MixerReader
from evaluator.huggingface.pattern import Rule, always, block_words, is_listed, mixer_words

FULL, DENSE = always("full"), always("dense")

Part = tuple[Mixer | None, FeedForward | None, int | None]
"""A mixer, the feed-forward behind it, and how many sets of weights all such parts have (None: each its own)."""


@dataclass(frozen=True)
class Family:
    """How one ``model_type`` is read.

    ``mixers`` and ``blocks`` read a layer by the words of ``pattern``; ``mixer_rule`` and ``block_rule`` say the words
    where the config lists none. ``combined`` gives the parts of a layer of the word ``hybrid``: several mixers, which
    here are several layer kinds. ``keys`` are names of this family in place of the usual ones, ``defaults`` values of
    keys that its configs leave out, ``nested`` of those that a text level inside another one leaves out: there
    transformers writes no value that the class has by default (LLaVA, Pixtral). ``ignored`` are keys that change
    nothing. ``lookups`` counts the parameters of tables beside the embedding, ``tied`` says whether embedding and head
    are one table where no key does. ``silent`` are keys of patterns that mean something else in this family, or
    nothing. ``output`` is what its models give; ``unused_positions`` are rows of the table of positions that no token
    uses.
    """

    mixers: Mapping[str, MixerReader]
    blocks: Mapping[str, BlockReader]
    mixer_rule: Rule = FULL
    block_rule: Rule = DENSE
    combined: Callable[[Config, FeedForward | None], list[Part]] | None = None
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    nested: Mapping[str, Any] = field(default_factory=dict)
    ignored: frozenset[str] = frozenset()
    lookups: Callable[[Config], int] | None = None
    tied: bool = False
    silent: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    output: Output = "tokens"
    unused_positions: int = 0

    def layers(self, config: Config) -> tuple[LayerKind, ...]:
        """The layers of a config, equal ones merged, in the order of their first appearance."""
        count = config.layers()
        # Words first, for all layers at once: patterns are lists, periods or letters over the whole model; readers
        # then see one layer at a time.
        mixers = mixer_words(config, count, self.mixer_rule, self.silent)
        blocks = block_words(config, count, self.block_rule, self.silent)
        shared = _shared_kv(config, mixers)
        parts: list[Part] = []
        for index in range(count):
            parts += self._layer(config.at(index), mixers[index], blocks[index], shared[index])
        self._read_unused(config, mixers, blocks)
        # Equal layers are one kind with a count: the cost of a model follows from a handful of kinds, not from a
        # hundred layers.
        kinds = _merged(parts)
        if not kinds:
            raise InputError(f"{config.where}: no layer has a mixer or a feed-forward")
        return kinds

    def _read_unused(self, config: Config, mixers: list[str], blocks: list[str]) -> None:
        """Keys of kinds of layers that this model has none of, though its family has, need no other reader.

        A window that no key puts on a layer stays unread, and is refused: it may be meant for all of them.
        """
        view = config.at(0)
        view.assumed = {}
        listed = is_listed(config)
        readers: list[Callable[[Config], Any]] = [
            reader for word, reader in self.mixers.items() if word not in mixers and (listed or word != "window")
        ]
        readers += [reader for word, reader in self.blocks.items() if word not in blocks]
        for reader in readers:
            # Such a reader may miss keys that only layers of its kind have: then it has read what there is, which is
            # all that is wanted.
            with contextlib.suppress(InputError):
                reader(view)

    def _layer(self, config: Config, mixer_word: str, block_word: str, shared: bool) -> list[Part]:
        block = None if block_word == "none" else _reader(config, self.blocks, block_word)(config)
        if mixer_word == "hybrid" and self.combined is not None:
            return self.combined(config, block)
        mixer = None if mixer_word == "none" else _reader(config, self.mixers, mixer_word)(config)
        # Attention alone keeps KV per token. A recurrence that is said to share it means another layout
        # than is known here.
        if shared:
            if not isinstance(mixer, SoftmaxAttention | LatentAttention):
                raise InputError(f"{config.where}: layer {config.layer} shares KV but is no attention")
            mixer = replace(mixer, shared_kv=True)
        return [(mixer, block, None)] if mixer is not None or block is not None else []


def _reader(config: Config, readers: Mapping[str, Any], word: str) -> Any:
    if word not in readers:
        raise InputError(
            f"{config.where}: layer {config.layer} is '{word}', which this family has not (it has {', '.join(readers)})"
        )
    return readers[word]


def _shared_kv(config: Config, mixers: list[str]) -> list[bool]:
    """The layers that read an earlier layer's KV: the last ones (Gemma 3n), all but each n-th (Hunyuan's CLA), or those
    whose source is another layer (Mistral Large 4)."""
    layers = len(mixers)
    sources = config.entries("kv_source_layers", int, layers)
    if sources is not None:
        return [source != index for index, source in enumerate(sources)]
    # They read the KV of the last layer before them that has one of their kind, so the first layer cannot be one.
    last = config.integer("num_kv_shared_layers", 0, minimum=0)
    if last >= layers:
        raise InputError(f"{config.place('num_kv_shared_layers')}: {last} of {layers} layers cannot share earlier KV")
    every = config.integer("cla_share_factor", 1) if config.flag("use_cla", False) else 1
    # Present and meaningless where ``use_cla`` is off.
    config.skip("cla_share_factor")
    return [index >= layers - last or index % every != 0 for index in range(layers)]


def _merged(parts: list[Part]) -> tuple[LayerKind, ...]:
    counts: dict[Part, int] = {}
    for part in parts:
        # Equal parts need not be neighbours: the sum over layers has no order, and a pipeline rank takes a share
        # of every kind (``cost.operators.rank_kinds``).
        counts[part] = counts.get(part, 0) + 1
    return tuple(
        # Never more sets of weights than uses: of a short model, or of one rank of it, some sets are not visited.
        LayerKind(count, mixer, block, None if sets is None else min(sets, count))
        for (mixer, block, sets), count in counts.items()
    )


def keys(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


def positions(
    extra: int = 0, key: str = "max_position_embeddings", if_flag: str | None = None
) -> Callable[[Config], int]:
    """Learned positions: a row for each, and ``extra`` ones; none where the flag is there and false."""

    def read(config: Config) -> int:
        if if_flag is not None and not config.flag(if_flag, False):
            return 0
        return (config.integer(key) + extra) * config.integer("hidden_size")

    return read
