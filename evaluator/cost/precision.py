"""In which dtypes a model is served."""

from __future__ import annotations

from dataclasses import dataclass

from evaluator.keys import choice, key

DTYPES = ("fp32", "bf16", "fp16", "fp8", "int8", "int4", "mxfp4", "nvfp4")

WEIGHTS = (*DTYPES, "fp8_block")
"""Dtypes of weights: also fp8 with a scale per block of 128 x 128, as DeepSeek publishes it, too."""


@dataclass(frozen=True)
class Precision:
    """dtype names; ``weights='checkpoint'`` keeps what the published checkpoint stores, and so does ``attention``."""

    weights: str = key(choice("checkpoint", *WEIGHTS), "checkpoint", "Weights; checkpoint: as published.")
    activations: str = key(choice(*DTYPES), "bf16", "Activations, and the inputs of matrix products.")
    kv: str = key(choice(*DTYPES), "bf16", "The KV cache.")
    attention: str | None = key(
        choice("checkpoint", *WEIGHTS),
        None,
        "Weights of attention's projections, where they are kept in another format than the others (checkpoint: as "
        "published); absent: as weights.",
    )
