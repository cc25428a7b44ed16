"""What a prefill side sends of a sequence to a decode side: its KV over all layers, and the states of fixed size."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evaluator.catalog.model import LatentAttention, Mixer, Model, SoftmaxAttention
from evaluator.cost.layer_state import kv_bytes, state_bytes


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
    windows: dict[float, float] = {}
    states, layers = 0.0, 0
    for kind in model.layers:
        size, state = kv_bytes(kind.mixer, kv, 1), state_bytes(kind.mixer, activations, 1)
        if size > 0:
            width = _kept(kind.mixer)
            windows[width] = windows.get(width, 0.0) + kind.count * size
        states += kind.count * state
        layers += kind.count * (size + state > 0)
    return SequenceBytes(tuple((size, width) for width, size in windows.items()), states, layers)


def _kept(mixer: Mixer | None) -> float:
    """Tokens of which a layer keeps KV at most."""
    windowed = isinstance(mixer, SoftmaxAttention | LatentAttention) and mixer.window is not None
    return float(mixer.window) if windowed else math.inf  # type: ignore[union-attr, arg-type]
