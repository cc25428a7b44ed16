"""How many blocks vLLM makes of free memory for hybrid models, and in which groups of layers: ``get_kv_cache_configs``.

``python -m tests.oracle.vllm_blocks [FOLDER of config.json files]`` in the environment of ``make oracle`` writes
``recordings/blocks-vllm.json``, to which ``test_blocks`` holds ours. What kind each layer is of, its heads and its
states are as vLLM's own ``ModelConfig`` and model classes read them from the published config.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
import vllm
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.model_executor.models import ModelRegistry
from vllm.platforms.interface import Platform
from vllm.v1.attention.backend import MultipleOf
from vllm.v1.core.kv_cache_utils import get_kv_cache_configs
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)

RECORDING = Path(__file__).parent / "recordings" / "blocks-vllm.json"
CONFIGS = Path(__file__).parents[1] / "huggingface" / "published_configs.jsonl"
FREE_BYTES = 40 << 30
LONGEST = 8192
TENSOR_PARALLEL = (1, 2, 4)
FILES = {  # of the catalog's models, in the folder
    "gpt-oss-20b": "openai--gpt-oss-20b", "gpt-oss-120b": "openai--gpt-oss-120b",
    "llama-4-scout-17b-16e": "meta-llama--Llama-4-Scout-17B-16E-Instruct",
    "llama-4-maverick-17b-128e": "meta-llama--Llama-4-Maverick-17B-128E-Instruct",
    "nemotron-h-56b": "nvidia--Nemotron-H-56B-Base-8K", "qwen3-next-80b-a3b": "Qwen--Qwen3-Next-80B-A3B",
}  # fmt: skip
TEXT_ALONE = {
    "Gemma3ForConditionalGeneration": "Gemma3ForCausalLM",
    "Llama4ForConditionalGeneration": "Llama4ForCausalLM",
}
PUBLISHED = (
    "gemma-3-27b", "gemma-2-9b", "olmo3-32b", "command-a", "granite-4.0-h-small", "lfm2-1.2b",
    "jamba-1.5",
)  # fmt: skip


class _FlashAttention:
    """What is asked of the attention backend that CUDA devices take."""

    @staticmethod
    def get_supported_kernel_block_sizes() -> list[MultipleOf]:
        return [MultipleOf(16)]

    @staticmethod
    def customize_spec(spec: KVCacheSpec) -> KVCacheSpec:
        return spec


def _text_alone(content: dict[str, Any]) -> dict[str, Any]:
    """The language model of a config: what images need is not in the environment."""
    text = content.get("text_config")
    architecture = TEXT_ALONE.get((content.get("architectures") or [""])[0])
    return content if text is None or architecture is None else {**text, "architectures": [architecture]}


def _config(content: dict[str, Any]) -> VllmConfig:
    folder = Path(tempfile.mkdtemp())
    (folder / "config.json").write_text(json.dumps(content))
    model = ModelConfig(model=str(folder), skip_tokenizer_init=True, dtype="bfloat16", max_model_len=LONGEST)
    # A state is kept in fp32 here, whatever the config says of it (see ``cost.layer_state.STATE_BYTES``).
    cache = CacheConfig(enable_prefix_caching=False, mamba_ssm_cache_dtype="float32")
    scheduling = SchedulerConfig(max_model_len=LONGEST, is_encoder_decoder=False, enable_chunked_prefill=True)
    return VllmConfig(model_config=model, cache_config=cache, scheduler_config=scheduling)


def _kinds(config: VllmConfig) -> list[Any]:
    """Of each layer what it keeps: 0 all tokens, a window, a chunk as less than 0, None a state; nothing of others."""
    text = config.model_config.hf_text_config
    window, chunk = getattr(text, "sliding_window", None), getattr(text, "attention_chunk_size", None)
    kept = {
        "full_attention": 0, "attention": 0, "sliding_attention": window, "chunked_attention": chunk and -chunk,
        "linear_attention": None, "mamba": None, "conv": None,
    }  # fmt: skip
    types = getattr(text, "layer_types", None) or getattr(text, "layers_block_type", None)
    return [kept.get(name, "nothing") for name in types or ["full_attention"] * text.num_hidden_layers]


def _specs(config: VllmConfig, kinds: list[Any]) -> dict[str, KVCacheSpec]:
    """Of each layer what vLLM's model classes would say it keeps."""
    model, cache = config.model_config, config.cache_config
    # On a processor blocks are of 128 tokens.
    cache.block_size, cache.mamba_page_size_padded = 16, None
    if model.is_hybrid:
        Platform._align_hybrid_block_size(config, _FlashAttention)
        cls, _ = ModelRegistry.resolve_model_cls(model.architecture, model_config=model)
        state = MambaSpec(
            block_size=LONGEST,
            shapes=cls.get_mamba_state_shape_from_config(config),
            dtypes=cls.get_mamba_state_dtype_from_config(config),
            page_size_padded=cache.mamba_page_size_padded,
        )
    attention = {
        "block_size": cache.block_size, "num_kv_heads": model.get_num_kv_heads(config.parallel_config),
        "head_size": model.get_head_size(), "dtype": torch.bfloat16,
    }  # fmt: skip

    def of(kind: Any) -> KVCacheSpec:
        if kind is None:
            return state
        if kind == 0:
            return (MLAAttentionSpec if model.use_mla else FullAttentionSpec)(**attention)
        if kind < 0:
            return ChunkedLocalAttentionSpec(**attention, attention_chunk_size=-kind)
        return SlidingWindowSpec(**attention, sliding_window=kind)

    return {f"layer {at}": of(kind) for at, kind in enumerate(kinds) if kind != "nothing"}


def blocks(config: VllmConfig, tensor: int) -> dict[str, Any]:
    """What vLLM makes of FREE_BYTES on every device: its groups, and blocks."""
    config.parallel_config.tensor_parallel_size = tensor
    specs = _specs(config, _kinds(config))
    (made,) = get_kv_cache_configs(config, [specs], [FREE_BYTES])
    groups = made.kv_cache_groups
    return {
        "groups": sorted(Counter(map(_kind, groups)).items()),
        "layers": max(len(group.layer_names) for group in groups),
        "block_tokens": config.cache_config.block_size,
        "page_bytes": groups[0].kv_cache_spec.page_size_bytes,
        "blocks": made.num_blocks,
    }


def _kind(group: Any) -> str:
    spec = group.kv_cache_spec
    if isinstance(spec, MambaSpec):
        return "state"
    if isinstance(spec, SlidingWindowSpec):
        return f"window {spec.sliding_window}"
    return f"chunk {spec.attention_chunk_size}" if isinstance(spec, ChunkedLocalAttentionSpec) else "full"


def main() -> None:
    """Writes the recording."""
    contents = {}
    for line in CONFIGS.read_text().splitlines():
        published = json.loads(line)
        if published["name"] in PUBLISHED:
            contents[published["name"]] = published["config"]
    for name, file in FILES.items() if len(sys.argv) > 1 else ():
        contents[name] = json.loads((Path(sys.argv[1]) / f"{file}.json").read_text())
    rows = []
    for name, content in contents.items():
        config = None
        for tensor in TENSOR_PARALLEL:
            try:
                config = config or _config(_text_alone(content))
                found = blocks(config, tensor)
            except Exception as error:  # what vLLM does not read or divide so is said and left out
                print(f"{name} {tensor}: {type(error).__name__} {str(error)[:200]}", flush=True)
                break
            rows.append({"model": name, "tensor": tensor, **found})
            print(rows[-1], flush=True)
    lines = ",\n".join(json.dumps(row) for row in rows)
    RECORDING.write_text(
        f'{{"engine": "vllm {vllm.__version__}", "free_bytes": {FREE_BYTES}, "rows": [\n{lines}\n]}}\n'
    )


if __name__ == "__main__":
    main()
