"""Multi-head latent attention: DeepSeek V2 to V3.2, Kimi-K2, GLM-5, Mistral Large 4, LongCat, MiniCPM3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from evaluator.catalog.model import FeedForward, Mixer, MoeFeedForward
from evaluator.errors import InputError
from evaluator.huggingface.blocks import dense, experts, gated_silu
from evaluator.huggingface.config import Config
from evaluator.huggingface.family import Family, Part, keys
from evaluator.huggingface.mixers import latent, softmax, sparse, windowed
from evaluator.huggingface.pattern import Words, always

# Routing details change which experts a token visits, not how many; num_key_value_heads means nothing under MLA.
_UNUSED = keys(
    """
    aux_loss_alpha ep_size head_dim num_key_value_heads qk_head_dim seq_aux rope_interleave indexer_rope_interleave
    first_k_dense_replace moe_layer_freq mtp_use_topk
    indexer_softmax_scale moe_intermediate_size lm_head rm_head
    """
)


def _first_dense(config: Config, layers: int) -> Words:
    """Without ``first_k_dense_replace`` no layer is dense but those that ``moe_layer_freq`` leaves out."""
    every = config.integer("moe_layer_freq", 1)
    return ["moe" if index % every == 0 else "dense" for index in range(layers)]


def _latent_or_heads(config: Config) -> Mixer:
    """MLA; the small decoders of DeepSeek-VL2 and DeepSeek-OCR have usual heads instead (``use_mla``)."""
    if config.flag("use_mla", True):
        return latent()(config)
    # These stay in the configs with the values of DeepSeek's class, where they mean nothing.
    config.skip("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    return softmax()(config)


DEEPSEEK = Family(
    {"full": _latent_or_heads},
    {"dense": gated_silu(), "moe": experts()},
    block_rule=_first_dense,
    ignored=_UNUSED,
)
SPARSE = replace(
    DEEPSEEK, mixers={"full": latent(), "sparse": sparse(latent()), "window": windowed(latent())},
    # DeepSeek-V3.2 has an indexer in every layer and no key that says so; ``indexer_types`` and its kin
    # name layers that take an earlier one's choice.
    mixer_rule=always("sparse"),
    # DeepSeek-V3.2's own figures.
    defaults={"index_topk": 2048, "index_head_dim": 128, "index_n_heads": 64},
)  # fmt: skip
DENSE = replace(DEEPSEEK, blocks={"dense": dense()}, block_rule=always("dense"))


def _longcat(config: Config, block: FeedForward | None) -> list[Part]:
    """LongCat-Flash (arXiv:2509.01322): two attentions and two dense blocks, with the experts beside them.

    Of the experts that a token chooses some compute nothing (``zero_expert_num``): under uniform routing a token
    visits top-k x E / (E + zero) that do.
    """
    mixer, two = latent()(config), dense()(config)
    moe = experts()(config)
    assert isinstance(moe, MoeFeedForward)
    zero = config.integer("zero_expert_num", 0, minimum=0)
    config.skip("zero_expert_type")
    # An average, as a token's number of computing experts varies: the time of a batch follows from how many tokens
    # come to all experts together.
    visits = max(1, round(moe.experts_per_token * moe.experts / (moe.experts + zero)))
    # Two attentions with a dense block behind each, the experts beside them (ScMoE): three kinds of layers one after
    # the other, though the published model overlaps the third with the others.
    return [(mixer, two, None), (mixer, two, None), (None, replace(moe, experts_per_token=visits), None)]


LONGCAT = replace(
    DEEPSEEK, mixers={"full": latent()}, mixer_rule=always("hybrid"), block_rule=always("none"), combined=_longcat,
    ignored=_UNUSED | keys(
        """
        mla_scale_q_lora mla_scale_kv_lora attention_method router_bias
        """
    ),
    notes=("experts_per_token counts the experts that compute, on average; the zero experts are left out",),
)  # fmt: skip


def _ngram_tables(config: Config) -> int:
    """LongCat-Flash-Lite's embeddings of n-grams: ``emb_split_num`` tables for each length from 2 to
    ``emb_neighbor_num``, of ``ngram_vocab_size_ratio`` times the vocabulary, which share the hidden size out; each has
    a projection into it."""
    hidden = config.integer("hidden_size")
    tables = (config.integer("emb_neighbor_num", minimum=2) - 1) * config.integer("emb_split_num")
    # Each table has its share of the hidden size, and a share must be whole.
    if hidden % tables:
        raise InputError(f"{config.place('emb_split_num')}: {tables} tables of n-grams do not divide {hidden} channels")
    rows = config.integer("ngram_vocab_size_ratio") * config.integer("vocab_size")
    # Each table has ``rows`` rows of its share of the hidden size, and a projection from that share into
    # the stream: ``hidden`` rows more.
    return (rows + hidden) * tables * (hidden // tables)


FAMILIES: Mapping[str, Family] = {
    "deepseek_v2": DEEPSEEK,
    "deepseek_v3": DEEPSEEK,
    "kimi_k2": DEEPSEEK,
    "kimi_k25": DEEPSEEK,
    "axk1": DEEPSEEK,
    "mistral4": DEEPSEEK,
    "glm4_moe_lite": DEEPSEEK,
    "deepseek_v32": SPARSE,
    "axk2": replace(
        SPARSE,
        mixers={"sparse": sparse(latent(gate=True))},
        defaults={**SPARSE.defaults, "index_n_heads": 16},
        ignored=_UNUSED | keys("gated_norm_rank"),
        notes=(
            "the output gate is read from the hidden state, not from its low-rank part; gated norms are not counted",
        ),
    ),
    "mistral_large4_text": replace(
        SPARSE,
        defaults={**SPARSE.defaults, "index_n_heads": 32},
        ignored=_UNUSED | keys("no_rope_layers no_rope_layer_interval"),
    ),
    "glm_moe_dsa": replace(SPARSE, defaults={**SPARSE.defaults, "index_n_heads": 32}),
    "dots3_note_text": replace(SPARSE, notes=("the per-head output gate is not counted",)),
    "hy_v4": replace(
        SPARSE,
        mixers={"full": latent(gate=True), "sparse": sparse(latent(gate=True))},
        ignored=_UNUSED
        | keys(
            """
        hc_mult hc_magnitude hc_sinkhorn_iters hc_eps learnable_sink_init
        """
        ),
        notes=("hyper-connections are not counted",),
    ),
    "minicpm3": replace(DENSE, tied=True, ignored=_UNUSED | keys("dim_model_base scale_depth")),
    "youtu": replace(DENSE, tied=True),
    "longcat_flash": LONGCAT,
    "longcat_flash_ngram": replace(LONGCAT, lookups=_ngram_tables),
}
