"""In which dtypes a model is served."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Precision:
    """dtype names; ``weights='checkpoint'`` keeps what the published checkpoint stores."""

    weights: str = "checkpoint"
    activations: str = "bf16"
    kv: str = "bf16"
