"""Dense decoders of today: rotary embeddings, gated feed-forwards, softmax attention over all or a window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from evaluator.huggingface.blocks import dense, gated_silu
from evaluator.huggingface.config import Config
from evaluator.huggingface.family import Family, keys
from evaluator.huggingface.mixers import MixerReader, softmax, windowed
from evaluator.huggingface.pattern import Words, every


def attention_kinds(full: MixerReader) -> Mapping[str, MixerReader]:
    """Attention over all of the context, and the same over a window."""
    return {"full": full, "window": windowed(full)}


def window_if_stated(config: Config, layers: int) -> Words:
    """Mistral, Phi-3: every layer is windowed where there is a ``sliding_window``."""
    # Mistral-7B v0.1 has a window of 4096 in all layers, later releases say null.
    return ["full" if config.integer("sliding_window", None) is None else "window"] * layers


def _mllama_mixers(config: Config, layers: int) -> Words:
    cross = config.indices("cross_attention_layers", layers) or set()
    return ["none" if layer in cross else "full" for layer in range(layers)]


# ``MllamaTextModel.forward`` of transformers skips the whole layer, feed-forward included, where there is
# no image: for texts it is memory and no time.
def _mllama_blocks(config: Config, layers: int) -> Words:
    return ["none" if word == "none" else "dense" for word in _mllama_mixers(config, layers)]


def _cross_attention(config: Config) -> int:
    """Parameters of Llama 3.2's layers with cross-attention, and of its eight embeddings beyond the vocabulary."""
    count, hidden = len(config.indices("cross_attention_layers", config.layers()) or ()), config.integer("hidden_size")
    heads, kv_heads = config.integer("num_attention_heads"), config.integer("num_key_value_heads")
    # Query and output projections of the full width, key and value projections of the KV heads.
    attention = 2 * hidden * (hidden + hidden // heads * kv_heads)
    # 3 matrices of a gated feed-forward, 2 norms. The embedding of the published code has ``vocab_size +
    # 8`` rows, its head does not.
    return count * (attention + 3 * hidden * config.integer("intermediate_size") + 2 * hidden) + 8 * hidden


# Qwen writes a window into every config and switches it off; where it is on, ``pattern._qwen_windows`` reads the three.
QWEN_UNUSED = keys("sliding_window max_window_layers use_sliding_window")
LLAMA = Family(attention_kinds(softmax()), {"dense": gated_silu()})
MISTRAL = replace(LLAMA, mixer_rule=window_if_stated)
QWEN2 = replace(LLAMA, mixers=attention_kinds(softmax(bias=True)), ignored=QWEN_UNUSED)
# Their code normalises queries and keys always (``q_norm`` and ``k_norm`` of transformers); no key says so.
NORMALISED = attention_kinds(softmax(qk_norm=True))
QWEN3 = replace(LLAMA, mixers=NORMALISED, ignored=QWEN_UNUSED)
# What LlamaConfig, MistralConfig and Qwen2Config of transformers have by default.
_OF_7B = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32}
_LLAMA_1 = _OF_7B | {"intermediate_size": 11008, "vocab_size": 32000, "max_position_embeddings": 2048}
_MISTRAL_1 = _LLAMA_1 | {
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
}
_QWEN2_7B = _OF_7B | {
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "vocab_size": 151936,
    "max_position_embeddings": 32768,
}
HUNYUAN_UNUSED = keys(
    """
    attention_head_dim use_rotary_pos_emb moe_drop_tokens moe_random_routing_dropped_token use_mixed_mlp_moe
    capacity_factor group_limited_greedy kv_lora_rank q_lora_rank qk_nope_head_dim qk_rope_head_dim use_mla
    v_head_dim routed_scaling_factor moe_layer_num_skipped cla_share_factor norm_type anyres_pooling_size class_num
    dense_list eod_token_id im_end_id im_newline_id im_start_id mask_init_id num_media_embeds org_vocab_size pad_id
    text_end_id text_start_id video_end_id video_start_id vit_input_resolution vit_patch vit_token
    """
)
MUSE_UNUSED = keys("qk_scale_factor output_multiplier residual_gate_temperature")
_MINICPM_V = QWEN_UNUSED | keys(
    """
    batch_vision_input batch_3d_resampler drop_vision_last_layer query_num slice_config slice_mode use_image_id
    vision_batch_size image_size patch_size audio_chunk_length audio_pool_step chunk_input listen_speak_type
    max_slice_nums init_audio init_tts init_vision stream_input tts_config version
    """
)
# Gated, whatever the activation function.
GATED = Family(attention_kinds(softmax()), {"dense": dense()})
UNGATED = replace(GATED, blocks={"dense": dense(gated=False)})

_PHI_OF_IMAGES = replace(
    GATED,
    mixer_rule=window_if_stated,
    ignored=keys("audio_processor embd_layer img_processor speech_lora vision_lora attention_bias lm_head_bias"),
    notes=("the LoRA weights and the encoders of images and speech are not counted: their sizes are not stated",),
)


FAMILIES: Mapping[str, Family] = {
    "llama": replace(LLAMA, nested=_LLAMA_1),
    "mistral": replace(MISTRAL, nested=_MISTRAL_1),
    "ministral": MISTRAL,
    "ministral3": MISTRAL,
    "qwen2": replace(QWEN2, nested=_QWEN2_7B),
    "qwen2_vl": replace(QWEN2, ignored=QWEN_UNUSED | keys("vision_config")),
    "qwen2_5_vl": QWEN2,
    "qwen2_vl_text": QWEN2,
    "qwen2_5_vl_text": QWEN2,
    "qwen3": QWEN3,
    "qwen3_vl_text": QWEN3,
    "phi3": replace(GATED, mixer_rule=window_if_stated, ignored=keys("full_attn_mod interpolate_factor")),
    # The default of ``GlmConfig``.
    "glm": replace(GATED, mixers=attention_kinds(softmax(bias=True)), defaults={"head_dim": 128}),
    "glm4": replace(GATED, mixers=attention_kinds(softmax(bias=True)), defaults={"head_dim": 128}),
    "cohere": replace(
        GATED, tied=True, keys={"max_position_embeddings": ("model_max_length", "max_position_embeddings")}
    ),
    "cohere2": replace(
        GATED,
        tied=True,
        mixer_rule=every("sliding_window_pattern", "full", "window", default=4),
        ignored=keys(
            "layer_switch use_embedding_sharing use_gated_activation use_parallel_block use_parallel_embedding"
        ),
    ),
    "olmo": GATED,
    "olmo2": replace(GATED, mixers=NORMALISED),
    "olmo3": replace(GATED, mixers=NORMALISED, mixer_rule=every("sliding_window_pattern", "full", "window", default=4)),
    "granite": GATED,
    "granite_swa": replace(GATED, tied=True),
    "seed_oss": replace(GATED, mixers=attention_kinds(softmax(bias=True)), ignored=keys("attention_out_bias")),
    "smollm3": replace(
        GATED,
        tied=True,
        ignored=QWEN_UNUSED | keys("no_rope_layers no_rope_layer_interval"),
        defaults={"num_key_value_heads": 4},
    ),
    "exaone4": replace(GATED, mixers=NORMALISED, mixer_rule=window_if_stated),
    "exaone": replace(GATED, ignored=keys("rotary")),
    "ernie4_5": replace(GATED, tied=True, keys={"attention_bias": ("use_bias",)}),
    "hunyuan_v1_dense": replace(GATED, mixers=NORMALISED, ignored=HUNYUAN_UNUSED | keys("num_experts")),
    "helium": replace(GATED, defaults={"head_dim": 128}),
    "arcee": UNGATED,
    "apertus": replace(UNGATED, mixers=NORMALISED, ignored=keys("post_norm")),
    "nemotron": replace(UNGATED, ignored=keys("norm_eps")),
    "jais2": replace(
        UNGATED,
        mixers=attention_kinds(softmax(bias=True, output_bias=True)),
        blocks={"dense": dense(gated=False, bias=True)},
    ),
    "nanochat": UNGATED,
    "bitnet": GATED,
    "diffllama": replace(GATED, ignored=keys("lambda_std_dev")),
    "hyperclovax": replace(GATED, ignored=keys("use_post_norm")),
    "cwm": replace(GATED, mixer_rule=every("sliding_window_pattern", "full", "window", default=4)),
    "internlm2": replace(GATED, ignored=keys("bias")),
    "internlm3": replace(GATED, ignored=keys("bias qkv_bias")),
    "baichuan": GATED,
    "minicpm": replace(
        GATED,
        ignored=keys("dim_model_base scale_depth mup_denominator sparse_config"),
        notes=("attention sees the whole context: a sparse_config, which engines do not use, is passed over",),
    ),
    "minicpmv": replace(QWEN2, ignored=_MINICPM_V),
    "minicpmo": replace(QWEN2, ignored=_MINICPM_V),
    "mimo": replace(QWEN2, ignored=QWEN_UNUSED),
    # DeciLM and Llama-Nemotron differ by layer: ``block_configs`` says how, which ``Config.at`` lays over the keys.
    "deci": GATED,
    "nemotron-nas": GATED,
    "stablelm": replace(GATED, ignored=keys("use_parallel_residual")),
    "iquestcoder": GATED,
    "mllama_text_model": replace(
        LLAMA,
        mixer_rule=_mllama_mixers,
        block_rule=_mllama_blocks,
        lookups=_cross_attention,
        ignored=keys("cross_attention_layers"),
        notes=("layers that attend to images take memory only: texts pass them by",),
    ),
    "phi4_multimodal": replace(GATED, mixer_rule=window_if_stated),
    "phi4mm": replace(_PHI_OF_IMAGES, tied=True),
    "phi3_v": _PHI_OF_IMAGES,
}
