"""What predictions rest on, from the set, the model, the device and how it is deployed."""

import numpy as np
import pytest

import evaluator
from evaluator.accuracy import Errors, load_errors
from evaluator.accuracy.basis import Basis, design_basis, of_release, served_design
from evaluator.catalog import load_calibration
from evaluator.catalog.model import Adapters
from evaluator.catalog.store import find
from evaluator.catalog.what_if import WhatIf
from evaluator.cost.parallel import Parallel, TwoBatches
from evaluator.cost.precision import Precision
from evaluator.replica import ReplicaSpec, build
from evaluator.speculation import Drafting


def of(model="llama-3.1-8b", hardware="h100-sxm", calibration="auto", **more):
    return design_basis(build(ReplicaSpec(model, hardware, calibration, **more)))


@pytest.mark.parametrize(
    ("asked", "cases"),
    [
        ({}, ("runs",)),
        ({"model": "qwen3-8b"}, ("other_models",)),
        ({"precision": Precision("fp8")}, ("other_models",)),  # the runs were of bf16, whose kernels are others
        ({"precision": Precision(attention="fp8")}, ("other_models",)),
        ({"precision": Precision(attention="bf16")}, ("runs",)),  # as stored
        ({"model": WhatIf.of({"like": "llama-3.1-8b", "layers": 16})}, ("other_models",)),
        ({"model": "llama-3.1-70b", "parallel": Parallel(4)}, ("runs",)),
        ({"model": "llama-3.1-70b", "parallel": Parallel(8)}, ("other_layouts",)),  # its runs were on four devices
        ({"parallel": Parallel(2)}, ("runs",)),
        ({"hardware": "l40s", "model": "llama-3.1-8b"}, ("runs",)),
        ({"hardware": "a100-sxm", "model": "qwen3-14b"}, ("other_models",)),
        ({"hardware": "h200-sxm"}, ("other_devices",)),
        ({"model": "mixtral-8x7b", "parallel": Parallel(2, 1, 2)}, ("runs", "spread_experts")),
        ({"hardware": "rtx-pro-6000"}, ("kernels_and_host",)),
        ({"engine": "sglang"}, ("kernels_and_host", "other_engines")),
        ({"precision": Precision("fp8", kv="fp8")}, ("other_models", "other_engines")),
        (
            {"hardware": "b200-sxm", "engine": "trtllm", "precision": Precision("nvfp4", kv="fp8")},
            ("kernels_and_host", "other_engines"),
        ),
        ({"calibration": "h100-sxm-vllm"}, ("kernels",)),
        ({"calibration": "vllm.serving"}, ("sheet_and_runs",)),
        ({"calibration": "transferred"}, ("transferred",)),
        ({"calibration": "datasheet"}, ("datasheet",)),
        ({"hardware": WhatIf.of({"like": "h100-sxm", "memory_bandwidth": "4.8TB/s"})}, ("runs", "transferred")),
    ],
)
def test_the_cases_of_a_replica(asked, cases):
    found = of(**asked)
    assert (found.cases, found.unmeasured) == (cases, ())


@pytest.mark.parametrize(
    ("asked", "unmeasured"),
    [
        ({"model": "mixtral-8x7b", "parallel": Parallel(2, 1, 2), "precision": Precision("fp8")}, "expert parallelism"),
        ({"model": "mixtral-8x7b", "parallel": Parallel(2, data=2)}, "data-parallel attention"),
        ({"parallel": Parallel(1, 2)}, "pipeline ranks"),
        ({"hardware": "l40s", "parallel": Parallel(2)}, "tensor parallelism over pcie"),
        ({"parallel": Parallel(16), "model": "llama-3.1-405b"}, "several nodes"),
        ({"precision": Precision("int4")}, "int4 weights"),
        ({"precision": Precision(attention="int4")}, "int4 weights"),
        ({"precision": Precision(kv="int8")}, "int8 KV"),
        ({"model": "deepseek-v2-lite"}, "latent attention"),
        ({"hardware": "mi300x"}, "AMD GPUs"),
        ({"hardware": "cpu-grace"}, "NVIDIA CPUs"),
        ({"hardware": WhatIf.of({"like": "tpu-v6e", "memory_bandwidth": "4.8TB/s"})}, "Google TPUs"),
        ({"model": "e5-mistral-7b"}, "models that give no tokens"),
        ({"drafting": Drafting("ngram", 3)}, "speculative decoding"),
        ({"hardware": "b200-sxm", "attention_backend": "flashinfer"}, "attention_backend flashinfer"),
    ],
)
def test_what_no_measured_server_had(asked, unmeasured):
    assert of(**asked).unmeasured == (unmeasured,)


def test_a_first_token_is_no_surer_than_the_products_of_long_prompts():
    """Of a GB200 those in 16 bits above 1 ms are predicted a third too fast, and no server tells what becomes of it."""
    errors, others = load_errors(), load_errors().of(("other_devices",), "ttft_mean")
    long = load_calibration("gb200-vllm", "gb200").fit["errors"]["gemm"]["held_out, above 1 ms"]
    found = of(hardware="gb200")
    assert found.bands(errors)[0] == found.products == -long["bias"] / (1.0 + long["bias"]) > others
    assert found.text(errors).endswith(f"; its products above 1 ms are missed by {found.products:.0%}")
    assert found.bands(errors)[1:] == Basis(("other_devices",)).bands(errors)[1:]  # decodes read weights
    assert found.joined(of()).products == of().joined(found).products == found.products
    # Long products are met: nothing is said. Other kernels compute fp8. Servers of an H100 have them in their errors.
    for surer in ({"hardware": "gb300"}, {"hardware": "gb200", "precision": Precision("fp8")}):
        assert of(**surer).bands(errors)[0] == others and "products" not in of(**surer).text(errors)
    assert of(model="qwen3-8b").products == 0.0


def test_designs_with_adapters_or_split_contexts_are_others():
    """The errors of a user's own server are those of servers like it alone."""
    asked = {"model": "llama-3.1-70b", "parallel": Parallel(8)}
    plain, rank = served(**asked), {"rank": 16, "resident": 2}
    assert not {"lora", "decode_context_parallel"} & set(plain)  # as sets say it that were fitted before
    split = served(model="qwen3-235b-a22b", parallel=Parallel(8, context=2))
    assert split["decode_context_parallel"] == "2"
    few, more = (served(adapters=Adapters(**rank | change), **asked) for change in ({}, {"resident": 8}))
    assert plain != few != more and few["lora"] == "2 of rank 16, all modules"


def test_designs_with_other_kernels_are_others():
    asked = {"model": "qwen3-30b-a3b", "parallel": Parallel(data=4, expert=4)}
    gathered, exchanged = (
        served(**asked | {"parallel": Parallel(data=4, expert=4, exchange=exchange)})
        for exchange in ("gather", "deepep")
    )
    assert "expert_exchange" not in gathered  # as sets say it that were fitted before
    assert exchanged == {**gathered, "expert_exchange": "deepep"}
    halves = Parallel(data=4, expert=4, exchange="deepep", overlap=TwoBatches(32, 512))
    assert served(**asked | {"parallel": halves}) == {**exchanged, "two_batch_overlap": "True"}
    usual, other = (
        served_design(build(ReplicaSpec("llama-3.1-8b", "b200-sxm", "auto", attention_backend=backend)))
        for backend in ("auto", "flashinfer")
    )
    assert other == {**usual, "attention_backend": "flashinfer"}


def served(model, **more):
    return served_design(build(ReplicaSpec(model, "h100-sxm", "auto", **more)))


def test_fp8_weights_and_tensor_parallelism_were_measured():
    assert of(precision=Precision("fp8"), parallel=Parallel(8)).unmeasured == ()


def test_the_words_name_the_weakest_case_first_and_the_runs():
    errors = Errors({}, {"runs": 19, "datasheet": 28}, {"runs": 1, "datasheet": 3})
    both = Basis(("runs",)).joined(Basis(("datasheet", "runs")))
    assert both.cases == ("runs", "datasheet")
    assert both.text(errors) == (
        "a data sheet; error of 28 runs on 3 devices, and serving runs of this device and model; "
        "error of 19 runs on 1 device"
    )
    assert both.text(Errors({}, {})) == "a data sheet, and serving runs of this device and model"
    assert both.joined(Basis((), ("AMD GPUs", "fp8 KV"))).text(errors) == (
        "a data sheet, and serving runs of this device and model; no measured server had AMD GPUs, fp8 KV: "
        "the largest measured error"
    )


def test_sparse_and_compressed_attention_are_named_beside_latents():
    assert of("deepseek-v3.2").unmeasured == ("latent attention", "sparse attention")
    assert "attention on compressed contexts" in of("deepseek-v4-flash").unmeasured
    assert of("bge-reranker-v2-m3").unmeasured == ("fp32 weights", "models that give no tokens")


def test_a_device_of_a_users_own_file_rests_on_what_its_kind_does(tmp_path):
    """As the L4 of the catalog, under a name that is not there; without its maker nothing speaks for it."""
    text = find("hardware", "l4").read_text().replace("name: l4\n", "name: box\n")
    (tmp_path / "box.yaml").write_text(text)
    assert of(hardware=str(tmp_path / "box.yaml")) == Basis(("transferred",))
    (tmp_path / "box.yaml").unlink()
    (tmp_path / "none.yaml").write_text(text.replace("name: box", "name: none").replace("maker: NVIDIA\n", ""))
    assert of(hardware=str(tmp_path / "none.yaml")) == Basis(("datasheet",), ("unknown makers' GPUs",))


def test_a_set_keeps_what_it_rests_on_where_it_is_composed():
    assert load_calibration("auto", "b300-sxm", engine="trtllm").rests_on == "kernels_and_host"
    assert load_calibration("auto", "h100-sxm", engine="sglang").rests_on == "kernels_and_host"
    assert load_calibration("auto", "l40s", engine="trtllm").rests_on == "runs"  # of vLLM


@pytest.mark.parametrize(
    ("version", "asked", "cases"),
    [
        ("0.15", {}, ("runs",)),
        ("0.15.1", {}, ("runs",)),
        ("0.11", {}, ("runs", "other_releases")),
        (None, {}, ("runs", "other_releases")),  # the newest
        (None, {"calibration": "datasheet"}, ("datasheet",)),  # no server of any release
        (None, {"hardware": "gaudi3"}, ("datasheet",)),
        (None, {"hardware": "mi300x"}, ("transferred",)),  # no server of any release
        (None, {"parallel": Parallel(4, pipeline=2)}, ("other_layouts",)),  # has the largest error as it is
    ],
)
def test_servers_of_another_release_are_less_sure(version, asked, cases):
    built = build(ReplicaSpec(**({"model": "llama-3.1-8b", "hardware": "h100-sxm"} | asked)))
    assert of_release(design_basis(built), built, version).cases == cases


def test_another_release_is_off_by_more():
    errors = load_errors()
    same, other = Basis(("runs",)).bands(errors), Basis(("runs", "other_releases")).bands(errors)
    assert other[1] > 2 * same[1] and other[2] > 2 * same[2]
    assert other[0] == errors.of(("other_models",), "ttft_mean")  # which that campaign does not tell
    told = Basis(("runs", "other_releases")).text(errors)
    assert told.startswith(f"another release of the engine; error of {errors.runs['other_releases']} runs on 2 devices")


def test_layers_with_a_state_have_an_error_of_their_own():
    """By Nemotron and Qwen3.6 in 16 bits; in other dtypes, and of other recurrences, nothing was measured."""
    hybrid = of("qwen3.5-35b-a3b")
    assert hybrid == Basis(("other_models", "state_layers"))
    assert 0.1 < hybrid.bands(load_errors())[1] < load_errors().of(("runs",), "itl_mean", unmeasured=True)
    assert of("qwen3.5-35b-a3b", precision=Precision("fp8")).unmeasured == ("layers with a state",)
    assert of("qwen3.5-35b-a3b", parallel=Parallel(2, 1, 2)).cases == ("other_models", "spread_experts", "state_layers")


def test_an_estimate_of_a_large_batch_is_less_sure_and_says_why():
    few, more = (
        evaluator.estimate(
            "llama-3.1-8b", "h100-sxm", prompt_tokens=500, output_tokens=200, batch=batch, engine_version="0.15"
        )
        for batch in (8, 200)
    )
    assert more.model_error[1] > 2 * few.model_error[1]
    assert more.model_error_basis.endswith("; few of these servers had more than 160 requests at a time")
    assert "few of these servers" not in few.model_error_basis
    # Servers of another release had such loads, those of this device and model had not.
    newest = evaluator.estimate("llama-3.1-8b", "h100-sxm", prompt_tokens=500, output_tokens=200, batch=200)
    assert newest.model_error_basis.startswith("another release of the engine; error of 84 runs on 2 devices, and ")
    assert newest.model_error_basis.endswith("; few of these servers had more than 160 requests at a time")
    assert newest.model_error_basis.count("few of these servers") == 1
    unknown = Errors({"runs": {}}, {}, by_load={"runs": {"itl_mean": (np.nan, np.nan, np.nan)}})
    assert Basis(("runs",)).text(unknown, 1e3) == Basis(("runs",)).text(unknown)
    own = Basis(("runs",))
    assert own.text(Errors({"runs": {}}, {}), 1e3) == own.text(Errors({}, {}))  # a table that tells of no load


def swept(*changes):
    return evaluator.sweep(
        {
            "name": "errors",
            "deployment": {"model": "llama-3.1-8b", "hardware": "h100-sxm"},
            "workload": {
                "arrivals": {"process": "poisson", "rate_rps": 2.0},
                "lengths": {"source": "fixed", "prompt_tokens": 200, "output_tokens": 20},
                "requests": 60,
            },
            "sweep": {"deployment.calibration": ["auto", "datasheet"]},
            **dict(changes),
        }
    )


def test_every_row_of_a_sweep_says_it():
    ds = swept()
    assert ds["model_error_basis"].values[0].startswith("another release of the engine; error of ")
    assert ", and serving runs of this device and model; error of " in ds["model_error_basis"].values[0]
    assert ds["model_error_basis"].values[1].startswith("a data sheet; error of ")
    for name in ("ttft_s", "tpot_s", "itl_s", "e2e_s"):
        error = ds[f"{name}_model_error"]
        assert error.attrs["units"] == "1" and "68 % of measured values" in error.attrs["description"]
        assert 0.0 < error.values[0] < error.values[1]
    np.testing.assert_array_equal(ds["tpot_s_model_error"], ds["itl_s_model_error"])
    assert (ds["throughput_rps_model_error"] == 0.0).all()  # it keeps up with its arrivals
