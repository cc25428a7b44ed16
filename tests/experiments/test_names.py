"""Published names -> catalog names and precisions."""

import pytest

from evaluator.catalog import load_hardware, load_model
from evaluator.errors import InputError
from evaluator.experiments.names import hardware_name, model_name
from evaluator.experiments.precisions import precision


@pytest.mark.parametrize(
    ("published", "name"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama-3.1-70b"),
        ("meta-llama/Llama-2-70b-hf", "llama-2-70b"),
        ("mistralai/Mistral-Nemo-Instruct-2407", "mistral-nemo-12b"),
        ("mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b"),
        ("RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic", "llama-4-scout-17b-16e-fp8"),
        ("codellama/CodeLlama-34b-Instruct-hf", "codellama-34b"),
        ("codellama/CodeLlama-34b-Python-hf", "codellama-34b"),
        ("Qwen/Qwen3-32B-FP8", "qwen3-32b"),
        ("Qwen/Qwen3-32B-AWQ", "qwen3-32b"),
        ("Qwen/Qwen3-30B-A3B-Thinking-2507", "qwen3-30b-a3b"),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", "qwen3-235b-a22b"),
        ("Qwen/Qwen2.5-Coder-7B-Instruct", "qwen2.5-7b"),
        ("meta-llama/Meta-Llama-3.1-405B-Instruct-FP8", "llama-3.1-405b"),
        ("NousResearch/Meta-Llama-3-8B", "llama-3.1-8b"),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8", "llama-3.1-8b"),
        ("RedHatAI/Llama-4-Scout-17B-16E-Instruct-quantized.w4a16", "llama-4-scout-17b-16e"),
        ("hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4", "llama-3.1-70b"),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "qwen2.5-7b"),
        ("deepseek-ai/DeepSeek-V3-0324", "deepseek-v3"),
        ("deepseek-ai/DeepSeek-V2-Lite-Chat", "deepseek-v2-lite"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "llama-3.1-70b"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "qwen2.5-7b"),
        ("bigscience/bloom", "bloom-176b"),
        ("/models/LLAMA-3.1-8B-Instruct/ ", "llama-3.1-8b"),
    ],
)
def test_models(published, name):
    assert model_name(published) == name
    load_model(name)


@pytest.mark.parametrize(
    ("published", "name"),
    [
        ("H100-SXM-80GB", "h100-sxm"),
        ("A100-80GB", "a100-sxm"),
        ("L40S-48GB", "l40s"),
        ("RTXPRO6000", "rtx-pro-6000"),
        ("NVIDIA H200 141GB HBM3e", "h200-sxm"),
        ("B200", "b200-sxm"),
        ("MI300X-192GB", "mi300x"),
        ("AMD Instinct MI300X OAM", "mi300x"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("H100 SXM 80 GB", "h100-sxm"),
        ("H100-SXM5-80GiB", "h100-sxm"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("H100 PCIe", "h100-pcie"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA B300 SXM6 AC", "b300-sxm"),
        ("TPU7x", "tpu-ironwood"),
    ],
)
def test_hardware(published, name):
    assert hardware_name(published) == name
    load_hardware(name)


def test_unknown_names_are_told():
    with pytest.raises(InputError, match=r"model foo/Bar-9B is not in the catalog.*--out my/models/llm/bar-9b\.yaml"):
        model_name("foo/Bar-9B")
    with pytest.raises(InputError, match="GPU Abacus is not in the catalog"):
        hardware_name("Abacus")
    with pytest.raises(InputError, match="its a100-sxm has 86 GB"):
        hardware_name("A100-SXM4-40GB")


@pytest.mark.parametrize(
    "published", ["Instruct", "", "Llama", "Qwen/Qwen2.5-7B-Instruct-1M", "moonshotai/Kimi-K2-Thinking", "foo/A-MXFP8"]
)
def test_models_that_are_refused(published):
    with pytest.raises(InputError, match="is not in the catalog"):
        model_name(published)


@pytest.mark.parametrize("published", ["H100 NVL", "H200 NVL", "A10G", "L40", "8xH100", "NVIDIA GH200 480GB", ""])
def test_hardware_that_is_refused(published):
    with pytest.raises(InputError, match="is not in the catalog"):
        hardware_name(published)


@pytest.mark.parametrize(
    ("published", "recorded", "weights", "activations"),
    [
        ("meta-llama/Llama-3.1-8B", "fp16_or_bf16", "checkpoint", "bf16"),
        ("meta-llama/Llama-3.1-8B", "bfloat16", "checkpoint", "bf16"),
        ("meta-llama/Llama-3.1-8B", "fp8_dynamic", "fp8", "bf16"),
        ("meta-llama/Llama-3.1-8B", "float8", "fp8", "bf16"),
        ("meta-llama/Llama-3.1-8B", "w8a8-fp8", "fp8", "bf16"),
        ("meta-llama/Llama-3.1-8B", "AWQ", "int4", "bf16"),
        ("meta-llama/Llama-3.1-8B", "gptq", "int4", "bf16"),
        ("meta-llama/Llama-3.1-8B", "w4a16", "int4", "bf16"),
        ("meta-llama/Llama-3.1-8B", "w8a8", "int8", "int8"),
        ("meta-llama/Llama-3.1-8B", "8bit", "int8", "bf16"),
        ("meta-llama/Llama-3.1-8B", "fp4", "nvfp4", "bf16"),
        ("meta-llama/Llama-3.1-8B", "mxfp4", "mxfp4", "bf16"),
        ("RedHatAI/Llama-3.1-8B-FP8-dynamic", "fp16_or_bf16", "fp8", "bf16"),
        ("RedHatAI/Llama-3.1-8B-FP8-dynamic", "bf16", "fp8", "bf16"),
        ("RedHatAI/Llama-3.1-8B-quantized.w8a8", "compressed-tensors", "int8", "int8"),
        ("Qwen/Qwen3-32B-AWQ", "auto", "int4", "bf16"),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8", "gptq", "int8", "bf16"),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8", "fp16_or_bf16", "int8", "bf16"),
        ("RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic", "fp8", "checkpoint", "bf16"),
        ("openai/gpt-oss-20b", "fp16_or_bf16", "checkpoint", "bf16"),
        ("openai/gpt-oss-20b", "fp4", "checkpoint", "bf16"),
        ("openai/gpt-oss-20b", "bf16", "bf16", "bf16"),
        ("unsloth/gpt-oss-20b-BF16", "fp16_or_bf16", "bf16", "bf16"),
        ("deepseek-ai/DeepSeek-V3", "fp16_or_bf16", "checkpoint", "bf16"),
        ("nvidia/DeepSeek-R1-FP4", "fp16_or_bf16", "nvfp4", "bf16"),
        ("meta-llama/Llama-3.1-8B", "bnb-4bit", None, None),
        ("meta-llama/Llama-3.1-8B", "compressed-tensors", None, None),
        ("meta-llama/Llama-3.1-8B", "w4a8", None, None),
        ("meta-llama/Llama-3.1-8B", "ternary", None, None),
        ("unsloth/Llama-3.1-8B-bnb-4bit", "fp16_or_bf16", None, None),
        ("RedHatAI/Llama-3.1-8B-FP8", "int4", None, None),
    ],
)
def test_precisions(published, recorded, weights, activations):
    if weights is None:
        with pytest.raises(InputError, match="precision"):
            precision(published, model_name(published), recorded, "auto")
    else:
        found = precision(published, model_name(published), recorded, "auto")
        assert (found.weights, found.activations) == (weights, activations)


def test_precisions_of_the_kv_cache():
    def of(stated):
        return precision("llama-3.1-8b", "llama-3.1-8b", "auto", stated).kv

    assert {of(stated) for stated in ("auto", "bf16", "float16")} == {"bf16"}
    assert {of(stated) for stated in ("fp8", "fp8_e4m3", "FP8_E5M2")} == {"fp8"}
    assert of("int8") == "int8"
    with pytest.raises(InputError, match="kv_cache_dtype turbo is not known"):
        of("turbo")
