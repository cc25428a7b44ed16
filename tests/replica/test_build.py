"""One builder: the same replica whoever asks for it, and why there is none where there is none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evaluator.calibrate.whole import document, fit_iterations, written
from evaluator.catalog import load_calibration, load_hardware, load_model
from evaluator.compare.servers import server
from evaluator.cost.parallel import Parallel
from evaluator.cost.precision import Precision
from evaluator.errors import InputError
from evaluator.estimation import estimate
from evaluator.experiments import Experiment
from evaluator.replica import Change, ReplicaSpec, RunnableReplica, build, design, passage, replica_spec, varied
from evaluator.scenario import Batching, Deployment, KvCache
from tests.calibrate.test_whole import iterations, roofline, timed
from tests.cost.fixtures import H100, LLAMA_8B, LLAMA_70B, calibration

SMALL = ReplicaSpec(LLAMA_8B, H100, calibration())
DEPLOYMENT = Deployment("llama-3.1-8b", "h100-sxm", tensor_parallel=2, batching=Batching("chunked", 128, 2048))


def numbers(replica: RunnableReplica) -> str:
    """All that it takes and holds."""
    return str((replica.pipeline_ranks, replica.ideals, replica.kv, replica.weight_bytes, replica.warm_up_s))


def test_names_stand_for_what_the_catalog_has():
    by_name = build(ReplicaSpec("llama-3.1-8b", "h100-sxm", "datasheet"))
    model, hardware = load_model("llama-3.1-8b"), load_hardware("h100-sxm")
    by_object = build(ReplicaSpec(model, hardware, load_calibration("datasheet", "h100-sxm")))
    assert (by_name.model, by_name.hardware, by_name.status) == (model, hardware, "ok")
    assert numbers(by_name.ready) == numbers(by_object.ready) and by_name.memory == by_object.memory
    with pytest.raises(InputError, match=r"unknown model 'llama-3\.1-9b'; did you mean"):
        build(ReplicaSpec("llama-3.1-9b", "h100-sxm"))


def test_plan_estimate_and_comparison_have_the_same_replica():
    planned = design(DEPLOYMENT, 100)
    limits = {"tensor_parallel": 2, "max_num_seqs": 128, "max_num_batched_tokens": 2048}
    ran = server(Experiment("a", "a", "meta-llama/Llama-3.1-8B", "H100-SXM-80GB", **limits), "auto")
    assert numbers(ran.replica) == numbers(planned.ready)
    known = estimate("llama-3.1-8b", "h100-sxm", prompt_tokens=100, output_tokens=10, tensor_parallel=2,
                     engine_version="0.15", max_num_seqs=128, max_num_batched_tokens=2048)  # fmt: skip
    assert known.memory == planned.memory
    assert str(passage(planned).cost) == str(planned.ready.cost)


def test_deployments_with_the_same_replica_share_their_design():
    first = design(DEPLOYMENT, 100)
    assert design(replace(DEPLOYMENT, replicas=4, router="random"), 2000) is first
    assert design(replace(DEPLOYMENT, kv=KvCache(block_tokens=32)), 100) is not first
    assert replica_spec(DEPLOYMENT, 100) == first.spec and hash(first.spec) == hash(replica_spec(DEPLOYMENT, 100))


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"model": LLAMA_70B}, "infeasible: does not fit: 141.1 GB of weights per device exceed"),
        ({"calibration": "l40s-vllm"}, "unsupported: calibration l40s-vllm is of l40s, not of h100; use auto"),
    ],
)
def test_what_cannot_run_has_a_status(changes, status):
    built = build(replace(SMALL, **changes))
    assert built.status.startswith(status) and built.replica is None
    assert built.problem is not None and built.status == f"{built.problem.kind}: {built.reason}"
    with pytest.raises(AssertionError, match="no replica: "):
        _ = built.ready


def test_a_model_too_large_has_times_but_no_replica():
    large = build(replace(SMALL, model=LLAMA_70B))
    assert large.memory is not None and large.memory.kv.capacity_units == 0
    spacious = build(replace(SMALL, model=LLAMA_70B, hardware=replace(H100, memory_bytes=1e12)))
    assert str(passage(large).cost) == str(spacious.ready.cost)


def test_a_split_that_cannot_be_has_no_times():
    three = build(replace(SMALL, parallel=replace(SMALL.parallel, tensor=3)))
    assert three.status == "infeasible: tensor_parallel 3 does not divide the 32 attention heads of llama-8b"
    assert three.memory is None
    with pytest.raises(AssertionError, match="no times: infeasible"):
        passage(three)


def test_stated_blocks_are_the_capacity_and_the_memory_is_no_question():
    known, stated = build(SMALL), build(replace(SMALL, kv_blocks=77))
    assert stated.ready.kv == replace(known.ready.kv, capacity_units=77)
    assert build(replace(SMALL, model=LLAMA_70B, kv_blocks=77)).status == "ok"


def test_only_experts_warm_up():
    slow = replace(load_calibration("datasheet", "any"), warm_up_s=2.0)
    warm = [build(ReplicaSpec(name, "b200-sxm", slow)).ready.warm_up_s for name in ("llama-3.1-8b", "gpt-oss-20b")]
    assert warm == [0.0, 2.0]


def test_every_pipeline_rank_pays_its_host():
    built = build(replace(SMALL, parallel=replace(SMALL.parallel, pipeline=2)))
    assert len(built.ready.pipeline_ranks) == 2 and built.devices == 2
    assert passage(built).calibration.step_overhead_s == 2 * built.calibration.step_overhead_s
    assert passage(built).calibration.sequence_overhead_s == 2 * built.calibration.sequence_overhead_s


def test_a_change_is_of_times_alone():
    built = design(DEPLOYMENT, 100)
    slower = varied(built, Change("memory_bandwidth", 0.5))
    assert slower is varied(built, Change("memory_bandwidth", 0.5))
    assert slower.change == Change("memory_bandwidth", 0.5) and built.change is None
    assert slower.hardware.memory_bandwidth == built.hardware.memory_bandwidth / 2
    assert slower.ready.kv == built.ready.kv and slower.memory == built.memory
    assert slower.ready.memory.token_s == 2 * built.ready.memory.token_s
    assert str(build(replace(built.spec, change=slower.change)).ready) == str(slower.ready)


def test_a_cost_that_is_not_known_is_no_replica(tmp_path):
    fitted = fit_iterations([timed(iterations(False), roofline())], "h100-sxm", "table", "table")
    (tmp_path / "table.yaml").write_text(written(document(fitted)))
    spec = ReplicaSpec("llama-3.1-8b", "h100-sxm", str(tmp_path / "table.yaml"))
    assert build(spec).ready.fit is not None
    assert build(replace(spec, model="llama-2-7b")).status.startswith("unsupported: calibration table was fitted to")


EAGER = ReplicaSpec("codellama-34b", "ascend-910b3", "ascend-910b3-bestserve", parallel=Parallel(4))
UNFUSED = "unsupported: calibration ascend-910b3-bestserve: the eager operator set knows "


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({}, "ok"),
        ({"precision": Precision("fp16", "fp16", "fp16")}, "ok"),
        ({"model": "mixtral-8x7b"}, UNFUSED + "gated dense feed-forwards; mixtral-8x7b has another"),
        ({"precision": Precision(kv="fp8")}, UNFUSED + "16-bit numbers, not kv in fp8; use bf16"),
        ({"precision": Precision("int8")}, UNFUSED + "16-bit numbers, not weights in int8; use bf16"),
        (
            {"parallel": Parallel(4, 2)},
            UNFUSED + "tensor_parallel alone; use neither pipeline_parallel nor expert_parallel",
        ),
    ],
)
def test_what_the_operators_of_a_set_cannot_be(change, status):
    assert build(replace(EAGER, **change)).status == status


@pytest.mark.parametrize(("engine", "provenance"), [("trtllm", "calibrated"), ("sglang", "extrapolated")])
def test_a_set_of_another_engine_is_extrapolated(engine, provenance):
    assert build(ReplicaSpec("llama-3.1-8b", "h100-sxm", "h100-sxm-trtllm", engine=engine)).provenance == provenance


def test_an_engine_runs_where_there_is_one():
    problem = build(ReplicaSpec("llama-3.1-8b", "mi300x", "auto", engine="trtllm")).problem
    assert problem is not None
    assert problem.reason == ("TensorRT-LLM runs on GPUs of NVIDIA alone, not on mi300x; use engine: vllm, sglang")
    assert build(ReplicaSpec("llama-3.1-8b", "mi300x", "auto", engine="sglang")).problem is None


@pytest.mark.parametrize("engine", ["vllm", "trtllm", "sglang"])
def test_engines_that_load_whole_blocks_alone_refuse_a_split_that_cuts_one(engine):
    found = build(ReplicaSpec("deepseek-v3", "b200-sxm", "datasheet", engine=engine, parallel=Parallel(32)))
    refused = "infeasible: 32 devices share the 18,432 inputs of feed_forward.down of deepseek-v3, and 576 each are no "
    assert found.status.startswith(refused) == (engine != "trtllm")
    assert (found.status == "ok") == (engine == "trtllm")


@pytest.mark.parametrize("engine", ["vllm", "trtllm", "sglang"])
def test_no_more_than_a_device_has_is_usable(engine):
    """TensorRT-LLM's fraction is of what weights and activations leave, which is less than nothing here."""
    found = build(ReplicaSpec("llama-3.1-70b", "h100-sxm", "auto", engine=engine))
    assert found.memory.usable_bytes <= 80 * 2**30
    assert "141.1 GB of weights per device exceed the" in found.problem.reason
    assert "remedy: tensor_parallel >= 2" in found.problem.reason


def test_rows_that_fill_experts_up_are_executed_and_not_asked_for():
    """DeepGEMM's, which vLLM 0.11.1 runs on Hopper and 0.15 does not: 127 rows for each of the 32 experts held."""
    fp8, split = Precision("fp8_block"), Parallel(4, expert=4)
    filling, plain = (
        build(ReplicaSpec("qwen3-235b-a22b", "h100-sxm", precision=fp8, parallel=split, engine_version=release)).ready
        for release in ("0.11.1", "0.15")
    )
    assert filling.ideals[:2] == plain.ideals[:2]
    assert plain.ideals.executed_compute is plain.ideals.compute
    every = 94 * 32 * 127 * 3 * 2 * 4096 * 1536  # FLOPs in an iteration: layers, experts, rows, matrices
    executed = filling.ideals.executed_compute
    assert executed.iteration_s == pytest.approx(every / filling.hardware.peak_flops["fp8"], rel=1e-12)
    assert executed.token_s > filling.compute.token_s  # with room for the visits of other devices' experts
    assert filling.ideals.executed_memory.iteration_s > filling.memory.iteration_s
