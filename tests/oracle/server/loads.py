"""What the server is asked: a model that two cores can serve, the loads it is fitted to, and those it is judged by."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VOCABULARY, BLOCK, BUDGET, SEQUENCES = 4096, 32, 256, 32
PREFIX = 128  # tokens that all prompts of a load with a shared prefix begin with

CONFIG: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 512, "intermediate_size": 1536,
    "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64,
    "vocab_size": VOCABULARY, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
    "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "bfloat16", "bos_token_id": 0,
    "eos_token_id": 1, "attention_bias": False, "mlp_bias": False,
}  # fmt: skip
"""Its weights are made up (``--load-format dummy``): an iteration takes some 5 ms and 0.17 ms a prompt token."""

SERVE = (
    "--load-format", "dummy", "--dtype", "bfloat16", "--max-model-len", "4096", "--max-num-seqs", str(SEQUENCES),
    "--max-num-batched-tokens", str(BUDGET), "--block-size", str(BLOCK), "--enforce-eager",
    "--disable-uvicorn-access-log", "--enable-prompt-tokens-details",
)  # fmt: skip


def write_model(folder: Path) -> Path:
    """config.json and a tokenizer of which every token is a word, so that texts have as many tokens as they say."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    special = ["<s>", "</s>", "<unk>"]
    words = special + [f"w{number}" for number in range(len(special), VOCABULARY)]
    added = [
        dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        | {"id": number, "content": word, "special": True}
        for number, word in enumerate(special)
    ]
    tokenizer: dict[str, Any] = {
        "version": "1.0", "added_tokens": added, "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": {word: number for number, word in enumerate(words)},
                  "unk_token": "<unk>"},
    } | dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>",
             "unk_token": "<unk>", "model_max_length": 8192, "chat_template": template}  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return folder


def _load(seed: int, count: int, *, rate: float | None = None, users: int | None = None, prompt: int = 160,
          output: int = 32, spread: float = 0.5, prefix: int = 0) -> list[str]:  # fmt: skip
    """Arguments of ``vllm bench serve``; lengths are uniform in ``spread`` around their means."""
    arrivals = ["--request-rate", f"{rate:g}"] if rate is not None else ["--request-rate", "inf"]
    return [
        *arrivals, *(["--max-concurrency", str(users)] if users is not None else []),
        "--num-prompts", str(count), "--random-input-len", str(prompt), "--random-output-len", str(output),
        "--random-range-ratio", f"{spread:g}", "--random-prefix-len", str(prefix), "--seed", str(seed),
    ]  # fmt: skip


WARM_UP = _load(90, 100, spread=0.6)  # the first batches of a size take seconds, in which kernels are chosen
FITTED = {
    "alone": _load(91, 40, users=1, spread=0.6),
    "open 8/s": _load(92, 150, rate=8, spread=0.6),
    "36 users": _load(93, 160, users=36, output=48, spread=0.6),
}
JUDGED = {
    "open 1.2/s": _load(11, 24, rate=1.2),
    "open 4/s": _load(12, 80, rate=4),
    "open 7/s": _load(13, 140, rate=7),
    "open 20/s": _load(14, 200, rate=20),
    "4 users": _load(15, 120, users=4),
    "16 users": _load(16, 160, users=16),
    "prefix, open 7/s": _load(17, 140, rate=7, prompt=64, prefix=PREFIX),
    "prefix, 16 users": _load(18, 200, users=16, prompt=64, prefix=PREFIX),
}


def prefix_of(name: str) -> int:
    """Tokens that all prompts of a load begin with."""
    return PREFIX if name.startswith("prefix") else 0
