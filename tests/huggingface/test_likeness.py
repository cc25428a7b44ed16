"""A config of a model_type that is not known: by the class that it names, by its keys, or refused with the remedy."""

import pytest

from evaluator.catalog.model import LatentAttention, LinearAttention, Recurrence, SoftmaxAttention, StateSpace
from evaluator.errors import InputError
from evaluator.huggingface import FAMILIES, import_config
from evaluator.huggingface.likeness import _PLAIN

DENSE = {
    "model_type": "novel", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 8, "vocab_size": 100,
    "num_key_value_heads": 4, "num_hidden_layers": 4, "max_position_embeddings": 2048,
}  # fmt: skip
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT = {"kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "q_lora_rank": 24}
ALTERNATING = ["linear_attention", "full_attention"] * 2


def novel(**change):
    return import_config({**DENSE, **change}, "novel")


def test_by_the_class_that_it_names():
    model = novel(architectures=["LlamaForCausalLM"])
    assert model.notes == ("assumed: model_type novel has the layers of llama, for its class is LlamaForCausalLM",)
    assert model.layers == import_config({**DENSE, "model_type": "llama"}, "novel").layers
    without = novel(model_type=None, architectures=["Qwen2ForCausalLM"])
    assert without.layers[0].mixer.bias
    assert without.notes[0].startswith("assumed: a config without model_type has the layers of qwen2")


def test_the_class_counts_where_the_family_of_the_model_type_cannot_read_it():
    """MiniMax-M2 was published as ``minimax``, whose models have lightning attention."""
    moe = {**DENSE, "model_type": "minimax", "num_local_experts": 8, "num_experts_per_tok": 2}
    model = import_config({**moe, "mlp_intermediate_size": 96, "architectures": ["MiniMaxM2ForCausalLM"]}, "novel")
    assert all(isinstance(kind.mixer, SoftmaxAttention) for kind in model.layers)
    assert "minimax has the layers of minimax_m2" in model.notes[0]
    readable = import_config({**moe, "architectures": ["MiniMaxM2ForCausalLM"]}, "novel")
    assert not readable.notes


BY_KEYS = {
    "llama": {},
    "exaone_moe": {**EXPERTS, "first_k_dense_replace": 1, "n_shared_experts": 1},
    "deepseek_v3": {**EXPERTS, **LATENT},
    "deepseek_v32": {**EXPERTS, **LATENT, "index_topk": 64, "index_n_heads": 2, "index_head_dim": 16},
    "minicpm3": LATENT,
}


@pytest.mark.parametrize("name", BY_KEYS)
def test_by_its_keys(name):
    model = novel(**BY_KEYS[name])
    assert model.layers == import_config({**DENSE, **BY_KEYS[name], "model_type": name}, "novel").layers
    said = f"assumed: model_type novel is not known; its layers are those of {name}, which reads all of its keys"
    assert model.notes[0] == f"{said}; embedding and output head count as two tables"
    assert novel(**BY_KEYS[name], tie_word_embeddings=True).notes[0] == said


RECURRENT = {
    LinearAttention: {
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
    },
    StateSpace: {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_expand": 2},
    Recurrence: {"linear_attn_config": {"num_heads": 4, "head_dim": 16, "short_conv_kernel_size": 4}},
}  # fmt: skip


@pytest.mark.parametrize("kind", RECURRENT)
def test_recurrent_layers_by_their_keys(kind):
    model = novel(layer_types=ALTERNATING, **RECURRENT[kind], attn_output_gate=True)
    assert [type(layer.mixer) for layer in model.layers] == [kind, SoftmaxAttention]
    assert model.layers[1].mixer.output_gate
    latent = novel(layer_types=ALTERNATING, **RECURRENT[kind], **LATENT)
    assert [type(layer.mixer) for layer in latent.layers] == [kind, LatentAttention]


def test_recurrent_layers_without_keys_are_refused():
    with pytest.raises(InputError, match="no known family reads all of its keys"):
        novel(layer_types=ALTERNATING)
    with pytest.raises(InputError, match="no key says what they have instead"):
        import_config({**DENSE, "layer_types": ALTERNATING}, "novel", like="general")


def test_what_no_family_reads_is_refused_with_the_remedy():
    remedy = r"if its layers are those of a known family, import with --like FAMILY \(for example --like llama\)"
    with pytest.raises(
        InputError, match=f"unknown model_type 'novel'.*llama: unknown structural field 'size'.*{remedy}"
    ):
        novel(size=3)
    with pytest.raises(
        InputError, match=f"hidden_act 'relu2' does not tell whether its feed-forwards are gated; {remedy}"
    ):
        novel(hidden_act="relu2")
    with pytest.raises(InputError, match=r"exaone_moe: .*num_experts_per_tok: 9 of only 8 experts"):
        novel(**{**EXPERTS, "num_experts_per_tok": 9})
    with pytest.raises(InputError, match=f"unknown structural field 'sliding_window'.*{remedy}"):
        novel(sliding_window=512)
    with pytest.raises(InputError, match="model_type: missing; add it, or import with --like FAMILY"):
        novel(model_type=None)


def test_the_families_that_others_are_like_exist():
    assert set(_PLAIN) <= set(FAMILIES)
