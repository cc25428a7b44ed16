"""The layers of a hybrid model in groups that take their blocks from one pool: vLLM's hybrid KV cache manager.

All groups have the same number of layers and blocks of the same size in bytes, so that any block fits any group. How
they come about is that of vLLM 0.28: ``kv_cache_utils.get_kv_cache_groups`` and, where layers keep states,
``Platform._align_hybrid_block_size``. The order of the groups is that of the catalog's kinds of layers, since it does
not say which layer is where.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from evaluator.catalog.model import CompressedAttention, LatentAttention, Mixer, Model, SoftmaxAttention
from evaluator.cost.layer_state import kept, state_bytes
from evaluator.cost.parallel import Parallel
from evaluator.cost.precision import Precision

KERNEL_BLOCK_TOKENS = 16
"""Blocks are of a multiple of so many tokens where states say how large they must be, 128 with latent attention:
``get_supported_kernel_block_sizes`` of FlashAttention, which CUDA devices take."""
LATENT_BLOCK_TOKENS = 128


@dataclass(frozen=True)
class KvGroup:
    """Layers whose blocks are given out together. ``window``: tokens that a query attends to, itself included; None:
    all. ``chunked``: of the window's size, the part of the sequence that the query stands in (Llama 4). ``state``:
    they keep a state of one size instead."""

    window: int | None = None
    state: bool = False
    chunked: bool = False

    def __post_init__(self) -> None:
        if self.window is not None and (self.window < 2 or self.state):
            raise ValueError("a window has two tokens at least, and a state has none")
        if self.chunked and self.window is None:
            raise ValueError("a chunk has a window")

    def passed_tokens(self, computed: int) -> int:
        """How many of the ``computed`` tokens no token to come attends to.

        vLLM ``get_num_skipped_tokens`` of ``SlidingWindowManager`` and ``ChunkedLocalAttentionManager``.
        """
        if self.window is None:
            return 0
        return computed // self.window * self.window if self.chunked else max(computed - self.window + 1, 0)

    def most_blocks(self, under_way_tokens: int, block_tokens: int) -> int | None:
        """What a request holds at most of a window, with the tokens of batches under way; None: no bound.

        vLLM ``max_admission_blocks_per_request`` of ``SlidingWindowSpec``, which need not begin where a block does, and
        of ``ChunkedLocalAttentionSpec``.
        """
        if self.window is None:
            return None
        if self.chunked:
            return -(-(self.window + under_way_tokens) // block_tokens)
        return -(-(self.window - 1 + under_way_tokens) // block_tokens) + 1


@dataclass(frozen=True)
class GroupedLayers:
    """The groups of a model. ``layers``: of each; one with fewer is padded to as many."""

    groups: tuple[KvGroup, ...]
    layers: int
    block_tokens: int
    page_bytes: float  # of a block in one layer

    @property
    def block_bytes(self) -> float:
        """Bytes of a block in all layers of a group."""
        return self.page_bytes * self.layers


def grouping_problem(model: Model, precision: Precision, parallel: Parallel) -> str | None:
    """Why the layers of a hybrid model cannot be grouped; None where they can, or where there is nothing to group."""
    if any(isinstance(kind.mixer, CompressedAttention) for kind in model.layers):
        return f"kv.layer_groups with {model.name}, whose attention is compressed; leave it out"
    if is_hybrid(model) and parallel.pipeline > 1:
        return (
            f"kv.layer_groups with pipeline_parallel: nothing says on which rank {model.name} has which layers; use "
            "tensor_parallel"
        )
    # vLLM makes the blocks of the smaller layers longer, so that groups differ in the tokens of a block.
    if is_hybrid(model) and len(_attention_bytes(model, precision, parallel)) > 1:
        return f"kv.layer_groups with {model.name}, whose layers keep tokens of different sizes; leave it out"
    return None


def is_hybrid(model: Model) -> bool:
    """Whether some layers keep less than every token."""
    return any(group is not None and group != KvGroup() for group in map(_group, (kind.mixer for kind in model.layers)))


def keeps_tokens(model: Model) -> bool:
    """No layer keeps a state: what is in a block follows from the tokens that it stands for."""
    return not any(group is not None and group.state for group in map(_group, (kind.mixer for kind in model.layers)))


def grouped_layers(model: Model, precision: Precision, parallel: Parallel, block_tokens: int) -> GroupedLayers | None:
    """The groups of a hybrid model that has no ``grouping_problem``; None where every layer keeps every token."""
    if not is_hybrid(model):
        return None
    counts: dict[tuple[KvGroup, Mixer | None], int] = {}
    for kind in model.layers:
        group = _group(kind.mixer)
        if group is not None:
            # Layers of one kind of attention are one bucket, whatever follows them; states are by their size.
            key = (group, kind.mixer if group.state else None)
            counts[key] = counts.get(key, 0) + kind.count
    attention = max(_attention_bytes(model, precision, parallel), default=0.0)
    state = max(state_bytes(kind.mixer, precision.activations, parallel.tensor) for kind in model.layers)
    if attention and state:
        # A block of attention is made as large as a state at least, and the state is padded to it.
        latent = any(isinstance(kind.mixer, LatentAttention) for kind in model.layers)
        step = max(KERNEL_BLOCK_TOKENS, block_tokens, LATENT_BLOCK_TOKENS if latent else 0)
        block_tokens = max(block_tokens, step * math.ceil(state / (step * attention)))
    # vLLM ``_get_kv_cache_groups_uniform_page_size``: the fewest layers of a kind, or where the others have little more
    # the most, make a group; the last group of a kind is padded.
    fewest, most = min(counts.values()), max(counts.values())
    size = most if most < fewest * 1.5 else fewest
    groups = [group for (group, _), count in counts.items() for _ in range(-(-count // size))]
    return GroupedLayers(tuple(groups), size, block_tokens, block_tokens * attention or state)


def _group(mixer: Mixer | None) -> KvGroup | None:
    """What a layer keeps, as a group of such layers; None: nothing."""
    if isinstance(mixer, SoftmaxAttention) and (mixer.shared_kv or mixer.bidirectional):
        return None
    if isinstance(mixer, LatentAttention) and mixer.shared_kv:
        return None
    if isinstance(mixer, SoftmaxAttention | LatentAttention):
        return KvGroup(mixer.window, chunked=isinstance(mixer, SoftmaxAttention) and mixer.chunked)
    return None if mixer is None else KvGroup(state=True)


def _attention_bytes(model: Model, precision: Precision, parallel: Parallel) -> set[float]:
    """Bytes per token that a layer of attention keeps on a device."""
    return {
        size
        for kind in model.layers
        if isinstance(kind.mixer, SoftmaxAttention | LatentAttention)
        for size, _ in kept(kind.mixer, precision.kv, parallel.tensor)
        if size
    }
