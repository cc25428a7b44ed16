"""Every causal language model of `transformers`: parameters as PyTorch counts them, against our reading of its config.

For developers; neither a test nor a dependency. In an environment with `torch` and `transformers`, from the checkout:

    python -m tests.catalog.transformers_counts [FAMILY ...] [--write models/README.md] [--published FOLDER]

Each family's default config is instantiated on the meta device, which takes no memory; its JSON is imported by
``evaluator.catalog.import_config``. `--published` adds the `config.json` files of a folder. `--write` replaces the
table between the marks in that file.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from evaluator.catalog import import_config, parameter_count
from evaluator.errors import InputError

# In the mapping, and no decoder-only language models: encoders with a head, halves of encoder-decoders, diffusion.
OTHERS = frozenset(
    """
    bart bert bert-generation big_bird bigbird_pegasus blenderbot blenderbot-small camembert data2vec-text
    electra ernie git marian mbart megatron-bert musicgen musicgen_melody mvp pegasus plbart prophetnet
    reformer rembert roberta roberta-prelayernorm roc_bert roformer trocr whisper xlm xlm-roberta
    xlm-roberta-xl xlnet xmod gemma4_assistant gemma4_unified_assistant
    """.split()
)
# Arguments without which the default config makes no model; none that the comparison could not see through.
NEEDED: Mapping[str, Mapping[str, Any]] = {
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128, "num_experts": 8, "moe_topk": 2},
    "deepseek_v2": {"num_experts_per_tok": 6},
    "glm4_moe": {"head_dim": 128},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 48, "head_dim": 128},
    "dots1": {"n_routed_experts": 128, "n_shared_experts": 2, "first_k_dense_replace": 1, "num_experts_per_tok": 6},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 16},
}
FIRST, LAST = "<!-- counts: begin -->", "<!-- counts: end -->"


class Row(NamedTuple):
    """One config: what PyTorch counts, what we do, and why not."""

    name: str
    counted: int
    ours: float | None
    reason: str = ""

    @property
    def difference(self) -> float | None:
        """Relative."""
        return None if self.ours is None else self.ours / self.counted - 1


def main() -> None:
    """Print the table, and write it where asked."""
    given = argparse.ArgumentParser()
    given.add_argument("families", nargs="*")
    given.add_argument("--write", type=Path)
    given.add_argument("--published", type=Path)
    asked = given.parse_args()
    warnings.filterwarnings("ignore")
    rows = list(_defaults(asked.families)) + (list(_published(asked.published)) if asked.published else [])
    text = _table(rows)
    print(text)
    if asked.write:
        before, rest = asked.write.read_text().split(FIRST)
        asked.write.write_text(f"{before}{FIRST}\n{text}\n{LAST}{rest.split(LAST)[1]}")


def _defaults(families: list[str]) -> Iterator[Row]:
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING as models

    transformers.logging.set_verbosity_error()
    for config_class in list(models.keys()):
        kind = config_class.model_type
        if kind in OTHERS or (families and kind not in families):
            continue
        try:
            config = config_class(**NEEDED.get(kind, {}))
            counted = _count(models[config_class], config)
        except Exception as error:  # a default config that makes no model says nothing of ours
            print(f"{kind}: no model ({type(error).__name__}: {error})", file=sys.stderr)
            continue
        yield _compare(kind, counted, json.loads(config.to_json_string(use_diff=False)))


def _published(folder: Path) -> Iterator[Row]:
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING as models

    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text())
        try:
            config = transformers.AutoConfig.for_model(**content)
            config = config.get_text_config()
            counted = _count(models[type(config)], config)
        except Exception as error:
            print(f"{path.stem}: no model ({type(error).__name__}: {error})", file=sys.stderr)
            continue
        text = content.get("text_config", content)
        yield _compare(path.stem, counted, {key: text[key] for key in text if key != "quantization_config"})


def _count(model_class: Any, config: Any) -> int:
    import torch

    model_class = model_class[0] if isinstance(model_class, tuple | list) else model_class
    if getattr(config, "pad_token_id", 0) is None:
        config.pad_token_id = 0
    with torch.device("meta"):
        return sum(each.numel() for each in model_class(config).parameters())


def _compare(name: str, counted: int, content: Mapping[str, Any]) -> Row:
    try:
        return Row(name, counted, parameter_count(import_config(content)))
    except InputError as error:
        return Row(name, counted, None, str(error))


def _table(rows: list[Row]) -> str:
    lines = ["| family | parameters by PyTorch | ours | difference |", "|---|---:|---:|---:|"]
    for row in rows:
        if row.ours is None:
            reason = row.reason if len(row.reason) < 160 else row.reason[:157] + "..."
            lines.append(f"| {row.name} | {row.counted:,} | - | refused: {reason} |")
        else:
            lines.append(f"| {row.name} | {row.counted:,} | {row.ours:,.0f} | {100 * (row.difference or 0):+.3f} % |")
    within = sum(1 for row in rows if row.difference is not None and abs(row.difference) <= 0.01)
    summary = f"{within} of {len(rows)} within 1 % ({100 * within / max(len(rows), 1):.1f} %)."
    return "\n".join([summary, "", *lines])


if __name__ == "__main__":
    main()
