"""Kernels of several serving engines: whose rows a fit takes, what is left out, and the sets in the catalog."""

from pathlib import Path

import pandas as pd
import pytest

from evaluator.calibrate import calibrate, kernels, read_tables
from evaluator.calibrate.devices import PROCESSORS, UNKNOWN
from evaluator.calibrate.errors import statistics
from evaluator.calibrate.run import _parameters, judge
from evaluator.calibrate.selection import select
from evaluator.calibrate.sources import aiconfigurator
from evaluator.calibrate.table import Table, checked
from evaluator.catalog import load_calibration, load_hardware
from evaluator.cost import rates
from evaluator.errors import InputError

HARDWARE = ("h100-sxm", "h200-sxm", "b200-sxm", "b300-sxm")
NAMES = {"trtllm": "TensorRT-LLM", "sglang": "SGLang"}
SETS = [(hardware, engine) for engine in NAMES for hardware in HARDWARE]


def table(*engines):
    rows = pd.DataFrame({"op_class": "gemm", "m": 64, "n": 512, "k": 512, "time_s": 1e-5, "engine": engines})
    return Table("t", "", "own", checked(rows.assign(hardware="h100-sxm"), "t"))


def test_one_engine_is_chosen_among_several():
    (part,), left = select([table("trtllm", "sglang", "sglang", "nccl", "any")], "h100-sxm", UNKNOWN, "sglang")
    assert part.rows["engine"].tolist() == ["sglang", "sglang", "nccl", "any"] and left == {"other engines": 1}
    (part,), left = select([table("vllm", "vllm", "nccl")], "h100-sxm", UNKNOWN)
    assert len(part.rows) == 3 and not left


def test_kernels_of_several_engines_are_not_averaged():
    with pytest.raises(InputError, match="kernels of sglang and trtllm on h100-sxm; choose one with --engine"):
        calibrate([table("trtllm", "sglang")], "h100-sxm", "x")
    with pytest.raises(InputError, match="no measurement of vllm on h100-sxm"):
        calibrate([table("trtllm")], "h100-sxm", "x", engine="vllm")


def test_the_command_takes_an_engine(evaluator, tmp_path):
    table("trtllm", "sglang").rows.to_csv(tmp_path / "mine.csv", index=False)
    asked = ("calibrate", tmp_path / "mine.csv", "--hardware", "h100-sxm", "--out", tmp_path / "x.yaml")
    code, _, told = evaluator(*asked)
    assert code == 2 and "choose one with --engine" in told


def test_products_in_four_bits_are_a_class():
    rows = pd.DataFrame({"op_class": "gemm", "m": 64, "n": 512, "k": 512, "time_s": 1e-5, "dtype": ["fp8", "nvfp4"]})
    parts, _ = select([Table("t", "", "own", checked(rows, "t"))], "b200-sxm", UNKNOWN)
    assert [part.label for part in parts] == ["gemm_4bit", "gemm_8bit"]


def test_a_library_lends_its_kernels_where_an_engine_has_none_of_its_own():
    """FlashInfer's kernels as SGLang calls them stand for vLLM's: in fp4, of which vLLM has no rows, not in bf16."""
    shape = {"op_class": "gemm", "m": 64, "n": 512, "k": 512, "time_s": 1e-5, "hardware": "b200-sxm"}
    rows = pd.DataFrame([
        shape | {"engine": "vllm"},
        shape | {"engine": "sglang", "library": "FlashInfer"},
        shape | {"engine": "sglang", "dtype": "nvfp4", "library": "FlashInfer"},
        shape | {"engine": "sglang", "dtype": "fp8"},
    ])  # fmt: skip
    parts, left = select([Table("t", "", "own", checked(rows, "t"))], "b200-sxm", UNKNOWN, "vllm")
    assert {part.label: part.rows["engine"].tolist() for part in parts} == {"gemm": ["vllm"], "gemm_4bit": ["sglang"]}
    assert left == {"other engines": 1, "kernels of libraries, of which the engine has its own": 1}


def test_products_of_deepgemm_stand_for_all_engines_that_call_it(data_folder):
    """fp8 with block scales of vLLM is DeepGEMM's: as SGLang was measured on Hopper, and TensorRT-LLM on Blackwell."""
    frame = pd.read_parquet(data_folder / "aic_engines_gemm.parquet", filters=[("dtype", "in", ["fp8", "fp8_block"])])
    rows = aiconfigurator.gemm(frame.groupby(["engine", "gpu", "dtype"], observed=True).head(20))
    blocks = rows[rows["dtype"] == "fp8_block"]
    there = {key: set(part["library"]) for key, part in blocks.groupby(["engine", "hardware"])}
    assert there == {
        ("sglang", "h100-sxm"): {"DeepGEMM"}, ("sglang", "h200-sxm"): {"DeepGEMM"},
        ("trtllm", "h100-sxm"): {""}, ("trtllm", "h200-sxm"): {""},
        ("trtllm", "b200-sxm"): {"DeepGEMM"}, ("trtllm", "b300-sxm"): {"DeepGEMM"},
    }  # fmt: skip
    fp8 = rows[(rows["dtype"] == "fp8") & (rows["engine"] == "trtllm")]  # its own, for no other engine
    assert len(fp8) == 80 and set(fp8["library"]) == {""}
    parts, _ = select([Table("t", "", "own", checked(rows, "t"))], "b200-sxm", UNKNOWN, "sglang")
    assert {part.label: set(part.rows["engine"]) for part in parts}["gemm_block"] == {"trtllm"}


def test_products_of_tensorrt_llm_are_without_the_search_for_a_scale():
    """What tiny products take longer than with block scales, and one more pass over the input."""
    call = {"gpu": "h200_sxm", "engine": "trtllm", "engine_version": "1", "kernel": "torch_flow"}
    calls = [
        ("fp8", 1, 512, 12.0),
        ("fp8_block", 1, 512, 4.0),
        ("fp8", 4096, 8192, 500.0),
        ("fp8_block", 4096, 8192, 550.0),
    ]
    frame = pd.DataFrame([call | {"dtype": dtype, "m": m, "n": size, "k": size, "latency_us": us}
                          for dtype, m, size, us in calls])  # fmt: skip
    bandwidth = load_hardware("h200-sxm").memory_bandwidth
    searched, blocks, long, long_blocks = aiconfigurator.gemm(frame)["time_s"]
    assert (blocks, long_blocks) == pytest.approx((4e-6, 550e-6))
    assert searched == pytest.approx(4e-6 - 2 * 512 / bandwidth)
    assert long == pytest.approx(492e-6 - 2 * 4096 * 8192 / bandwidth)
    # Another engine's calls have a scale, and a table without tiny calls tells of no search.
    assert set(aiconfigurator.gemm(frame.assign(engine="sglang"))["time_s"].round(9)) == {12e-6, 4e-6, 500e-6, 550e-6}
    assert aiconfigurator.gemm(frame[frame["m"] > 1])["time_s"].tolist() == pytest.approx([500e-6, 550e-6])


def test_experts_with_block_scales_are_a_class_where_kernels_differ():
    """TensorRT-LLM computes them with Triton on the chip for workstations; elsewhere they stand for all fp8."""
    call = {"engine": "trtllm", "engine_version": "1", "routing_distribution": "balanced", "num_tokens": 64,
            "moe_tp_size": 1, "moe_ep_size": 1, "num_experts": 8, "top_k": 2, "hidden_size": 4096,
            "intermediate_size": 14336}  # fmt: skip
    kernels_of = {"fp8": ("moe_torch_flow_cutlass", 976.0), "fp8_block": ("moe_torch_flow_triton_fp8_block", 1464.0)}
    frame = pd.DataFrame([call | {"gpu": gpu, "dtype": dtype, "kernel": kernel, "latency_us": us}
                          for gpu in ("rtx_pro_6000_server", "h200_sxm")
                          for dtype, (kernel, us) in kernels_of.items()])  # fmt: skip
    rows = checked(aiconfigurator.moe(frame), "t")
    labels = {(hardware, label): us for hardware, label, us in
              zip(rows["hardware"], kernels.classes(rows)[0], rows["time_s"] * 1e6, strict=True)}  # fmt: skip
    assert labels == pytest.approx({
        ("rtx-pro-6000-server", "grouped_gemm_8bit"): 976.0,
        ("rtx-pro-6000-server", "grouped_gemm_block"): 1464.0,
        ("h200-sxm", "grouped_gemm_8bit"): 1464.0,
    })  # fmt: skip
    workstation = load_calibration("rtx-pro-6000-server-trtllm", "rtx-pro-6000-server")
    assert (
        workstation.of("grouped_gemm_block").flops_efficiency
        < 0.3
        < workstation.of("grouped_gemm_8bit").flops_efficiency
    )
    data_centre = load_calibration("h200-sxm-trtllm", "h200-sxm")
    assert data_centre.of("grouped_gemm_block") is data_centre.of("grouped_gemm_8bit")


def test_weights_of_four_bits_under_wider_activations_are_a_class():
    shape = {"op_class": "grouped_gemm", "tokens": 8, "hidden": 512, "intermediate": 512, "top_k": 2, "experts": 8,
             "expert_parallel": 1, "time_s": 1e-4, "activations": "bf16"}  # fmt: skip
    rows = pd.DataFrame([shape | {"dtype": dtype} for dtype in ("int4", "mxfp4", "nvfp4", "fp8", "bf16")])
    parts, _ = select([Table("t", "", "own", checked(rows, "t"))], "b200-sxm", UNKNOWN)
    assert {part.label: len(part.rows) for part in parts} == {
        "grouped_gemm": 1, "grouped_gemm_4bit": 1, "grouped_gemm_8bit": 1, "grouped_gemm_mx4": 1,
        "grouped_gemm_w4": 1,
    }  # fmt: skip
    around = {part.label: kernels.routing_classes(part.rows) for part in parts}
    assert around["grouped_gemm_w4"] == ["expert_elementwise_w4"]
    assert around["grouped_gemm_mx4"] == ["expert_elementwise_mx4"]


def experts(**more):
    """Calls of 16-bit experts, whole and divided by expert parallelism; 8 x 1792 is tuned by SGLang on H100."""
    shape = {"op_class": "grouped_gemm", "tokens": 64, "hidden": 4096, "top_k": 2, "time_s": 1e-4, "engine": "sglang"}
    sizes = [(8, 1, 1792), (8, 1, 1808), (16, 2, 1792), (8, 2, 1792)]
    rows = [
        shape | {"hardware": "h100-sxm", "experts": all_, "expert_parallel": ranks, "intermediate": width} | more
        for all_, ranks, width in sizes
    ]
    return Table("t", "", "own", checked(pd.DataFrame(rows), "t"))


@pytest.mark.parametrize(
    ("more", "tuned"),
    [({}, 2), ({"engine": "trtllm"}, 0), ({"engine": "any"}, 0), ({"dtype": "fp8"}, 0), ({"dtype": "int4"}, 0)],
)
def test_experts_with_tuned_tiles_are_a_class(more, tuned):
    labels, _ = kernels.classes(experts(**more).rows)
    assert (labels == "grouped_gemm_tuned").tolist() == ([True, False, True, False] if tuned else [False] * 4)


def test_what_crowds_untuned_experts_is_fitted_where_tuned_ones_are_apart():
    told = {}
    for engine in ("sglang", "vllm", "trtllm"):  # of the last nobody lists which shapes are tuned
        parts, _ = select([experts(engine=engine)], "h100-sxm", PROCESSORS["h100-sxm"])
        rate = rates(load_hardware("h100-sxm"), load_calibration("datasheet", "h100-sxm"))
        found = {each.name for each in _parameters(parts, rate, PROCESSORS["h100-sxm"])}
        told[engine] = {name for name in found if name.endswith("crowded_bandwidth")}
    crowded = {"grouped_gemm.crowded_bandwidth"}
    assert told == {"sglang": crowded, "vllm": crowded, "trtllm": set()}


@pytest.mark.parametrize(("engine", "told"), [("trtllm", 1), ("sglang", 0), ("vllm", 0), ("any", 0)])
def test_copies_of_queries_are_fitted_where_an_engine_makes_them(engine, told):
    shape = {"op_class": "attention_prefill", "batch": 1, "past_tokens": 0, "heads": 32, "kv_heads": 8, "head_dim": 128}
    rows = pd.DataFrame([shape | {"new_tokens": tokens, "time_s": 1e-4, "engine": engine} for tokens in (256, 512)])
    parts, _ = select([Table("t", "", "own", checked(rows, "t"))], "h100-sxm", PROCESSORS["h100-sxm"])
    rate = rates(load_hardware("h100-sxm"), load_calibration("datasheet", "h100-sxm"))
    found = [each.name for each in _parameters(parts, rate, PROCESSORS["h100-sxm"])]
    assert [name for name in found if name.endswith("query_bytes")] == ["attention_prefill.query_bytes"] * told


def test_decodes_of_latents_in_the_cache_tell_of_starts_alone():
    """A call of 12 us on KV that memory gives in 0.1 us is all start; one that would read for 8 us is left out."""
    shape = {"op_class": "mla_decode", "heads": 16, "kv_rank": 512, "nope_dim": 128, "rope_dim": 64, "value_dim": 128}
    rows = pd.DataFrame([shape | {"batch": batch, "past_tokens": 1024, "time_s": 1.2e-5} for batch in (1, 64)])
    (part,), left = select([Table("t", "", "own", checked(rows, "t"))], "b200-sxm", PROCESSORS["b200-sxm"])
    assert part.rows["batch"].tolist() == [1.0] and sum(left.values()) == 1


SOURCES = {
    "aic_engines_gemm.parquet": {"gemm"},
    "aic_engines_context_attention.parquet": {"attention_prefill"},
    "aic_engines_generation_attention.parquet": {"attention_decode"},
    "aic_engines_moe.parquet": {"grouped_gemm"},
    "aic_engines_all_reduce.parquet": {"all_reduce"},
    "aic_mla.parquet": {"mla_prefill", "mla_decode"},
}


@pytest.mark.parametrize("name", SOURCES)
def test_known_sources(data_folder, name):
    (found,) = read_tables([data_folder / name])
    rows = found.rows
    assert set(rows["op_class"].unique()) == SOURCES[name] and set(rows["engine"].unique()) == {"trtllm", "sglang"}
    assert set(rows["hardware"].unique()) == set(HARDWARE)
    assert not rows["kernel"].isin(["triton", "flashinfer"]).any()
    generated = rows["kernel"] == "moe_torch_flow_min_latency"
    cutlass = rows["kernel"].str.startswith("moe_torch_flow") & ~generated
    assert not (cutlass & (rows["dtype"] == "nvfp4")).any() and set(rows.loc[generated, "dtype"].unique()) <= {"nvfp4"}
    if name == "aic_engines_gemm.parquet":
        assert not (rows["kernel"].isin(["torch_flow", "deepgemm"]) & (rows["engine"] == "sglang")).any()
        assert set(rows.loc[rows["engine"] == "trtllm", "dtype"]) == {"bf16", "fp8", "fp8_block", "nvfp4"}
    if name == "aic_mla.parquet":
        assert not ((rows["engine"] == "sglang") & (rows["hardware"] == "h100-sxm")
                    & (rows["op_class"] == "mla_prefill")).any()  # fmt: skip
        assert rows.loc[rows["op_class"] == "mla_decode", "past_tokens"].min() == 2


@pytest.mark.parametrize(("hardware", "engine"), SETS)
def test_a_set_tells_its_fit(hardware, engine):
    found = load_calibration(f"{hardware}-{engine}", hardware)
    assert (found.name, found.provenance, found.engine) == (f"{hardware}-{engine}", "calibrated", engine)
    errors = found.fit["errors"]
    blackwell = hardware.startswith("b")
    assert ("gemm_4bit" in found.efficiencies) == blackwell and "mla_decode" in found.efficiencies
    within = {
        "gemm": 0.07,
        "gemm_8bit": 0.085,
        "gemm_4bit": 0.08,
        "gemm_block": 0.11,
        "mla_decode": 0.065,
        "attention_prefill": 0.055 if engine == "trtllm" else 0.075,
        "attention_decode": 0.1,
        "grouped_gemm": 0.075,
        "grouped_gemm_tuned": 0.045,
    }
    for label, most in within.items():
        assert label not in errors or errors[label]["held_out"]["median"] <= most, label
    assert set(within) - {"gemm_4bit", "grouped_gemm_tuned"} <= set(errors)
    assert ("grouped_gemm_tuned" in errors) == (engine == "sglang" and not blackwell)
    # The starts of few sequences, which no long call tells of: half too long where only long calls were fitted.
    assert abs(errors["mla_decode"]["held_out, under 20 us"]["bias"]) <= 0.06


def test_the_table_of_errors_is_that_of_the_sets():
    """calibration/sets.md, medians and 90th percentiles of what was held out, in per cent."""
    text = (Path(__file__).resolve().parents[2] / "calibration" / "sets.md").read_text()
    for engine, name in NAMES.items():
        lines = text[text.index(f"| {name} | H100 |") :].split("\n\n")[0].splitlines()[2:]
        sets = [load_calibration(f"{hardware}-{engine}", hardware).fit["errors"] for hardware in HARDWARE]
        table = {cells[0]: cells[1:] for cells in ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines)}
        assert set(table) == {label for errors in sets for label in errors}
        for label, cells in table.items():
            for cell, errors in zip(cells, sets, strict=True):
                found = errors.get(label, {}).get("held_out")
                assert cell == (f"{100 * found['median']:.1f} % ({100 * found['p90']:.0f} %)" if found else "–"), label


def test_the_errors_of_latents_are_as_stated(data_folder):
    device, found = load_hardware("b200-sxm"), load_calibration("b200-sxm-trtllm", "b200-sxm")
    parts, _ = select(read_tables([data_folder / "aic_mla.parquet"]), "b200-sxm", PROCESSORS["b200-sxm"], "trtllm")
    for part in parts:
        judged = judge(part, rates(device, found), device)
        judged = judged[(judged["time_s"] >= 20e-6) & ~judged["fitted"]]
        stated = found.fit["errors"][part.label]["held_out"]["median"]
        assert statistics(judged)["median"] == pytest.approx(stated, abs=3e-3)
