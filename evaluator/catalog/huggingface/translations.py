"""Files whose words are not those of a ``config.json`` of transformers, in its words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evaluator.catalog.huggingface.mistral import from_mistral


def translated(content: Any) -> Any:
    """The content of a ``config.json`` as readers of families expect it; anything else as it is."""
    content = from_mistral(content)
    if not isinstance(content, Mapping):
        return content
    return _of_texts(content) if content.get("model_type") == "ernie4_5_moe_vl" else content


_OF_TEXTS_AND_IMAGES = ("moe_num_experts", "moe_layer_start_index", "moe_layer_end_index")


def _of_texts(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Baidu's own ERNIE 4.5 VL lists a figure for texts and one for images; the first counts, as in transformers.

    ``moe_intermediate_size`` stays a list, for images have experts of another width.
    """
    first = {
        key: content[key][0] for key in _OF_TEXTS_AND_IMAGES if isinstance(content.get(key), list) and content[key]
    }
    return {**content, **first}
