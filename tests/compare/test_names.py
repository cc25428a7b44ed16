"""Published names -> catalog names and precisions."""

import pytest

from evaluator.catalog import load_hardware, load_model
from evaluator.compare.names import hardware_name, model_name, precision
from evaluator.errors import InputError


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
        ("Qwen/Qwen3-32B-FP8", "qwen3-32b"),
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


def test_precisions():
    assert precision("llama-3.1-8b", "fp16_or_bf16", "auto").weights == "checkpoint"
    assert precision("llama-3.1-8b", "fp8", "fp8_e4m3").weights == "fp8"
    assert precision("llama-3.1-8b", "fp8", "fp8_e4m3").kv == "fp8"
    assert precision("llama-4-scout-17b-16e-fp8", "fp8", "auto").weights == "checkpoint"
    assert precision("gpt-oss-20b", "fp16_or_bf16", "auto").weights == "bf16"
