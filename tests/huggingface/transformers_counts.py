"""Every language model of `transformers`: parameters as PyTorch counts them, against our reading of its config.

For developers; neither a test nor a dependency. In an environment with `torch` and `transformers`, from the checkout:

    python -m tests.huggingface.transformers_counts [FAMILY ...] [--write models/README.md] [--published FOLDER]

Each family's default config is instantiated on the meta device, which takes no memory; its JSON is imported by
``evaluator.huggingface.import_config``. Compared are language models: what a multimodal one has in its encoders and
their projectors (``ENCODER`` finds them by name) is compared apart, for our count of it is an estimate. `--published`
adds the `config.json` files of a folder. `--write` replaces the tables between the marks in that file.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any, NamedTuple

from evaluator.catalog import parameter_count
from evaluator.errors import InputError
from evaluator.huggingface import import_config

# In the mapping, and no decoder-only language models: encoders with a head, halves of encoder-decoders, diffusion.
OTHERS = frozenset(
    """
    bart bert bert-generation big_bird bigbird_pegasus blenderbot blenderbot-small camembert data2vec-text
    electra ernie git marian mbart megatron-bert musicgen musicgen_melody mvp pegasus plbart prophetnet
    reformer rembert roberta roberta-prelayernorm roc_bert roformer trocr whisper xlm xlm-roberta
    xlm-roberta-xl xlnet xmod gemma4_assistant gemma4_unified_assistant
    """.split()
)
_QWEN4 = {"indexer_n_heads": 8, "indexer_kv_heads": 1, "indexer_head_dim": 256, "indexer_budget": 2048,
          "indexer_compress_ratio": 16, "ple_layer_ids": [2], "eos_token_id": 1}  # fmt: skip
# Arguments without which the default config makes no model; none that the comparison could not see through.
NEEDED: Mapping[str, Mapping[str, Any]] = {
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128, "num_experts": 8, "moe_topk": 2},
    "deepseek_v2": {"num_experts_per_tok": 6},
    "glm4_moe": {"head_dim": 128},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 48, "head_dim": 128},
    "dots1": {"n_routed_experts": 128, "n_shared_experts": 2, "first_k_dense_replace": 1, "num_experts_per_tok": 6},
    "glm4v_moe": {"text_config": {"head_dim": 128}},
    "qwen3_omni_moe_thinker": {"text_config": {"head_dim": 128, "vocab_size": 151936}},
    "qwen4_exp": {"text_config": _QWEN4},
    "qwen4_exp_text": _QWEN4,
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 16},
}
# Multimodal models that no serving engine runs for text: encoder-decoders, cross-attention to images in every block,
# image generators, models of proteins and of actions, OCR pipelines.
OTHER_WRAPPERS = frozenset(
    """
    blip blip-2 chameleon cosmos3_omni deepseek_vl deepseek_vl_hybrid diffusion_gemma evolla florence2 git idefics
    instructblip instructblipvideo janus kosmos-2 kosmos-2.5 pi0 pix2struct pp_chart2table pp_formulanet shieldgemma2
    qwen2_5_omni qwen3_omni_moe t5gemma2 udop vision-encoder-decoder kyutai_speech_to_text video_llava vipllava
    """.split()
)
ENCODER = re.compile(
    r"vision(?!_moe)|visual|vit\b|image|audio|speech|acoustic|semantic|codec|multi_modal|projector|merger|resampler|connector"
    r"|perceiver|aligner|vqmodel|embed_tokens_extend|word_timestamp|^talker|^token2wav|^code2wav|^model\.encoder\."
    r"|view_separator|aggregator|qformer"
)
# In the mapping of causal models, where their default config makes none; the wrapper's does.
NO_CAUSAL = frozenset({"dots3_note", "emu3", "gemma3n", "llama4", "qwen3_5", "qwen3_5_moe", "qwen4_exp"})
FIRST, LAST = "<!-- counts: begin -->", "<!-- counts: end -->"


class Row(NamedTuple):
    """One config: what PyTorch counts, what we do, and why not; encoders apart."""

    name: str
    counted: int
    ours: float | None
    reason: str = ""
    encoders: int = 0
    ours_encoders: int = 0

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
    wrapped = list(_wrapped(asked.families))
    text = f"{_table(rows)}\n\n{_WRAPPED}\n\n{_table(wrapped, encoders=True)}"
    print(text)
    if asked.write:
        before, rest = asked.write.read_text().split(FIRST)
        asked.write.write_text(f"{before}{FIRST}\n{text}\n{LAST}{rest.split(LAST)[1]}")


_WRAPPED = (
    "Multimodal models, by the default config of the wrapper: the language model, and the encoders with their"
    " projectors (ours an estimate)."
)


def _defaults(families: list[str]) -> Iterator[Row]:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING as models

    yield from _rows(models, OTHERS, families)


def _wrapped(families: list[str]) -> Iterator[Row]:
    from transformers.models.auto import modeling_auto as auto

    causal = {config_class.model_type for config_class in auto.MODEL_FOR_CAUSAL_LM_MAPPING}
    beyond = OTHERS | OTHER_WRAPPERS | (causal - NO_CAUSAL)
    yield from _rows(auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING, beyond, families)
    seen = {config_class.model_type for config_class in auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING}
    yield from _rows(auto.MODEL_FOR_MULTIMODAL_LM_MAPPING, beyond | seen, families)


def _rows(models: Any, others: Set[str], families: list[str]) -> Iterator[Row]:
    import transformers

    transformers.logging.set_verbosity_error()
    done = set()
    for config_class in list(models.keys()):
        kind = config_class.model_type
        if kind in others or kind in done or (families and kind not in families):
            continue
        done.add(kind)
        try:
            config = config_class(**NEEDED.get(kind, {}))
            counted, encoders = _count(models[config_class], config)
        except Exception as error:  # a default config that makes no model says nothing of ours
            print(f"{kind}: no model ({type(error).__name__}: {error})", file=sys.stderr)
            continue
        yield _compare(kind, counted, json.loads(config.to_json_string(use_diff=False)), encoders)


def _published(folder: Path) -> Iterator[Row]:
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING as models

    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text())
        try:
            config = transformers.AutoConfig.for_model(**content)
            config = config.get_text_config()
            counted, encoders = _count(models[type(config)], config)
        except Exception as error:
            print(f"{path.stem}: no model ({type(error).__name__}: {error})", file=sys.stderr)
            continue
        text = content.get("text_config", content)
        yield _compare(path.stem, counted, {key: text[key] for key in text if key != "quantization_config"}, encoders)


def _count(model_class: Any, config: Any) -> tuple[int, int]:
    """(language model, encoders): parameters, on a device without memory."""
    import torch

    model_class = model_class[0] if isinstance(model_class, tuple | list) else model_class
    text = config.get_text_config()
    if getattr(config, "pad_token_id", 0) is None:
        config.pad_token_id = 0
    if text is not config:  # transformers asks the wrapper, others the text level, which defaults contradict
        text.tie_word_embeddings = getattr(config, "tie_word_embeddings", False)
    with torch.device("meta"):
        found = [(ENCODER.search(name), each.numel()) for name, each in model_class(config).named_parameters()]
    return sum(size for of, size in found if not of), sum(size for of, size in found if of)


def _compare(name: str, counted: int, content: Mapping[str, Any], encoders: int) -> Row:
    try:
        model = import_config(content)
    except InputError as error:
        return Row(name, counted, None, str(error), encoders)
    ours = parameter_count(model) - model.encoder_parameters
    return Row(name, counted, ours, encoders=encoders, ours_encoders=model.encoder_parameters)


def _table(rows: list[Row], encoders: bool = False) -> str:
    lines = ["| family | parameters by PyTorch | ours | difference |", "|---|---:|---:|---:|"]
    if encoders:
        lines = [f"{lines[0]} encoders by PyTorch | ours |", f"{lines[1]}---:|---:|"]
    for row in rows:
        if row.ours is None:
            reason = row.reason if len(row.reason) < 160 else row.reason[:157] + "..."
            line = f"| {row.name} | {row.counted:,} | - | refused: {reason} |"
        else:
            line = f"| {row.name} | {row.counted:,} | {row.ours:,.0f} | {100 * (row.difference or 0):+.3f} % |"
        if encoders:
            line += f" {row.encoders / 1e6:,.0f} M | {row.ours_encoders / 1e6:,.0f} M |"
        lines.append(line)
    within = sum(1 for row in rows if row.difference is not None and abs(row.difference) <= 0.01)
    summary = f"{within} of {len(rows)} within 1 % ({100 * within / max(len(rows), 1):.1f} %)."
    return "\n".join([summary, "", *lines])


if __name__ == "__main__":
    main()
