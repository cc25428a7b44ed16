"""Importing config.json: what each family's keys mean, and that nothing unknown passes."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from evaluator.catalog import load_model, names
from evaluator.catalog.model import (
    CheckpointPrecision,
    DenseFeedForward,
    LatentAttention,
    LayerKind,
    MoeFeedForward,
    SoftmaxAttention,
    StateSpace,
)
from evaluator.catalog.read_model import model_to_yaml, read_model
from evaluator.errors import InputError
from evaluator.huggingface import import_config
from evaluator.yaml import loads_yaml

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rope_theta": 500000.0,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
NEMOTRON = {
    "model_type": "nemotron_h",
    "hidden_size": 64,
    "vocab_size": 100,
    "max_position_embeddings": 8192,
    "intermediate_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "attention_head_dim": 16,
    "num_hidden_layers": 5,
    "hybrid_override_pattern": "M-M*-",
    "mlp_hidden_act": "relu2",
    "mamba_num_heads": 16,
    "mamba_head_dim": 8,
    "ssm_state_size": 32,
    "n_groups": 2,
    "conv_kernel": 4,
}
# Published file -> catalog name.
FILES = {
    "Qwen--Qwen3-0.6B": "qwen3-0.6b",
    "Qwen--Qwen3-235B-A22B": "qwen3-235b-a22b",
    "Qwen--Qwen3-30B-A3B": "qwen3-30b-a3b",
    "Qwen--Qwen3-32B": "qwen3-32b",
    "Qwen--Qwen3-8B": "qwen3-8b",
    "Qwen--Qwen3-Next-80B-A3B": "qwen3-next-80b-a3b",
    "Qwen--Qwen3.5-35B-A3B": "qwen3.5-35b-a3b",
    "codellama-34b-instruct-hf": "codellama-34b",
    "deepseek-ai--DeepSeek-R1": "deepseek-r1",
    "deepseek-ai--DeepSeek-V3": "deepseek-v3",
    "deepseek-v2-lite": "deepseek-v2-lite",
    "llama-2-7b-hf": "llama-2-7b",
    "llama-4-scout-17b-16e-instruct-fp8-dynamic": "llama-4-scout-17b-16e-fp8",
    "meta-llama--Llama-4-Maverick-17B-128E-Instruct": "llama-4-maverick-17b-128e",
    "meta-llama--Llama-4-Scout-17B-16E-Instruct": "llama-4-scout-17b-16e",
    "meta-llama--Meta-Llama-3.1-405B": "llama-3.1-405b",
    "meta-llama--Meta-Llama-3.1-70B": "llama-3.1-70b",
    "meta-llama--Meta-Llama-3.1-8B": "llama-3.1-8b",
    "mistral-nemo-instruct-2407": "mistral-nemo-12b",
    "mistralai--Mixtral-8x22B-v0.1": "mixtral-8x22b",
    "mistralai--Mixtral-8x7B-v0.1": "mixtral-8x7b",
    "moonshotai--Kimi-K2-Instruct": "kimi-k2",
    "nvidia--Nemotron-H-56B-Base-8K": "nemotron-h-56b",
    "openai--gpt-oss-120b": "gpt-oss-120b",
    "openai--gpt-oss-20b": "gpt-oss-20b",
    "qwen2.5-7b-instruct": "qwen2.5-7b",
    "qwen3-14b": "qwen3-14b",
    "yi-34b": "yi-34b",
}


@pytest.mark.parametrize("file", FILES)
def test_published_config_equals_the_committed_model(file, data_folder):
    committed = load_model(FILES[file])
    imported = import_config(data_folder / "hf_configs" / f"{file}.json", FILES[file])
    # Not in config.json; and the catalog's own models are the language models without their encoders.
    beside = ("source", "published_parameters", "nucleus_sampling", "penalties", "encoder_parameters", "notes")
    assert replace(imported, **{name: getattr(committed, name) for name in beside}) == committed


def test_every_published_config_is_in_the_catalog(data_folder):
    assert {path.stem for path in (data_folder / "hf_configs").glob("*.json")} == set(FILES)
    assert set(FILES.values()) <= set(names("models"))


def test_no_key_of_a_published_config_is_lost(data_folder):
    """Every key is used or known: one that is renamed is refused, whichever it is, unless it is optional."""
    for file in FILES:
        config = json.loads((data_folder / "hf_configs" / f"{file}.json").read_text())
        inner = config.get("text_config", config)
        inner["num_hidden_layer"] = inner.pop("num_hidden_layers")
        with pytest.raises(InputError, match="num_hidden_layer"):
            import_config(config)


def test_dense_model():
    model = import_config(LLAMA, "tiny")
    attention = SoftmaxAttention(heads=32, kv_heads=8, head_dim=128)
    assert model.layers == (LayerKind(32, attention, DenseFeedForward(14336)),)
    assert (model.name, model.hidden, model.vocabulary, model.tied_embeddings) == ("tiny", 4096, 128256, False)


def test_a_file_gives_its_name(tmp_path):
    path = tmp_path / "meta-llama--Meta-Llama-3.1-8B.json"
    path.write_text(json.dumps(LLAMA))
    assert import_config(path).name == "meta-llama-3.1-8b"
    (tmp_path / "my-model").mkdir()
    inside = tmp_path / "my-model" / "config.json"
    inside.write_text(json.dumps(LLAMA))
    assert import_config(inside).name == "my-model"


@pytest.mark.parametrize(
    ("asked", "nucleus", "penalties"),
    [
        ({"top_p": 0.9, "repetition_penalty": 1.05}, True, True),
        ({"top_k": 50, "repetition_penalty": 1.0, "frequency_penalty": 0.5}, False, False),  # vLLM takes no other
        ({"repetition_penalty": None}, False, False),
        (None, False, False),
    ],
)
def test_sampling_is_read_from_beside(tmp_path, asked, nucleus, penalties):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    if asked is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(asked))
    imported = import_config(tmp_path / "config.json", "mine")
    assert (imported.nucleus_sampling, imported.penalties) == (nucleus, penalties)
    assert read_model(loads_yaml(model_to_yaml(imported)), "mine.yaml") == imported


def test_nested_text_config():
    nested = {"model_type": "llama", "text_config": LLAMA, "vision_config": {}, "tie_word_embeddings": True}
    model = import_config(nested)
    assert model.layers == import_config(LLAMA).layers
    assert model.tied_embeddings


def test_sliding_window_only_where_it_is_used():
    mistral = {**LLAMA, "model_type": "mistral", "sliding_window": 4096}
    assert import_config(mistral).layers[0].mixer.window == 4096
    qwen = {**LLAMA, "model_type": "qwen2", "sliding_window": 4096, "max_window_layers": 28}
    assert import_config(qwen).layers[0].mixer.window is None
    both = import_config({**qwen, "use_sliding_window": True}).layers
    assert [(kind.count, kind.mixer.window) for kind in both] == [(28, None), (4, 4096)]


def test_llama4_alternates_attention_and_experts():
    kinds = load_model("llama-4-maverick-17b-128e").layers
    seen = {(kind.mixer.window, type(kind.feed_forward).__name__): kind.count for kind in kinds}
    assert seen == {(8192, "DenseFeedForward"): 24, (8192, "MoeFeedForward"): 12, (None, "MoeFeedForward"): 12}
    assert kinds[0].feed_forward == DenseFeedForward(16384)
    assert kinds[1].feed_forward.shared_intermediate == 8192


def test_queries_and_keys_are_normalised_where_code_or_config_say_so():
    plain = {**LLAMA, "head_dim": 64}
    always = ("qwen3", "gemma3_text", "olmo2", "apertus")
    assert all(import_config({**plain, "model_type": kind}).layers[0].mixer.qk_norm for kind in always)
    for key in ("use_qk_norm", "qk_layernorm", "qk_norm"):
        assert import_config({**plain, key: True}).layers[0].mixer.qk_norm
    assert not import_config(plain).layers[0].mixer.qk_norm
    # Llama 4 normalises what it rotates, which Maverick's configuration turns off.
    seen = {name: [kind.mixer.qk_norm for kind in load_model(f"llama-4-{name}").layers]
            for name in ("scout-17b-16e", "maverick-17b-128e")}  # fmt: skip
    assert seen == {"scout-17b-16e": [True, False], "maverick-17b-128e": [False] * 3}


def test_gpt_oss_alternates_windows():
    kinds = load_model("gpt-oss-120b").layers
    assert [(kind.count, kind.mixer.window, kind.mixer.bias) for kind in kinds] == [(18, 128, True), (18, None, True)]


def test_qwen_next_has_one_full_layer_in_four():
    linear, full = load_model("qwen3-next-80b-a3b").layers
    assert (linear.count, full.count) == (36, 12)
    assert full.mixer.output_gate
    assert linear.feed_forward == MoeFeedForward(512, 10, 512, shared_intermediate=512, shared_gate=True)
    assert [kind.count for kind in load_model("qwen3.5-35b-a3b").layers] == [30, 10]


def test_deepseek_starts_with_dense_layers():
    dense, moe = load_model("deepseek-v3").layers
    assert (dense.count, moe.count) == (3, 58)
    assert dense.mixer == LatentAttention(128, 512, 128, 64, 128, q_lora_rank=1536)
    assert moe.feed_forward.shared_intermediate == 2048


def test_nemotron_layers_have_one_part_each():
    model = import_config(NEMOTRON)
    assert model.layers == (
        LayerKind(2, StateSpace(16, 8, 32, 2, 4), None),
        LayerKind(2, None, DenseFeedForward(256, gated=False)),
        LayerKind(1, SoftmaxAttention(8, 2, 16), None),
    )
    assert [kind.count for kind in load_model("nemotron-h-56b").layers] == [54, 54, 10]


def test_stored_precision():
    assert load_model("llama-2-7b").checkpoint == CheckpointPrecision(*["fp16"] * 5)
    assert load_model("llama-3.1-8b").checkpoint == CheckpointPrecision()
    assert load_model("deepseek-v3").checkpoint == CheckpointPrecision(*["fp8_block"] * 3, "bf16", "bf16")
    assert load_model("gpt-oss-20b").checkpoint == CheckpointPrecision(experts="mxfp4")
    assert load_model("llama-4-scout-17b-16e-fp8").checkpoint == CheckpointPrecision(feed_forward="fp8", experts="fp8")


def quantised(**quantization: Any) -> CheckpointPrecision:
    return import_config({**LLAMA, "quantization_config": quantization}).checkpoint


def group(bits: int, kind: str) -> Mapping[str, Any]:
    return {"group_0": {"targets": ["Linear"], "weights": {"num_bits": bits, "type": kind, "group_size": 16}}}


def test_quantisation_methods():
    int4 = CheckpointPrecision("int4", "int4", "int4", "bf16", "bf16")
    assert quantised(quant_method="awq", bits=4, group_size=128, zero_point=True, version="gemm") == int4
    assert quantised(quant_method="gptq", bits=4, desc_act=False, sym=True, lm_head=True) == replace(int4, head="int4")
    assert quantised(quant_method="compressed-tensors", config_groups=group(4, "int"), ignore=["lm_head"]) == int4
    assert quantised(quant_method="modelopt", quant_algo="NVFP4", config_groups=group(4, "float")).attention == "nvfp4"
    assert quantised(quant_method="modelopt", quant_algo="FP8", exclude_modules=["lm_head"]).feed_forward == "fp8"
    kept = quantised(quant_method="fp8", modules_to_not_convert=["re:.*self_attn.*", "model.layers.0.mlp.gate"])
    assert kept == CheckpointPrecision(feed_forward="fp8", experts="fp8")


def test_scales_of_blocks_are_told_apart():
    blocks = CheckpointPrecision(*["fp8_block"] * 3)
    assert quantised(quant_method="fp8", weight_block_size=[128, 128]) == blocks
    assert quantised(quant_method="modelopt", quant_algo="FP8_PB_WO") == blocks
    weights = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}
    by_group = {"group_0": {"targets": ["Linear"], "weights": weights}}
    assert quantised(quant_method="compressed-tensors", config_groups=by_group) == blocks
    assert quantised(quant_method="fp8", weight_block_size=None) == CheckpointPrecision("fp8", "fp8", "fp8")


def test_unknown_quantisation_is_refused():
    with pytest.raises(InputError, match=r"quant_method: unknown method 'gguf'.*there are: fp8, mxfp4"):
        quantised(quant_method="gguf")
    with pytest.raises(InputError, match=r"bits: 3 bits are not supported \(4 or 8\)"):
        quantised(quant_method="gptq", bits=3)
    with pytest.raises(InputError, match="weights of 6 bits of type 'float' are not supported"):
        quantised(quant_method="compressed-tensors", config_groups=group(6, "float"))
    with pytest.raises(
        InputError, match=r"unknown structural field 'sparse_blocks' in config\.json: quantization_config"
    ):
        quantised(quant_method="awq", bits=4, sparse_blocks=2)


def test_quantisation_of_some_layers_only():
    """A part has one dtype: that of most of its layers; a note says where others differ."""
    few = {"quant_method": "fp8", "ignored_layers": ["model.layers.3.self_attn.q_proj"]}
    model = import_config({**LLAMA, "quantization_config": few})
    assert model.checkpoint.attention == "fp8"
    assert model.notes == (
        "checkpoint: attention is left unquantised in 1 of 32 layers, which are counted as fp8 like the others",
    )
    most = [f"model.layers.{layer}.self_attn.q_proj" for layer in range(31)]
    assert quantised(quant_method="fp8", ignored_layers=most).attention == "bf16"


def test_small_modules_speak_for_no_part():
    """Qwen3.5 leaves gates and convolutions of its recurrences unquantised, and what predicts further tokens."""
    names = (
        "linear_attn.conv1d",
        "linear_attn.in_proj_a",
        "linear_attn.in_proj_b",
        "mlp.gate",
        "mlp.shared_expert_gate",
    )
    left = [f"model.language_model.layers.{layer}.{name}" for layer in range(32) for name in names]
    left += ["lm_head", "model.visual.blocks.0.attn.qkv", "mtp.layers.0.self_attn.q_proj", "model.layers.61*"]
    assert quantised(quant_method="fp8", modules_to_not_convert=left) == CheckpointPrecision("fp8", "fp8", "fp8")


def test_patterns_name_parts():
    """Kimi-K2-Thinking and Laguna keep all but routed experts; a group of its own for experts; modelopt's globs."""
    kimi = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"]
    experts = CheckpointPrecision(experts="int4")
    assert quantised(quant_method="compressed-tensors", config_groups=group(4, "int"), ignore=kimi) == experts
    weights = [{"num_bits": 8, "type": "float"}, {"num_bits": 4, "type": "float", "group_size": 16}]
    targets = ["re:.*attn.*(fused_wqa_wkv|wq_b|wo_a|wo_b)$"], ["re:.*ffn.*(gate|up|down)_proj$"]
    mixed = {
        str(index): {"targets": target, "weights": weight}
        for index, (target, weight) in enumerate(zip(targets, weights, strict=True))
    }
    found = quantised(quant_method="compressed-tensors", config_groups=mixed, ignore=[])
    assert found == CheckpointPrecision("fp8", "nvfp4", "nvfp4")
    with pytest.raises(InputError, match=r"several weight dtypes \(fp8, nvfp4\) of attention are not supported"):
        both = {name: {**level, "targets": ["Linear"]} for name, level in mixed.items()}
        quantised(quant_method="compressed-tensors", config_groups=both)
    globs = ["lm_head", "*.self_attn*", "vision_tower*", "*mlp.gate.*"]
    found = quantised(quant_method="modelopt", quant_algo="NVFP4", exclude_modules=globs)
    assert found == CheckpointPrecision(feed_forward="nvfp4", experts="nvfp4")


def test_modelopt_says_it_beside_the_config(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    said = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16, "exclude_modules": ["lm_head"]}
    beside = {"producer": {"name": "modelopt", "version": "0.33.0"}, "quantization": said}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside))
    found = import_config(tmp_path / "config.json", "mine").checkpoint
    assert found == CheckpointPrecision("nvfp4", "nvfp4", "nvfp4")


def test_a_dtype_for_every_module():
    layers = {f"model.layers.{layer}.self_attn.q_proj": {"quant_algo": "FP8"} for layer in range(3)}
    layers["model.layers.3.mlp.down_proj"] = {"quant_algo": "NVFP4", "group_size": 16}
    found = quantised(quant_method="modelopt", quant_algo="MIXED_PRECISION", quantized_layers=layers)
    assert found == CheckpointPrecision("fp8", "nvfp4")
    assert quantised(quant_method="bitsandbytes", load_in_4bit=True, load_in_8bit=False).experts == "int4"
    assert quantised(quant_method="fbgemm_fp8", modules_to_not_convert=["lm_head"]).attention == "fp8"
    quark = {
        "global_quant_config": {"weight": {"dtype": "fp4"}},
        "layer_quant_config": {"*self_attn*": {"weight": {"dtype": "fp8_e4m3"}}},
    }
    assert quantised(quant_method="quark", exclude=["lm_head"], **quark) == CheckpointPrecision("fp8", "mxfp4", "mxfp4")
    torchao = {"default": {"_type": "Float8DynamicActivationFloat8WeightConfig", "_data": {"granularity": []}}}
    assert quantised(quant_method="torchao", quant_type=torchao).attention == "fp8"
    assert quantised(quant_method="torchao", quant_type="int4_weight_only").experts == "int4"
    assert quantised(quant_method="hqq", quant_config={"weight_quant_params": {"nbits": 8}}).experts == "int8"
    assert quantised(quant_method="w4afp8") == CheckpointPrecision("fp8", "fp8", "int4")
    assert quantised(quant_method="fp_quant", forward_dtype="mxfp4").feed_forward == "mxfp4"
    assert quantised(quant_method="awq", w_bit=4, q_group_size=128).attention == "int4"
    with pytest.raises(InputError, match=r"quant_type: 'float6' names no dtype of weights"):
        quantised(quant_method="torchao", quant_type="float6")
    with pytest.raises(InputError, match=r"quant_algo: unknown 'NVFP3' \(known: FP8, NVFP4"):
        quantised(quant_method="modelopt", quant_algo="NVFP3")


REFUSED = {
    "unknown structural field 'foo' in config.json: no reader knows": {"foo": 1},
    "unknown structural field 'sliding_window' in config.json": {"sliding_window": 4096},
    "unknown model_type 'lama'; did you mean llama": {"model_type": "lama", "architectures": ["Lama"], "foo": 1},
    "config.json: num_hidden_layers: expected a whole number": {"num_hidden_layers": "32"},
    r"config.json: num_hidden_layers: expected a whole number of at least 1, got \[32\]": {"num_hidden_layers": [32]},
    "hidden_act: 'gelu' is a structure that is not supported .only 'silu'": {"hidden_act": "gelu"},
    "mlp_bias: True is a structure that is not supported": {"mlp_bias": True},
    "num_key_value_heads: 5 does not divide 32 heads": {"num_key_value_heads": 5},
    "num_attention_heads: 33 does not divide hidden_size 4096": {"num_attention_heads": 33, "num_key_value_heads": 33},
    "torch_dtype: unknown dtype 'float8'": {"torch_dtype": "float8"},
    r"torch_dtype: unknown dtype \['bfloat16'\]": {"torch_dtype": ["bfloat16"]},
    "num_nextn_predict_layers: expected a whole number of at least 0": {
        "num_nextn_predict_layers": [1],
        "num_key_value_heads": [8] * 33,
    },
    "model_type: missing; add it, or import with --like FAMILY": {"model_type": None, "architectures": 1},
    "config.json: layer_types: 1 entries for 32 layers": {"model_type": "mistral", "layer_types": ["full_attention"]},
    "config.json: mlp_only_layers: expected a list of entries of type int": {
        "model_type": "qwen3_moe",
        "mlp_only_layers": 3,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
    },
    "hidden_size: missing": {"hidden_size": None},
}


@pytest.mark.parametrize(("message", "change"), REFUSED.items())
def test_refused_by_name(message, change):
    with pytest.raises(InputError, match=message):
        import_config({**LLAMA, **change})


def test_unknown_key_of_the_outer_level_is_refused():
    with pytest.raises(InputError, match=r"unknown structural field 'memory_config' in config\.json"):
        import_config({"model_type": "llama", "text_config": LLAMA, "memory_config": {}})


def test_unknown_layers_are_refused():
    with pytest.raises(InputError, match=r"hybrid_override_pattern: unknown layer 'X' \(known: M Mamba-2"):
        import_config({**NEMOTRON, "hybrid_override_pattern": "M-MX-"})
    with pytest.raises(InputError, match="6 letters for num_hidden_layers 5"):
        import_config({**NEMOTRON, "hybrid_override_pattern": "M-M*--"})
    qwen = {**LLAMA, "model_type": "qwen3", "layer_types": ["full_attention"] * 31 + ["cross_attention"]}
    with pytest.raises(InputError, match="layer_types: unknown layer type 'cross_attention'"):
        import_config(qwen)
    with pytest.raises(InputError, match="layer_types: 2 entries for 32 layers"):
        import_config({**qwen, "layer_types": ["full_attention"] * 2})


def test_unreadable_files(tmp_path):
    (tmp_path / "broken.json").write_text('{"model_type": ')
    with pytest.raises(InputError, match=r"broken.json, line 1: not JSON"):
        import_config(tmp_path / "broken.json")
    with pytest.raises(InputError, match="there is no file"):
        import_config(tmp_path / "absent.json")
    (tmp_path / "list.json").write_text("[1]")
    with pytest.raises(InputError, match="expected a mapping"):
        import_config(tmp_path / "list.json")


@pytest.mark.parametrize("key", ["moe", "vision_encoder", "multimodal"])
def test_a_params_json_whose_levels_are_none(key):
    params = {"dim": 64, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "hidden_dim": 128, "head_dim": 16, key: "yes"}
    with pytest.raises(InputError, match=f"params.json: {key}: expected a mapping of keys to values, got 'yes'"):
        import_config({**params, "vocab_size": 100, "max_seq_len": 1024})
