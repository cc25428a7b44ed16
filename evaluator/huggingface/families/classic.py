"""The decoders before Llama: biases, learned or ALiBi positions, feed-forwards without gate, and multi-query firsts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from evaluator.catalog.model import FeedForward, Mixer, SoftmaxAttention
from evaluator.errors import InputError
from evaluator.huggingface.blocks import dense
from evaluator.huggingface.config import Config
from evaluator.huggingface.families.plain import attention_kinds, window_if_stated
from evaluator.huggingface.family import Family, keys, positions
from evaluator.huggingface.mixers import MixerReader, softmax, windowed
from evaluator.huggingface.pattern import every

_GPT2_UNUSED = keys(
    """
    rotary reorder_and_upcast_attn scale_attn_by_inverse_layer_idx scale_attn_weights attention_softmax_in_fp32
    scale_attention_softmax_in_fp32 inference_runner_type validate_runner_input pad_key_length max_batch_size
    max_sequence_length pre_allocate_kv_cache n_ctx layer_norm_type use_position_embedding no_repeat_ngram_size
    predict_special_tokens control_codes gradient_checkpointing hidden_size_unused prefix do_sample
    """
)


def _multi_query(config: Config) -> bool:
    return config.flag("multi_query", False)


def _falcon_one_head(config: Config) -> bool:
    """Falcon-7B; the newer architecture states its KV heads."""
    newer = config.flag("new_decoder_architecture", False)
    # As ``FalconAttention`` of transformers: one KV head unless the architecture is the newer one. A stated
    # ``num_kv_heads`` means nothing then.
    return config.flag("multi_query", True) and not newer


def _opt(config: Config) -> SoftmaxAttention:
    for key, only in (("do_layer_norm_before", True), ("enable_bias", True)):
        config.expect(key, only)
    # OPT-350m alone has embeddings of 512 under a hidden size of 1024, norms behind its blocks, and a
    # projection between; what is left of the family is as the others are.
    if config.integer("word_embed_proj_dim", config.integer("hidden_size")) != config.integer("hidden_size"):
        raise InputError(f"{config.place('word_embed_proj_dim')}: embeddings of another size are not supported")
    attention = softmax(bias=True, output_bias=True)(config)
    assert isinstance(attention, SoftmaxAttention)
    return attention


def _mpt(config: Config) -> Mixer:
    """MPT: KV heads below ``attn_config``, where there are fewer."""
    # Of what stands there only the number of KV heads is a size; ALiBi, clipping and the choice of a kernel are not.
    level = config.level("attn_config") if config.has("attn_config") else Config({}, config.where)
    level.skip(
        *keys(
            "attn_type attn_impl attn_uses_sequence_id alibi alibi_bias_max softmax_scale dtype torch_dtype prefix_lm"
            " qk_ln clip_qkv rope rope_impl rope_hf_config rope_dail_config"
        )
    )
    attention = softmax()(config)
    assert isinstance(attention, SoftmaxAttention)
    return replace(attention, kv_heads=level.integer("kv_n_heads", attention.heads))


def _mpt_block(config: Config) -> FeedForward:
    return dense(gated=False, times_hidden=config.integer("expansion_ratio", 4), key="intermediate_size")(config)


def _whole(full: MixerReader) -> dict[str, MixerReader]:
    return {"full": full}


GPT2 = Family(
    _whole(softmax(bias=True, output_bias=True)),
    {"dense": dense(gated=False, bias=True, times_hidden=4)},
    lookups=positions(),
    tied=True,
    ignored=_GPT2_UNUSED,
)
# GPT-J and CodeGen rotate positions, so that there is no table of them, and their projections of attention
# have no biases; the feed-forward keeps those of GPT-2.
GPT_J = replace(GPT2, mixers=_whole(softmax()), lookups=None, tied=False)
# ALiBi needs no table of positions, and its configs state no longest prompt: 2048 is what BLOOM was trained with.
BLOOM = replace(GPT2, lookups=None, defaults={"max_position_embeddings": 2048},
                ignored=keys(
        """
        apply_residual_connection_post_layernorm slow_but_exact attention_softmax_in_fp32
        masked_softmax_fusion n_inner offset_alibi skip_bias_add unk_token_id skip_bias_add_qkv
        seq_length
        """
    ))  # fmt: skip
FALCON = Family(
    _whole(softmax(one_kv_head=_falcon_one_head)),
    {"dense": dense(gated=False, times_hidden=4)},
    tied=True,
    keys={"attention_bias": ("bias",)},
    defaults={"max_position_embeddings": 2048},
    ignored=keys(
        """
        alibi parallel_attn apply_residual_connection_post_layernorm num_ln_in_parallel_attn n_head_kv
        num_kv_heads
        """
    ),
)
GPT_NEOX = Family(
    attention_kinds(softmax(bias=True, output_bias=True)),
    {"dense": dense(gated=False, bias=True)},
    ignored=keys("use_parallel_residual gradient_checkpointing"),
)

FAMILIES: Mapping[str, Family] = {
    "gpt2": GPT2,
    "gpt_bigcode": replace(GPT2, mixers=_whole(softmax(bias=True, output_bias=True, one_kv_head=_multi_query))),
    "openai-gpt": GPT2,
    # GPT-Neo's queries, keys and values have no biases though its output projection has one.
    "gpt_neo": replace(
        GPT2,
        mixers={"full": softmax(output_bias=True), "window": windowed(softmax(output_bias=True))},
        mixer_rule=every("interval", "window", "full", default=2),
    ),
    "gptj": GPT_J,
    "codegen": GPT_J,
    # CTRL and XGLM compute their positions from sines: nothing is looked up, and nothing is stored.
    "ctrl": replace(GPT2, lookups=None),
    # OPT counts positions from 2 (``OPTLearnedPositionalEmbedding``: offset), so its table has two rows
    # more; BioGPT took the class over.
    "opt": replace(GPT2, mixers=_whole(_opt), lookups=positions(2)),
    "xglm": replace(GPT2, lookups=None),
    "biogpt": replace(GPT2, lookups=positions(2)),
    "bloom": BLOOM,
    "mpt": Family(
        {"full": _mpt},
        {"dense": _mpt_block},
        tied=True,
        ignored=keys(
            """
        learned_pos_emb no_bias norm_type embedding_fraction verbose init_config emb_pdrop
        """
        ),
    ),
    "falcon": FALCON,
    "RefinedWeb": FALCON,
    "RefinedWebModel": FALCON,
    "gpt_neox": GPT_NEOX,
    "gpt_neox_japanese": replace(
        GPT_NEOX,
        mixers=_whole(softmax()),
        keys={"intermediate_size": ("intermediate_size",)},
        blocks={"dense": dense(gated=False, times_hidden=4)},
        ignored=GPT_NEOX.ignored | keys("intermediate_multiple_size"),
    ),
    "persimmon": GPT_NEOX,
    "phi": replace(GPT_NEOX, defaults={}),
    "starcoder2": replace(
        GPT_NEOX,
        tied=True,
        keys={"attention_bias": ("use_bias",)},
        ignored=keys("norm_type mlp_type"),
        mixer_rule=window_if_stated,
    ),
    "modernbert-decoder": Family(
        attention_kinds(softmax()),
        {"dense": dense()},
        tied=True,
        mixer_rule=every("global_attn_every_n_layers", "full", "window", default=3),
        # ModernBERT states the width of its window as ``local_attention``.
        keys={"sliding_window": ("local_attention",)},
        ignored=keys(
            """
        sliding_window decoder_bias norm_bias sparse_prediction reference_compile
        deterministic_flash_attn
        """
        ),
    ),
}
