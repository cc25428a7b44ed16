"""The encoder of a multimodal model: images become tokens of the prompt on a pool of their own (E/P/D).

    - stage: encode
      pool: vision                             # {role: stage, hardware: l40s}
      model: qwen3.5-vision                    # the tower: an encoder of the catalog
      images: 2
      patches: 4096                            # of an image of 1024 x 1024 in patches of 16 x 16
      tokens: 1024                             # of an image in the prompt, four patches each
      link: pcie-gen4-x4

The pool computes the towers of the images of all requests that wait in batches, by its own policy, and every image
attends to itself alone. What it makes goes over the link to the model, a vector of the model's width for each token,
and is computed with the prompt.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evaluator.catalog.links import load_link
from evaluator.catalog.what_if import WhatIf, model_named
from evaluator.cost.dtypes import stream_bytes
from evaluator.keys import Place, count, in_catalog, key, model_name
from evaluator.stages.record import StageKind, StageRequests, Work
from evaluator.stages.steps import Pass, Shipped, Step

_link = in_catalog("links", load_link)


@dataclass(frozen=True)
class Encode:
    """Of as many images in every request that passes; ``only`` says whose do."""

    model: str | WhatIf = key(model_name, says="The encoder, such as qwen3.5-vision.")
    patches: int = key(count(), says="Tokens of the encoder for an image: its pixels by those of a patch.")
    tokens: int = key(count(), says="Tokens that an image is in the prompt, after patches were merged.")
    images: int = key(count(most=1024), 1, "Images of a request.")
    link: str | None = key(_link, None, "Over which their vectors come to the model; none where it is the same device.")


def _check(asked: Encode, place: Place) -> None:
    if asked.tokens > asked.patches:
        raise place.key("tokens").error(
            f"{asked.tokens:,} of an image in the prompt are more than its {asked.patches:,} patches; encoders merge "
            "patches, they do not make more of them"
        )
    tower = model_named(asked.model)
    if tower.gives_tokens or not tower.whole_texts:
        raise place.key("model").error(f"{tower.name} is no encoder; use one such as qwen3.5-vision")
    # A texts' encoder cuts what is too long; half of an image would be another image.
    if asked.patches >= tower.max_positions:
        raise place.key("patches").error(
            f"{asked.patches:,} exceed the {tower.max_positions - 1:,} that {tower.name} takes; tile the image (more "
            "images of fewer patches)"
        )


def work(asked: Encode, visit: StageRequests) -> Work:
    """A pass of the encoder for every image, and its vectors on their way."""
    patches = np.full(len(visit), asked.patches, dtype=np.int64)
    steps: list[Step] = [Pass(asked.model, patches, asked.images, "encode")]
    added = asked.images * asked.tokens
    if asked.link is not None:
        link, width = load_link(asked.link), visit.model.hidden * stream_bytes(visit.precision.activations)
        steps.append(Shipped(float(added) * width, link.bandwidth, link.latency_s, name="transfer"))
    return Work(tuple(steps), adds_tokens=added)


ENCODE = StageKind(
    "encode", Encode, work, "Images through the encoder of a multimodal model, which become tokens.", check=_check
)
