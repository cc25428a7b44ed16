"""Models by the names that they are published under."""

import pytest

from evaluator.catalog import load_model, names
from evaluator.catalog.published import entry_named
from evaluator.errors import InputError
from evaluator.keys import model_name
from evaluator.scenario import load_scenario


@pytest.mark.parametrize(
    ("published", "entry"),
    [
        ("meta-llama/Llama-3.3-70B-Instruct", "llama-3.1-70b"),
        ("Llama-3.1-8B", "llama-3.1-8b"),
        ("Qwen/Qwen2.5-Coder-32B-Instruct", "qwen2.5-32b"),
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek-r1"),
        ("mistralai/Mistral-Large-Instruct-2411", "mistral-large"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b"),
        ("RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic", "llama-4-scout-17b-16e-fp8"),
    ],
)
def test_published_names_are_those_of_the_catalog(published, entry):
    assert entry_named(published) == entry
    assert load_model(published) is load_model(entry)


@pytest.mark.parametrize("name", names("models"))
def test_names_of_the_catalog_stay(name):
    assert entry_named(name) == name


def test_a_published_quantisation_is_no_other_precision_in_silence():
    with pytest.raises(InputError, match="is deepseek-r1 with quantised weights; write model: deepseek-r1"):
        load_model("nvidia/DeepSeek-R1-0528-NVFP4")


@pytest.mark.parametrize(
    ("published", "weights"),
    [
        ("nvidia/Llama-3.3-70B-Instruct-NVFP4", "nvfp4"),
        ("RedHatAI/Qwen3-32B-FP8-dynamic", "fp8"),
        ("RedHatAI/Qwen3-32B-quantized.w4a16", "int4"),
        ("RedHatAI/Qwen3-32B-quantized.w8a8", "int8"),
        ("TheBloke/Llama-2-7B-Chat-GPTQ", "int4"),
    ],
)
def test_the_remedy_for_a_published_quantisation_is_its_own_format(published, weights):
    with pytest.raises(InputError, match=rf"such as precision: \{{weights: {weights}\}}"):
        entry_named(published)


def test_who_is_not_there_gets_the_message_about_what_was_written():
    with pytest.raises(InputError, match=r"unknown model 'llama3'; did you mean llama-"):
        load_model("llama3")
    with pytest.raises(InputError, match=r"model someone/new-7b is not in the catalog.*catalog import"):
        load_model("someone/new-7b")


def scenario(workload, deployment):
    lengths = {"source": "fixed", "prompt_tokens": 100, "output_tokens": 10}
    arrivals = {"process": "poisson", "rate_rps": 1}
    return load_scenario(
        {
            "workload": {"arrivals": arrivals, "lengths": lengths, **workload},
            "deployment": {"hardware": "h100-sxm", **deployment},
        }
    )


def test_scenarios_have_the_names_of_the_catalog():
    assert scenario({}, {"model": "Qwen/Qwen3-8B"}).deployment.model == "qwen3-8b"
    shares = scenario({"models": {"Qwen/Qwen3-8B": 1, "llama-3.1-8b": 2}}, {"model": "qwen3-8b"}).workload.models
    assert list(shares) == ["qwen3-8b", "llama-3.1-8b"]
    with pytest.raises(InputError, match=r"workload\.models\.qwen3-8b: is qwen3-8b, which has a share already"):
        scenario({"models": {"Qwen/Qwen3-8B": 1, "qwen3-8b": 2}}, {"model": "qwen3-8b"})
    assert {"type": "string", "pattern": "/"} in model_name.schema()["anyOf"]


def test_traces_have_them_too(tmp_path):
    trace = tmp_path / "trace.csv"
    rows = "0,10,5,Qwen/Qwen3-8B\n1,10,5,qwen3-8b\n2,10,5,meta-llama/Llama-3.1-8B-Instruct\n"
    trace.write_text("arrival_s,prompt_tokens,output_tokens,model\n" + rows)
    made = load_scenario(
        {
            "workload": {"arrivals": {"process": "trace", "file": str(trace)}, "lengths": {"trace": str(trace)}},
            "deployment": {"model": "qwen3-8b", "hardware": "h100-sxm"},
        }
    )
    assert made.workload.trace.models == ("qwen3-8b", "llama-3.1-8b")
    assert made.workload.trace.model.tolist() == [0, 0, 1]
