"""Which calibration set serves an experiment."""

from dataclasses import replace

import pytest

from evaluator.catalog import load_calibration
from evaluator.catalog.calibration import HOST
from evaluator.catalog.served import with_host
from evaluator.compare.servers import calibration_for, server
from evaluator.errors import InputError
from evaluator.experiments import read_experiments
from evaluator.replica import design
from tests.campaign import entry, row


def test_the_best_set_is_chosen():
    assert calibration_for("auto", "h100-sxm").name == "h100-sxm-vllm.serving"
    assert calibration_for("auto", "tpu-v5e").name == "vllm.serving"
    assert calibration_for("datasheet", "h100-sxm").name == "datasheet"
    assert calibration_for("GPU-vllm.serving", "l40s").name == "l40s-vllm.serving"
    assert calibration_for("GPU-vllm.serving", "mi300x").name == "datasheet"


def test_a_set_of_other_hardware_is_refused():
    with pytest.raises(InputError, match="is of l40s, not of h100-sxm"):
        calibration_for("l40s-vllm.serving", "h100-sxm")


def test_kernels_take_the_host_of_serving_runs():
    serving = load_calibration("vllm.serving", "any")
    kernels = replace(load_calibration("datasheet", "any"), name="kernels")
    both = with_host(kernels, serving)
    assert both.efficiencies == {**kernels.efficiencies, "sort": serving.efficiencies["sort"]}
    assert all(getattr(both, name) == getattr(serving, name) for name in HOST)
    assert both.name == "kernels, host of vllm.serving"


def test_data_parallel_ranks_share_the_experts(campaign):
    more = {"data_parallel_size": 4, "enable_expert_parallel": True}
    experts, dense = read_experiments(
        *campaign([entry("a", "mistralai/Mixtral-8x7B-v0.1", tensor=2, **more), entry("b", **more)], [row("a", 0)])
    )
    ran = server(experts, "datasheet")
    assert (ran.deployment.data_parallel, ran.deployment.expert_parallel, ran.design.lockstep) == (4, 8, 4)
    assert ran.deployment.router == "least_outstanding"
    with pytest.raises(InputError, match=r"expert_parallel 4 on llama-3\.1-8b, which has no experts"):
        server(dense, "datasheet")
    apart = replace(dense, expert_parallel=False)
    assert (server(apart, "datasheet").deployment.ranks, server(apart, "datasheet").design.lockstep) == (4, 1)
    with pytest.raises(InputError, match=r"data_parallel_size 1000000 with outputs of .* takes more memory"):
        server(replace(apart, data_parallel=1_000_000), "datasheet")


def test_only_experts_warm_up(campaign):
    models = ("meta-llama/Llama-3.1-8B", "mistralai/Mixtral-8x7B-v0.1")
    found = read_experiments(*campaign([entry(model, model, tensor=2) for model in models], [row(models[0], 0)]))
    set_ = replace(load_calibration("datasheet", "any"), warm_up_s=2.0)
    assert [server(each, set_).replica.warm_up_s for each in found] == [0.0, 2.0]


def test_experts_may_be_dealt_out_whole(campaign):
    entries = [
        entry(name, "mistralai/Mixtral-8x7B-v0.1", tensor=2, enable_expert_parallel=name == "b") for name in "ab"
    ]
    cut, whole = read_experiments(*campaign(entries, [row("a", 0)]))
    assert server(cut, "datasheet").replica.pipeline_ranks[0].expert_rows.weight == pytest.approx(
        server(whole, "datasheet").replica.pipeline_ranks[0].expert_rows.weight
    )
    assert (cut.expert_parallel, whole.expert_parallel) == (False, True)


def test_a_set_that_no_hardware_has_is_refused():
    with pytest.raises(InputError, match="no hardware has a calibration set GPU-vlm; did you mean"):
        calibration_for("GPU-vlm", "h100-sxm")


def test_what_a_server_cannot_hold_runs_only_with_the_blocks_of_its_log(campaign):
    """What a log states is so, whatever our sum of the memory says."""
    large = {"model": "meta-llama/Llama-3.1-70B-Instruct"}
    told, unknown = read_experiments(
        *campaign([entry("a", **large, total_kv_blocks=1000), entry("b", **large)], [row("a", 0)])
    )
    assert server(told, "datasheet").replica.kv.capacity_units == 1000
    with pytest.raises(InputError, match=r"^does not fit: 141\.1 GB of weights"):
        server(unknown, "datasheet")


def test_a_server_is_a_deployment_of_a_scenario(campaign):
    chunks, whole = read_experiments(*campaign([entry("a"), entry("b", chunked_prefill=False)], [row("a", 0)]))
    first, second = server(chunks, "datasheet"), server(whole, "datasheet")
    assert (first.deployment.batching.policy, first.deployment.kv.admission) == ("chunked", "on_demand")
    assert (second.deployment.batching.policy, second.deployment.kv.admission) == ("mixed", "reserve")
    assert str(design(first.deployment, 100).ready) == str(first.replica)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, (1024, 8192)),
        ({"gpu": "A100-SXM-80GB"}, (256, 2048)),
        ({"max_num_batched_tokens": 512}, (512, 512)),
        ({"max_num_seqs": 64}, (64, 8192)),
        ({"chunked_prefill": False, "prefix_caching": False, "max_model_len": 20000}, (1024, 20000)),
    ],
    ids=["nothing", "on A100", "a budget", "sequences", "no chunks"],
)
def test_limits_that_nobody_says_are_those_of_the_engine_on_the_device(campaign, said, expected):
    given = {"max_num_seqs": None, "max_num_batched_tokens": None}
    (only,) = read_experiments(*campaign([entry("a") | given | said], [row("a", 0)]))
    spec = server(only, "datasheet").design.spec
    assert (spec.max_num_seqs, spec.max_num_batched_tokens) == expected
