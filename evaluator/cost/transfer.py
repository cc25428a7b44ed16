"""What a prefill side sends of a sequence to a decode side: its KV over all layers, and the states of fixed size."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evaluator.catalog.model import Model
from evaluator.cost.layer_state import kept, kv_bytes, state_bytes


@dataclass(frozen=True)
class SequenceBytes:
    """Bytes that all devices of a replica keep of one sequence together, each once.

    ``windows`` are the layers with attention, those of one width together: (bytes per token, tokens that are kept at
    most). ``states`` are bytes of fixed size. ``layers`` is how many layers keep anything.
    """

    windows: tuple[tuple[float, float], ...]
    states: float
    layers: int

    def of(self, tokens: ArrayLike) -> NDArray[np.float64]:
        """Bytes of sequences of so many tokens, any shape."""
        count = np.asarray(tokens, dtype=np.float64)
        return sum((size * np.minimum(count, width) for size, width in self.windows), np.full(count.shape, self.states))


def sequence_bytes(model: Model, kv: str, activations: str) -> SequenceBytes:
    """Of a model whose KV is sent in the dtype ``kv``; MLA's compressed vector is sent once, not once per rank."""
    return _of_rank(model, kv, activations, 1, 1.0)


def sharded(model: Model, kv: str, activations: str, tensor: int, pipeline: int, senders: int) -> SequenceBytes:
    """What the busiest device sends or receives of a sequence, where each device has a link of its own.

    Every device of the decode replica (``tensor`` x ``pipeline``) reads the shard that it keeps: the KV heads of its
    tensor rank, of the layers of its pipeline rank, from those of the ``senders`` devices of the prefill replica that
    hold them (vLLM's NixlConnector, whose workers read from remote ranks by the ratio of the two tensor-parallel sizes;
    Mooncake and DistServe, arXiv:2401.09670 section 4.1, send between pairs of devices likewise). So a device of the
    side with fewer devices has the most to do: without copies it is 1 / min(devices) of the bytes. What the decode
    ranks hold alike, the latent vectors of MLA and KV heads that are fewer than the ranks, each of them reads for
    itself. Layers are taken to be spread evenly over the pipeline ranks.
    """
    devices = tensor * pipeline
    share = max(1.0, devices / senders) / pipeline  # of what a device of one tensor rank would read of all layers
    return _of_rank(model, kv, activations, tensor, share)


def _of_rank(model: Model, kv: str, activations: str, tensor: int, share: float) -> SequenceBytes:
    """A ``share`` of what one of ``tensor`` ranks keeps of a sequence over all layers."""
    windows: dict[float, float] = {}
    states, layers = 0.0, 0
    for kind in model.layers:
        size, state = kv_bytes(kind.mixer, kv, tensor), state_bytes(kind.mixer, activations, tensor)
        # By width: layers with the same window add up, those that keep every token are of width inf.
        for part, width in kept(kind.mixer, kv, tensor):
            if part > 0:
                windows[width] = windows.get(width, 0.0) + kind.count * part * share
        states += kind.count * state * share
        layers += kind.count * (size + state > 0)
    return SequenceBytes(tuple((size, width) for width, size in windows.items()), states, layers)
