"""Serving engines: which set auto takes for each, and what an engine does where nothing is said."""

from dataclasses import asdict, replace

import pytest

from evaluator.catalog import load_calibration, load_hardware
from evaluator.catalog.calibration import TUNED
from evaluator.catalog.engines import DEFAULT_ENGINE, ENGINES, serving_engine
from evaluator.catalog.served import as_served
from evaluator.errors import InputError

SETS = [(hardware, engine) for hardware in ("h100-sxm", "h200-sxm", "b200-sxm") for engine in ("trtllm", "sglang")]


@pytest.mark.parametrize(("hardware", "engine"), SETS)
def test_auto_takes_the_kernels_of_the_engine_served_as_by_vllm(hardware, engine):
    kernels = load_calibration(f"{hardware}-{engine}", hardware)
    isolated, serving = (load_calibration(f"{hardware}-vllm{end}", hardware) for end in ("", ".serving"))
    found = load_calibration("auto", hardware, engine=engine)
    assert found.name == f"{hardware}-{engine}, served as {hardware}-vllm.serving"
    assert (kernels.provenance, found.provenance) == ("calibrated", "extrapolated")
    assert (found.step_overhead_s, found.of("sort")) == (serving.step_overhead_s, serving.of("sort"))
    for name in ("kv_head_sequence_s", "launch_s", "flops_efficiency"):
        own, was, now = (getattr(each.of("attention_decode"), name) for each in (kernels, isolated, serving))
        assert getattr(found.of("attention_decode"), name) == pytest.approx(own * now / was)
    assert found.of("gemm").bandwidth_efficiency <= 1.0
    starts = [each.of("mla_decode").launch_s for each in (found, kernels, serving, isolated)]
    assert starts[0] / starts[1] == pytest.approx(starts[2] / starts[3]) != 1.0
    for name in set(kernels.efficiencies) - set(isolated.efficiencies) - {TUNED}:  # of which vLLM's runs say nothing
        assert found.of(name) == kernels.of(name)
    two = [each.of("all_reduce").among(2).launch_s for each in (found, kernels, serving, isolated)]
    assert two[0] / two[1] == pytest.approx(two[2] / two[3])


@pytest.mark.parametrize("hardware", ["h100-sxm", "h200-sxm"])
def test_tuned_experts_change_in_a_server_as_all_experts_do(hardware):
    kernels, isolated, serving = (
        load_calibration(f"{hardware}-{of}", hardware) for of in ("sglang", "vllm", "vllm.serving")
    )
    found = load_calibration("auto", hardware, engine="sglang")
    assert TUNED in kernels.efficiencies and TUNED not in isolated.efficiencies
    for name in ("bandwidth_efficiency", "launch_s"):
        own, now = (getattr(each.of(TUNED), name) for each in (kernels, found))
        before, after = (getattr(each.of("grouped_gemm"), name) for each in (isolated, serving))
        assert now == pytest.approx(own * after / before) != own


def test_vllm_served_as_vllm_is_its_own_serving_set():
    isolated, serving = (load_calibration(f"h100-sxm-vllm{end}", "h100-sxm") for end in ("", ".serving"))
    found = as_served(isolated, isolated, serving)
    for name, own in found.efficiencies.items():
        given, stated = asdict(own), asdict(serving.of(name))
        given.pop("devices"), stated.pop("devices")
        assert given == pytest.approx(stated), name
    assert found.link_efficiency == pytest.approx(serving.link_efficiency)


def test_a_device_without_serving_runs_is_served_as_its_nearest_relative():
    found, b200 = (load_calibration("auto", name, engine="sglang") for name in ("b300-sxm", "b200-sxm"))
    assert (found.name, found.provenance) == ("b300-sxm-sglang, served as b200-sxm-vllm.serving", "extrapolated")
    kernels = (load_calibration(f"{name}-sglang", name) for name in ("b300-sxm", "b200-sxm"))
    of_b300, of_b200 = (each.of("attention_decode").kv_head_sequence_s for each in kernels)
    served, served_b200 = (each.of("attention_decode").kv_head_sequence_s for each in (found, b200))
    assert served / of_b300 == pytest.approx(served_b200 / of_b200) != 1.0


@pytest.mark.parametrize(
    ("hardware", "engine"),
    [("b200-sxm", "trtllm"), ("b300-sxm", "sglang"), ("gb300", "vllm"), ("rtx-pro-6000-server", "vllm")],
)
def test_what_the_longest_context_costs_is_of_servers_and_of_an_architecture(hardware, engine):
    """Kernels are called with equal contexts; where they tell of unequal ones (RTX PRO 6000 Server) they keep it."""
    serving = load_calibration("auto", "b200-sxm").of("attention_decode")
    kernels, found = (load_calibration(name, hardware, engine=engine) for name in (f"{hardware}-{engine}", "auto"))
    own, found = kernels.of("attention_decode"), found.of("attention_decode")
    expected = own if own.beside_walk_s else serving
    for name in ("beside_walk_s", "beside_resident", "late_beyond"):
        assert getattr(found, name) == getattr(expected, name)
    assert found.unequal == 2.1 and (own.beside_walk_s > 0) == (hardware == "rtx-pro-6000-server")


def test_all_reduces_of_a_server_are_those_of_its_relatives_too():
    gb200, b200, served = (load_calibration(name, device).of("all_reduce").devices[4].half_bytes for name, device in (
        ("gb200-vllm", "gb200"), ("b200-sxm-vllm", "b200-sxm"), ("b200-sxm-vllm.serving", "b200-sxm")
    ))  # fmt: skip
    found = load_calibration("auto", "gb200").of("all_reduce").devices[4].half_bytes
    assert found == pytest.approx(gb200 * served / b200) and served > 5 * b200


@pytest.mark.parametrize("engine", ["trtllm", "sglang"])
def test_an_engine_without_kernels_on_a_device_has_those_of_vllm(engine):
    own, found = load_calibration("auto", "l40s"), load_calibration("auto", "l40s", engine=engine)
    assert (found.name, found.provenance) == (f"l40s-vllm.serving, for {engine}", "extrapolated")
    assert found.efficiencies == own.efficiencies
    assert load_calibration("auto", "gaudi3", engine=engine) is load_calibration("datasheet", "gaudi3")


def test_the_default_engine_is_as_if_none_were_named():
    for hardware in ("h100-sxm", "l40s", "gaudi3"):
        assert load_calibration("auto", hardware, engine=DEFAULT_ENGINE) is load_calibration("auto", hardware)


def test_serving_runs_of_an_engine_come_first(tmp_path, monkeypatch):
    (tmp_path / "calibration").mkdir()
    text = (load_text("h100-sxm-vllm.serving")).replace("h100-sxm-vllm.serving", "h100-sxm-trtllm.serving", 1)
    (tmp_path / "calibration" / "h100-sxm-trtllm.serving.yaml").write_text(text)
    monkeypatch.setenv("EVALUATOR_PATH", str(tmp_path))
    assert load_calibration("auto", "h100-sxm", engine="trtllm").name == "h100-sxm-trtllm.serving"


def load_text(name):
    from evaluator.catalog.store import find

    return find("calibrations", name).read_text()


def test_an_unknown_engine_is_refused():
    with pytest.raises(InputError, match="no serving engine 'tgi'; the engines are vllm, trtllm, sglang"):
        load_calibration("auto", "h100-sxm", engine="tgi")
    with pytest.raises(InputError, match="no serving engine"):
        serving_engine("tgi")


def test_defaults_of_the_engines():
    vllm, trtllm, sglang = (engine.defaults(load_hardware("h100-sxm"), 1, 1) for engine in ENGINES.values())
    assert (vllm.policy, vllm.max_num_seqs, vllm.max_num_batched_tokens) == ("chunked", 1024, 8192)
    assert (trtllm.policy, trtllm.max_num_seqs, trtllm.max_num_batched_tokens) == ("mixed", 2048, 8192)
    assert (sglang.policy, sglang.max_num_seqs, sglang.max_num_batched_tokens) == ("token_ratio", 2048, 8192)
    assert (vllm.memory_fraction, trtllm.memory_fraction) == (0.92, 0.9)
    # 512 MiB, 1.5 MiB per token of a chunk, 2 MiB per CUDA graph and 128 MiB of 80 GiB stay outside.
    assert sglang.memory_fraction == round(1 - (512 + 1.5 * 8192 + 2 * 256 + 128) / (80 * 1024), 3)
    assert [engine.memory_of for engine in ENGINES.values()] == ["device", "free", "static"]


def with_memory(gib):
    return replace(load_hardware("h100-sxm"), memory_bytes=gib * 2.0**30)


@pytest.mark.parametrize(
    ("name", "limits"),
    [
        ("l40s", (256, 2048)),
        ("a100-sxm", (256, 2048)),
        ("h100-sxm", (1024, 8192)),
        ("rtx-pro-6000", (1024, 8192)),
        ("mi300x", (1024, 16384)),
        ("b200-sxm", (1024, 16384)),
        ("tpu-v5e", (256, 512)),
        ("tpu-v6e", (256, 1024)),
        ("tpu-ironwood", (256, 2048)),
        ("cpu-grace", (256, 4096)),
    ],
)
def test_vllm_has_larger_batches_on_large_gpus_but_a100(name, limits):
    found = ENGINES["vllm"].defaults(load_hardware(name), 8, 4)
    assert (found.max_num_seqs, found.max_num_batched_tokens) == limits


def test_vllm_has_few_tokens_on_a_v5p():
    v5p = replace(load_hardware("tpu-v5e"), name="tpu-v5p", memory_bytes=95e9)
    found = ENGINES["vllm"].defaults(v5p, 8, 1)
    assert (found.max_num_seqs, found.max_num_batched_tokens) == (256, 256)


def test_a_budget_that_is_said_bounds_the_sequences_that_are_not():
    vllm = ENGINES["vllm"].defaults(load_hardware("h100-sxm"), 1, 1)
    assert vllm.within(None, 4) == vllm.within(8192, 4) == vllm
    assert [vllm.within(512, tokens).max_num_seqs for tokens in (1, 4, 1024)] == [512, 128, 1]


def test_sglang_chooses_by_the_memory_and_the_number_of_devices():
    sglang = ENGINES["sglang"]
    chunks = [sglang.defaults(with_memory(gib), 1, 1).max_num_batched_tokens for gib in (24, 48, 80, 141, 180)]
    assert chunks == [2048, 4096, 8192, 8192, 16384]
    fractions = [sglang.defaults(with_memory(80), devices, 1).memory_fraction for devices in (1, 2, 4, 8)]
    assert fractions == sorted(fractions, reverse=True)
    ranks = sglang.defaults(with_memory(141), 8, 8)  # 3 MiB per graph and rank, and half as much again above 300 graphs
    reserved = 512 + 1.5 * 8192 + 2 * 512 + 1024 + 512 * 8 * 4.5
    assert (ranks.max_num_batched_tokens, ranks.memory_fraction) == (1024, round(1 - reserved / (141 * 1024), 3))
