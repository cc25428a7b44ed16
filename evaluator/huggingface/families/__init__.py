"""All families, by ``model_type``. A new one is a record in one of these files."""

from __future__ import annotations

from collections.abc import Mapping

from evaluator.huggingface.families import (
    bert,
    classic,
    compressed,
    convolved,
    decoders,
    delta,
    experts,
    gemma,
    general,
    hybrids,
    latent,
    looped,
    own_code,
    plain,
    text_parts,
)
from evaluator.huggingface.family import Family

# A later table would win over an earlier one with the same ``model_type``; ``likeness`` tries ``general``
# and the plain ones for configs whose type is in none of them.
FAMILIES: Mapping[str, Family] = {
    **plain.FAMILIES,
    **gemma.FAMILIES,
    **classic.FAMILIES,
    **experts.FAMILIES,
    **latent.FAMILIES,
    **hybrids.FAMILIES,
    **delta.FAMILIES,
    **convolved.FAMILIES,
    **looped.FAMILIES,
    **compressed.FAMILIES,
    **text_parts.FAMILIES,
    **bert.FAMILIES,
    **own_code.FAMILIES,
    **general.FAMILIES,
    **decoders.FAMILIES,
}
