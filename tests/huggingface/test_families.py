"""Families of models: published configs give the published sizes, and layers come from any of the ways to list them."""

import json
import re
from pathlib import Path

import pytest

from evaluator.catalog import load_hardware, model_to_yaml, parameter_count
from evaluator.catalog.model import (
    CheckpointPrecision,
    DenseFeedForward,
    LatentAttention,
    MoeFeedForward,
    Recurrence,
    SoftmaxAttention,
)
from evaluator.catalog.read_model import read_model
from evaluator.cost import Parallel, kv_bytes_per_token, memory_plan, weight_bytes
from evaluator.cost.mixers import mixer_operators
from evaluator.cost.parallel import split_problem
from evaluator.cost.precision import Precision
from evaluator.errors import InputError
from evaluator.huggingface import FAMILIES, import_config
from evaluator.yaml import loads_yaml

# One config.json a line, abridged to the fields that readers look at, with what the model's name or tensors say (1e9).
# They were written down by hand in the shape of the published ones: they test the reader and are no source of figures.
PUBLISHED = {
    entry["name"]: entry
    for line in (Path(__file__).parent / "published_configs.jsonl").read_text().splitlines()
    for entry in [json.loads(line)]
}
SMALL = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_hidden_layers": 4,
    "vocab_size": 100,
    "max_position_embeddings": 2048,
}


def small(**change):
    return import_config({**SMALL, **change}, "small")


def windows(model):
    return [(kind.count, kind.mixer.window) for kind in model.layers]


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_has_the_published_size(name):
    model = import_config(PUBLISHED[name]["config"], name)
    assert parameter_count(model) == pytest.approx(PUBLISHED[name]["parameters_1e9"] * 1e9, rel=0.02)
    assert read_model(loads_yaml(model_to_yaml(model)), "text") == model


@pytest.mark.parametrize("name", PUBLISHED)
def test_memory_holds_what_the_catalog_counts(name):
    model = import_config(PUBLISHED[name]["config"], name)
    bf16 = weight_bytes(model, Precision(weights="bf16"), Parallel())
    assert bf16 == pytest.approx(2 * parameter_count(model), rel=1e-12)


def test_the_families_are_many():
    assert len(FAMILIES) >= 130


def test_windows_by_a_list_by_a_number_and_by_letters():
    listed = small(
        model_type="exaone4", sliding_window=32,
        layer_types=["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
    )  # fmt: skip
    letters = small(model_type="exaone4", sliding_window=32, sliding_window_pattern="LLLG")
    number = small(model_type="cohere2", sliding_window=32, sliding_window_pattern=4)
    assert windows(listed) == windows(letters) == windows(number) == [(3, 32), (1, None)]


def test_two_lists_that_differ_are_a_contradiction():
    with pytest.raises(
        InputError, match="layer_types and sliding_window_pattern contradict each other: layer 1 is 'full' by the first"
    ):
        small(
            model_type="cohere2", sliding_window=32, sliding_window_pattern=4,
            layer_types=["sliding_attention", "full_attention"] * 2,
        )  # fmt: skip


def test_a_figure_of_every_layer():
    model = small(intermediate_size=[128, 128, 256, 256], num_key_value_heads=[4, 4, 4, 2])
    assert [(kind.count, kind.mixer.kv_heads, kind.feed_forward.intermediate) for kind in model.layers] == [
        (2, 4, 128),
        (1, 4, 256),
        (1, 2, 256),
    ]
    model = small(per_layer_config={"03": {"head_dim": 16}})
    assert [(kind.count, kind.mixer.head_dim) for kind in model.layers] == [(3, 8), (1, 16)]
    with pytest.raises(
        InputError, match=r"config.json: intermediate_size: 2 entries for 4 layers; a list needs one entry"
    ):
        small(intermediate_size=[128, 256])


def test_layers_without_attention():
    """Nemotron-NAS: the search left an attention and a feed-forward out."""
    attention = {"n_heads_in_group": 4, "no_op": False, "replace_with_linear": False}
    blocks = [
        {"attention": attention, "ffn": {"ffn_mult": 1.5, "no_op": False}},
        {"attention": {"no_op": True, "n_heads_in_group": None}, "ffn": {"ffn_mult": 3.0, "no_op": False}},
        {"attention": attention, "ffn": {"no_op": True, "ffn_mult": None}},
        {"attention": attention, "ffn": {"ffn_mult": 1.5, "no_op": False}},
    ]
    kinds = small(
        model_type="deci", block_configs=blocks, hidden_size=512, num_key_value_heads=None, intermediate_size=None
    ).layers
    attention = SoftmaxAttention(8, 2, 64)
    assert [(kind.count, kind.mixer, kind.feed_forward) for kind in kinds] == [
        (2, attention, DenseFeedForward(512)),
        (1, None, DenseFeedForward(1024)),
        (1, attention, None),
    ]
    blocks[0]["ffn"]["replace_with_linear"] = True
    with pytest.raises(InputError, match=r"block_configs\[0\].ffn.replace_with_linear: True is a structure"):
        small(model_type="deci", block_configs=blocks, hidden_size=512)


def test_shared_kv():
    """Gemma 3n: the last layers read an earlier layer's; Hunyuan: every second one does."""
    gemma = small(model_type="gemma3n_text", num_kv_shared_layers=2, hidden_size_per_layer_input=16, head_dim=8,
                  num_hidden_layers=5, vocab_size_per_layer_input=50)  # fmt: skip
    assert sum(kind.count for kind in gemma.layers if kind.mixer.shared_kv) == 2
    assert gemma.lookup_parameters == 50 * 16 * 5
    assert gemma.tied_embeddings
    cla = small(model_type="hunyuan_v1_dense", use_cla=True, cla_share_factor=2)
    assert [(kind.count, kind.mixer.shared_kv) for kind in cla.layers] == [(2, False), (2, True)]
    with pytest.raises(InputError, match="num_kv_shared_layers: 4 of 4 layers cannot share earlier KV"):
        small(model_type="gemma3n_text", num_kv_shared_layers=4)


def test_sparse_attention():
    """DeepSeek-V3.2 chooses tokens in every layer; GLM's later layers may take an earlier layer's choice."""
    latent = {
        "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "q_lora_rank": 24,
        "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "first_k_dense_replace": 4,
        "index_topk": 64, "index_n_heads": 2, "index_head_dim": 128,
    }  # fmt: skip
    mixer = LatentAttention(8, 32, 16, 8, 16, 24, index_top_k=64, index_heads=2, index_head_dim=128)
    (kind,) = small(model_type="deepseek_v32", **latent).layers
    assert kind.mixer == mixer
    types = ["full", "shared", "shared", "full"]
    own, other = small(model_type="glm_moe_dsa", indexer_types=types, **latent).layers
    assert (own.count, own.mixer, other.count) == (2, mixer, 2)
    assert (other.mixer.index_top_k, other.mixer.index_heads) == (64, 0)


def test_recurrent_layers_between_attention():
    lightning, full = import_config(PUBLISHED["minimax-text-01"]["config"]).layers
    assert (lightning.count, full.count) == (70, 10)
    assert lightning.mixer == Recurrence("lightning", 64, 8192, 4 * 8192, 8192 * 128, vectors=1)
    jamba = import_config(PUBLISHED["jamba-1.5"]["config"]).layers
    assert sum(kind.count for kind in jamba if isinstance(kind.mixer, SoftmaxAttention)) == 4
    assert sum(kind.count for kind in jamba if isinstance(kind.feed_forward, MoeFeedForward)) == 16
    nano = import_config(PUBLISHED["nemotron-3-nano"]["config"]).layers
    assert [kind.count for kind in nano] == [23, 23, 6]


def test_shared_weights_are_held_once():
    zamba = small(
        model_type="zamba2", hybrid_layer_ids=[1, 3], mamba_d_state=16, n_mamba_heads=4, mamba_headdim=32,
        mamba_ngroups=1, attention_head_dim=16, num_mem_blocks=1,
    )  # fmt: skip
    shared = next(kind for kind in zamba.layers if kind.weight_sets is not None)
    assert (shared.count, shared.held, shared.mixer.input_width) == (2, 1, 128)
    assert weight_bytes(zamba, Precision(weights="bf16"), Parallel()) == 2 * parameter_count(zamba)


def test_like_a_known_family():
    model = import_config({**SMALL, "model_type": "novel"}, "small", like="llama")
    assert model.layers == small().layers
    assert model.notes == ("assumed: model_type novel has the layers of llama (--like llama)",)
    assert "notes:\n  - 'assumed: model_type novel" in model_to_yaml(model)
    with pytest.raises(InputError, match="--like: unknown family 'lama'; did you mean llama"):
        import_config(SMALL, "small", like="lama")
    with pytest.raises(InputError, match="unknown structural field 'novelty'"):
        import_config({**SMALL, "model_type": "novel", "novelty": 3}, "small", like="llama")


def test_keys_that_can_state_no_size_are_passed_over():
    """Flags that are off, words, factors, nothing: noted. Whole numbers, flags that are on, further levels: refused."""
    model = small(use_novelty=False, novelty_kind="none", novelty_scale=0.5, novelties=[], novel_config=None)
    assert model.layers == small().layers
    assert model.notes == (
        "passed over, for they can state no size: use_novelty, novelty_kind, novelty_scale, novelties, novel_config",
    )
    for key, value in {"use_novelty": True, "novelty": 2, "novelties": [2], "novel_config": {}}.items():
        with pytest.raises(InputError, match=f"unknown structural field '{key}'"):
            small(**{key: value})
    with pytest.raises(InputError, match="layer_types: 5 entries for 4 layers"):
        small(layer_types=["full_attention"] * 5)
    assert small(layer_types=["full_attention"] * 5, num_nextn_predict_layers=1).layers == small().layers


def test_layers_that_run_several_times():
    """HRM and Ouro: weights once, KV and time for every run."""
    gqa = {"num_key_value_heads": 8, "head_dim": 8}
    ouro = small(model_type="ouro", total_ut_steps=3, **gqa)
    (kind,) = ouro.layers
    assert (kind.count, kind.held) == (12, 4)
    assert parameter_count(ouro) == parameter_count(small(**gqa))
    hrm = small(model_type="hrm_text", H_cycles=2, L_cycles=3, **gqa)
    inflated = small(model_type="hrm_text", H_cycles=2, L_cycles=3, num_layers_per_stack=4, num_hidden_layers=32, **gqa)
    assert hrm.layers == inflated.layers
    assert [(kind.count, kind.held) for kind in hrm.layers] == [(32, 8)]


def test_chosen_tokens_of_grouped_queries():
    """MiniMax-M3: an indexer before softmax attention; every token's KV stays."""
    layers = ["full_attention", "full_attention", "minimax_m3_sparse", "minimax_m3_sparse"]
    blocks = {
        "index_n_heads": 4, "index_head_dim": 128, "index_block_size": 128, "index_topk_blocks": 16,
        "index_local_blocks": 1, "num_local_experts": 8, "num_experts_per_tok": 2, "mlp_layer_types": ["sparse"] * 4,
    }  # fmt: skip
    full, sparse = small(model_type="minimax_m3_vl_text", layer_types=layers, **blocks).layers
    assert (full.mixer.index_top_k, sparse.mixer.index_top_k, sparse.mixer.index_heads) == (None, 17 * 128, 4)


def test_a_latent_of_an_earlier_layer():
    """Mistral Large 4: layers without KV of their own, by the layer that theirs is of."""
    latent = {
        "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "index_topk": 64,
        "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "first_k_dense_replace": 4,
        "index_n_heads": 2, "index_head_dim": 128, "index_topk_pattern": "FSFS",
    }  # fmt: skip
    own, other = small(model_type="mistral_large4_text", kv_source_layers=[0, 0, 2, 2], **latent).layers
    assert (own.mixer.shared_kv, own.mixer.index_heads) == (False, 2)
    assert (other.mixer.shared_kv, other.mixer.index_heads) == (True, 0)
    model = small(model_type="mistral_large4_text", kv_source_layers=[0, 0, 2, 2], **latent)
    assert kv_bytes_per_token(model, "bf16") == 2 * (2 * (32 + 8) + 128 + 4)
    with pytest.raises(InputError, match="index_topk_pattern: expected one letter, F or S, per layer"):
        small(model_type="mistral_large4_text", **{**latent, "index_topk_pattern": "FS"})


def test_compressed_attention():
    """DeepSeek-V4-Flash: two layers with a window, 21 that choose entries of 4 tokens, 20 with entries of 128."""
    model = import_config(PUBLISHED["deepseek-v4-flash"]["config"], "v4")
    kinds = [(kind.count, kind.mixer.ratio, kind.mixer.index_heads) for kind in model.layers]
    assert kinds == [(2, 0, 0), (21, 4, 64), (20, 128, 0)]
    assert model.checkpoint == CheckpointPrecision("fp8_block", "fp8_block", "mxfp4")
    near = 43 * 512 * 2 * 128 / 2048  # the window's vectors, spread over the 2048 tokens that 512 entries stand for
    far = 21 * (512 * 2 + 128 + 4) / 4 + 20 * 512 * 2 / 128
    assert kv_bytes_per_token(model, "bf16") == pytest.approx(near + far)
    layout = memory_plan(model, load_hardware("h200-sxm"), Precision(), Parallel(8)).kv
    assert (layout.window, layout.bytes_per_token_full) == (2048, pytest.approx(far))
    kernels = {
        each.name for kind in model.layers for each in mixer_operators(model, kind.mixer, Precision(), Parallel())
    }
    assert {"attention.decode_near", "attention.decode_far", "attention.indexer.decode"} <= kernels
    assert split_problem(model, Parallel(16)) is None
    assert "the 64 attention heads" in split_problem(model, Parallel(24))


def test_mistrals_own_file():
    text = {
        "dim": 64, "n_layers": 4, "n_heads": 8, "n_kv_heads": 4, "head_dim": 8, "hidden_dim": 128, "vocab_size": 100,
        "norm_eps": 1e-5, "rope_theta": 1e6, "max_seq_len": 2048,
    }  # fmt: skip
    model = import_config(text, "small")
    assert model.layers == small().layers
    assert (
        import_config({**text, "moe": {"num_experts": 8, "num_experts_per_tok": 2}}).layers[0].feed_forward.experts == 8
    )
    with pytest.raises(InputError, match="unknown structural field 'novelty'"):
        import_config({**text, "novelty": 2})


def test_defaults_of_a_family_are_said():
    text = {key: SMALL[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers")}
    model = import_config({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", **text}}, "small")
    assert len(model.notes) == 1
    assert model.notes[0].startswith("assumed, as the code of gemma3_text does where the config has no such key: ")
    assert "num_attention_heads 8" in model.notes[0]


def test_encoders_are_counted_and_said():
    vision = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64, "patch_size": 14}
    model = import_config({"model_type": "llava", "text_config": SMALL, "vision_config": vision}, "small")
    assert model.encoder_parameters == 2 * (4 * 32 * 32 + 2 * 32 * 64) + 3 * 14 * 14 * 32 + 32 * 32 + 32 * 64
    assert parameter_count(model) == parameter_count(small()) + model.encoder_parameters
    assert model.notes[0].startswith("vision encoder: about ")
    bare = import_config({"model_type": "llava", "text_config": SMALL, "audio_config": {}}, "small")
    assert bare.notes == ("audio encoder: its size is not in the config and is not counted",)


BAD = {
    "config.json: hidden_size: expected a whole number of at least 1, got 1e+30": {"hidden_size": 1e30},
    "config.json: hidden_size: 100000000000 is absurd; expected at most 1,000,000,000": {"hidden_size": 10**11},
    "config.json: num_hidden_layers: 100001 is absurd; expected at most 10,000": {"num_hidden_layers": 100_001},
    "config.json: vocab_size: expected a whole number of at least 1, got -5": {"vocab_size": -5},
    "config.json: hidden_size: 64 and n_embd 32 contradict each other; keep the one that is right": {"n_embd": 32},
    "config.json: num_hidden_layers: missing; add it as the model's page": {"num_hidden_layers": None},
    "config.json: num_experts_per_tok: 9 of only 8 experts": {
        "model_type": "mixtral",
        "num_local_experts": 8,
        "num_experts_per_tok": 9,
    },
    "full_attn_idxs: there is no layer 7; the 4 layers count from 0": {
        "model_type": "lfm2",
        "full_attn_idxs": [7],
        "conv_L_cache": 3,
    },
    "attn_type_list: 2 entries for 4 layers": {"model_type": "minimax", "attn_type_list": [0, 1]},
    "attn_type_list: unknown layer type 2 at layer 0": {"model_type": "minimax", "attn_type_list": [2, 0, 0, 1]},
    "per_layer_config: expected a mapping of layers": {"per_layer_config": [1]},
    "is_encoder_decoder: True is a structure that is not supported": {"is_encoder_decoder": True},
    "vision_config: expected a mapping of keys": {"model_type": "qwen2_vl", "vision_config": 3},
}


def test_an_encoder_decoder_is_no_kin_of_any_family():
    with pytest.raises(InputError, match="decoders that read an encoder's output are not modelled") as refused:
        import_config({"model_type": "t5", "is_encoder_decoder": True, "d_model": 64, "num_layers": 2}, "t5")
    assert "--like" not in str(refused.value)
    assert "did you mean" not in str(refused.value)


# transformers writes no value of a level below another that its class has by default.
TEXT_LEVELS = {
    "llava": ({"model_type": "llama", "vocab_size": 32064, "max_position_embeddings": 4096}, 6.74e9),
    "llava-next": ({"model_type": "mistral", "vocab_size": 32064, "sliding_window": None}, 7.24e9),
    "pixtral": ({"model_type": "mistral", "head_dim": 128, "hidden_size": 5120, "num_hidden_layers": 40,
                 "is_composition": True, "vocab_size": 131072, "sliding_window": None}, 12.25e9),
    "smolvlm": ({"model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 24,
                 "is_llama_config": True, "vocab_size": 49280, "tie_word_embeddings": True}, 1.71e9),
}  # fmt: skip


@pytest.mark.parametrize("name", TEXT_LEVELS)
def test_a_text_level_has_the_figures_of_its_class_where_it_states_none(name):
    text, parameters = TEXT_LEVELS[name]
    model = import_config({"model_type": "llava", "text_config": text}, name)
    assert parameter_count(model) == pytest.approx(parameters, rel=0.01)
    assert f"as the code of {text['model_type']} does where the config has no such key" in model.notes[-1]
    assert [window for _, window in windows(model)] == [None]


def test_a_class_of_its_own_is_no_reason_to_guess():
    with pytest.raises(InputError, match=r"num_hidden_layers: missing; add it"):
        import_config({"model_type": "llama", "hidden_size": 64}, "no-wrapper")
    with pytest.raises(InputError, match=r"no known family reads all of its keys"):
        import_config({"model_type": "clip", "text_config": {"model_type": "clip_text_model"}}, "clip")


@pytest.mark.parametrize(("message", "change"), BAD.items())
def test_bad_configs_say_the_field_and_the_remedy(message, change):
    with pytest.raises(InputError, match=re.escape(message)):
        small(**change)


FILES = {
    '{"model_type": "llama", "model_type": "gpt2"}': "the key 'model_type' is there twice; keep the one that is right",
    "[" * 100_000 + "]" * 100_000: "nested too deeply to be a config.json; is it the right file?",
    '{"hidden_size": ' + "9" * 5000 + "}": "a number has too many digits to be read; correct it",
}


@pytest.mark.parametrize("text", FILES, ids=["twice", "nested", "digits"])
def test_bad_files(tmp_path, evaluator, text):
    path = tmp_path / "config.json"
    path.write_text(text)
    code, _, complaint = evaluator("catalog", "import", str(path))
    assert code == 2
    assert f"{path}: {FILES[text]}" in complaint.replace("\n", " ")


def test_the_command_says_what_it_made_of_it(tmp_path, evaluator):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**SMALL, "model_type": "novel", "hidden_act": "relu2"}))
    code, _, complaint = evaluator("catalog", "import", str(path))
    assert (code, "--like FAMILY" in complaint) == (2, True)
    path.write_text(json.dumps({**SMALL, "model_type": "novel"}))
    code, text, said = evaluator("catalog", "import", str(path), "--like", "llama", "--name", "novel-1b")
    assert code == 0
    assert read_model(loads_yaml(text), "text").name == "novel-1b"
    assert "novel-1b" in said
    assert "assumed: model_type novel has the layers of llama" in said


NEMOTRON = {
    "model_type": "nemotron_h_puzzle", "hidden_size": 64, "num_hidden_layers": None, "num_attention_heads": 8,
    "num_key_value_heads": 2, "n_routed_experts": 8, "moe_shared_expert_intermediate_size": 32, "vocab_size": 100,
    "mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 2, "mlp_hidden_act": "relu2",
    "max_position_embeddings": 2048,
}  # fmt: skip


def test_blocks_that_state_their_own_figures():
    """Nemotron-H Puzzle: every block names its type, and those with experts how many are chosen, and their width."""
    blocks = [
        {"block_type": "mamba"},
        {"block_type": "moe", "moe_intermediate_size": 16, "num_experts_per_tok": 2},
        {"block_type": "attention"},
        {"block_type": "moe", "moe_intermediate_size": 48, "num_experts_per_tok": 4},
    ]
    layers = import_config({**NEMOTRON, "block_configs": blocks}, "small").layers
    assert [kind.count for kind in layers] == [1, 1, 1, 1]
    experts = [kind.feed_forward for kind in layers if kind.feed_forward is not None]
    assert [(block.intermediate, block.experts_per_token) for block in experts] == [(16, 2), (48, 4)]
    listed = {**NEMOTRON, "block_configs": blocks, "layers_block_type": [block["block_type"] for block in blocks]}
    assert import_config(listed, "small").layers == layers


def test_layers_that_fill_no_group_have_full_attention():
    """Ling: one full layer ends each group; of ten layers in groups of four, two are left over."""
    ling = small(
        model_type="bailing_moe_linear", num_hidden_layers=10, layer_group_size=4, num_experts=8, num_experts_per_tok=2,
        moe_intermediate_size=32,
    )  # fmt: skip
    counts = {isinstance(kind.mixer, Recurrence): kind.count for kind in ling.layers}
    assert counts == {True: 6, False: 4}


def test_an_empty_list_of_dense_layers_says_nothing():
    """Qwen3.5's dense models have it as well."""
    dense = small(model_type="qwen3", mlp_only_layers=[])
    assert all(isinstance(kind.feed_forward, DenseFeedForward) for kind in dense.layers)


CONTRADICTIONS = {
    "first_k_dense_replace: 9 of only 4 layers": {
        "model_type": "deepseek", "first_k_dense_replace": 9, "num_experts": 4, "num_experts_per_tok": 2,
    },
    "n_groups: 3 does not divide 8 heads": {**NEMOTRON, "n_groups": 3, "hybrid_override_pattern": "M*M-",
                                            "intermediate_size": 32},
    "linear_num_key_heads: 3 does not divide 4 heads": {
        "model_type": "olmo_hybrid", "linear_num_key_heads": 3, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
        "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4,
    },
    "indexer_types: unknown layer type 'none' at layer 1": {
        "model_type": "glm_moe_dsa", "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
        "v_head_dim": 16, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "indexer_types": ["full", "none", "full", "shared"],
    },
}  # fmt: skip


@pytest.mark.parametrize("message", CONTRADICTIONS)
def test_contradictions_are_refused(message):
    with pytest.raises(InputError, match=message):
        small(**CONTRADICTIONS[message])


PREDICTING = {"glm-4.5-air": 1, "minimax-m2": 3, "kimi-linear": 0, "step-3.5-flash": 3, "nemotron-3-super": 1,
              "deepseek-v4-flash": 1, "gemma-3-27b": 0}  # fmt: skip


@pytest.mark.parametrize(("name", "modules"), PREDICTING.items())
def test_layers_that_predict_further_tokens_are_no_layers_of_the_model(name, modules):
    assert import_config(PUBLISHED[name]["config"], name).prediction_layers == modules


def test_qwen3_next_has_a_prediction_module_that_its_config_does_not_state():
    """As vLLM takes it (``SpeculativeConfig.hf_config_override``); other families must state theirs."""
    names = ("hidden_size", "vocab_size", "num_hidden_layers")
    config = {"model_type": "qwen3_next", **{name: SMALL[name] for name in names}, "num_attention_heads": 8,
              "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 2048, "num_experts": 8,
              "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
              "linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 16,
              "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4}  # fmt: skip
    found = import_config(config, "next")
    assert found.prediction_layers == 1
    assert read_model(loads_yaml(model_to_yaml(found)), "text").prediction_layers == 1
    assert import_config({**config, "num_nextn_predict_layers": 0}, "next").prediction_layers == 0
    assert small().prediction_layers == 0
